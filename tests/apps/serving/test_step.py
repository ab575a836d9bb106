"""A step of decoding: one worked out by hand, a published bound, limits, derivatives, and memory."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.apps.serving import deployment, family
from mfabric_jax.apps.serving.deployment import StepInputs
from mfabric_jax.apps.serving.expert_load import place_experts
from mfabric_jax.apps.serving.group import Crossing
from mfabric_jax.apps.serving.layer_parts import ServedModel, formats_of
from mfabric_jax.apps.serving.step import LayerSeconds, Wires, step_seconds
from mfabric_jax.case import Case
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.measured_kernels import measured_kernels
from tests.apps.serving.drawn import UNMEASURED

pytestmark = pytest.mark.usefixtures("as_users_have_it")


def deployed(**settings):
    said = {
        "model.name": "deepseek-v3",
        "network.fabric": "fat-tree",
        "gpu.name": UNMEASURED,
        "network.nic_gbps": 400.0,
    }
    said |= {"serving.ep": 32, "serving.batch": 128.0, "serving.context": 4096.0}
    return deployment(Case().with_(said | {name.replace("__", "."): value for name, value in settings.items()}))


# ------------------------------------------------------------------------------------------------------------- by hand
# Kernels of this GPU were not measured, so they are estimated: of 1,978.9 and 989.4 TFLOP/s products achieve 65 % in
# FP8, grouped ones 62 %, bf16 ones 70 %, scores of latents 50 %; 80 % of 3,350 GB/s; 1.3 us a launch. Two micro-batches
# of 128 requests, 4,096 tokens each.
FP8, GROUPED, BF16, SCORES = 0.65 * 1978.9e12, 0.62 * 1978.9e12, 0.70 * 989.4e12, 0.5 * 989.4e12
LAUNCH, TOKENS, MEMORY = 1.3e-6, 128, 0.80 * 3350e9


def product(inner, outer, *, fp8=True):
    """128 rows: weights, activations and bf16 results, which take longer than FLOPs; before FP8, a cast of 3 bytes."""
    size = 1 if fp8 else 2
    seconds = (size * inner * (outer + TOKENS) + 2 * TOKENS * outer) / MEMORY
    assert seconds > 1.1 * 2 * TOKENS * inner * outer / (FP8 if fp8 else BF16)
    return LAUNCH + seconds + 3 * fp8 * TOKENS * inner / MEMORY


def small(count, elements):
    return count * LAUNCH + 2 * TOKENS * elements / MEMORY


def ffn(width):
    return product(7168, 2 * width) + product(width, 7168) + small(1, 3 * width)


def test_a_step_of_deepseek_by_hand():
    attention = (
        product(7168, 1536 + 512 + 64)  # to latents of queries, keys and values
        + product(1536, 128 * 192)  # up: 37.7 MB
        + product(128, 128 * 512, fp8=False)  # absorbed into queries and output: 16.8 MB each
        + product(512, 128 * 128, fp8=False)
        + product(128 * 128, 7168)  # out: 117.4 MB
        # every head over 4,096 latents: 576 products for the score, 512 for the sum, 146 GFLOP; reading takes 212 us
        + max(128 * 4096 * 128 * 2 * (576 + 512) / SCORES, 128 * 4096 * 576 * 2 / MEMORY)
        + LAUNCH
    )
    # 8 experts a GPU, 128 x 32 x 8 / 256 = 128 tokens each, so 1,024 rows; weights of 8 x 44 million parameters
    flops, read = 2 * 1024 * 3 * 7168 * 2048 / GROUPED, 8 * 3 * 7168 * 2048 / MEMORY
    experts = 4 * LAUNCH + math.hypot(flops, read) + 1024 * (2 * 7168 + 3 * 2048) * 2 / MEMORY
    norms, moe = small(2, 10 * 7168), 3 * LAUNCH
    router, shared, dense = product(7168, 256, fp8=False), ffn(2048), ffn(18432)
    head = product(7168, 129280, fp8=False)
    # 8 copies, of which 24 of 32 GPUs are in other servers: 6 over a NIC at 94.6 % of 50 GB/s and 31.6 ns a message.
    # FP8: 7,168 bytes, 56 scales of 4, a header of 16. The 7 of 32 GPUs beside it get 1.75 copies over NVLink.
    dispatch = 6e-6 + max(
        128 * 6 * ((7168 + 224 + 16) / (0.946 * 50e9) + 31.6e-9), 128 * 1.75 * (7408 / (0.8 * 200e9) + 33e-9)
    )
    combine = 6e-6 + 128 * 6 * (14336 / (0.946 * 50e9) + 31.6e-9)

    found = deployed().decoding(deployed().numbers)
    step = found.step
    assert float(step.attention_s) == pytest.approx(attention, rel=1e-3)  # knees are not quite sharp
    assert float(step.experts_s) == pytest.approx(experts, rel=1e-9)  # a weight is missed once in 10^56 steps
    assert float(step.beside_s) == pytest.approx(norms + moe + router + shared, rel=1e-3)
    assert float(step.dispatch_s) == pytest.approx(dispatch, rel=1e-12)
    assert float(step.combine_s) == pytest.approx(combine, rel=1e-12)
    assert float(step.head_s) == pytest.approx(head, rel=1e-2)
    assert float(step.latency_s) == pytest.approx(12e-6, rel=1e-12)
    c, x = attention + experts + norms + moe + router + shared, dispatch + combine
    assert c > x
    whole = 58 * 2 * c + 3 * 2 * (attention + norms + dense) + 2 * head  # computation hides all communication
    assert float(found.tpot_s) == pytest.approx(whole, rel=1e-3)
    assert float(found.overlapped_s) == float(found.tpot_s) < float(found.serial_s)
    assert float(step.exposed_s) == pytest.approx(0, abs=1e-15)
    both = deployed(serving__batch=256.0, serving__overlap=False)
    assert float(found.serial_s) == pytest.approx(float(both.decoding(both.numbers).tpot_s), rel=1e-14)
    assert float(found.tokens_per_s) == pytest.approx(256 / whole, rel=1e-3)


def test_drafts_read_every_requests_cache():
    """Each request drafts one token and checks two: a draft is a layer, a head and a product of 14336 x 7168 in FP8 for
    128 tokens of 128 requests, and 0.6 of the drafts are kept."""
    with_drafts = deployed(serving__drafts__tokens=1, serving__drafts__accepted=0.6)
    found = with_drafts.decoding(with_drafts.numbers)
    assert float(found.requests) == 128  # 2 x 128 tokens, two of each request
    plain = deployed(serving__batch=64.0)  # 128 requests, one token each
    one = plain.decoding(plain.numbers, "usual")
    serial = deployed(serving__overlap=False)  # a micro-batch of 128 tokens of 128 requests: the draft
    draft = serial.decoding(serial.numbers).step
    layer = sum(
        float(getattr(draft, f"{part}_s")) for part in ("attention", "experts", "beside", "dispatch", "combine")
    )
    extra = layer + float(draft.head_s) + product(2 * 7168, 7168)
    assert float(found.tpot_s) == pytest.approx((float(found.step.step_s) + extra) / 1.6, rel=1e-6)
    assert float(found.serial_s) == pytest.approx((float(found.step.serial_s) + extra) / 1.6, rel=1e-6)
    assert float(one.requests) == float(found.requests)


def test_the_bound_of_deepseeks_authors():
    """arXiv 2505.09343: 32 tokens to 9 experts, 1 byte there and 2 back of 7,000 elements, at 50 GB/s: 120.96 us; 61
    layers of two micro-batches 14.76 ms, 67 tokens a second; at 900 GB/s 0.82 ms."""
    facts = get_model("deepseek-v3", {"dense_blocks": 0}).architecture
    formats = formats_of("fp8", get_gpu("H800-SXM"))
    model = ServedModel(facts, measured_kernels(get_gpu("H800-SXM")), formats, place_experts(facts, 256, 1, None))

    def step_s(rate):
        wires = Wires(family("ideal"), Crossing(9.0, 0.0), 256, True, 7000.0, 14000.0, rate, np.inf)
        sent = [wires.call_s(32.0, combine=way) for way in (False, True)]
        alone = LayerSeconds(0.0, 0.0, 0.0, *sent, 0.0, 0.0)
        return sum(sent), step_seconds(model, wires, alone, alone, 0.0, overlap=True).step_s

    call, step = step_s(50e9)
    assert call == pytest.approx(120.96e-6, rel=1e-12)
    assert step == pytest.approx(2 * 61 * 120.96e-6, rel=1e-12)
    assert round(1e3 * step, 2) == 14.76
    assert round(1 / step) == 68  # they print 67
    assert round(1e3 * step_s(900e9)[1], 2) == 0.82


# -------------------------------------------------------------------------------------------------------------- limits
def tpot(case, **numbers):
    return float(case.decoding(case.numbers._replace(**numbers)).tpot_s)


def test_without_limits_of_bandwidth_a_step_is_its_computation():
    ideal = deployed(serving__kernels="ideal")
    pool = dataclasses.replace(ideal.decode, crossing=Crossing(ideal.decode.crossing.between, 0.0))
    ideal = dataclasses.replace(ideal, decode=pool)
    found = ideal.decoding(ideal.numbers._replace(nic_gbps=1e12))
    assert float(found.step.dispatch_s) < 1e-11
    assert float(found.step.exposed_s) == pytest.approx(0, abs=1e-9)


def test_one_gpu_sends_nothing():
    alone = deployed(serving__ep=1, model__experts=8, model__expert_groups=1, model__top_groups=1)
    step = alone.decoding(alone.numbers).step
    assert float(step.dispatch_s) == float(step.combine_s) == float(step.latency_s) == 0
    assert tpot(alone, nic_gbps=1.0) == tpot(alone, nic_gbps=400.0)
    prefill = alone.prefilling(400.0)
    assert float(prefill.exposed_s) == 0


def test_one_token_takes_weights_and_latency():
    """The weights of its 8 experts' GPUs at the least, and two calls a layer."""
    single = deployed(serving__batch=1.0, serving__overlap=False)
    step = single.decoding(single.numbers).step
    assert float(step.dispatch_s) < 8e-6
    # 32 tokens of the group: an expert is taken by one of them with 1 - (1 - 8/256)^32 = 63.8 %
    active = 8 * (1 - (1 - 8 / 256) ** 32)
    rows, expert = 8.0, 3 * 7168 * 2048
    busy = math.hypot(active * expert / MEMORY, 2 * rows * expert / GROUPED) + rows * 2 * 20480 / MEMORY
    assert float(step.experts_s) == pytest.approx(busy + 4 * LAUNCH, rel=1e-12)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("field", "grows"), [("nic_gbps", False), ("batch", True), ("context", True), ("host_s", True)]
)
def test_more_bandwidth_never_slows_and_more_work_never_speeds_up(field, grows, overlap):
    case = deployed(serving__overlap=overlap, serving__drafts__tokens=1, serving__drafts__accepted=0.5)
    values = np.geomspace(1e-4, 1e-2, 9) if field == "host_s" else np.geomspace(4, 4096, 30)
    times = case.decoding(case.numbers._replace(**{field: values}))
    for seconds in (times.tpot_s, times.overlapped_s, times.serial_s):
        ahead = np.diff(np.asarray(seconds))
        assert (ahead >= -1e-15).all() if grows else (ahead <= 1e-15).all()
        assert np.ptp(np.asarray(seconds)) > 0


