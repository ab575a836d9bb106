"""Folded experts: attention and experts split the same GPUs in different ways (arXiv 2504.14960)."""

import dataclasses
import itertools

import numpy as np
import pytest

from mfabric_jax import InputError, cases, load, resolve
from mfabric_jax.fabric import degrade
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.workload import Architecture, GroupedQuery, Workload, iteration_bytes
from mfabric_jax.workload.memory import memory_of, step_bytes
from mfabric_jax.workload.mixers import Mixed
from mfabric_jax.workload.volume import replica_ring, tp_bytes_per_gpu

MODEL = Architecture("tiny", 4, 16, GroupedQuery(4, 4, 4), experts=8, top_k=2, expert_hidden=6, source="made up")
ATTENTION, EXPERT, GATE = 4 * 16 * 16, 3 * 16 * 6, 16 * 8  # parameters


def job(tp=1, folded=2, ep=8, dp=2, pp=1, **rest):
    rest = {"micro_batches": 3, "micro_batch": 1, "sequence": 64, "sharding": "none"} | rest
    return Workload.of("tiny", MODEL, dp, tp, pp, ep, dp * tp * pp * ep, folded=folded, **rest)


def groups(gpus, tp, folded, ep):
    """Of every GPU, in nested loops: who splits its attention, who holds the same slice of attention, of an expert."""
    attention, slices, experts = {}, {}, {}
    for gpu in range(gpus):
        attention.setdefault(gpu // (tp * folded), []).append(gpu)
        slices.setdefault(gpu % (tp * folded), []).append(gpu)
        experts.setdefault((gpu // tp % ep, gpu % tp), []).append(gpu)
    return attention, slices, experts


def ring(size, members):
    return 2 * size * (members - 1) / members


CASES = [(1, 2, 8, 2), (1, 4, 8, 2), (2, 2, 4, 2), (1, 8, 8, 3), (2, 1, 8, 1), (1, 1, 8, 2), (4, 2, 2, 4)]


@pytest.mark.parametrize(("tp", "folded", "ep", "dp"), CASES)
def test_bytes_of_each_group_by_loops_over_gpus(tp, folded, ep, dp):
    one = job(tp, folded, ep, dp, tp_reduces="attention")
    gpus, tokens = dp * tp * ep, 64 // folded
    attention, slices, experts = groups(gpus, tp, folded, ep)
    assert one.tokens == tokens
    assert {len(members) for members in attention.values()} == {one.attention_tp}
    assert {len(members) for members in slices.values()} == {gpus // (tp * folded)}
    assert {len(members) for members in experts.values()} == {dp}
    sent = {"TP": 0.0, "EP": 0.0, "DP": 0.0}
    for gpu in range(gpus):
        whole = tokens * folded * 16 * 2  # bytes of attention's output, of all that split it
        sent["TP"] += 3 * 2 * 4 * ring(whole, tp * folded)
        sent["EP"] += 3 * 2 * 4 * tokens * 2 * (ep - 1) / ep * 16 * (2 + 2) / tp
        dense = 4 * (ATTENTION + GATE) / (tp * folded) * 2
        held = 4 * 8 / ep * EXPERT / tp * 2
        sent["DP"] += ring(dense, len(slices[gpu % (tp * folded)])) + ring(held, dp)
    found = iteration_bytes(one)
    assert {name: found[name] for name in sent} == pytest.approx(sent, rel=1e-12)
    assert tp_bytes_per_gpu(one) == pytest.approx(ring(tokens * folded * 16 * 2, tp * folded), rel=1e-12)


KINDS = "dense", "bare", "moe", "moe"  # the FFNs of blocks
BESIDE = {"dense_blocks": (0,), "dense_hidden": 20, "bare_blocks": (1,)}
HALF = Mixed(((GroupedQuery(4, 4, 4), 1), (None, 1)))  # every other block has attention
MODELS = [{}, {"shared_hidden": 5}, {"attention": HALF}, {"attention": HALF, "shared_hidden": 5}]


@pytest.mark.parametrize("facts", MODELS)
@pytest.mark.parametrize(("tp", "folded", "ep", "dp"), CASES)
def test_all_that_gpus_split_is_all_reduced_by_loops_over_gpus(tp, folded, ep, dp, facts):
    """Attention's GPUs split attention, dense FFNs, and shared experts, which folded ones do not sum up. An
    expert's GPUs split its output for the tokens of one EP rank, or for both copies of each."""
    model = dataclasses.replace(MODEL, **BESIDE | facts)
    whole, own = ring(64 * 16 * 2, tp * folded), ring(64 // folded * 16 * 2, tp)
    shared = whole if model.shared_hidden and folded > 1 else 0.0
    for tp_reduces, copies in (("all", 1), ("copies", 2)):
        beside = {"dense": whole, "bare": 0.0, "moe": copies * own + shared}
        sent = 0.0
        for _ in range(dp * tp * ep):
            for kind in KINDS:
                sent += 3 * 2 * (whole / (2 if "attention" in facts else 1) + beside[kind])
        one = dataclasses.replace(job(tp, folded, ep, dp), architecture=model, tp_reduces=tp_reduces)
        assert iteration_bytes(one)["TP"] == pytest.approx(sent, rel=1e-12)


@pytest.mark.parametrize(("tp", "folded", "ep", "dp"), CASES)
@pytest.mark.parametrize("sharding", ["none", "optimizer", "parameters"])
def test_a_gpu_holds_its_slice_of_attention_and_of_its_experts(tp, folded, ep, dp, sharding):
    one = job(tp, folded, ep, dp, sharding=sharding)
    dense, expert = 4 * (ATTENTION + GATE) / (tp * folded), 4 * 8 / ep * EXPERT / tp
    shares = (1, 1) if sharding == "none" else (dp * ep / folded, dp)
    state = dense / shares[0] + expert / shares[1]
    memory = memory_of(one, 0)
    assert memory.optimizer == pytest.approx(12 * state, rel=1e-12)
    block = (dense + expert) / 4
    assert memory.weights == pytest.approx(2 * (state + 2 * block if sharding == "parameters" else dense + expert))
    assert step_bytes(one, 0) == pytest.approx((4 + 2 * 12 + 2) * state, rel=1e-12)


def test_as_many_bytes_leave_a_server_as_members_of_its_rings_send():
    one = job(1, 4, 8, 3)
    dense, expert = 1000.0, 600.0
    found, gpus, per_server = replica_ring(one, dense, expert), 24, 8
    _, slices, experts = groups(gpus, 1, 4, 8)
    leaving = 0.0
    for _ in slices.values():  # hierarchically: one ring of servers for every slice
        leaving += ring(dense / 4, gpus // per_server)
    for members in experts.values():
        spread = len({gpu // per_server for gpu in members})
        leaving += ring(expert, spread) * sum(gpu < per_server for gpu in members)
    assert found.between == pytest.approx(leaving, rel=1e-12)


FOLDED = {"model.name": "mixtral-8x22b", "model.recipe": "none", "network.fabric": "fat-tree", "job.parallel.tp": 2}
FOLDED |= {"job.parallel.etp": 1, "job.parallel.pp": 8, "job.parallel.ep": 8, "job.parallel.gpus": 128}
FOLDED |= {"job.batch.global_batch": 256}


def test_a_case_says_attention_s_degree_and_that_of_experts():
    """TP2 ETP1 PP8 EP8 on 128 GPUs: 8 replicas of attention, 2 of experts, 32 micro-batches of one sequence each."""
    one = resolve(load().with_(FOLDED))
    assert (one.job.tp, one.job.attention_tp, one.job.dp, one.job.micro_batches) == (1, 2, 2, 32)
    assert one.job.tokens == 2048
    assert one.job.iteration_tokens == 256 * 4096
    assert (one.case.job.parallel.tp, one.case.job.parallel.etp) == (2, 1)
    again = resolve(one.case)
    assert again.job == one.job
    plain = resolve(load().with_({path: value for path, value in FOLDED.items() if path != "job.parallel.etp"}))
    assert (plain.job.tp, plain.job.folded, plain.case.job.parallel.etp) == (2, 1, 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"job.parallel.etp": 4}, "etp must divide job.parallel.tp, got 4 with tp 2"),
        ({"job.parallel.tp": None}, "etp must divide job.parallel.tp; state both, got etp 1 alone"),
        (
            {"job.parallel.tp": 8, "job.parallel.ep": 4},
            "ep must be a multiple of cp x tp / etp = 8, the ranks that share tokens",
        ),
        ({"job.parallel.dp": 8}, "make 512 .dp counts copies of an expert"),
        ({"job.parallel.tp": 3}, "tp must divide the 8 GPUs of a server, got 3"),
        ({"job.parallel.gpus": 96}, "gpus must be a multiple of etp 1 x pp 8 x ep 8 = 64, got 96"),
    ],
)
def test_what_does_not_go_together(change, sentence):
    with pytest.raises(InputError, match=sentence):
        resolve(load().with_({path: value for path, value in (FOLDED | change).items() if value is not None}))


def test_what_is_all_reduced_is_the_recipe_s_else_all():
    """A recipe says it only of the degrees that it states."""

    def said(**changes):
        found = resolve(load().with_({"model.name": "mixtral-8x22b"} | changes))
        return found.job.tp_reduces, found.why.get("job.parallel.tp_reduces")

    others = {"job.parallel.tp": 4, "job.parallel.pp": 8, "job.parallel.ep": 8}
    assert said(**{"model.recipe": "none"} | others) == ("all", "usual")
    assert said(**{"model.recipe": "paper"}) == ("attention", "recipe paper (arXiv 2501.03905)")
    assert said(**{"model.recipe": "paper"} | others) == ("all", "usual")
    assert said(**{"model.recipe": "paper", "job.parallel.tp_reduces": "all"}) == ("all", None)
    assert said(**{"job.parallel.tp_reduces": "copies"} | others) == ("copies", None)
    for preset in ("paper", "released", "as-0.1"):  # their reading of the paper, whatever the degrees
        assert {case.job.parallel.tp_reduces for case in cases(load(preset=preset))} == {"attention"}


def test_attention_tp_stays_in_a_server():
    with pytest.raises(InputError, match="tp x folded = 2 x 8 must divide gpus_per_server"):
        job(2, 8, 8, 2)
    for cp, folded in itertools.product((1, 3), (2, 3)):
        if cp * folded not in (1, 2, 4, 8):
            with pytest.raises(InputError, match=r"must divide (ep|gpus_per_server)"):
                job(1, folded, 8, 2, cp=cp)


def test_pipelines_take_as_long_folded_as_their_parts_say():
    from mfabric_jax import simulate

    rows = [
        simulate(load().with_(FOLDED | change)).rows()[0]
        for change in ({}, {"job.parallel.etp": 2, "job.parallel.ep": 4})
    ]
    for row in rows:
        parts = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")
        np.testing.assert_allclose(row["iteration_s"], sum(row[part] for part in parts), rtol=1e-6)
        assert (row["tp"], row["dp"]) == (2, 2)
    assert [row["etp"] for row in rows] == [1, 2]
    # Attention's is alike; experts over two GPUs all-reduce as many bytes once more.
    np.testing.assert_allclose(2 * rows[0]["tp_comm_s"], rows[1]["tp_comm_s"], rtol=1e-9)


def test_all_reduces_of_attention_follow_a_gpu_that_moves():
    """A failed GPU takes a whole rank of experts along, and a slice of attention."""
    whole, folded, sliced = (
        degrade(Electrical(400.0), "gpu", servers=4, ranks_per_server=8 // gpus, gpus_per_rank=gpus, **rest)
        for gpus, rest in ((1, {}), (1, {"attention_gpus": 2}), (2, {}))
    )
    assert (whole.moved, folded.moved, sliced.moved) == (1, 1, 0.5)
    assert (whole.tp_on_eps, folded.tp_on_eps) == (0, sliced.tp_on_eps)
    assert folded.tp_on_eps > 0
