"""Whole iterations: by hand, drawn ones against plain Python, stages that differ, and what blocks take beside."""

import dataclasses
import itertools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.policies import uniform
from mfabric_jax.timing.blocks import BlockCompute
from mfabric_jax.timing.iteration import (
    OTHER_KINDS,
    PORTS,
    FabricRates,
    Walked,
    all_reduce_seconds,
    compute_of,
    early,
    ends_earlier,
    expert_load,
    last_blocks,
    other_seconds_of,
    send_seconds,
    step_seconds,
    walk_alone,
)
from mfabric_jax.timing.passes import Exchanges, order_of, places
from mfabric_jax.timing.trace import segments
from mfabric_jax.workload import get
from mfabric_jax.workload.compute import BlockSeconds, block_flops
from mfabric_jax.workload.training_code import IssueSeconds, Launches
from mfabric_jax.workload.volume import context_bytes
from tests.oracles import timeline as oracle
from tests.oracles.greedy import greedy as plain_greedy
from tests.oracles.timeline import Stage as Clock
from tests.oracles.timeline import stage_order, timeline
from tests.oracles.tree import tree
from tests.timing import jobs
from tests.timing.jobs import BATCHES, DENSE, RECORDED, STAGES, draw_tokens, fat_tree, job, numbers

RTOL = 1e-9
iterate_once = eqx.filter_jit(jobs.timed)
NVSWITCH = 0.5e9  # bytes/s
PARTS = ("iteration_s", "compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")


def assert_parts(got, *, total, compute, tp, ep=0, dp, late=0, bubble=0, stage=None):
    """`late`: reconfiguration; all in seconds."""
    want = dict(zip(PARTS, (total, compute, tp, ep, dp, late, bubble), strict=True))
    for field, value in want.items():
        np.testing.assert_allclose(getattr(got, field), value, rtol=RTOL, atol=1e-12, err_msg=field)
    assert stage is None or got.stage == stage
    np.testing.assert_allclose(sum(getattr(got, field) for field in PARTS[1:]), got.iteration_s, rtol=RTOL)
    np.testing.assert_allclose(got.exposed_comm_s, got.tp_comm_s + got.ep_comm_s + got.dp_comm_s, rtol=RTOL)


# Attention 2 s, experts 1 s forward; backward 4 s and 2 s. Activations are 5e5 tokens x 1,000 x 2 = 1 GB, the
# tensor-parallel all-reduce of TP 4 sends 2 x 1 GB x 3/4 = 1.5 GB at 0.5 GB/s: 3 s.
SECONDS = BlockSeconds(2.0, 1.0, 100.0)


def without_exchange(workload, fabric, **rules):
    """Iteration whose all-to-alls take no time: one block a place, or two on a single stage."""
    nothing = np.zeros((workload.pp, 2 * workload.micro_batches * workload.chunks, 2 if workload.pp == 1 else 1))
    both = jnp.asarray(np.stack([nothing, nothing], axis=-1))
    found = Exchanges(both, both, nothing, both > 0, nothing > 0, None, jnp.zeros(()))
    return iterate_once(workload, fabric, found, SECONDS, NVSWITCH, **rules)


def test_all_replicas_on_a_server_share_its_sends():
    # TP 2, EP 2: two replicas on every server, that is 4 ranks which send 1 GB each, over 8 GB/s or 2 GB/s.
    # Two stages of one block, one micro-batch; all-to-alls take no time; the all-reduce sends 1 GB: 2 s.
    # Stage 0: F [0, 5]: 2 + 2 + 1.  Stage 1: 1 send later F 5, B 2 + 4 + 2 = 8.  Stage 0: another send later B 8.
    # DP 2, one server a stage: dense: a half of 1 GB on 4 ranks, 0.75 GB; experts: a half of 2 x 3 GB with the twin,
    # 3 GB; over 0.5 GB/s 7.5 s.
    workload = job(tp=2, ep=2, dp=2, pp=2, micro_batches=1)
    for fabric, send in ((fat_tree(), 0.5), (Region(servers=1, nic_gbps=8.0, electrical_nics=2), 2.0)):
        got = without_exchange(workload, fabric)
        assert_parts(got, total=33.5 + 2 * send, compute=9, tp=4, dp=7.5, bubble=13 + 2 * send)


# One block a place, all-to-alls that take no time: 2 + 3 + 1 forward, 2 + 4 + 3 backward; sends of 0.25 s.
CHUNKS = job(pp=2, blocks=4, schedule="interleaved", chunks=2)
CHUNKS_S = {"stage": 0, "compute": 36, "tp": 24, "bubble": 16.5}


