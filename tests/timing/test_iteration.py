"""Whole iterations by hand, and drawn ones against plain Python from tokens to seconds."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.policies import uniform
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.workload.compute import BlockSeconds
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
        got = without_exchange(CHUNKS, FabricRates(*map(jnp.asarray, rates)), dp_overlap=True)
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
    attention, expert, dense, *_ = map(float, seconds)
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
