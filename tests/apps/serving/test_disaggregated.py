"""Attention and experts on GPUs of their own: pipelines step by step, published budgets, flows by hand."""

import math

import numpy as np
import pytest

from mfabric_jax.apps.serving import deployment, request_load
from mfabric_jax.apps.serving.columns import SPLIT
from mfabric_jax.apps.serving.disaggregated import MOST_MICRO_BATCHES, Stages, split_deployment
from mfabric_jax.apps.serving.rows import cached_deployment, serve
from mfabric_jax.case import Case
from tests.mistakes import refused

PLAIN = """
copies = "{copies}"
[dispatch]
nic = 1
nvlink = 1
"""


def split_case(attention, experts, **changes):
    paths = {name.replace("__", "."): value for name, value in changes.items()}
    split = {"serving.split.attention_gpus": attention, "serving.split.expert_gpus": experts}
    return Case().with_({"model.name": "deepseek-v3", "network.fabric": "fat-tree", **split, **paths})


def iterations(stages, micro_batches, layers, count):
    """When each iteration of all micro-batches ends: every stage takes one after the other, in the order of need."""
    free, at, ends = [0.0] * 4, [0.0] * micro_batches, []
    for _ in range(count):
        for _ in range(layers):
            for one in range(micro_batches):
                for stage, seconds in enumerate(stages):
                    at[one] = free[stage] = max(at[one], free[stage]) + seconds
        ends.append(at[-1])
    return ends


def test_a_layer_takes_what_a_pipeline_of_four_stages_takes():
    draw = np.random.default_rng(4)
    for _ in range(40):
        stages, count, layers = (
            draw.integers(1, 20, 4).astype(float),
            int(draw.integers(1, 6)),
            int(draw.integers(2, 9)),
        )
        ends = iterations(stages, count, layers, 30)
        assert ends[-1] - ends[-2] == pytest.approx(layers * float(Stages(*stages).layer_s(count)))


def test_published_conditions_hold():
    """MegaScale-Infer: with T_c < T_f and m >= 2 (1 + T_c / T_f) all micro-batches take (T_a + T_e + 2 T_c) +
    T_f (m L - 1), and one of them at least (T_a + T_e + 2 T_c) + m T_f (L - 1) and at most m T_f L."""
    layers = 60
    for fixed, sent in ((10.0, 1.0), (10.0, 4.9), (10.0, 5.1), (10.0, 9.9)):
        stages = Stages(fixed, sent, fixed, sent)
        count = int(stages.fewest_micro_batches())
        assert count == math.ceil(2 * (1 + sent / fixed)) == (3 if sent < fixed / 2 else 4)
        total = 2 * fixed + 2 * sent + fixed * (count * layers - 1)
        assert iterations(stages, count, layers, 1)[0] == pytest.approx(total)
        each = layers * float(stages.layer_s(count))
        assert 2 * fixed + 2 * sent + count * fixed * (layers - 1) <= each == count * fixed * layers
        assert stages.layer_s(2) > 2 * fixed  # too few leave both idle
    assert Stages(1.0, 9.0, 1.0, 9.0).fewest_micro_batches() == MOST_MICRO_BATCHES


@pytest.mark.parametrize(("attention", "experts", "copies"), [(8, 8, 8), (16, 8, 16), (8, 16, 8), (24, 16, 12)])
def test_copies_cross_the_nics_of_the_smaller_side(attention, experts, copies):
    """A token has 8 copies: an attention GPU sends 8 for each of its tokens, an expert GPU receives 8 M / N."""
    deployed = split_deployment(split_case(attention, experts))
    assert deployed.decode.crossing.between == pytest.approx(copies)
    assert deployed.back.between == pytest.approx(copies)
    assert (deployed.decode.crossing.inside, deployed.back.inside) == (0, 0)


def test_inside_one_domain_nothing_crosses_the_network():
    deployed = split_deployment(split_case(24, 40, network__fabric="nvl72", serving__kernels="ideal"))
    assert deployed.decode.crossing.between == 0
    assert deployed.decode.crossing.inside == pytest.approx(8)  # attention GPUs send 8; experts receive 8 x 24 / 40


def plain_kernels(folder, copies):
    file = folder / f"{copies}.toml"
    file.write_text(PLAIN.format(copies=copies), encoding="utf-8")
    return str(file)


