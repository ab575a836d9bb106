"""Tasks become flows: when ranks begin and end, what each sends, and what is missing."""

import itertools

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.critical import critical_path, union_s
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import cycle_of, run_order
from tests.mistakes import check_refused
from tests.oracles.graph import longest_path

B = 10.0  # bytes per second of every message


def collective(n, op, bytes=60.0, root=-1, arrive=None, ranks=None):
    """A collective among n ranks, each behind a computation."""
    tasks = Tasks(n, groups=(tuple(range(n)),))
    for rank in range(n) if ranks is None else ranks:
        before = tasks.add(TaskKind.COMPUTE, rank, seconds=0.0 if arrive is None else arrive[rank])
        what = {"op": op, "group": 0, "bytes": bytes, "peer": root, "match": 7}
        tasks.add(TaskKind.COLLECTIVE, rank, f"of {rank}", after=[before], **what)
    return tasks.graph()


def ends(graph, **settings):
    """Of every task, and the flows."""
    flows = lower_tasks(graph, **settings)
    _, finish = longest_path(flows, B)
    last = [0.0] * graph.tasks
    for task, end in zip(flows.task.tolist(), finish, strict=True):
        last[task] = max(last[task], end)
    assert last == finish[: graph.tasks], "flow t ends with task t"
    own = np.isin(flows.src, graph.rank) & flows.transfers
    if settings.get("absent") != "assume":
        assert np.array_equal(graph.rank[flows.task[own]], flows.src[own]), "a message counts for its sender's task"
    return np.array(last), flows


def sent(flows, ranks):
    """Bytes that leave each rank."""
    return np.bincount(flows.src[flows.transfers], flows.bytes[flows.transfers], ranks)


N = 8

CLOSED = [  # word, op, root, steps with alpha, bytes on the longest way over the collective's bytes
    ("all-reduce=ring", Op.ALL_REDUCE, -1, 14, 14 / 8),
    ("all-reduce=halving-doubling", Op.ALL_REDUCE, -1, 6, 14 / 8),
    ("all-reduce=direct", Op.ALL_REDUCE, -1, 2, 2 / 8),
    ("all-reduce=double-tree", Op.ALL_REDUCE, -1, 6, 3),
    ("all-reduce=hierarchical", Op.ALL_REDUCE, -1, 8, 1 + 6 / 8),
    ("all-gather=ring", Op.ALL_GATHER, -1, 7, 7 / 8),
    ("all-gather=halving-doubling", Op.ALL_GATHER, -1, 3, 7 / 8),
    ("reduce-scatter=ring", Op.REDUCE_SCATTER, -1, 7, 7 / 8),
    ("all-to-all=direct", Op.ALL_TO_ALL, -1, 1, 1 / 8),
    ("all-to-all=pairwise", Op.ALL_TO_ALL, -1, 7, 7 / 8),
    ("all-to-all=ring", Op.ALL_TO_ALL, -1, 28, 28 / 8),
    ("all-to-all=hierarchical", Op.ALL_TO_ALL, -1, 2, 1 / 2 + 1 / 4),
    ("broadcast=tree", Op.BROADCAST, 3, 3, 3),
    ("broadcast=chain", Op.BROADCAST, 3, 7, 7),
    ("reduce=tree", Op.REDUCE, 3, 3, 3),
    ("gather=tree", Op.GATHER, 3, 3, 7 / 8),
    ("scatter=direct", Op.SCATTER, 3, 1, 1 / 8),
    ("barrier=dissemination", Op.BARRIER, -1, 3, 0),
]


@pytest.mark.parametrize(("word", "op", "root", "steps", "part"), CLOSED)
def test_a_collective_takes_its_steps(word, op, root, steps, part):
    last, _ = ends(collective(N, op, root=root), algorithms=word, alpha_s=0.5, server=2)
    assert last.max() == pytest.approx(steps * 0.5 + part * 60 / B)


@pytest.mark.parametrize(
    ("word", "op", "each"),
    [
        ("all-reduce=ring", Op.ALL_REDUCE, 2 * 7 / 8),
        ("all-reduce=halving-doubling", Op.ALL_REDUCE, 2 * 7 / 8),
        ("all-reduce=direct", Op.ALL_REDUCE, 2 * 7 / 8),
        ("all-reduce=hierarchical", Op.ALL_REDUCE, 2 * 7 / 8),
        ("reduce-scatter=hierarchical", Op.REDUCE_SCATTER, 7 / 8),
        ("all-to-all=direct", Op.ALL_TO_ALL, 7 / 8),
        ("all-to-all=hierarchical", Op.ALL_TO_ALL, 1 / 2 + 3 / 4),
    ],
)
def test_every_rank_sends_what_is_known(word, op, each):
    for chunks in (1, 3):
        flows = lower_tasks(collective(N, op), algorithms=word, chunks=chunks, server=2)
        np.testing.assert_allclose(sent(flows, N), each * 60)