def test_two_chunks_a_stage_and_gradients_that_wait_for_the_last_pass_of_their_chunk():
    # Stage 0: F0 F1 of chunk 0, F0 F1 of chunk 1, then backward. Micro-batch and chunk:
    #   stage 0: F00 [0, 6], F10 [6, 12], F01 [12.5, 18.5], F11 [18.5, 24.5]
    #   stage 1: F00 [6.25, 12.25], F10 [12.25, 18.25], F01 [18.75, 24.75], B01 [24.75, 33.75], F11 [33.75, 39.75],
    #            B11 [39.75, 48.75], B00 [48.75, 57.75] (arrived 43.25), B10 [58.25, 67.25]
    #   stage 0: B01 [34, 43], B11 [49, 58], B00 [58, 67], B10 [67.5, 76.5]
    # Gradients of two blocks: 2 GB / 8 GB/s + 1 = 1.25.
    got = without_exchange(CHUNKS, fat_tree())
    assert_parts(got, total=77.75, dp=1.25, **CHUNKS_S)
    # Stage 0 as above: chunk 1 is through at 58 (B11), not with the first of its passes, at 43; chunk 0 at 76.5. Half
    # of the time for each: of 21 s chunk 1 until 68.5, chunk 0 until 87; of 37 s until 76.5 and 95; of 41 s chunk 0
    # waits until 78.5 and ends at 99. Stage 1 is ahead: through with them at 48.75 and 67.25.
    for reduce_s, until in ((1.25, 77.125), (21.0, 87.0), (37.0, 95.0), (41.0, 99.0)):
        rates = FabricRates(1e9, 2e9 / (reduce_s - 1), 8e9, NVSWITCH, 0.0, 0.0)
        got = without_exchange(CHUNKS, jax.tree.map(jnp.asarray, FabricRates(*rates)), dp_overlap=True)
        assert_parts(got, total=until, dp=until - 76.5, **CHUNKS_S)


def test_gradients_queue_up_beside_the_backward_pass():
    # One stage of two blocks: F0 B0 F1 take 12 + 18 + 12, B1 [42, 60], of which block 1 is through at 51.
    for nic_gbps, left in (
        (8.0, 0.625),  # 2 GB / 8 GB/s + 1: half of it for each block
        (0.16, 6.75),  # 13.5: block 1 is reduced at 51 + 6.75, before block 0 is through
        (0.1, 12.0),  # 21: block 1 at 61.5, then block 0 at 72
    ):
        got = without_exchange(job(), fat_tree(nic_gbps), dp_overlap=True)
        assert_parts(got, total=60 + left, compute=36, tp=24, dp=left)


def exchange_seconds(fabric, tokens, nic, nvswitch, before):
    """((seconds on circuits, on all else) of one dispatch, circuits) of one block: 8 ranks and experts on 4 servers."""
    ranks = tokens * jobs.BYTES_PER_TOKEN
    server = np.arange(8) // 2
    apart = server[:, None] != server
    crossing = np.where(apart, 0, ranks)
    if not isinstance(fabric, Electrical):  # half of what leaves or enters by the server's NICs
        away = np.where(apart, ranks, 0)
        for rank in range(8):
            crossing[rank, rank ^ 1] += away[rank].sum() / 2 + away[:, rank ^ 1].sum() / 2
    inside = tree(np.where(np.eye(8, dtype=bool), 0, crossing), np.full(8, 4 * nvswitch), np.full(8, 4 * nvswitch))
    if isinstance(fabric, Electrical):
        port, edge = np.full(8, 4 * nic), np.full(4, 8 * nic / float(fabric.oversubscription))
        return (0.0, max(inside.max(), tree(np.where(apart, ranks, 0), port, port, edge, edge).max())), before
    between = np.where(np.eye(4, dtype=bool), 0, ranks.reshape(4, 2, 4, 2).sum(axis=(1, 3)))
    count = np.array(plain_greedy(between, int(fabric.optical_degree)))
    port = np.full(4, float(fabric.electrical_nics) * nic)
    optical = max(between[pair] / (count[pair] * nic) for pair in zip(*np.nonzero(count), strict=True))
    return (optical, max(inside.max(), tree(np.where(count, 0, between), port, port).max())), count


