"""Collected task graphs on a fat-tree, rails and mFabric: never before any bound; what holds the end is all of it."""

import numpy as np
import pytest

from mfabric_jax.case import Case, cases
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.replay import Replay, replay
from mfabric_jax.replay.replayed import gain_rows, gains, path_of, spent
from mfabric_jax.tasks import read_tasks

FILES = (
    "chakra_et/micro_all_reduce_8npus_1MB/all_reduce",
    "chakra_et/stg_moe_dp2tp2pp2ep2_16npus/workload",
    "simai_txt/aicb_G13B-M1-C02_GPT13B_megatron_tp8_pp1_mbs1_sp_A100.txt",
    "flexflow_fbuf/100vgg_16.fbuf.xz",
    "htsim_cm/incast.cm",
    "goal/schedgen_allreduce_ring_16r_16MiB.goal",
)
FABRICS = ("fat-tree", "rail-optimized", "mfabric")


def longest_way(flows, rate):
    """When the last flow would end if each had its whole narrowest link for itself."""
    end = np.zeros(flows.flows)
    alone = flows.lag + np.where(flows.transfers, flows.bytes / rate, flows.seconds)
    before = [[] for _ in range(flows.flows)]
    for first, then in flows.after.tolist():
        before[then].append(first)
    for flow in run_order(flows.after, flows.flows):
        end[flow] = max([flows.start[flow], *(end[one] for one in before[flow])]) + alone[flow]
    return end.max()


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_no_replay_is_earlier_than_it_can_be(shared_data, file):
    graph = read_tasks(shared_data / "task_graphs" / file)
    for done in replay(graph, cases(Case(), {"network.fabric": FABRICS}), Replay(absent="assume")):
        prepared = done.prepared
        hops, share = prepared.routes
        there, capacity = hops >= 0, prepared.network.capacity
        rate = np.where(there, capacity[hops] / np.where(there, share, 1), np.inf).min(axis=1)
        moves = prepared.flows.transfers[:, None] & there
        carried = np.bincount(hops[moves], (share * prepared.size[:, None])[moves], minlength=len(capacity))
        bound = max(longest_way(prepared.flows, rate), np.max(carried / capacity, initial=0))
        assert done.makespan_s >= bound * (1 - 1e-9)
        assert done.makespan_s <= path_of(done).finish[-1] * (1 + 1e-12)
        held = sum(row["holds_s"] for row in gain_rows(done, gains(done)))
        assert held == pytest.approx(done.makespan_s, rel=1e-9)
        parts = spent(done)
        np.testing.assert_allclose(sum(parts), done.makespan_s, rtol=1e-9)
        assert all((seconds >= -1e-12).all() for seconds in parts)