def test_fast_kernels_and_hidden_calls_are_the_lower_end():
    case = deployed()
    for ends in (
        [float(case.decoding(case.numbers, how).overlapped_s) for how in ("fast", "usual", "slow")],
        [float(case.decoding(case.numbers, how).serial_s) for how in ("fast", "usual", "slow")],
        [float(case.prefilling(400.0, how).overlapped_s) for how in ("fast", "usual", "slow")],
        [float(case.prefilling(400.0, how).serial_s) for how in ("fast", "usual", "slow")],
    ):
        assert ends == sorted(ends)
        assert ends[0] < ends[2]


# --------------------------------------------------------------------------------------------- arrays and derivatives
def test_arrays_are_steps_side_by_side():
    case = deployed(serving__drafts__tokens=1)
    batch, context, rate = (
        np.array([1.0, 64.0, 300.0]),
        np.array([100.0, 4096.0, 65536.0]),
        np.array([100.0, 400.0, 800.0]),
    )
    numbers = StepInputs(batch[:, None], context[None], rate[None, ::-1], 0.5, 0.0)
    together = case.decoding(numbers)
    traced = jax.jit(lambda numbers: case.decoding(numbers).tpot_s)(jax.tree.map(jnp.asarray, numbers))
    assert together.tpot_s.shape == traced.shape == (3, 3)
    for i, j in itertools.product(range(3), range(3)):
        alone = case.decoding(StepInputs(batch[i], context[j], rate[::-1][j], 0.5, 0.0)).tpot_s
        assert together.tpot_s[i, j] == pytest.approx(float(alone), rel=1e-14)
        assert float(traced[i, j]) == pytest.approx(float(alone), rel=1e-12)


