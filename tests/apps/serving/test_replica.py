"""A replica as engines serve it, by hand: kernels that take whole microseconds, so that a step counts them."""

import dataclasses

import pytest

from mfabric_jax.apps.serving.layer_parts import MOE_KERNELS, PassTokens, formats_of
from mfabric_jax.apps.serving.replica import (
    HABITS,
    USUAL,
    ServedReplica,
    first_token_s,
    pass_parts,
    replica,
    token_seconds,
)
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.measured_kernels import MeasuredKernels
from mfabric_jax.workload.mixers import GatedDelta, GroupedQuery, Latent, Linear, Mamba1, Mamba2, Mixed
from mfabric_jax.workload.models import DEEPSEEK_V3, Architecture

FAST = {"rate": 1e12, "bw": 1e12}
FLOORS = {  # every kernel takes its floor alone
    "sms": 132,
    "pointwise": {"floor_us": 1.0, "bw": 1e12},
    "products": {"bf16": {"floor_us": 10.0, "p": 2.0, "wave": 0.0, "cast": 1e12, "out": 1e12, **FAST}},
    "experts": {
        "bf16": {"floor_us": 100.0, "per_expert_us": 0.0, "tile": 0.0, "perm": 1e12, "slot": 1e12, **FAST},
    },
    "decode": {
        "gqa": {"bf16": {"floor_us": 1000.0, "bw": 1e12, "ns_a_context_token": 0.0}},
        "16": {"bf16": {"floor_us": 3000.0, "bw": 1e12, "ns_a_context_token": 0.0}},
    },
    "latent": {"floor_us": 7.0, "ns_a_token": 0.0},
    "prompt_ns": {"128/0": {"1024": 1e-15}, "160/0": {"1024": 1e-15}},
    "all_reduce": {"4": {"1": 10_000.0, "1000000000": 10_000.0}},
}
GQA = GroupedQuery(32, 8, 128)
SMALL = Architecture("small", 2, 1024, GQA, 16, 2, 512, "made up", vocab=1000)


def counted(architecture=SMALL, gpus=4, habits=USUAL, facts=FLOORS, weights="bf16", expert_gpus=1):
    made = replica(architecture, get_gpu("H100-SXM"), gpus, expert_gpus, weights, measured_experts=False)
    kernels = MeasuredKernels(get_gpu("H100-SXM"), facts)
    return dataclasses.replace(made, kernels=kernels, habits=habits)


def us(seconds):
    return pytest.approx(seconds * 1e-6, abs=1e-9)


STEP = PassTokens(answers=4, context=100)


# ------------------------------------------------------------------------------------------------ kernels of a step
def test_a_step_counts_its_kernels():
    parts = pass_parts(counted(), STEP)
    assert parts.attention == us(2 * (2 * 10 + 3 + 1000))  # two products, three small kernels, the core
    assert parts.experts == us(2 * (10 + 100))  # the router, the fused experts
    assert parts.beside == us(2 * (2 + MOE_KERNELS))
    assert parts.reduces == us(2 * 2 * 10_000)
    assert (parts.dense, parts.head) == (0, us(10))
    assert parts.total == us(sum((2 * 1023, 2 * 110, 2 * 5, 40_000, 10)))


def test_one_gpu_reduces_nothing_and_norms_stay():
    alone = pass_parts(counted(gpus=1, habits=HABITS["trtllm"]), STEP)
    fused = pass_parts(counted(gpus=4, habits=HABITS["trtllm"]), STEP)
    assert (alone.reduces, alone.beside) == (0, us(2 * (2 + MOE_KERNELS)))
    assert (fused.reduces, fused.beside) == (us(40_000), us(2 * MOE_KERNELS))
    assert fused.attention == us(2 * (20 + 1 + 1000))


def test_dense_blocks_and_shared_experts():
    model = dataclasses.replace(SMALL, blocks=5, dense_blocks=3, dense_hidden=2048, shared_hidden=256)
    parts = pass_parts(counted(model), STEP)
    assert parts.dense == us((3 + 2) * (2 * 10 + 1))
    assert parts.experts == us(2 * 110)
    assert parts.beside == us(5 * 2 + 2 * MOE_KERNELS)
    assert parts.reduces == us(5 * 2 * 10_000)


def test_a_dense_model_has_no_router():
    parts = pass_parts(counted(dataclasses.replace(SMALL, experts=1, top_k=1)), STEP)
    assert parts.experts == us(2 * 21)
    assert parts.beside == us(2 * 2)


