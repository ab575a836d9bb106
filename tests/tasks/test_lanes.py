"""The order on lanes: one task at a time, lags and trees beside them, and no cycle whatever the graph."""

import itertools

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import run_order
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.tasks.lowering import lowered
from tests.oracles.tasks import longest_path
from tests.tasks.test_lowering import B, ends


def on_lane(*rows, ranks=2):
    """Tasks (rank, seconds, after) on lane 0."""
    tasks = Tasks(ranks)
    for rank, seconds, after in rows:
        tasks.add(TaskKind.COMPUTE, rank, seconds=seconds, after=after, lane=0)
    return tasks.graph()


def test_one_task_at_a_time_on_a_lane_as_they_are_ready():
    graph = on_lane((0, 1.0, []), (1, 5.0, []), (0, 1.0, [1]), (0, 2.0, [0]), (0, 4.0, []))
    assert ends(graph)[0].tolist() == [1.0, 5.0, 8.0, 3.0, 7.0]  # 0; at 1 both 3 and 4 are ready; 2 is at 5
    assert ends(graph, lanes="free")[0].tolist() == [1.0, 5.0, 6.0, 3.0, 4.0]


@pytest.mark.parametrize("seed", [77, 193, 348, *range(20)])
def test_trees_in_any_order_run_on_lanes_where_they_run_without(seed):
    rng = np.random.default_rng(seed)
    groups = ((0, 1), (1, 2), (2, 3), (0, 1, 2, 3), (3, 1, 0))
    tasks, last = Tasks(4, groups), [[], [], [], []]
    chosen = [(int(rng.integers(5)), rng.choice([Op.BROADCAST, Op.REDUCE, Op.GATHER]), match) for match in range(6)]
    for rank in range(4):
        for place in rng.permutation(6) if rank < 2 else range(6):
            group, op, match = chosen[place]
            if rank in groups[group]:
                what = {"op": op, "group": group, "bytes": 10.0, "match": match, "peer": groups[group][match % 2]}
                after = last[rank] if rng.random() < 0.5 else []
                last[rank] = [tasks.add(TaskKind.COLLECTIVE, rank, after=after, lane=int(rng.integers(-1, 2)), **what)]
    runs = []
    for lanes in ("free", "ordered"):
        try:
            flows = lowered(tasks.graph(), lanes=lanes, alpha_s=0.1)
            runs.append(len(run_order(flows.after, flows.flows)))
        except InputError as error:
            runs.append("wait for each other: task" in str(error))  # before lanes make flows wait
    assert (runs[0] is True) == (runs[1] is True)
    assert False not in runs


def test_a_task_takes_its_lane_when_it_may_start():
    tasks = Tasks(1)
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0)
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0, after=[0], start=5.0)
    tasks.add(TaskKind.COMPUTE, 0, seconds=2.0, lane=0, after=[0])
    assert ends(tasks.graph())[0].tolist() == [1.0, 6.0, 3.0]


def test_ties_go_to_the_lower_number():
    graph = on_lane((0, 1.0, [1]), (0, 0.0, []), (0, 1.0, []))
    assert ends(graph)[0].tolist() == [1.0, 0.0, 2.0]
    graph = on_lane((0, 1.0, []), (0, 1.0, []), (0, 1.0, []))
    assert ends(graph)[0].tolist() == [1.0, 2.0, 3.0]


def test_a_collective_takes_its_lanes_when_all_are_free():
    # Rank 1 computes until 3. The all-reduce is ready at 0 and waits for rank 1's lane; rank 0 goes on with task 3.
    tasks = Tasks(2, groups=((0, 1),))
    tasks.add(TaskKind.COMPUTE, 1, seconds=3.0, lane=0)
    for rank in range(2):
        tasks.add(TaskKind.COLLECTIVE, rank, op=Op.ALL_REDUCE, group=0, bytes=20.0, match=0, lane=0)
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0)
    assert ends(tasks.graph())[0].tolist() == [3.0, 5.0, 5.0, 1.0]


def test_collectives_run_in_one_order_on_all_ranks():
    tasks = Tasks(2, groups=((0, 1),))
    for rank, match in ((0, 0), (0, 1), (1, 1), (1, 0)):
        tasks.add(TaskKind.COLLECTIVE, rank, op=Op.ALL_REDUCE, group=0, bytes=20.0, match=match, lane=0)
    assert ends(tasks.graph())[0].tolist() == [2.0, 4.0, 4.0, 2.0]