def plain_iteration(fabric, tokens, seconds, nvswitch):
    """(seconds, parts of every stage) of an iteration, from tokens: if packets go on while the switch turns, and if
    they wait."""
    nic = float(fabric.nic_gbps) * 1e9 / 8
    optical = isinstance(fabric, Region)
    external = nic * (float(fabric.electrical_nics) if optical else 8 / float(fabric.oversubscription))
    attention, expert, dense = map(float, seconds[:3])
    all_reduce = 2 * 1e9 * 3 / 4 / nvswitch
    blocks, parts = {}, []
    for p, stage in enumerate(STAGES):
        circuits = np.asarray(uniform(None, fabric).circuits.count) if optical else None
        sums = dict.fromkeys(("compute", "tp", "ep"), 0.0)
        for kind, m, _ in stage_order("1f1b", p, len(STAGES), BATCHES):
            scale = 1.0 if kind == "F" else 2.0
            blocks[kind, p, m, 0] = row = []
            for number in stage if kind == "F" else stage[::-1]:
                one = {"attention": attention, "inner": dense, "tp": all_reduce}
                one |= {"exchange": None, "switch": (False, False), "ahead": kind == "B"}
                if number >= DENSE:
                    small, now = exchange_seconds(fabric, tokens[number - DENSE, m % RECORDED], nic, nvswitch, circuits)
                    large = tuple(2 * part for part in small)
                    one |= {"inner": expert, "switch": (optical and bool((now != circuits).any()), False)}
                    one["exchange"] = (small, large) if kind == "F" else (large, small)
                    circuits = now
                row.append(one)
                sums["compute"] += scale * (one["attention"] + one["inner"])
                sums["tp"] += all_reduce
                sums["ep"] += sum(map(max, one["exchange"] or ()))
        moe = sum(number >= DENSE for number in stage)
        # Attention 996,000, gate 8,000, dense FFN 1,500,000 parameters; 1000 bytes each. Ring of 4 servers, of 2 ranks.
        gradients = 1000.0 * (len(stage) * 996_000 + moe * 8_000 + (len(stage) - moe) * 1_500_000)
        sums["dp"] = 2 * gradients * 3 / 4 / external + 2 * gradients / 4 / 2 / nvswitch
        parts.append(sums)
    send = 1e9 / (external / 2)
    for eps_waits in (False, True):
        clocks = [Clock(float(fabric.delay_s), eps_waits) for _ in STAGES]
        records, end = timeline(blocks, "1f1b", len(STAGES), BATCHES, 1, [send] * len(STAGES), clocks)
        last = [max(t for (_, at, *_), t in end.items() if at == p) for p in range(len(STAGES))]
        paid = [sum(one["paid"] for (_, at, *_), row in records.items() if at == p for one in row) for p in range(3)]
        total = max(t + sums["dp"] for t, sums in zip(last, parts, strict=True))
        yield total, [sums | {"reconfig": paid[p]} for p, sums in enumerate(parts)]


def assert_iteration(got, total, parts):
    """The parts of the busiest stage."""
    want = dict(parts[int(got.stage)])
    assert sum(want.values()) >= max(sum(one.values()) for one in parts) * (1 - RTOL)
    late = want.pop("reconfig")
    assert_parts(got, total=total, late=late, bubble=total - late - sum(want.values()), **want)
    return late


@pytest.mark.parametrize("optical", [True, False])
def test_drawn_iterations_agree_with_plain_python(optical):
    hidden = paid = slack = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tokens = draw_tokens(seed)
        nic_gbps, nvswitch = numbers(rng.uniform(5, 40), rng.uniform(0.1e9, 1e9))
        if optical:
            settings = {"nics": float(rng.integers(1, 4)), "degree": (6, 2)[seed % 2], "delay": rng.uniform(0, 20)}
            fabric = jobs.region(nic_gbps, **settings)
        else:
            fabric = fat_tree(nic_gbps, rng.choice([1.0, 3.0]))
        seconds = BlockSeconds(*numbers(*rng.uniform(0.1, 3, 3)))
        found, got = jobs.drawn(fabric, tokens, seconds=seconds, nvswitch_Bps=nvswitch)
        exchanges = 2 * BATCHES * jobs.DRAWN.moe_layers
        assert np.count_nonzero(found.load[..., 0]) == exchanges  # dense blocks and padding exchange nothing
        assert optical or not found.optical.any()
        goes_on, waits = plain_iteration(fabric, tokens, seconds, float(nvswitch))
        waiting = jobs.drawn_again(fabric, found, seconds, nvswitch)
        most = assert_iteration(waiting, *waits)
        slack += assert_iteration(got, *goes_on) < waits[1][int(got.stage)]["reconfig"] * (1 - RTOL)
        at_most = float(fabric.delay_s) * np.asarray(found.switch)[int(waiting.stage)].sum()
        hidden, paid = hidden + (most < at_most * (1 - RTOL)), paid + (most > 0)
    assert not optical or (hidden >= 1 and paid >= 5 and slack >= 3)  # the draws show all
    assert optical or paid == 0


GB = 1e9
DEEP, ROUNDS = 3, 4
# One MoE block a stage on two servers of two ranks: 1 GB of activations a rank, 1.5 GB of its all-reduce over TP 4. Of
# dense gradients 1 GB crosses between the servers (a ring has two steps), 0.25 GB inside.
TP_GB = 1.5


