"""The critical path of small graphs by hand, and unions of intervals beside counting on a fine grid."""

import numpy as np
import pytest

from mfabric_jax.tasks.critical import covered_s, critical_path

NOTHING = np.zeros((0, 2), np.int64)


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


def test_no_flows_have_no_path():
    assert critical_path(NOTHING, np.zeros(0), np.zeros(0), np.zeros(0)).flow.shape == (0,)


def test_covered_time_counts_what_overlaps_once():
    begin, end = np.array([0, 1, 5, 2, 0.0]), np.array([2, 3, 6, 2.5, 1.0])
    assert covered_s(begin, end, np.array([0, 0, 0, 0, 2]), 3).tolist() == [4, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_covered_time_as_counted_on_a_grid(seed):
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, 40, 30)
    end, owner = begin + rng.integers(0, 6, 30), rng.integers(0, 4, 30)
    ticks = [
        {t for b, e, o in zip(begin, end, owner, strict=True) if o == one for t in range(b, e)} for one in range(4)
    ]
    assert covered_s(begin.astype(float), end.astype(float), owner, 4).tolist() == [len(found) for found in ticks]