def test_a_root_in_the_middle_of_the_group():
    _, flows = ends(collective(4, Op.SCATTER, root=2), algorithms="scatter=direct")
    assert sent(flows, 4).tolist() == [0, 0, 45, 0]
    assert sorted(flows.dst[flows.transfers].tolist()) == [0, 1, 3]


def test_chunks_are_a_pipeline_and_hide_latency():
    graph = collective(5, Op.BROADCAST, root=0)
    last, _ = ends(graph, algorithms="broadcast=chain*6", alpha_s=0.25)
    assert last[1::2] == pytest.approx([6.0, 7.25, 8.5, 9.75, 10.0])  # 1 s + alpha each, the last receives only
    last, _ = ends(graph, algorithms="broadcast=chain*6")
    assert last[1::2] == pytest.approx([6.0, 7.0, 8.0, 9.0, 9.0])


def test_a_late_rank_delays_what_it_forwards():
    # Steps of 2 s. Rank 1 comes at 9: its first message ends at 11, reaches rank 2, which forwards it until 13.
    # Rank 0 has sent its own at 2 and waits for rank 2.
    last, _ = ends(collective(3, Op.ALL_GATHER, arrive=[0, 9, 0]))
    assert last[1::2].tolist() == [13.0, 13.0, 13.0]
    flows = lower_tasks(collective(3, Op.ALL_GATHER, arrive=[0, 9, 0]))
    begin, _ = longest_path(flows, B)
    starts = sorted(zip(flows.src[flows.transfers].tolist(), np.array(begin)[flows.transfers].tolist(), strict=True))
    assert starts == [(0, 0.0), (0, 2.0), (1, 9.0), (1, 11.0), (2, 0.0), (2, 11.0)]


def test_who_forwards_has_to_come_first():
    last, _ = ends(collective(3, Op.BROADCAST, bytes=10.0, root=0, arrive=[0, 5, 0]), algorithms="broadcast=chain")
    assert last[1::2].tolist() == [1.0, 6.0, 6.0]


@pytest.mark.parametrize("op", list(Op))
def test_one_rank_alone_has_nothing_to_do(op):
    last, flows = ends(collective(1, op, root=0, arrive=[3.0]), alpha_s=1.0)
    assert (last.tolist(), flows.transfers.sum()) == ([3.0, 3.0], 0)


def test_collectives_of_many_groups_are_copied_alike():
    groups = ((0, 1, 2), (5, 4, 3), (1, 4), (0, 5))
    tasks = Tasks(6, groups=groups)
    for number, group in enumerate(groups):
        for rank in reversed(group):
            tasks.add(TaskKind.COLLECTIVE, rank, op=Op.ALL_REDUCE, group=number, bytes=60.0 + number, match=number)
    last, flows = ends(tasks.graph())
    assert last[0] == pytest.approx(4 * 2.0)
    assert last[3] == pytest.approx(4 * 61 / 3 / B)
    assert last[-1] == pytest.approx(2 * 63 / 2 / B)
    of = {number: set() for number in range(4)}
    for src, dst, task in zip(flows.src, flows.dst, flows.task, strict=True):
        if dst >= 0:
            of[int(tasks.graph().group[task])].add((int(src), int(dst)))
    assert of[1] == {(5, 4), (4, 3), (3, 5)}
    assert of[3] == {(0, 5), (5, 0)}


def message(send_at=0.0, receive_at=0.0, match=0):
    tasks = Tasks(2)
    first = tasks.add(TaskKind.COMPUTE, 0, seconds=send_at)
    tasks.add(TaskKind.SEND, 0, after=[first], peer=1, bytes=20.0, match=match)
    other = tasks.add(TaskKind.COMPUTE, 1, seconds=receive_at)
    tasks.add(TaskKind.RECV, 1, "wanted", after=[other], peer=0, bytes=20.0, match=0)
    return tasks.graph()


def test_messages_are_eager():
    for send_at, receive_at, received in ((1, 0, 3.5), (1, 9, 9.0)):
        last, _ = ends(message(send_at, receive_at), alpha_s=0.5)
        assert last.tolist() == [send_at, send_at + 2.5, receive_at, received]


def test_latency_may_depend_on_the_ranks():
    last, _ = ends(message(), alpha_s=lambda src, dst: 3.0 * src + dst)
    assert last[1] == 3.0


def test_a_message_to_oneself_takes_no_time():
    tasks = Tasks(1)
    send = tasks.add(TaskKind.SEND, 0, peer=0, bytes=20.0, match=0, lag=1.0)
    tasks.add(TaskKind.RECV, 0, peer=0, match=0)
    last, flows = ends(tasks.graph(), alpha_s=5.0)
    assert (last.tolist(), flows.transfers[send]) == ([1.0, 1.0], False)