def test_a_lag_runs_while_the_lane_is_busy():
    tasks = Tasks(2, groups=((0, 1),))
    tasks.add(TaskKind.COMPUTE, 0, seconds=10.0, lane=0)
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0, lag=5.0)
    assert ends(tasks.graph())[0].tolist() == [10.0, 11.0]
    tasks.add(TaskKind.SEND, 0, lane=0, lag=12.0, peer=1, bytes=10.0, match=0)
    tasks.add(TaskKind.COMPUTE, 1, seconds=16.0, lane=0)
    tasks.add(TaskKind.RECV, 1, lane=0, lag=1.0, peer=0, match=0)
    for rank in range(2):
        what = {"op": Op.ALL_REDUCE, "group": 0, "bytes": 20.0, "match": 1, "lane": 1, "lag": 0.5}
        tasks.add(TaskKind.COMPUTE, rank, seconds=3.0 + rank, lane=1)
        tasks.add(TaskKind.COLLECTIVE, rank, **what)
    # The send may begin at 12, and pays its latency then. The all-reduce has lanes from 4 on: 2 messages of 1.25 s.
    last, _ = ends(tasks.graph(), alpha_s=0.25)
    assert last.tolist() == [10.0, 11.0, 13.25, 16.0, 16.0, 3.0, 6.5, 4.0, 6.5]


def test_a_lag_needs_no_flow_where_the_lane_is_free_before():
    tasks = Tasks(1)
    first = tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0)
    between = tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, after=[first])
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0, lag=2.0, after=[between])
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, lane=0, lag=2.0, after=[2])
    last, flows = ends(tasks.graph())
    assert (last.tolist(), flows.flows) == ([1.0, 2.0, 5.0, 8.0], 4)


def test_trees_that_cross_run_whether_or_not_there_are_lanes():
    tasks = Tasks(2, groups=((0, 1),))
    what = {"op": Op.BROADCAST, "group": 0, "bytes": 10.0}
    for root in (0, 1):
        tasks.add(TaskKind.COLLECTIVE, root, peer=root, match=root, lane=0, **what)
    for root in (0, 1):
        tasks.add(TaskKind.COLLECTIVE, 1 - root, peer=root, match=root, after=[1 - root], lane=0, **what)
    for lanes in ("ordered", "free"):
        assert ends(tasks.graph(), lanes=lanes)[0].tolist() == [1.0, 1.0, 1.0, 1.0]


def drawn(seed):
    """Tasks of 4 ranks on 2 lanes each, with messages and collectives, that can run."""
    rng = np.random.default_rng(seed)
    groups = (*itertools.combinations(range(4), 2), (0, 1, 2, 3))
    tasks, known = Tasks(4, groups), []
    for match in range(25):
        kind = rng.choice([TaskKind.COMPUTE, TaskKind.SEND, TaskKind.COLLECTIVE])
        after = [known[i] for i in rng.integers(0, len(known), 2)] if known else []
        lane = int(rng.integers(-1, 2))
        if kind == TaskKind.COMPUTE:
            what = {"seconds": float(rng.integers(3)), "lag": float(rng.integers(3))}
            new = [tasks.add(kind, int(rng.integers(4)), after=after, lane=lane, **what)]
        elif kind == TaskKind.SEND:
            src, dst = rng.permutation(4)[:2].tolist()
            new = [tasks.add(kind, src, peer=dst, bytes=10.0, match=match, after=after, lane=lane)]
            new += [tasks.add(TaskKind.RECV, dst, peer=src, match=match, after=after[:1], lane=lane)]
        else:
            group = int(rng.integers(len(groups)))
            op = rng.choice([Op.ALL_REDUCE, Op.BROADCAST, Op.REDUCE, Op.SCATTER])
            what = {"op": op, "group": group, "bytes": 20.0, "match": match, "lane": lane, "peer": groups[group][-1]}
            new = [tasks.add(kind, rank, after=after, **what) for rank in rng.permutation(groups[group]).tolist()]
        known += new
    return tasks.graph()


@pytest.mark.parametrize("seed", range(40))
def test_lanes_close_no_cycle_and_are_never_shared(seed):
    graph = drawn(seed)
    flows = lowered(graph)
    run_order(flows.after, flows.flows)
    begin, finish = longest_path(flows, B)
    enter = np.array(begin[: graph.tasks])
    own = np.flatnonzero(graph.of(TaskKind.COLLECTIVE))
    enter[own] = begin[graph.tasks : graph.tasks + len(own)]
    for rank, lane in itertools.product(range(4), range(2)):
        busy = sorted((enter[t], finish[t]) for t in np.flatnonzero((graph.rank == rank) & (graph.lane == lane)))
        assert all(end <= next_begin for (_, end), (next_begin, _) in itertools.pairwise(busy))