def stage_rates(*, eps=2 * GB, send=4 * GB, delay=0.0, latency=0.0, stages=DEEP):
    """NICs of 1 GB/s; what a stage may have for itself as [P]."""
    each = (jnp.broadcast_to(jnp.asarray(x, float), stages) for x in (eps, send))
    return FabricRates(jnp.asarray(GB), *each, jnp.asarray(NVSWITCH), jnp.asarray(delay), jnp.asarray(latency))


def twice(load):
    """[P Q] as both all-to-alls of one block [P Q 1 2]."""
    return jnp.repeat(jnp.asarray(load, float)[..., None, None], 2, axis=-1)


def packets(load, inside=0.0):
    """All-to-alls without circuits, from seconds at 1 GB/s of every pass [P Q], both of a block alike."""
    load = twice(load) * GB
    inside = jnp.broadcast_to(jnp.asarray(inside, float)[..., None], load.shape[:3]) * NVSWITCH
    return Exchanges(0 * load, load, inside, load < 0, inside < 0, None, jnp.zeros(()))


def stage_timed(given, found, stages=DEEP, batches=ROUNDS, tp=NVSWITCH):
    tp = jnp.broadcast_to(jnp.asarray(tp, float), stages)
    workload = job(pp=stages, blocks=stages, micro_batches=batches)
    return iterate_once(workload, given, found, SECONDS, NVSWITCH, tp_Bps=tp)


def plain(given, load, inside, tp):
    """(iteration, EP seconds of every stage, those of its gradients): a send of its own at every boundary."""
    latency, alpha = float(given.latency_s), float(given.alpha_s)
    send = [2 * GB / float(min(given.send_Bps[p], given.send_Bps[p + 1])) + latency + alpha for p in range(DEEP - 1)]
    sends = (load > 0) | (inside > 0)
    both, blocks = np.maximum(load, inside) + latency * (load > 0) + alpha * sends, {}
    told = float(given.counts_s) * sends  # before the dispatch of a forward pass
    dispatched = both + told * np.array(
        [[kind == "F" for kind, *_ in stage_order("1f1b", p, DEEP, ROUNDS)] for p in range(DEEP)]
    )
    for p in range(DEEP):
        for q, (kind, m, _) in enumerate(stage_order("1f1b", p, DEEP, ROUNDS)):
            one = {"attention": 2.0, "inner": 1.0, "tp": TP_GB * GB / tp[p], "switch": (False, False), "ahead": False}
            blocks[kind, p, m, 0] = [one | {"exchange": [(0, dispatched[p, q]), (0, both[p, q])]}]
    _, end = timeline(blocks, "1f1b", DEEP, ROUNDS, 1, [*send, 0.0], [Clock(0.0) for _ in range(DEEP)])
    reduce = [GB / float(eps) + 0.25 * GB / NVSWITCH + 2 * (latency + alpha) for eps in given.eps_Bps]
    last = [max(t for (_, at, *_), t in end.items() if at == p) for p in range(DEEP)]
    return max(np.add(last, reduce)), (dispatched + both).sum(1), reduce


def test_every_stage_with_rates_of_its_own():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        load, inside = rng.uniform(0, 4, (2, DEEP, 2 * ROUNDS))
        load *= rng.random(load.shape) < 0.7  # no bytes leave the server: no latency
        eps, send, tp = rng.uniform(0.1, 4, (3, DEEP)) * GB
        given = stage_rates(eps=eps, send=send, latency=rng.choice([0.0, 0.5]))
        counts_s, alpha_s = rng.choice([0.0, 0.25], 2)
        given = given._replace(counts_s=jnp.asarray(counts_s), alpha_s=jnp.asarray(alpha_s))
        got = stage_timed(given, packets(load, inside), tp=tp)
        total, exchange, reduce = plain(given, load, inside, tp)
        all_reduce = 2 * ROUNDS * TP_GB * GB / tp
        busiest = int(got.stage)
        want = (total, exchange[busiest], reduce[busiest], all_reduce[busiest])
        np.testing.assert_allclose((got.iteration_s, got.ep_comm_s, got.dp_comm_s, got.tp_comm_s), want, rtol=RTOL)
        assert busiest == np.argmax(np.array(exchange) + reduce + all_reduce)