def test_blocks_of_one_half_reduce_once():
    # 3 blocks: Mamba 2 alone, attention alone, experts alone.
    mix = Mixed(((Mamba2(8, 64, 16), 1), (GQA, 1), (None, 1)))
    model = dataclasses.replace(SMALL, blocks=3, attention=mix, bare_blocks=(0, 1))
    parts = pass_parts(counted(model), STEP)
    assert parts.reduces == us(3 * 10_000)
    # Mamba: two products, three small kernels, one for its state. Attention as above.
    assert parts.attention == us((20 + 3 + 1) + (20 + 3 + 1000))


def test_latent_attention_is_measured_as_a_whole():
    model = dataclasses.replace(SMALL, attention=DEEPSEEK_V3.attention)
    parts = pass_parts(counted(model), STEP)
    assert parts.attention == us(2 * (5 * 10 + 7 + 3000))  # downs, ups of queries, two absorbed, out
    prompt = pass_parts(counted(model), PassTokens(prompts=512, length=512))
    assert prompt.attention == us(2 * (4 * 10 + 7))


def test_norms_over_all_heads_are_reduced():
    whole = dataclasses.replace(SMALL, attention=dataclasses.replace(GQA, whole_norm=True))
    more = pass_parts(counted(whole), STEP).attention - pass_parts(counted(), STEP).attention
    assert more == us(2 * 10_000)
    alone = pass_parts(counted(whole, gpus=1), STEP).attention
    assert alone == pass_parts(counted(gpus=1), STEP).attention


def test_an_indexer_is_a_kernel_of_its_own():
    sparse = Latent(16, 256, 128, 64, 32, 64, index_heads=4, index_dim=32, index_top_k=50)
    plain = dataclasses.replace(sparse, index_heads=0, index_dim=0, index_top_k=0)
    with_it, without = (
        pass_parts(counted(dataclasses.replace(SMALL, attention=kind)), STEP).attention for kind in (sparse, plain)
    )
    assert with_it - without == us(2 * (2 * 10 + 1))  # two products, and the kernel over its keys


def test_an_indexer_reads_keys_in_the_format_of_the_cache():
    """4 requests over 1e6 tokens of 64 elements: 512 MB a layer in bf16 and half of it in FP8, at 1e12 x the GPU's
    bandwidth; only small kernels have a finite one, 1e-3 of 3.35e12 bytes/s."""
    kind = dataclasses.replace(GQA, index_heads=4, index_dim=64, index_top_k=128)
    slow = FLOORS | {"pointwise": {"floor_us": 0.0, "bw": 1e-3}}
    slow["decode"] = {"gqa": dict.fromkeys(("bf16", "fp8"), FLOORS["decode"]["gqa"]["bf16"])}
    seconds = {}
    for cache in ("bf16", "fp8"):
        made = counted(dataclasses.replace(SMALL, attention=kind), gpus=1, facts=slow)
        made = dataclasses.replace(made, formats=made.formats._replace(cache=cache))
        seconds[cache] = [pass_parts(made, PassTokens(4, context)).attention for context in (1000.0, 1_001_000.0)]
    read_s = 2 * 4 * 1e6 * 64 / 3.35e9
    assert seconds["bf16"][1] - seconds["bf16"][0] == pytest.approx(2 * read_s, rel=1e-6)
    assert seconds["fp8"][1] - seconds["fp8"][0] == pytest.approx(read_s, rel=1e-6)


def scoring(kind, gpus=1):
    """Seconds of a layer's scores of 10 prompts of 4,096 tokens, where a token and head of width 128 takes 4 ns; a FLOP
    then takes 4 ns / (4 x 128 x 2,048)."""
    cells = {"64/0": {"4096": 2.0}, "64/128": {"4096": 0.1}, "128/0": {"4096": 4.0}, "160/0": {"4096": 5.0}}
    model = counted(dataclasses.replace(SMALL, attention=kind), gpus, facts=FLOORS | {"prompt_ns": cells})
    none = counted(dataclasses.replace(SMALL, attention=kind), gpus)
    tokens = PassTokens(prompts=40_960, length=4096)
    return (pass_parts(model, tokens).attention - pass_parts(none, tokens).attention) / 2


def test_scores_of_prompts_by_hand():
    assert scoring(GQA) == pytest.approx(40_960 * 32 * 4e-9)
    assert scoring(GQA, 4) == pytest.approx(40_960 * 8 * 4e-9)
    assert scoring(dataclasses.replace(GQA, borrows=True)) == pytest.approx(scoring(GQA))
    flop_s = 4e-9 / (4 * 128 * 2048)
    indexed = dataclasses.replace(GQA, index_heads=2, index_dim=64, index_top_k=8192)
    assert scoring(indexed, 4) == pytest.approx(40_960 * (8 * 4e-9 + 2 * 2 * 64 * 2048 * flop_s))
    linear = Linear(8, 128)
    assert scoring(linear, 4) == pytest.approx(40_960 * linear.score_flops(4096) / 4 * flop_s)


