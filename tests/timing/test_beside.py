"""What blocks take beside attention, experts and all-to-alls: every setting by hand, and its place in the iteration."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.timing.blocks import Compute, Rules
from mfabric_jax.timing.iteration import (
    COLUMNS,
    FabricRates,
    Walked,
    all_reduce_seconds,
    beside_of,
    last_blocks,
    step_seconds,
    walk,
)
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.timing.trace import segments
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.volume import context_bytes
from tests.oracles import timeline as oracle
from tests.timing.jobs import job

RTOL = 1e-9
NVLINK, SERVER, MEMORY = 0.5e9, 8e9, 1e9  # bytes/s: of a GPU, of a server's NICs, of a GPU's memory
SECONDS = BlockSeconds(2.0, 1.0, 100.0)
VOCAB = 500


def rates(**more):
    given = {"nic_Bps": 1e9, "eps_Bps": SERVER, "send_Bps": SERVER, "nvlink_Bps": NVLINK, "memory_Bps": MEMORY} | more
    return FabricRates(**{name: jnp.asarray(x, float) for name, x in given.items()})


def with_words(workload, **settings):
    """A vocabulary of 500 words, and settings."""
    model = dataclasses.replace(workload.architecture, vocab=VOCAB, tied=settings.pop("tied", False))
    return dataclasses.replace(workload, architecture=model, **settings)


class Times(NamedTuple):
    """Of the busiest stage, and everything that happens."""

    iteration_s: float
    spent: dict
    walked: Walked


def timed(workload, seconds=SECONDS, **more):
    """The iteration and everything in it, of one stage or the last; all-to-alls take no time."""
    nothing = jnp.zeros((*places(workload).layer.shape, 2))
    found = Exchanges(nothing, nothing, nothing[..., 0], nothing > 0, nothing[..., 0] > 0, None, jnp.zeros(()))
    walked = walk(workload, rates(**more), found, BlockSeconds(*map(jnp.asarray, seconds)))
    return Times(float(walked.ends.max()), {name: x[-1] for name, x in walked.spent.items()}, walked)


def alone(workload, seconds=SECONDS, **more):
    """What blocks take beside the rest."""
    compute = Compute(*map(jnp.asarray, seconds[:3]), jnp.asarray(3.0))
    return beside_of(workload, rates(**more), compute, float)


# Two stages of one block, TP 4, EP 4, one replica, two servers a stage: 5e5 tokens of 1,000. Attention: 996,000
# parameters and scores of 5e5 / 2 keys x 2 x 249 for values and scores. All-reduces over TP: 1.5 GB, 3 s.
PAIR = job(pp=2, blocks=2, micro_batches=2)
SCORES = 2 * (500_000 / 2) * 2 * 249  # FLOPs a token
ATTENTION = 2 * 996_000 + SCORES
HEAD_S = 2.0 * (2 * 1000 * VOCAB) / ATTENTION  # 2 x 1,000 x 500 FLOPs a token, at attention's rate


def test_the_head_by_hand():
    # One stage of one block on two servers: forward once behind it, backward twice before it.
    workload = with_words(job(blocks=1, micro_batches=1))
    before, after = timed(workload), timed(with_words(workload, head="counted"))
    np.testing.assert_allclose(after.walked.beside["head"][0, :, 0], [[0, HEAD_S], [2 * HEAD_S, 0]], rtol=RTOL)
    np.testing.assert_allclose(after.spent["compute_s"], before.spent["compute_s"] + 3 * HEAD_S, rtol=RTOL)
    words = 2 * VOCAB * 1000 * 1000.0  # bytes of both matrices' gradients; inside: a ring of 2 ranks over 4 slices
    reduce_s = servers_of(workload, words) / SERVER + words / 4 / NVLINK
    np.testing.assert_allclose(after.spent["dp_comm_s"], before.spent["dp_comm_s"] + reduce_s, rtol=RTOL)
    np.testing.assert_allclose(after.iteration_s, before.iteration_s + 3 * HEAD_S + reduce_s, rtol=RTOL)
    assert alone(workload) == alone(dataclasses.replace(workload, architecture=job().architecture, head="known")) == {}


def servers_of(workload, size):
    """Bytes that leave a server of a ring all-reduce over the stage."""
    servers = workload.servers // workload.pp
    return 2 * size * (servers - 1) / servers


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_head_is_on_the_last_block_alone(chunks):
    shape = {"schedule": "interleaved", "chunks": 2} if chunks == 2 else {}
    workload = with_words(job(pp=2, blocks=5, micro_batches=2, **shape), head="counted")
    last, where = last_blocks(workload), places(workload)
    assert last.sum() == 2 * workload.micro_batches
    assert (where.layer[last] == 4).all()
    assert not last[0].any()
    np.testing.assert_allclose(alone(workload)["head"].sum((1, 2, 3)), [0, 2 * 3 * HEAD_S], rtol=RTOL)


def test_gradients_of_tied_words_are_on_both_ends():
    own = 1000 * VOCAB * 1000.0  # bytes of one matrix
    plain = all_reduce_seconds(with_words(PAIR), rates())
    local = own / 4 / NVLINK  # a slice each of 4, on 2 ranks
    once = servers_of(PAIR, own) / SERVER + local
    for tied in (False, True):
        got = all_reduce_seconds(with_words(PAIR, head="counted", tied=tied), rates())
        np.testing.assert_allclose(got - plain, [once, once], rtol=RTOL)
    alone = job(blocks=1, micro_batches=1)
    both = all_reduce_seconds(with_words(alone, head="counted"), rates()) - all_reduce_seconds(alone, rates())
    tied = all_reduce_seconds(with_words(alone, head="counted", tied=True), rates()) - all_reduce_seconds(
        alone, rates()
    )
    np.testing.assert_allclose(both, 2 * tied, rtol=RTOL)


def test_the_optimizer_reads_and_writes_its_state():
    # A rank has 996,000 + 4,000 dense parameters and one expert of 3e6, a quarter of each on a GPU. Gradients of 1,000
    # bytes and 12 of state read, 12 of state and a weight of 2 written. ZeRO-1: dense ones over 4 replicas.
    for sharding, updated in (("none", 250_000 + 750_000), ("optimizer", 62_500 + 750_000)):
        workload = dataclasses.replace(PAIR, sharding=sharding, optimizer_step="counted")
        step_s = updated * (1000 + 12 + 12 + 2) / MEMORY
        np.testing.assert_allclose(step_seconds(workload, rates(), float), [step_s] * 2, rtol=RTOL)
        np.testing.assert_array_equal(step_seconds(workload, rates(memory_Bps=np.inf), float), 0)
    got, before = timed(workload), timed(dataclasses.replace(workload, optimizer_step="left-out"))
    np.testing.assert_allclose(got.iteration_s, before.iteration_s + step_s, rtol=RTOL)
    np.testing.assert_allclose(got.spent["compute_s"], before.spent["compute_s"] + step_s, rtol=RTOL)


def test_experts_that_are_all_reduced_too():
    # Two blocks of two micro-batches on one stage: 3 s forward and 3 s backward more in each.
    before, got = (timed(job(tp_reduces=kind)) for kind in ("attention", "all"))
    np.testing.assert_allclose(got.spent["tp_comm_s"], before.spent["tp_comm_s"] + 24, rtol=RTOL)
    np.testing.assert_allclose(got.iteration_s, before.iteration_s + 24, rtol=RTOL)
    np.testing.assert_array_equal(alone(job(tp_reduces="all", recompute="block"))["tp"], got.walked.beside["tp"])


def test_keys_and_values_around_a_ring_in_a_server_and_between_servers():
    # CP 2: 2.5e5 tokens a rank, of 2 x 249 elements in bf16: 249 MB once around; over NVLink of four GPUs 0.1245 s.
    # CP 4 is two servers of two ranks: 1.25e5 tokens, thrice 124.5 MB, over half of a server's NICs and three hops.
    for cp, once_s in ((2, 249e6 / (4 * NVLINK)), (4, 3 * 124.5e6 / (SERVER / 2) + 3 * 0.01)):
        workload = job(blocks=1, micro_batches=1, cp=cp)
        for attention_s in (0.0, 0.06, 2.0):
            found = alone(workload, (attention_s, 1.0, 0.0), latency_s=0.01)["cp"]
            want = max(0.0, once_s - attention_s * SCORES / ATTENTION * (cp - 1) / cp)
            assert (want > 0) == (attention_s < 1)
            np.testing.assert_allclose(found[0, :, 0], [[want, 0], [0, 2 * want]], rtol=RTOL, atol=1e-12)
    for kind, want in {"attention": [[1, 0], [0, 3]], "block": [[1, 0], [1, 2]]}.items():
        found = alone(job(blocks=1, micro_batches=1, cp=2, recompute=kind), (0.0, 1.0, 0.0))["cp"]
        np.testing.assert_allclose(found[0, :, 0], np.multiply(want, 0.1245), rtol=RTOL)


def plain_ring(steps, transfer, compute):
    """A ring rank by rank: a step computes on the chunk at hand while the next one arrives."""
    now = 0.0
    for step in range(steps):
        now += max(compute, transfer) if step < steps - 1 else compute
    return now


def test_what_a_ring_shows_is_that_of_its_steps():
    for cp, attention_s in ((2, 0.01), (4, 0.01), (4, 3.0), (4, 0.0)):
        workload = job(blocks=1, micro_batches=1, cp=cp)
        once_s = context_bytes(workload) / (4 * NVLINK if cp == 2 else SERVER / 2)
        scores_s = attention_s * SCORES / ATTENTION
        shown = alone(workload, (attention_s, 1.0, 0.0))["cp"][0, 0, 0, 0]
        longer = plain_ring(cp, once_s / (cp - 1), scores_s / cp) - scores_s
        np.testing.assert_allclose(shown, longer, rtol=RTOL, atol=1e-12)


# Two replicas of EP 4 on two servers each: dense parameters on 4 servers, experts on 2.
SHARED = job(pp=1, dp=2, blocks=2, dense_blocks=1, micro_batches=3)
DENSE_BLOCK, MOE_BLOCK = 996_000 + 1_500_000, 996_000 + 4_000  # parameters, the same on all ranks


def half_ring(dense, expert):
    """Seconds of a reduce-scatter or all-gather of bytes by hand: between servers, inside, 3 + 1 steps of 0.01 s."""
    between = dense * 3 / 4 + 2 * expert * 1 / 2  # two EP ranks of a server
    return between / SERVER + dense / 4 * 1 / 2 / NVLINK + 4 * 0.01


def test_parameters_that_are_gathered_by_hand():
    for attention_s, inner_s in ((0.0, 0.0), (0.001, 0.0), (1e3, 1e3)):
        seconds = BlockSeconds(attention_s, inner_s, inner_s)
        found = alone(dataclasses.replace(SHARED, sharding="parameters"), seconds, latency_s=0.01)["dp"]
        computes = attention_s + inner_s
        for moe, dense, expert in ((True, MOE_BLOCK, 3e6), (False, DENSE_BLOCK, 0)):
            gather, scatter = half_ring(2.0 * dense, 2.0 * expert), half_ring(1002.0 * dense, 1002.0 * expert)
            where = places(SHARED)
            here = (where.layer >= 0) == moe
            forward, back = max(0.0, gather - computes), max(0.0, scatter - 2 * computes)
            want = np.where(where.backward, back, forward)[here]
            np.testing.assert_allclose(found[here][:, 0], want, rtol=RTOL, atol=1e-12)
            np.testing.assert_array_equal(found[here][:, 1], 0)
    np.testing.assert_array_equal(all_reduce_seconds(dataclasses.replace(SHARED, sharding="parameters"), rates()), 0)


@pytest.mark.parametrize(("recompute", "attention", "inner"), [("none", 2, 2), ("attention", 3, 2), ("block", 3, 3)])
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("gpipe", 1), ("interleaved", 2)])
def test_parameters_are_hidden_by_all_that_a_block_computes(schedule, chunks, recompute, attention, inner):
    seconds = BlockSeconds(0.1, 0.07, 0.15)
    settings = {"schedule": schedule, "chunks": chunks, "recompute": recompute, "sharding": "parameters"}
    workload = job(pp=2, dp=2, blocks=4, dense_blocks=1, micro_batches=2, **settings)
    where, walked = places(workload), timed(workload, seconds, latency_s=0.01).walked
    region, seen = oracle.Stage(0, recompute=recompute), set()
    for at in zip(*np.nonzero(where.present), strict=True):
        backward, moe = bool(where.backward[at]), bool(where.layer[at] >= 0)
        inner_s = seconds.moe_s if moe else seconds.dense_s
        bytes_each = 1002.0 if backward else 2.0
        wire = half_ring(bytes_each * (MOE_BLOCK if moe else DENSE_BLOCK), bytes_each * 3e6 * moe)
        computed = attention * seconds.attention_s + inner * inner_s if backward else seconds.attention_s + inner_s
        block = {"attention": seconds.attention_s, "inner": inner_s, "tp": 0, "switch": (False, False)}
        ran = region.run("B" if backward else "F", block | {"exchange": [(0, 0)] * 2 if moe else None})
        assert computed == pytest.approx(ran["computed"])  # as a plain clock has it
        np.testing.assert_allclose(walked.slots.compute_s[at], computed, rtol=RTOL)
        np.testing.assert_allclose(walked.beside["dp"][at], [max(0.0, wire - computed), 0], rtol=RTOL, atol=1e-12)
        seen.add((backward, moe, wire > computed))
    assert {(True, True, True), (True, False, True)} <= seen  # both kinds of blocks wait


def half_of_all():
    """Of all parameters: latency once."""
    return half_ring(2.0 * (DENSE_BLOCK + MOE_BLOCK), 2.0 * 3e6)


def test_gradients_that_are_scattered_and_weights_gathered_at_the_end():
    workload = dataclasses.replace(SHARED, sharding="gradients", grad_bytes=2)
    got = timed(workload, BlockSeconds(0.0, 0.0, 0.0))
    moe, dense = half_ring(2.0 * MOE_BLOCK, 6e6) - 0.04, half_ring(2.0 * DENSE_BLOCK, 0) - 0.04
    np.testing.assert_allclose(got.walked.reduce_s, half_of_all() - 0.04, rtol=RTOL)
    np.testing.assert_allclose(got.spent["dp_comm_s"], 3 * (moe + dense) + half_of_all() - 0.04, rtol=RTOL)
    for kind in ("none", "optimizer"):  # a reduce-scatter and an all-gather: all of an all-reduce
        whole = all_reduce_seconds(dataclasses.replace(workload, sharding=kind), rates())
        np.testing.assert_allclose(whole, 2 * (half_of_all() - 0.04), rtol=RTOL)


def test_updated_weights_are_gathered_in_bf16_whatever_gradients_have():
    dense, expert = DENSE_BLOCK + MOE_BLOCK, 3e6
    scatter, gather = (half_ring(size * dense, size * expert) - 0.04 for size in (4.0, 2.0))
    for sharding, want in (("none", 2 * scatter), ("optimizer", scatter + gather), ("gradients", gather)):
        got = all_reduce_seconds(dataclasses.replace(SHARED, sharding=sharding, grad_bytes=4), rates())
        np.testing.assert_allclose(got, want, rtol=RTOL, err_msg=sharding)


def test_all_of_it_together_adds_up_and_is_drawn():
    settings = {"head": "counted", "optimizer_step": "counted", "tp_reduces": "all", "sharding": "parameters", "cp": 2}
    workload = with_words(job(pp=2, dp=2, blocks=5, dense_blocks=1, recompute="block"), **settings)
    total, _, walked = timed(workload, BlockSeconds(0.001, 0.001, 0.001))  # hides next to nothing
    busy = np.asarray(walked.slots.end - walked.slots.begin).sum((1, 2)) + walked.reduce_s + walked.step_s
    np.testing.assert_allclose(sum(walked.spent.values()), busy, rtol=RTOL)
    assert total > busy.max()
    assert set(walked.beside) == set(COLUMNS)
    assert all(float(jnp.asarray(x).sum()) > 0 for x in walked.beside.values())
    plain = jax.tree.map(np.asarray, walked)
    ends = {"reduce_s": plain.reduce_s, "beside": plain.beside, "step_s": plain.step_s}
    drawn = segments(workload, plain.slots, plain.blocks, plain.compute, Rules(recompute="block"), **ends)
    for stage in range(2):
        of = dict.fromkeys(("compute_s", "tp_comm_s", "dp_comm_s"), 0.0)
        for one in drawn:
            column = {"tp": "tp_comm_s", "cp": "tp_comm_s", "dp": "dp_comm_s", "waiting": None}.get(
                one["kind"], "compute_s"
            )
            if one["stage"] == stage and column:
                of[column] += one["end_s"] - one["start_s"]
        for column, seconds in of.items():
            np.testing.assert_allclose(seconds, plain.spent[column][stage], rtol=1e-7, err_msg=column)


def test_slopes_go_through():
    workload = dataclasses.replace(SHARED, sharding="parameters", cp=2)

    @eqx.filter_jit
    def total(eps_Bps):
        compute = Compute(*map(jnp.asarray, (0.001, 0.001, 0.001, 0.0)))
        found = beside_of(workload, rates()._replace(eps_Bps=eps_Bps), compute, float)
        return sum(x.sum() for x in found.values())

    slope = jax.grad(total)(jnp.asarray(SERVER))
    step = 1e-4 * SERVER
    np.testing.assert_allclose(slope, (total(SERVER + step) - total(SERVER - step)) / (2 * step), rtol=1e-5)