def test_every_boundary_and_the_one_from_the_last_to_the_first():
    # 2 GB a server: at 4, 1, 2 GB/s. Between 0 and 1, 1 and 2, 2 and 0; one number for all; two stages share two.
    workload = job(pp=3, blocks=6, micro_batches=3, schedule="interleaved", chunks=2)
    for send, want in (((4, 1, 2), (2, 2, 1)), ((1, 4, 8), (2, 0.5, 2)), (2, (1, 1, 1))):
        given = stage_rates(send=np.array(send) * GB, latency=0.25)
        np.testing.assert_allclose(send_seconds(workload, jobs.of_cases(given))[0], np.add(want, 0.25), rtol=RTOL)
    pair = job(pp=2, blocks=4, schedule="interleaved", chunks=2)
    got = send_seconds(pair, jobs.of_cases(stage_rates(send=np.array([4, 1]) * GB, stages=2)))
    np.testing.assert_allclose(got, [[2, 2]], rtol=RTOL)


def test_latency_leaves_the_switch_its_time():
    # Circuits take 2 s of an all-to-all that packets end after 3: of a delay of 5 forward, 4 are paid, latency or not.
    three = np.full((DEEP, 2), 3.0)
    found = packets(three)._replace(
        optical=twice((three - 1) * GB), switch=jnp.asarray([[[[True, False]], [[False, False]]]] * DEEP)
    )
    paid = [stage_timed(stage_rates(delay=5.0, latency=t), found, batches=1).reconfig_s for t in (0.0, 0.25)]
    np.testing.assert_allclose(paid, 4, rtol=RTOL)


NVLINK, SERVER, MEMORY = 0.5e9, 8e9, 1e9  # bytes/s: of a GPU, of a server's NICs, of a GPU's memory
VOCAB = 500


def rates(**more):
    given = {"nic_Bps": 1e9, "eps_Bps": SERVER, "send_Bps": SERVER, "nvlink_Bps": NVLINK, "memory_Bps": MEMORY} | more
    return FabricRates(**{name: jnp.asarray(x, float) for name, x in given.items()})


def reduce_seconds(workload):
    """Of every stage, at the rates above."""
    return all_reduce_seconds(workload, jobs.of_cases(rates()))[0]


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
    nothing = np.zeros((*places(workload).layer.shape, 2))
    found = Exchanges(nothing, nothing, nothing[..., 0], nothing > 0, nothing[..., 0] > 0, None, np.zeros(()))
    walked = walk_alone(workload, rates(**more), found, BlockSeconds(*seconds))
    return Times(float(walked.ends.max()), {name: x[-1] for name, x in walked.stage_seconds.items()}, walked)


def alone(workload, seconds=SECONDS, **more):
    """What blocks take beside the rest."""
    seconds, one = jobs.of_cases((BlockSeconds(*seconds[:3]), jnp.ones(())))
    compute = compute_of(workload, seconds, one)._replace(tp_s=3 * one)
    return jax.tree.map(lambda x: x[0], other_seconds_of(workload, jobs.of_cases(rates(**more)), compute))


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
    np.testing.assert_allclose(after.walked.others["head"][0, :, 0], [[0, HEAD_S], [2 * HEAD_S, 0]], rtol=RTOL)
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
    plain = reduce_seconds(with_words(PAIR))
    local = own / 4 / NVLINK  # a slice each of 4, on 2 ranks
    once = servers_of(PAIR, own) / SERVER + local
    for tied in (False, True):
        got = reduce_seconds(with_words(PAIR, head="counted", tied=tied))
        np.testing.assert_allclose(got - plain, [once, once], rtol=RTOL)
    alone = job(blocks=1, micro_batches=1)
    both = reduce_seconds(with_words(alone, head="counted")) - reduce_seconds(alone)
    tied = reduce_seconds(with_words(alone, head="counted", tied=True)) - reduce_seconds(alone)
    np.testing.assert_allclose(both, 2 * tied, rtol=RTOL)


def test_the_optimizer_reads_and_writes_its_state():
    # A rank has 996,000 + 4,000 dense parameters and one expert of 3e6, a quarter of each on a GPU. Gradients of 4
    # bytes and 12 of state read, 12 of state and a weight of 2 written. ZeRO-1: dense ones over 4 replicas.
    for sharding, updated in (("none", 250_000 + 750_000), ("optimizer", 62_500 + 750_000)):
        workload = dataclasses.replace(PAIR, sharding=sharding, optimizer_step="counted")
        step_s = updated * (4 + 12 + 12 + 2) / MEMORY
        np.testing.assert_allclose(step_seconds(workload, jobs.of_cases(rates())), [[step_s] * 2], rtol=RTOL)
        np.testing.assert_array_equal(step_seconds(workload, jobs.of_cases(rates(memory_Bps=np.inf))), 0)
    got, before = timed(workload), timed(dataclasses.replace(workload, optimizer_step="left-out"))
    np.testing.assert_allclose(got.iteration_s, before.iteration_s + step_s, rtol=RTOL)
    np.testing.assert_allclose(got.spent["compute_s"], before.spent["compute_s"] + step_s, rtol=RTOL)