def test_start_and_lag_of_a_task_are_in_front_of_it():
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        what = {"op": Op.ALL_TO_ALL, "group": 0, "bytes": 20.0, "match": 0}
        tasks.add(TaskKind.COLLECTIVE, rank, start=2.0, lag=rank * 1.0, **what)
    tasks.add(TaskKind.COMPUTE, 0, seconds=1.0, after=[0], lag=4.0, start=1.0)
    last, _ = ends(tasks.graph())
    assert last.tolist() == [4.0, 4.0, 9.0]  # rank 1 sends from 3 on, 1 s


def test_a_missing_member_is_named_or_assumed():
    graph = collective(4, Op.ALL_REDUCE, ranks=[2, 1], arrive=[0, 1, 3, 0])
    with pytest.raises(
        InputError, match=r"^task 3 \('of 1'\) is a collective of 4 ranks, but the graph has tasks of only 2 "
    ):
        lower_tasks(graph)
    last, flows = ends(graph, absent="assume")
    assert sent(flows, 4).tolist() == [90.0] * 4
    assert last[[1, 3]].tolist() == [3 + 6 * 1.5] * 2
    assert set(flows.task[flows.transfers & np.isin(flows.src, [0, 3])]) == {3}  # the first member's that is there
    alone = collective(4, Op.ALL_REDUCE, ranks=[2])
    whole, _ = ends(collective(4, Op.ALL_REDUCE))
    assert ends(alone, absent="assume")[0].max() == whole.max()


def test_a_missing_message_is_named_or_assumed():
    graph = message(match=1)
    with pytest.raises(InputError, match=r"^task 3 \('wanted'\) waits for a message of rank 0 that no task sends"):
        lower_tasks(graph)
    last, flows = ends(message(receive_at=4.0, match=1), absent="assume")
    assert last[3] == 6.0
    assert (flows.src[3], flows.dst[3]) == (0, 1)
    tasks = Tasks(2)
    tasks.add(TaskKind.RECV, 1, "wanted", peer=0)
    with pytest.raises(InputError, match=r"^bytes of task 0 \('wanted'\) must be above 0: no task sends its message"):
        lower_tasks(tasks.graph(), absent="assume")


def test_members_of_an_all_to_all_may_have_different_bytes():
    tasks = Tasks(3, groups=((0, 1), (0, 1, 2)))
    for rank, size in enumerate((8.0, 24.0)):
        tasks.add(TaskKind.COLLECTIVE, rank, op=Op.ALL_TO_ALL, group=0, bytes=size, match=0)
    graph = tasks.graph()
    assert sent(lower_tasks(graph), 3).tolist() == [4.0, 12.0, 0.0]
    check_refused("hierarchical", lower_tasks, graph, algorithms="all-to-all=hierarchical")


def test_ranks_that_wait_for_each_other_are_named():
    tasks = Tasks(2)
    for rank in range(2):
        receive = tasks.add(TaskKind.RECV, rank, peer=1 - rank, match=rank, lane=0)
        tasks.add(TaskKind.SEND, rank, peer=1 - rank, match=1 - rank, after=[receive])
    for lanes in ("ordered", "free"):
        with pytest.raises(InputError, match="4 wait for each other: task 1 -> task 2 -> "):
            lower_tasks(tasks.graph(), lanes=lanes)


def test_collectives_in_opposite_order_are_named():
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        before = []
        for match in (rank, 1 - rank):
            what = {"op": Op.ALL_REDUCE, "group": 0, "bytes": 8.0, "match": match}
            before = [tasks.add(TaskKind.COLLECTIVE, rank, f"{match} on {rank}", after=before, **what)]
    with pytest.raises(InputError, match=r"but 4 wait for each other: (task \d \('\d on \d'\) -> ){4}"):
        lower_tasks(tasks.graph())


def test_the_choice_depends_on_collective_and_size():
    words = "all-reduce=ring, all-reduce:<100=direct ,all-reduce:<10=double-tree*2"
    for bytes, messages in ((9.0, 2 * 2 * 4), (10.0, 12), (99.0, 12), (100.0, 12), (1e9, 12)):
        flows = lower_tasks(collective(3, Op.ALL_REDUCE, bytes=bytes), algorithms=words)
        assert flows.transfers.sum() == messages
        around = {(0, 1), (1, 2), (2, 0)}
        pairs = set(zip(flows.src[flows.transfers].tolist(), flows.dst[flows.transfers].tolist(), strict=True))
        assert (pairs == around) == (bytes >= 100)


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
            flows = lower_tasks(tasks.graph(), lanes=lanes, alpha_s=0.1)
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
    flows = lower_tasks(graph)
    run_order(flows.after, flows.flows)
    begin, finish = longest_path(flows, B)
    enter = np.array(begin[: graph.tasks])
    own = np.flatnonzero(graph.of(TaskKind.COLLECTIVE))
    enter[own] = begin[graph.tasks : graph.tasks + len(own)]
    for rank, lane in itertools.product(range(4), range(2)):
        busy = sorted((enter[t], finish[t]) for t in np.flatnonzero((graph.rank == rank) & (graph.lane == lane)))
        assert all(end <= next_begin for (_, end), (next_begin, _) in itertools.pairwise(busy))


