"""Stages that are not alike: rates, latency and regions of their own, by hand and against one clock per stage."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region, degraded
from mfabric_jax.policies import Plan, greedy
from mfabric_jax.schedule import FabricRates
from mfabric_jax.schedule.exchange import Exchanges, exchanges_between, failed_stage, places, routed, switched
from mfabric_jax.schedule.iteration import send_seconds
from mfabric_jax.workload import BlockSeconds
from tests.oracles.timeline import stage_order
from tests.oracles.tree import tree
from tests.schedule import jobs
from tests.schedule.jobs import job

RTOL = 1e-9
GB = 1e9
STAGES, BATCHES = 3, 4
NVSWITCH = 0.5 * GB  # bytes/s
SECONDS = BlockSeconds(2.0, 1.0, 100.0)
# One MoE block a stage on two servers of two ranks: 1 GB of activations a rank, 1.5 GB of its all-reduce over TP 4. Of
# dense gradients 1 GB crosses between the servers (a ring has two steps), 0.25 GB inside.
FORWARD_S, BACKWARD_S, TP_GB = 2.0 + 1.0, 4.0 + 2.0, 1.5
iterate_once = eqx.filter_jit(jobs.timed)


def rates(*, eps=2 * GB, send=4 * GB, delay=0.0, latency=0.0, stages=STAGES):
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


def timed(given, found, stages=STAGES, batches=BATCHES, tp=NVSWITCH):
    tp = jnp.broadcast_to(jnp.asarray(tp, float), stages)
    workload = job(pp=stages, blocks=stages, micro_batches=batches)
    return iterate_once(workload, given, found, SECONDS, NVSWITCH, tp_Bps=tp)


# ------------------------------------------------------------------------------------------------- against plain Python
def plain(given, load, inside, tp):
    """(iteration, EP seconds of every stage): 1F1B with a send of its own at every boundary."""
    stages, passes = load.shape
    latency = float(given.latency_s)
    send = [2 * GB / float(min(given.send_Bps[p], given.send_Bps[p + 1])) + latency for p in range(stages - 1)]
    order = [[(kind, m) for kind, m, _ in stage_order("1f1b", p, stages, passes // 2)] for p in range(stages)]
    todo, clock, end, exchange = [list(row) for row in order], [0.0] * stages, {}, [0.0] * stages
    while any(todo):
        for p in range(stages):
            if not todo[p]:
                continue
            kind, m = todo[p][0]
            neighbour = p - 1 if kind == "F" else p + 1
            if 0 <= neighbour < stages:
                if (kind, neighbour, m) not in end:
                    continue
                clock[p] = max(clock[p], end[kind, neighbour, m] + send[min(p, neighbour)])
            q = order[p].index((kind, m))
            both = 2 * (max(load[p, q], inside[p, q]) + (latency if load[p, q] > 0 else 0))
            exchange[p] += both
            clock[p] += (FORWARD_S if kind == "F" else BACKWARD_S) + TP_GB * GB / tp[p] + both
            end[kind, p, m] = clock[p]
            todo[p].pop(0)
    reduce = [GB / float(eps) + 0.25 * GB / NVSWITCH + 2 * latency for eps in given.eps_Bps]
    return max(t + r for t, r in zip(clock, reduce, strict=True)), exchange, reduce


def test_every_stage_with_rates_of_its_own():
    for seed in range(6):
        rng = np.random.default_rng(seed)
        load, inside = rng.uniform(0, 4, (2, STAGES, 2 * BATCHES))
        load *= rng.random(load.shape) < 0.7  # no bytes leave the server: no latency
        eps, send, tp = rng.uniform(0.1, 4, (3, STAGES)) * GB
        given = rates(eps=eps, send=send, latency=rng.choice([0.0, 0.5]))
        got = timed(given, packets(load, inside), tp=tp)
        total, exchange, reduce = plain(given, load, inside, tp)
        all_reduce = 2 * BATCHES * TP_GB * GB / tp
        busiest = int(got.stage)
        want = (total, exchange[busiest], reduce[busiest], all_reduce[busiest])
        np.testing.assert_allclose((got.iteration_s, got.ep_comm_s, got.dp_comm_s, got.tp_comm_s), want, rtol=RTOL)
        assert busiest == np.argmax(np.array(exchange) + reduce + all_reduce)


def test_equal_stages_are_one_number():
    rng = np.random.default_rng(0)
    shape = (STAGES, 2 * BATCHES, 1, 2)
    optical, electrical, inside = (jnp.asarray(x) for x in rng.uniform(0, 4, (3, *shape)))
    switch, ahead = (jnp.asarray(x) for x in rng.random((2, *shape)) < 0.7)
    found = Exchanges(
        optical * GB, electrical * GB, NVSWITCH * inside[..., 0], switch, ahead[..., 0], None, jnp.zeros(())
    )
    each = rates(eps=2 * GB, send=3 * GB, delay=3.0, latency=0.1)
    one = FabricRates(*(jnp.asarray(x) for x in (GB, 2 * GB, 3 * GB, NVSWITCH, 3.0, 0.1)))
    workload = job(pp=STAGES, blocks=STAGES, micro_batches=BATCHES)
    want = iterate_once(workload, one, found, SECONDS, NVSWITCH)
    for part, number in zip(timed(each, found), want, strict=True):
        np.testing.assert_array_equal(part, number)
    assert want.reconfig_s > 0


# ------------------------------------------------------------------------------------------------------------ by hand
# One micro-batch through three stages, no all-to-alls: 3 x (2 + 1 + 3) forward, 3 x (4 + 2 + 3) backward and two sends
# of 2 GB each way; gradients 1/2 + 1/2 at the end.
ALONE = 18 + 27 + 1
NOTHING = np.zeros((STAGES, 2))


def alone(found=None, **given):
    found = packets(NOTHING) if found is None else found
    return float(timed(rates(**given), found, batches=1).iteration_s)


def test_a_boundary_is_as_fast_as_the_slower_of_its_stages():
    for send, both in [
        ((4, 4, 4), 0.5 + 0.5),
        ((4, 1, 4), 2 + 2),  # the middle one is at both boundaries
        ((1, 4, 4), 2 + 0.5),
        ((4, 4, 1), 0.5 + 2),  # the last and the first send each other nothing
        ((2, 1, 4), 2 + 2),
        ((1, 2, 4), 2 + 1),
    ]:
        np.testing.assert_allclose(alone(send=np.array(send) * GB), ALONE + 2 * both, rtol=RTOL)


def test_every_boundary_and_the_one_from_the_last_to_the_first():
    # 2 GB a server: at 4, 1, 2 GB/s. Between 0 and 1, 1 and 2, 2 and 0; one number for all; two stages share two.
    workload = job(pp=3, blocks=6, micro_batches=3, schedule="interleaved", chunks=2)
    for send, want in (((4, 1, 2), (2, 2, 1)), ((1, 4, 8), (2, 0.5, 2)), (2, (1, 1, 1))):
        given = rates(send=np.array(send) * GB, latency=0.25)
        np.testing.assert_allclose(send_seconds(workload, given, float), np.add(want, 0.25), rtol=RTOL)
    pair = job(pp=2, blocks=4, schedule="interleaved", chunks=2)
    got = send_seconds(pair, rates(send=np.array([4, 1]) * GB, stages=2), float)
    np.testing.assert_allclose(got, [2, 2], rtol=RTOL)


def test_gradients_wait_for_the_slowest_server_of_their_own_stage():
    # Stage 0 ends at 47, stage 1 at 47 - 9 - 0.5 = 37.5, stage 2 at 28; a ring between servers takes 1 GB / rate.
    ends = np.array([47.0, 37.5, 28.0])
    for eps in ((2, 2, 2), (0.5, 2, 2), (2, 0.1, 2), (2, 2, 0.1), (2, 2, 0.05)):
        want = (ends + 1 / np.array(eps) + 0.5).max()
        np.testing.assert_allclose(alone(eps=np.array(eps) * GB), want, rtol=RTOL)


def test_a_stage_whose_tensor_parallel_groups_are_slow():
    # 1.5 GB at 0.1 instead of 0.5 GB/s, forward and backward: 12 s more each.
    for stage in range(STAGES):
        tp = np.where(np.arange(STAGES) == stage, 0.1, 0.5) * GB
        got = timed(rates(), packets(NOTHING), batches=1, tp=tp)
        want = (ALONE + 2 + 24, stage, 30, 0)
        np.testing.assert_allclose((got.iteration_s, got.stage, got.tp_comm_s, got.ep_comm_s), want, rtol=RTOL)


def test_latency_of_sends_all_to_alls_and_rings():
    # Four sends and two steps of the ring; four all-to-alls where bytes leave their server, none where all stay.
    np.testing.assert_allclose(alone(latency=0.25), ALONE + 2 + 6 * 0.25, rtol=RTOL)
    one = NOTHING.copy()
    one[1] = 1.0
    np.testing.assert_allclose(alone(packets(one)), ALONE + 2 + 4, rtol=RTOL)
    np.testing.assert_allclose(alone(packets(one), latency=0.25), ALONE + 2 + 4 + 10 * 0.25, rtol=RTOL)
    inside = alone(packets(NOTHING, inside=one), latency=0.25)
    np.testing.assert_allclose(inside, ALONE + 2 + 4 + 6 * 0.25, rtol=RTOL)
    np.testing.assert_allclose(timed(rates(latency=0.25), packets(one), batches=1).ep_comm_s, 4 + 4 * 0.25, rtol=RTOL)


def test_latency_leaves_the_switch_its_time():
    # Circuits take 2 s of an all-to-all that packets end after 3: of a delay of 5 forward, 4 are paid, latency or not.
    found = packets(3 + NOTHING)._replace(
        optical=twice(2 * GB + NOTHING), switch=jnp.asarray([[[[True, False]], [[False, False]]]] * STAGES)
    )
    paid = [timed(rates(delay=5.0, latency=t), found, batches=1).reconfig_s for t in (0.0, 0.25)]
    np.testing.assert_allclose(paid, 4, rtol=RTOL)


# ----------------------------------------------------------------------------------------------------- a failed stage
FAILED = job(pp=2, ep=8, experts=8, blocks=2, micro_batches=2)
SHARE = np.repeat(np.eye(4), 2, axis=0)  # two ranks a server
HIT = 1
at_stage = eqx.filter_jit(failed_stage)


def drawn_tokens():
    heat = np.random.default_rng(0).lognormal(0, 1.5, (2, 2, 8, 8))
    return heat * FAILED.selections / 8


TOKENS = drawn_tokens()


def servers(degree, nics):
    return Region(len(degree), 8.0, jnp.asarray(degree), jnp.asarray(nics, float), 2.0)


@eqx.filter_jit
def healthy_and_failed(region, left):
    parts = routed("unsplit")
    return (
        exchanges_between(FAILED, region, TOKENS, greedy),
        exchanges_between(FAILED, left, TOKENS, greedy),
        failed_stage(FAILED, left, TOKENS, jnp.asarray(SHARE), greedy, HIT, parts),
    )


def test_a_failed_stage_has_the_times_of_what_is_left():
    region = servers([6] * 4, [2.0] * 4)
    for left in (region, servers([5, 6, 6, 6], [2.0] * 4), servers([0, 6, 6, 6], [1.0, 2, 2, 2])):
        before, all_of_it, after = healthy_and_failed(region, left)
        for field in ("optical", "electrical", "switch", "count"):
            want = np.asarray(getattr(all_of_it, field))[HIT : HIT + 1]
            np.testing.assert_allclose(getattr(after, field), want, rtol=RTOL, err_msg=field)
        np.testing.assert_allclose(after.balanced, all_of_it.balanced, rtol=RTOL)
        same = left is region
        assert np.allclose(after.load, np.asarray(before.load)[HIT : HIT + 1]) == same
    assert np.asarray(after.count)[..., 0, :].sum() == 0  # the last: server 0 has no circuits


def inactive(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.zeros(demand.shape, int)))


def in_running_order(stage):
    """(pass, layer, micro-batch): one block a stage."""
    return [(q, stage, m) for q, (_, m, _) in enumerate(stage_order("1f1b", stage, 2, 2))]


def test_work_that_moves_to_a_spare_server():
    # A quarter of rank 2 (server 1) sits on a fifth server: everything it sends and receives, to its own server too.
    left = degraded(Region(4, 8.0, 6, 2.0), "gpu", server=1, gpus_per_rank=4)
    share = left.share_of_rank(8, 2)
    got = at_stage(FAILED, left.region, TOKENS, jnp.asarray(share), inactive, HIT, routed("unsplit"), first=jobs.COLD)
    port = np.full(5, 2.0)  # at unit bandwidth
    for q, layer, m in in_running_order(HIT):
        sent = np.zeros((5, 5))
        for source, sink in np.ndindex(8, 8):
            size = TOKENS[layer, m, source, sink] * FAILED.dispatch_bytes_per_selection
            where = [[(4, 0.25), (1, 0.75)] if rank == 2 else [(rank // 2, 1.0)] for rank in (source, sink)]
            for i, a in where[0]:
                for j, b in where[1]:
                    sent[i, j] += size * a * b * (source != sink) * (i != j)
        np.testing.assert_allclose(got.electrical[0, q, 0], [tree(sent, port, port).max()] * 2, rtol=RTOL)
    np.testing.assert_array_equal(got.optical, 0)
    assert not got.switch[0, 1:].any()  # inactive from the first block on
    np.testing.assert_array_equal(got.switch[0, 0], [[True, False]])


def test_a_stage_of_its_own_policy_and_parts():
    # `switched` asks block after block, and times each with the circuits that it then has.
    demand = jnp.asarray(np.random.default_rng(1).uniform(0, 1, (2, 2, 4, 4)))

    def parts(region, circuits, sizes):
        return circuits.count.sum().astype(sizes.dtype) * sizes[0, 1], 0.5 * sizes[0, 1]

    def counting(sizes, region, *, previous=None, key=None):
        ring = jnp.asarray(np.roll(np.eye(4, dtype=int), 1, axis=1))
        return Plan(Circuits(jnp.where(previous.circuits.count.sum() == 4, 2 * ring, ring) if previous else ring))

    got = switched(places(FAILED), Region(4, 8.0), demand, demand[0, 0], counting, None, parts, jobs.COLD)
    counts = [4, 8, 4, 8]  # the ring, doubled, the ring, doubled
    for stage in range(2):
        for q, layer, m in in_running_order(stage):
            sent = demand[layer, m, 0, 1]
            np.testing.assert_allclose(got.optical[stage, q, 0], [counts[q] * sent] * 2, rtol=RTOL)
            np.testing.assert_allclose(got.electrical[stage, q, 0], [0.5 * sent] * 2, rtol=RTOL)
    assert got.switch[..., 0].all()
    assert not got.switch[..., 1].any()
    np.testing.assert_allclose(got.balanced, 4 * demand[0, 0, 0, 1], rtol=RTOL)  # chosen from nothing