def test_experts_that_are_all_reduced_too():
    # Two blocks of two micro-batches on one stage: 3 s forward and 3 s backward more in each.
    before, got = (timed(job(tp_reduces=kind)) for kind in ("attention", "all"))
    np.testing.assert_allclose(got.spent["tp_comm_s"], before.spent["tp_comm_s"] + 24, rtol=RTOL)
    np.testing.assert_allclose(got.iteration_s, before.iteration_s + 24, rtol=RTOL)
    np.testing.assert_array_equal(alone(job(tp_reduces="all", recompute="block"))["tp"], got.walked.others["tp"])


def test_what_attention_s_gpus_split_is_all_reduced_beside_folded_experts():
    # Two ranks of one GPU split attention: 3 s for each all-reduce as large as its own. A dense block pays one more,
    # whole experts none, experts over two of four GPUs of attention a third: half of the tokens, (2 - 1)/2 over
    # (4 - 1)/4 of the bytes.
    for tp, ep, routed in ((1, 4, 0.0), (2, 2, 1 / 3)):
        blocks = {"tp": tp, "ep": ep, "folded": 2, "dense_blocks": 1, "gpus_per_server": 4, "sequence": 500}
        found = alone(job(**blocks, micro_batches=1, tp_reduces="all"))["tp"]
        np.testing.assert_allclose(found[0, :, :, 1], [[3, 3 * routed], [3 * routed, 3]], rtol=RTOL)
    assert "tp" not in alone(job(tp=1, ep=8, experts=8, folded=2, tp_reduces="all"))


def test_copies_of_tokens_that_experts_gather():
    # As above with two experts a token in the second of two blocks; the first one is dense.
    workload = job(tp_reduces="copies", dense_blocks=1, top_k=2)
    before, got = (timed(dataclasses.replace(workload, tp_reduces=kind)) for kind in ("attention", "copies"))
    np.testing.assert_allclose(got.spent["tp_comm_s"], before.spent["tp_comm_s"] + 24 / 2 * (1 + 2), rtol=RTOL)


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
    np.testing.assert_array_equal(reduce_seconds(dataclasses.replace(SHARED, sharding="parameters")), 0)


def test_blocks_compute_longer_beside_rings_on_the_cores_that_are_left():
    seconds = BlockSeconds(1e3, 1e3, 1e3)  # hides all rings
    workload = dataclasses.replace(SHARED, sharding="parameters")
    found = alone(workload, seconds, latency_s=0.01, ring_cores=0.25)["dp"]
    where = places(workload)
    for moe, dense, expert in ((True, MOE_BLOCK, 3e6), (False, DENSE_BLOCK, 0)):
        here = (where.layer >= 0) == moe
        gather, scatter = half_ring(2.0 * dense, 2.0 * expert), half_ring(1002.0 * dense, 1002.0 * expert)
        want = 0.25 * np.where(where.backward, scatter, gather)[here]
        np.testing.assert_allclose(found[here][:, 0], want, rtol=RTOL)


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
        np.testing.assert_allclose(walked.others["dp"][at], [max(0.0, wire - computed), 0], rtol=RTOL, atol=1e-12)
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
        whole = reduce_seconds(dataclasses.replace(workload, sharding=kind))
        np.testing.assert_allclose(whole, 2 * (half_of_all() - 0.04), rtol=RTOL)


def test_updated_weights_are_gathered_in_bf16_whatever_gradients_have():
    dense, expert = DENSE_BLOCK + MOE_BLOCK, 3e6
    scatter, gather = (half_ring(size * dense, size * expert) - 0.04 for size in (4.0, 2.0))
    for sharding, want in (("none", 2 * scatter), ("optimizer", scatter + gather), ("gradients", gather)):
        got = reduce_seconds(dataclasses.replace(SHARED, sharding=sharding, grad_bytes=4))
        np.testing.assert_allclose(got, want, rtol=RTOL, err_msg=sharding)