# ------------------------------------------------------------------------------------------------- what GPUs split
def reading(kind, gpus):
    """Seconds of attention's core alone where only bytes of caches count."""
    slow = {"floor_us": 0.0, "bw": 1 / get_gpu("H100-SXM").memory_Bps, "ns_a_context_token": 0.0}
    nothing = {"floor_us": 0.0, "p": 2.0, "wave": 0.0, "cast": 1e12, "out": 1e12, **FAST}
    facts = FLOORS | {"decode": {"gqa": {"bf16": slow}, "16": {"bf16": slow}}, "products": {"bf16": nothing}}
    facts |= {"pointwise": {"floor_us": 0.0, "bw": 1e12}, "latent": {"floor_us": 0.0, "ns_a_token": 0.0}}
    facts |= {"all_reduce": {"4": {"1": 0.001, "2": 0.001}}}
    return pass_parts(counted(dataclasses.replace(SMALL, attention=kind), gpus, facts=facts), STEP).attention / 2


def test_gpus_read_their_heads_and_at_least_one():
    whole = 4 * 100 * 2 * 8 * 128 * 2  # requests, context, keys and values of 8 heads, bytes; at one byte a second
    assert reading(GQA, 1) == pytest.approx(whole)
    assert reading(GQA, 4) == pytest.approx(whole / 4)
    assert reading(GQA, 16) == pytest.approx(whole / 8)
    latent = DEEPSEEK_V3.attention
    assert reading(latent, 1) == pytest.approx(4 * 100 * 576 * 2)
    assert reading(latent, 8) == pytest.approx(reading(latent, 1))


def test_a_window_bounds_what_is_read():
    assert reading(dataclasses.replace(GQA, window=25), 1) == pytest.approx(reading(GQA, 1) / 4)
    assert reading(dataclasses.replace(GQA, window=400), 1) == pytest.approx(reading(GQA, 1))


def test_experts_split_by_matrices_or_by_gpus_read_alike():
    # Only weights count: 4 tokens of 2 of 16 experts. By TP every GPU reads a quarter of each active expert.
    slow = FLOORS["experts"]["bf16"] | {"floor_us": 0.0, "bw": 1 / get_gpu("H100-SXM").memory_Bps}
    none = {"floor_us": 0.0, "p": 2.0, "wave": 0.0, "cast": 1e12, "out": 1e12, **FAST}
    facts = FLOORS | {"experts": {"bf16": slow}, "products": {"bf16": none}}
    active = 16 * (1 - (1 - 2 / 16) ** 4)
    read = 2 * active * 3 * 1024 * 512 * 2
    for expert_gpus in (1, 2, 4):
        parts = pass_parts(counted(facts=facts, expert_gpus=expert_gpus), STEP)
        assert parts.experts == pytest.approx(read / 4)


def test_the_busiest_gpu_decides_and_popular_experts_are_read_once():
    gpu = get_gpu("H100-SXM")
    model = dataclasses.replace(SMALL, experts=64, top_k=8)
    even, popular = (replica(model, gpu, 4, 4, measured_experts=measured) for measured in (False, True))
    few, many = PassTokens(16, 1), PassTokens(100_000, 1)
    assert pass_parts(popular, many).experts > 1.05 * pass_parts(even, many).experts
    one_gpu = [replica(model, gpu, 4, 1, measured_experts=measured) for measured in (False, True)]
    assert pass_parts(one_gpu[1], few).experts < pass_parts(one_gpu[0], few).experts


# --------------------------------------------------------------------------------------------------- tokens, prompts
def test_prompts_of_others_take_passes_of_their_own():
    seconds = token_seconds(counted(), 8, prompt=512, answer=64)
    step, prompt = pass_parts(counted(), PassTokens(8, 544)), pass_parts(counted(), PassTokens(prompts=512, length=512))
    assert seconds.step_s == step.total
    assert seconds.prompts_s == pytest.approx(8 / 64 * prompt.total)
    assert seconds.tpot_s == seconds.step_s + seconds.prompts_s
    assert first_token_s(counted(), 512) == prompt.total
    # A pass of a prompt has the kernels of a step without the core of decoding, which takes 1 ms a layer.
    assert step.total - prompt.total == us(2 * 1000)