def test_it_goes_back_to_what_was_waited_for_last():
    # 0 (1 s) and 1 (2 s) before 2; 2 has a lag of 0.5 and takes 1; 3 is alone and short.
    after = np.array([[0, 2], [1, 2]])
    begin, finish = np.array([0, 0, 2.5, 0]), np.array([1, 2, 3.5, 3])
    found = critical_path(after, np.zeros(4), begin, finish)
    assert found.flow.tolist() == [1, 2]
    assert found.released.tolist() == [0, 2]
    assert found.begin.tolist() == [0, 2.5]
    assert found.finish.tolist() == [2, 3.5]


def test_a_late_start_begins_the_path_and_equals_go_to_the_lowest():
    after = np.array([[0, 2], [1, 2], [2, 3]])
    start = np.array([0, 0, 0, 5.0])
    begin, finish = np.array([0, 0, 1, 5.0]), np.array([1, 1, 2, 6.0])
    late = critical_path(after, start, begin, finish)
    assert (late.flow.tolist(), late.released.tolist()) == ([3], [5])
    even = critical_path(after, np.zeros(4), np.array([0, 0, 1, 2.0]), np.array([1, 1, 2, 3.0]))
    assert even.flow.tolist() == [0, 2, 3]


def test_covered_time_counts_what_overlaps_once():
    begin, end = np.array([0, 1, 5, 2, 0.0]), np.array([2, 3, 6, 2.5, 1.0])
    assert union_s(begin, end, np.array([0, 0, 0, 0, 2]), 3).tolist() == [4, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_covered_time_as_counted_on_a_grid(seed):
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 40, 30)
    end, owner = begin + rng.integers(0, 6, 30), rng.integers(0, 4, 30)
    ticks = [
        {t for b, e, o in zip(begin, end, owner, strict=True) if o == one for t in range(b, e)} for one in range(4)
    ]
    assert union_s(begin.astype(float), end.astype(float), owner, 4).tolist() == [len(found) for found in ticks]


def chain(*pairs, ranks=2):
    tasks = Tasks(ranks, groups=((0, 1),))
    tasks.add(TaskKind.COMPUTE, 0, "forward", seconds=2.0)
    tasks.add(TaskKind.SEND, 0, "there", after=[0], peer=1, bytes=8.0, match=0)
    tasks.add(TaskKind.RECV, 1, "here", peer=0, match=0)
    tasks.add(TaskKind.COLLECTIVE, 1, "sum", after=[2], op=Op.ALL_REDUCE, group=0, bytes=4.0, match=1)
    for before, then in pairs:
        tasks.wait(then, before)
    return tasks.graph()


def test_tasks_are_collected_in_order():
    graph = chain((0, 3), (0, 3))
    assert graph.tasks == 4
    assert graph.after.tolist() == [[0, 1], [0, 3], [2, 3]]
    assert (graph.bytes.tolist(), graph.peer.tolist()) == ([0.0, 8.0, 0.0, 4.0], [-1, 1, 0, -1])
    assert graph.of(TaskKind.COLLECTIVE, Op.ALL_REDUCE).tolist() == [False, False, False, True]
    assert graph.equals(chain((0, 3)))
    assert not graph.equals(chain())


def test_a_cycle_is_named_with_its_members():
    with pytest.raises(
        InputError, match=r"no cycle, but 2 wait for each other: task 3 \('sum'\) -> task 1 \('there'\) -> task 3 "
    ):
        chain((3, 1), (1, 3))
    assert cycle_of(np.array([[0, 0], [0, 1]]), 2) == [0]
    assert cycle_of(np.array([[0, 1]]), 2) == []
    with pytest.raises(InputError, match=r"20 wait for each other: .* -> \.\.\. -> "):
        run_order(np.array([[one, (one + 1) % 20] for one in range(20)]), 20)


def test_the_order_runs_everything_behind_what_it_waits_for():
    rng = np.random.default_rng(0)
    place = rng.permutation(50)
    pairs = rng.integers(0, 50, (200, 2))
    pairs = pairs[place[pairs[:, 0]] < place[pairs[:, 1]]]
    at = np.argsort(run_order(pairs, 50))
    assert np.all(at[pairs[:, 0]] < at[pairs[:, 1]])