SETTINGS = [
    {},
    {"serving__overlap": False},
    {"model__top_k": 8, "model__experts": 8},
    {"gpu__name": "H200-SXM", "serving__batch": 100.0},  # measured, and not between waves of tiles
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("field", ["nic_gbps", "batch", "context", "accepted", "host_s"])
def test_derivatives_are_those_of_differences(field, settings):
    small = {"model__expert_groups": 1, "model__top_groups": 1, "serving__ep": 8} if "model__top_k" in settings else {}
    case = deployed(serving__drafts__tokens=1, serving__drafts__accepted=0.6, serving__host_s=1e-3, **small, **settings)
    at = float(getattr(case.numbers, field))

    def of(value):
        return case.decoding(case.numbers._replace(**{field: value})).tpot_s

    slope, step = float(jax.grad(of)(jnp.asarray(at, float))), 1e-5 * at
    difference = float(of(at + step) - of(at - step)) / (2 * step)
    assert np.isfinite(slope)
    assert slope == pytest.approx(difference, rel=1e-5, abs=1e-12)


# -------------------------------------------------------------------------------------------------------------- memory
def test_weights_and_caches_of_deepseek():
    """FP8, EP 72 with 4 slots: attention 61 x 187 MB, FFNs 58 x 5 x 44 MB and 3 x 396 MB, router, embedding and head in
    bf16. 576 elements of 2 bytes a token and layer."""
    sgl = deployed(serving__ep=72, gpu__name="H100-SXM", serving__context=2000.0)
    attention = 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168
    expert = 3 * 7168 * 2048
    whole = 61 * attention + 58 * (1 + 4) * expert + 3 * 3 * 7168 * 18432 + 2 * (58 * 7168 * 256 + 2 * 7168 * 129280)
    assert sgl.weight_bytes(sgl.decode) == pytest.approx(whole, rel=1e-12)
    assert whole == pytest.approx(29e9, rel=0.02)
    assert sgl.memory_bytes(256, 2000.0) == pytest.approx(whole + 256 * 2000 * 61 * 576 * 2 + 6e9, rel=1e-12)
    assert sgl.most_requests(2000.0) > 256
    # 18 slots of 2.55 GB at EP 16, and as many requests: 65 and 36 GB
    few = deployed(serving__ep=16, serving__redundant_experts=32, gpu__name="H100-SXM")
    assert few.weight_bytes(few.decode) == pytest.approx(whole + 14 * 58 * expert, rel=1e-12)
    assert few.most_requests(2000.0) < 256


def test_a_block_that_drafts_has_all_that_a_block_has_and_the_product_before_it():
    """Attention, 5 experts, router and 2 x 7168 x 7168 in FP8 but for the router, and a 62nd layer of caches."""
    settings = {"serving__ep": 72, "gpu__name": "H100-SXM", "serving__context": 2000.0}
    plain, drafting = deployed(**settings), deployed(serving__drafts__tokens=1, **settings)
    attention = 7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168
    more = attention + (1 + 4) * 3 * 7168 * 2048 + 2 * 7168 * 7168 + 2 * 7168 * 256
    for pool in ("decode", "prefill"):
        found, before = (each.weight_bytes(getattr(each, pool)) for each in (drafting, plain))
        slots = drafting.prefill.model.load.slots if pool == "prefill" else 4
        assert found - before == pytest.approx(more + (slots - 4) * 3 * 7168 * 2048, rel=1e-12)
    assert float(drafting.request_bytes(2000.0)) == pytest.approx(2000 * 62 * 576 * 2, rel=1e-12)
    assert float(drafting.transfer_s(400.0)) == pytest.approx(62 / 61 * float(plain.transfer_s(400.0)), rel=1e-12)


def test_gpus_that_split_attention_hold_all_of_a_latent_cache_and_a_part_of_weights():
    one, two = (deployed(serving__tp=tp) for tp in (1, 2))
    attention = 61 * (7168 * 1536 + 1536 * 24576 + 7168 * 576 + 512 * 32768 + 16384 * 7168)
    assert one.weight_bytes(one.decode) - two.weight_bytes(two.decode) == pytest.approx(attention / 2, rel=1e-9)
    assert two.request_bytes(4096.0) == one.request_bytes(4096.0)  # each has the latents of both GPUs' requests
    heads = [deployed(serving__tp=tp, model__name="mixtral-8x22b", serving__ep=8) for tp in (1, 2)]
    assert heads[1].request_bytes(4096.0) == heads[0].request_bytes(4096.0) / 2
    assert float(two.decoding(two.numbers).step.attention_s) > float(one.decoding(one.numbers).step.attention_s)


def test_a_prompts_cache_crosses_one_nic():
    """4,096 tokens of 70,272 bytes at 92.5 % of 50 GB/s: 6.2 ms."""
    assert float(deployed().transfer_s(400.0)) == pytest.approx(4096 * 61 * 576 * 2 / (0.925 * 50e9), rel=1e-12)
    on_mfabric = deployed(network__fabric="mfabric", network__mfabric__optical_degree=5)  # 3 of 8 NICs leave a region
    assert float(on_mfabric.transfer_s(400.0)) == pytest.approx(4096 * 61 * 576 * 2 / (0.925 * 50e9 * 3 / 8), rel=1e-12)


def test_prefill_holds_the_caches_of_the_prompts_of_a_pass(tmp_path):
    """4 prompts of 4,096 tokens a pass of 16,384: latents of 61 layers; a linear layer's state is one a prompt; of
    prompts that a cache has half of, twice as many; of one that takes several passes, all."""
    file = tmp_path / "mixed.toml"
    file.write_text(
        """
        blocks = 8
        hidden = 1024
        attention = [
            { kind = "linear", heads = 16, head_dim = 64, blocks = 6 },
            { heads = 16, kv_heads = 4, head_dim = 64, blocks = 2 },
        ]
        experts = 64
        top_k = 4
        expert_hidden = 512
        vocab = 32000
        """,
        encoding="utf-8",
    )
    latents = 61 * 576 * 2
    plain = deployed()
    weights = plain.weight_bytes(plain.prefill) + 6e9
    assert plain.prefill_bytes == pytest.approx(weights + 4 * 4096 * latents, rel=1e-12)
    assert deployed(serving__prefill__cached=0.5).prefill_bytes == pytest.approx(
        weights + 8 * 4096 * latents, rel=1e-12
    )
    assert deployed(serving__prompt=100_000).prefill_bytes == pytest.approx(weights + 100_000 * latents, rel=1e-12)
    mixed = deployed(model__name=str(file))
    left = mixed.prefill_bytes - mixed.weight_bytes(mixed.prefill) - 6e9
    # 6 linear layers: states of 16 heads, 64 x 64 float32; 2 of keys and values, 4 heads of 64
    assert left == pytest.approx(4 * (6 * 16 * 64 * 64 * 4 + 2 * 4096 * 2 * 4 * 64 * 2), rel=1e-9)


def test_gpus_that_split_attention_share_a_prompts_passes():
    """40,000 tokens are three passes of 16,384 of one GPU, and one of eight that share them."""

    def before_first_token(**settings):
        found = deployed(serving__prompt=40_000, **settings)
        decoding = found.decoding(found.numbers)
        rest = float(found.transfer_s(400.0)) + float(decoding.step.step_s)
        return (float(found.first_token_s(400.0, decoding)) - rest) / float(found.prefilling(400.0).step_s)

    assert before_first_token() == pytest.approx(3)
    assert before_first_token(serving__tp=8) == pytest.approx(1)


def test_what_is_not_hidden_is_compared_part_by_part():
    """X longer than each part and shorter than all of them: hidden it costs nothing, in the open it costs most."""
    bound = {}
    for overlap in (True, False):
        found = deployed(serving__overlap=overlap, serving__context=2500.0)
        decoding = found.decoding(found.numbers)
        step = decoding.step
        parts = [float(seconds) for seconds in (step.attention_s, step.experts_s, step.beside_s)]
        assert max(parts) < step.dispatch_s + step.combine_s
        bound[overlap] = found.slowest(decoding), float(step.dispatch_s + step.combine_s) > sum(parts)
    assert bound[False][0] == "network"
    assert bound[True][0] == ("network" if bound[True][1] else "attention")
    assert not bound[False][1]