def test_every_pass_waits_for_hosts():
    plain, delayed = (token_seconds(counted(), 8, 512, 64, host_s) for host_s in (0.0, 0.01))
    assert delayed.step_s == pytest.approx(plain.step_s + 0.01)
    assert delayed.prompts_s == pytest.approx(plain.prompts_s + 8 / 64 * 0.01)
    assert plain.passes == 1 + 8 / 64
    assert first_token_s(counted(), 512, 0.01) == pytest.approx(first_token_s(counted(), 512) + 0.01)
    mixing = counted(habits=USUAL._replace(mixes=True))  # prompts take no passes of their own
    plain, delayed = (token_seconds(mixing, 8, 512, 64, host_s) for host_s in (0.0, 0.01))
    assert delayed.tpot_s == pytest.approx(plain.tpot_s + 0.01)
    assert plain.passes == 1


def test_engines_that_mix_add_a_prompt_to_a_step():
    mixing = counted(habits=USUAL._replace(mixes=True))
    # Every kernel takes its floor, whatever the tokens: a prompt adds nothing to a step.
    assert token_seconds(mixing, 8, prompt=512, answer=64).prompts_s == pytest.approx(0, abs=1e-12)
    for engine in HABITS:
        assert HABITS[engine].mixes == (engine in ("trtllm", "vllm"))
    real = [replica(SMALL, get_gpu("B200-HGX"), 4, weights="bf16", engine=name) for name in ("sglang", "vllm")]
    shares = [token_seconds(model, 8, 512, 64).prompts_s / first_token_s(model, 512) for model in real]
    assert shares[0] == pytest.approx(8 / 64)
    assert 0 < shares[1] < 8 / 64


KINDS = [
    GQA,
    GroupedQuery(32, 8, 128, window=64),
    GroupedQuery(32, 8, 128, value_dim=64, gated=True, query_rank=256),
    GroupedQuery(32, 8, 128, index_heads=4, index_dim=64, index_top_k=128),
    DEEPSEEK_V3.attention,
    Linear(8, 64),
    GatedDelta(4, 8, 64, 64),
    Mamba2(8, 64, 16),
    Mamba1(512, 16, 64),
    Mixed(((GQA, 1), (GatedDelta(4, 8, 64, 64), 3))),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("gpu", ["H100-SXM", "B300-HGX", "MI300X"])
def test_every_mixer_has_a_step_and_more_work_takes_longer(kind, gpu):
    model = dataclasses.replace(SMALL, blocks=4, attention=kind)
    made = replica(model, get_gpu(gpu), 4, 2, "bf16")
    seconds = token_seconds(made, 8, 512, 256)
    assert 0 < seconds.prompts_s < seconds.step_s < 0.1
    assert token_seconds(made, 256, 512, 256).tpot_s > seconds.tpot_s
    assert token_seconds(made, 8, 8192, 256).tpot_s > seconds.tpot_s


# ----------------------------------------------------------------------------------------------- formats and refusals
def test_formats_of_releases():
    hopper, blackwell = get_gpu("H100-SXM"), get_gpu("B200-HGX")
    assert formats_of("nvfp4", blackwell, latent=True) == ("bf16", "nvfp4", "nvfp4", "fp8")
    assert formats_of("nvfp4", blackwell).attention == "nvfp4"
    assert formats_of("mxfp4", hopper) == ("bf16", "bf16", "mxfp4", "bf16")
    assert formats_of("mxfp4", blackwell).experts == "mxfp4-fp8"
    assert formats_of("fp8", hopper, cache="fp8").cache == "fp8"
    assert replica(DEEPSEEK_V3, hopper, 8, engine="trtllm").formats.cache == "fp8"
    assert replica(DEEPSEEK_V3, hopper, 8, engine="trtllm", cache="bf16").formats.cache == "bf16"
    with pytest.raises(InputError, match="weights 'fp4' is unknown"):
        formats_of("fp4", hopper)
    with pytest.raises(InputError, match="weights nvfp4 need a GPU of the Blackwell family, got H100-SXM"):
        formats_of("nvfp4", hopper)


def test_degrees_that_do_not_fit_are_refused():
    gpu = get_gpu("H100-SXM")
    with pytest.raises(Misfit, match="ep must divide the tp = 4 GPUs of a replica, got 3"):
        replica(SMALL, gpu, 4, 3)
    with pytest.raises(Misfit, match="ep must be at most the 16 experts of small, got 32"):
        replica(SMALL, gpu, 32, 32)
    with pytest.raises(InputError, match="tp must be a whole number of at least 1, got 0"):
        replica(SMALL, gpu, 0)
    assert isinstance(replica(SMALL, gpu, 4, 4), ServedReplica)
