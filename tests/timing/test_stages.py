"""Stages that are not alike: rates, latency and regions of their own, by hand and against one clock per stage."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region, degraded
from mfabric_jax.policies import Plan, greedy
from mfabric_jax.timing.all_to_alls import Exchanges
from mfabric_jax.timing.exchange import exchanges_between, failed_stage
from mfabric_jax.timing.iteration import FabricRates, send_seconds
from mfabric_jax.timing.switching import routed
from mfabric_jax.workload.compute import BlockSeconds
from tests.oracles.timeline import Stage as Clock
from tests.oracles.timeline import stage_order, timeline
from tests.oracles.tree import tree
from tests.timing import jobs
from tests.timing.jobs import job

RTOL = 1e-9
GB = 1e9
STAGES, BATCHES = 3, 4
NVSWITCH = 0.5 * GB  # bytes/s
SECONDS = BlockSeconds(2.0, 1.0, 100.0)
# One MoE block a stage on two servers of two ranks: 1 GB of activations a rank, 1.5 GB of its all-reduce over TP 4. Of
# dense gradients 1 GB crosses between the servers (a ring has two steps), 0.25 GB inside.
TP_GB = 1.5
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


def plain(given, load, inside, tp):
    """(iteration, EP seconds of every stage, those of its gradients): a send of its own at every boundary."""
    latency = float(given.latency_s)
    send = [2 * GB / float(min(given.send_Bps[p], given.send_Bps[p + 1])) + latency for p in range(STAGES - 1)]
    both, blocks = np.maximum(load, inside) + latency * (load > 0), {}
    for p in range(STAGES):
        for q, (kind, m, _) in enumerate(stage_order("1f1b", p, STAGES, BATCHES)):
            one = {"attention": 2.0, "inner": 1.0, "tp": TP_GB * GB / tp[p], "switch": (False, False), "ahead": False}
            blocks[kind, p, m, 0] = [one | {"exchange": [(0, both[p, q])] * 2}]
    _, end = timeline(blocks, "1f1b", STAGES, BATCHES, 1, [*send, 0.0], [Clock(0.0) for _ in range(STAGES)])
    reduce = [GB / float(eps) + 0.25 * GB / NVSWITCH + 2 * latency for eps in given.eps_Bps]
    last = [max(t for (_, at, *_), t in end.items() if at == p) for p in range(STAGES)]
    return max(np.add(last, reduce)), 2 * both.sum(1), reduce


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


def test_every_boundary_and_the_one_from_the_last_to_the_first():
    # 2 GB a server: at 4, 1, 2 GB/s. Between 0 and 1, 1 and 2, 2 and 0; one number for all; two stages share two.
    workload = job(pp=3, blocks=6, micro_batches=3, schedule="interleaved", chunks=2)
    for send, want in (((4, 1, 2), (2, 2, 1)), ((1, 4, 8), (2, 0.5, 2)), (2, (1, 1, 1))):
        given = rates(send=np.array(send) * GB, latency=0.25)
        np.testing.assert_allclose(send_seconds(workload, given, float), np.add(want, 0.25), rtol=RTOL)
    pair = job(pp=2, blocks=4, schedule="interleaved", chunks=2)
    got = send_seconds(pair, rates(send=np.array([4, 1]) * GB, stages=2), float)
    np.testing.assert_allclose(got, [2, 2], rtol=RTOL)


def test_latency_leaves_the_switch_its_time():
    # Circuits take 2 s of an all-to-all that packets end after 3: of a delay of 5 forward, 4 are paid, latency or not.
    three = np.full((STAGES, 2), 3.0)
    found = packets(three)._replace(
        optical=twice((three - 1) * GB), switch=jnp.asarray([[[[True, False]], [[False, False]]]] * STAGES)
    )
    paid = [timed(rates(delay=5.0, latency=t), found, batches=1).reconfig_s for t in (0.0, 0.25)]
    np.testing.assert_allclose(paid, 4, rtol=RTOL)


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
    got = at_stage(FAILED, left.group, TOKENS, jnp.asarray(share), inactive, HIT, routed("unsplit"), first=jobs.COLD)
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
