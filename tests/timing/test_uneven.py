"""Expert time by tokens received, against hand computation and a plain walk over ranks and experts."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.timing.iteration import PORTS, early, ends_earlier, expert_load
from mfabric_jax.timing.passes import places
from mfabric_jax.workload import get
from mfabric_jax.workload.compute import BlockSeconds, block_flops
from tests.timing import jobs

SECONDS, NVSWITCH = BlockSeconds(2.0, 5.0, 0.0, 4.0), 1e9


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


def test_a_block_computes_as_long_as_its_busiest_rank():
    # One block, one micro-batch: attention 2, gate and experts 5 of which experts 4; all-reduce 1; no all-to-all.
    job = jobs.job(pp=1, blocks=1, micro_batches=1)
    where = places(job)
    tokens = jnp.zeros((1, 1, 4, 4)).at[..., 0].set(job.selections)  # every token to rank 0: it computes four times
    load = expert_load(job, tokens, tile=1)
    assert load.tolist() == [[4.0]]
    found, _ = jobs.simulate(job, jobs.fat_tree(), 0 * tokens, SECONDS, jobs.KEEP, NVSWITCH)
    even = jobs.timed(job, jobs.fat_tree(), found, SECONDS, NVSWITCH)
    busy = jobs.timed(job, jobs.fat_tree(), found._replace(busy=load[where.pick(1, 1)]), SECONDS, NVSWITCH)
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
