"""What a graph of tasks refuses, and what collecting it gives."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import cycle_of, run_order
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks


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


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (
            TaskKind.COMPUTE,
            {"seconds": -1.0},
            r"^seconds of task 0 \('odd'\) must be a number from 0 to 1e\+09, got -1.0.$",
        ),
        (TaskKind.COMPUTE, {"seconds": np.nan}, "^seconds of task 0"),
        (TaskKind.SEND, {}, r"^peer of task 0 \('odd'\) must be in 0..1, got -1.$"),
        (TaskKind.COLLECTIVE, {"group": 0}, "^op of task 0"),
        (TaskKind.COLLECTIVE, {"op": Op.ALL_REDUCE, "group": 2}, "^group of task 0 .* must be one of groups, got 2.$"),
        (TaskKind.COMPUTE, {"rank": 2}, "^rank of task 0"),
    ],
)
def test_wrong_values_name_the_task(kind, values, said):
    tasks = Tasks(2, groups=((0, 1),))
    tasks.add(kind, values.pop("rank", 0), "odd", **values)
    with pytest.raises(InputError, match=said):
        tasks.graph()


def test_a_cycle_is_named_with_its_members():
    with pytest.raises(
        InputError,
        match=r"no cycle, but 2 wait for each other: task 3 \('sum'\) -> task 1 \('there'\) -> task 3 ",
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