def test_step_3_sends_in_its_budget(tmp_path):
    """Two servers of attention and two of experts, 128 tokens: an expert GPU takes 2 x 128 x 7168 bytes in 91 us at
    161.3 Gbps, and gives them back in 16 bits in 182 us (stepfun-ai/StepMesh). A token has 8 of 256 experts, none on
    a server with a chance of C(128, 8) / C(256, 8); FP8 has scales of 4 bytes for 128 elements here."""
    changes = {"network__nic_gbps": 161.3, "serving__batch": 128.0, "model__expert_groups": 1, "model__top_groups": 1}
    deployed = split_deployment(split_case(16, 16, serving__kernels=plain_kernels(tmp_path, "server"), **changes))
    stages = deployed.stages(deployed.numbers, np.array(128.0))
    reached = 1 - math.comb(128, 8) / math.comb(256, 8)
    assert float(stages.out_s) == pytest.approx(91e-6 * reached * (1 + 4 / 128), rel=1e-3)
    assert float(stages.back_s) == pytest.approx(182e-6 * reached, rel=1e-3)
    # behind the NIC tokens of both attention servers go on to the 7 other GPUs, where one of 16 experts is theirs
    onward = 7 * 2 * (1 - math.comb(240, 8) / math.comb(256, 8))
    assert deployed.decode.crossing.inside == pytest.approx(onward)
    assert deployed.back.inside == pytest.approx(onward)


def test_without_latency_and_bytes_the_slower_gpus_set_the_pace(tmp_path):
    case = split_case(16, 16, network__nic_gbps=1e8, serving__kernels=plain_kernels(tmp_path, "expert"))
    for count in (2, 3):
        deployed = cached_deployment(case.with_({"serving.split.micro_batches": count}))
        stages = deployed.stages(deployed.numbers, np.array(128.0))
        busy = max(float(stages.attention_s), float(stages.experts_s))
        assert float(stages.layer_s(count)) == pytest.approx(count * busy, rel=1e-3)
    alone = cached_deployment(case.with_({"serving.split.micro_batches": 1}))
    step = alone.decoding(alone.numbers).step
    assert float(step.step_s) == pytest.approx(float(step.serial_s))


def test_weights_are_those_of_a_whole_gpu_in_two_parts():
    """One expert a GPU at the end: 256 of them."""
    for experts in (32, 256):
        split = split_deployment(split_case(32, experts))
        usual = deployment(
            Case().with_({"model.name": "deepseek-v3", "network.fabric": "fat-tree", "serving.ep": experts})
        )
        both = split.weight_bytes(split.decode) + split.expert_bytes
        assert both == pytest.approx(usual.weight_bytes(usual.decode))
        assert split.decode.model.load.slots == 256 // experts
    assert split.expert_bytes == 58 * 2 * 3 * 7168 * 2048  # a routed and a shared expert in each layer, a byte each


def test_experts_see_the_tokens_of_all_attention_gpus():
    one, two = (split_deployment(split_case(gpus, 16)) for gpus in (16, 32))
    alike = one.stages(one.numbers, np.array(64.0)).experts_s
    assert float(two.stages(two.numbers, np.array(32.0)).experts_s) == pytest.approx(float(alike))


def test_rows_have_columns_of_the_split_where_a_case_has_one():
    rows = list(serve(split_case(16, 16, serving__batch=32.0)))
    (row,) = rows
    assert [row[name] for name in tuple(SPLIT)[:3]] == [16, 16, 3]
    assert row["ep"] == 16
    stages = row["attention_s"] + row["beside_s"], row["dispatch_s"], row["experts_s"], row["combine_s"]
    assert row["layer_s"] == pytest.approx(max(3 * max(stages), sum(stages)))
    assert row["tpot_s"] > 58 * row["layer_s"]
    assert row["requests"] == 3 * 32 / 2  # of all GPUs, half of which hold them
    assert row["tpot_low_s"] <= row["tpot_s"] < row["tpot_high_s"]
    plain = next(serve(split_case(None, None, serving__ep=16)))
    assert not set(SPLIT) & set(plain)


def test_memory_of_both_kinds_counts():
    few = next(serve(split_case(24, 8)))  # 32 experts a GPU are 84 GB
    assert not few["fits"]
    assert few["expert_memory_gb"] > 80
    assert few["bound_by"] == "memory"


def test_a_load_is_served_by_attention_gpus():
    case = split_case(16, 16, serving__batch=32.0, serving__answer=100, serving__load__rate=20.0)
    row = next(serve(case.with_({"serving.load.requests": 500})))
    assert row["load_decode_gpus"] == 32
    deployed = cached_deployment(case)
    pool = request_load.decode_pool(deployed, request_load.requests_of(deployed))
    assert (pool.units, pool.most) == (16, 96)
    assert pool.step_s(96, 4096) == pytest.approx(float(deployed.decoding(deployed.numbers).tpot_s), rel=0.005)


def test_a_split_that_does_not_fit_is_refused(tmp_path):
    assert "go together" in refused(lambda: next(serve(split_case(16, None))))
    assert "must fill servers of 8" in refused(lambda: next(serve(split_case(16, 12))))
    servers = split_case(12, 12, serving__kernels=plain_kernels(tmp_path, "server"))
    assert "attention_gpus must fill servers of 8" in refused(lambda: next(serve(servers)))