def test_all_of_it_together_adds_up_and_is_drawn():
    settings = {"head": "counted", "optimizer_step": "counted", "tp_reduces": "all", "sharding": "parameters", "cp": 2}
    workload = with_words(job(pp=2, dp=2, blocks=5, dense_blocks=1, recompute="block"), **settings)
    issued = IssueSeconds(Launches(0.001, 0.002), Launches(0.0005, 0.001))
    total, _, walked = timed(workload, BlockSeconds(0.001, 0.001, 0.001, issued=issued))  # hides next to nothing
    busy = np.asarray(walked.slots.end - walked.slots.begin).sum((1, 2)) + walked.reduce_s + walked.step_s
    np.testing.assert_allclose(sum(walked.stage_seconds.values()), busy, rtol=RTOL)
    assert total > busy.max()
    assert set(walked.others) == set(OTHER_KINDS)
    assert all(float(jnp.asarray(x).sum()) > 0 for x in walked.others.values())
    plain = jax.tree.map(np.asarray, walked)
    drawn = segments(workload, plain)
    for stage in range(2):
        of = dict.fromkeys(("compute_s", "tp_comm_s", "dp_comm_s"), 0.0)
        for one in drawn:
            column = {"tp": "tp_comm_s", "cp": "tp_comm_s", "dp": "dp_comm_s", "waiting": None}.get(
                one["kind"], "compute_s"
            )
            if one["stage"] == stage and column:
                of[column] += one["end_s"] - one["start_s"]
        for column, seconds in of.items():
            np.testing.assert_allclose(seconds, plain.stage_seconds[column][stage], rtol=1e-7, err_msg=column)


def test_slopes_go_through():
    workload = dataclasses.replace(SHARED, sharding="parameters", cp=2)

    @eqx.filter_jit
    def total(eps_Bps):
        compute, given = BlockCompute(0.001, 0.001, 0.001, 0.0), rates()._replace(eps_Bps=eps_Bps)
        found = other_seconds_of(workload, jobs.of_cases(given), jobs.of_cases(compute))
        return sum(x.sum() for x in found.values())

    slope = jax.grad(total)(jnp.asarray(SERVER))
    step = 1e-4 * SERVER
    np.testing.assert_allclose(slope, (total(SERVER + step) - total(SERVER - step)) / (2 * step), rtol=1e-5)


EACH, FAST = BlockSeconds(2.0, 5.0, 0.0, 4.0), 1e9


def plainly(tokens, ranks, selections, tile):
    """Rank by rank, expert by expert."""
    per_rank = len(tokens[0]) // ranks
    busiest = 0.0
    for rank in range(ranks):
        rows = 0.0
        for expert in range(rank * per_rank, (rank + 1) * per_rank):
            received = sum(float(row[expert]) for row in tokens)
            rows += math.ceil(received / tile) * tile if tile > 1 else received
        busiest = max(busiest, rows)
    return busiest / selections


@pytest.mark.parametrize("tile", [1, 16, 128])
def test_load_is_that_of_the_busiest_rank(tile):
    job = get("llama-moe")
    rng = np.random.default_rng(tile)
    tokens = rng.integers(0, 900, (2, 3, job.ep, job.architecture.experts)) * (rng.random((2, 3, 1, 1)) < 0.8)
    with jax.enable_x64(True):
        found = expert_load(job, jnp.asarray(tokens, float), tile)
    want = [[plainly(one, job.ep, job.selections, tile) for one in layer] for layer in tokens]
    np.testing.assert_allclose(found, want, rtol=1e-12)


def test_balanced_experts_of_whole_tiles_are_the_balanced_case():
    job = get("llama-moe")
    even = jnp.full((1, 1, job.ep, job.architecture.experts), job.selections / job.architecture.experts)
    assert expert_load(job, even).tolist() == [[1.0]]
    one = jnp.zeros_like(even).at[..., 0].set(job.selections)
    assert expert_load(job, one).tolist() == [[job.ep]]  # all on one expert: one rank computes everybody's


def test_a_sum_of_parts_that_is_whole_tiles_fills_no_tile_more():
    parts = np.array([60.6, 51.1, 47.1, 18.8, 19.2, 29.0, 18.6, 11.600000000000012])
    assert 256 < parts.sum() < 256 + 1e-12  # what a capacity leaves, off by rounding
    workload, tokens = job(ep=8, experts=8), np.zeros((1, 2, 8, 8))
    tokens[0, 0, :, 0], tokens[0, 1, :, 0] = parts, 32.0
    summed, whole = expert_load(workload, tokens)[0]
    assert summed == whole > 0


def test_a_block_computes_as_long_as_its_busiest_rank():
    # One block, one micro-batch: attention 2, gate and experts 5 of which experts 4; all-reduce 1; no all-to-all.
    job = jobs.job(pp=1, blocks=1, micro_batches=1)
    where = places(job)
    tokens = jnp.zeros((1, 1, 4, 4)).at[..., 0].set(job.selections)  # every token to rank 0: it computes four times
    load = expert_load(job, tokens, tile=1)
    assert load.tolist() == [[4.0]]
    found, _ = jobs.simulate(job, jobs.fat_tree(), 0 * tokens, EACH, uniform, FAST)
    even = jobs.timed(job, jobs.fat_tree(), found, EACH, FAST)
    busy = jobs.timed(job, jobs.fat_tree(), found._replace(busy=load[where.pick(1, 1)]), EACH, FAST)
    assert float(even.compute_s) == pytest.approx(3 * (2 + 5))
    assert float(busy.compute_s) == pytest.approx(3 * (2 + 5 + 3 * 4))
    assert float(busy.iteration_s - even.iteration_s) == pytest.approx(3 * 3 * 4)


def test_what_grows_with_the_load_is_what_routed_experts_compute():
    job = get("deepseek-r1")
    flops, model = block_flops(job), job.architecture
    rest = job.tokens * 2 * (model.gate_params + model.shared_params)
    assert flops.moe == pytest.approx(flops.expert + rest, rel=1e-12)
    assert flops.expert == pytest.approx(job.selections * 2 * model.expert_params, rel=1e-12)


def plainly_left(demand, loads, ranks_a_port, pairs=False):
    """For every number k of ranks: what the k busiest send back, at the port where that is most, over all ranks'; of
    pairs: of the pair of ports where that is most over what the pair sends."""
    order = sorted(range(len(loads)), key=lambda rank: -loads[rank])
    left, parts = [], []
    for k in [len(loads), *range(1, len(loads) + 1)]:
        out, into, pair = {}, {}, {}
        for rank, source in itertools.product(order[:k], range(len(loads))):
            ends = rank // ranks_a_port, source // ranks_a_port
            for sums, end in ((out, ends[0]), (into, ends[1]), (pair, ends)):
                sums[end] = sums.get(end, 0) + demand[source][rank]
        left.append(max(*out.values(), *into.values()))
        parts.append(pair)
    if pairs:
        shares = [max(some[ends] / all_ for ends, all_ in parts[0].items() if all_ and ends in some) for some in parts]
    else:
        shares = [one / left[0] if left[0] else 1 for one in left]
    return [loads[order[0]] - loads[rank] for rank in order], shares[1:]


@pytest.mark.parametrize("ports", PORTS)
def test_what_is_left_when_ranks_send_as_they_are_done(ports):
    job = get("llama-moe")
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, 900, (1, 1, job.ep, job.architecture.experts)).astype(float)
    with jax.enable_x64(True):
        found = early(job, jnp.asarray(tokens), 1, ports=ports)
    loads = [float(tokens[0, 0, :, rank].sum()) / job.selections for rank in range(job.ep)]
    server = [rank // job.ranks_per_server for rank in range(job.ep)]

    def bytes_of(here):
        ranks = range(job.ep)
        return [[tokens[0, 0, s, d] * ((server[s] == server[d]) == here) * (s != d) for d in ranks] for s in ranks]

    together = 1 if ports == "rank" else job.ranks_per_server
    ahead, between = plainly_left(bytes_of(False), loads, together, pairs=ports == "pair")
    _, inside = plainly_left(bytes_of(True), loads, 1)
    for have, want in zip(found, (ahead, between, inside), strict=True):
        np.testing.assert_allclose(have[0, 0], want, rtol=1e-12, atol=1e-12)
    assert (float(found.between[0, 0, 0]) == 1) == (ports == "rank")  # with a port of its own the busiest ends last


def test_two_ranks_that_are_done_one_after_the_other():
    # The busiest has 4 s of the 10 s that all take at the busiest port; the other is done 3 s before it.
    left, ahead_s = jnp.asarray([0.4, 1.0]), jnp.asarray([0.0, 3.0])
    assert float(ends_earlier(jnp.asarray(10.0), left, ahead_s)) == 7.0
    assert float(ends_earlier(jnp.asarray(10.0), left, 3 * ahead_s)) == 4.0  # all else is sent: its own 4 s are left
    assert float(ends_earlier(jnp.asarray(0.0), left, ahead_s)) == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe"])
def test_a_host_lengthens_passes_whatever_the_schedule(schedule):
    """The parts of a stage add up to its busy time, and a slower host never makes an iteration shorter."""
    workload = job(
        pp=2, blocks=4, micro_batches=4, schedule=schedule, **({"chunks": 2} if schedule == "interleaved" else {})
    )
    before = 0.0
    for issue_s in (0.0, 0.001, 0.01):
        issued = IssueSeconds(Launches(issue_s, 2 * issue_s), Launches(issue_s, 2 * issue_s)) if issue_s else None
        total, _, walked = timed(workload, BlockSeconds(0.001, 0.001, 0.001, issued=issued))
        busy = np.asarray(walked.slots.end - walked.slots.begin).sum((1, 2)) + walked.reduce_s + walked.step_s
        if not order_of(workload).in_pairs.any():
            np.testing.assert_allclose(sum(walked.stage_seconds.values()), busy, rtol=RTOL)
        assert total > before
        before = total
