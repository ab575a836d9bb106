"""CASSINI: circles and scores by hand, rotations against a search through all, one shift per job over many links."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax.apps.graphs.jobs.cassini import Circle, Mltcp, common_ticks, rotations, score_of, time_shifts


def on_off(period_ms, begin_ms, end_ms, rate=1.0):
    """A job that communicates once an iteration."""
    return Circle(period_ms / 1e3, (begin_ms / 1e3,), (end_ms / 1e3,), (rate,))


def test_the_two_jobs_of_the_paper_need_30_degrees():
    # 40 and 60 ms make a circle of 120 ms; both end their iteration with 10 ms of communication and meet at 110 ms.
    found = rotations([on_off(40, 30, 40), on_off(60, 50, 60)], capacity=1)
    assert found.before == pytest.approx(1 - 10 / 120, abs=1e-9)
    assert found.score == pytest.approx(1, abs=1e-9)
    assert found.shift_s[0] == 0
    assert found.shift_s[1] / 0.120 * 360 == pytest.approx(30, abs=1e-9)


def test_a_score_by_hand_where_nothing_fits():
    # Two jobs of 60 ms in 100 on the whole link: 20 ms overlap at best, 60 at worst, and the excess is one whole link.
    jobs = [on_off(100, 0, 60), on_off(100, 0, 60)]
    found = rotations(jobs, capacity=1)
    assert (found.before, found.score) == (pytest.approx(0.4, abs=1e-9), pytest.approx(0.8, abs=1e-9))
    assert found.shift_s[1] == pytest.approx(0.040, abs=1e-9)  # the smallest of the turns from 40 to 60 ms
    # At half of the link's capacity each they fit as they are.
    found = rotations([on_off(100, 0, 60, 0.5)] * 2, capacity=1)
    assert (found.score, found.shift_s) == (pytest.approx(1, abs=1e-9), (0, 0))


def test_an_arc_may_run_over_the_end_of_the_iteration():
    np.testing.assert_allclose(on_off(4, 3, 5.5).mean_rates(4), [1, 0.5, 0, 1], atol=1e-9)


def excess_by_hand(jobs, turns, around):
    """Mean excess over a circle of `around` ms, millisecond by millisecond, in fractions."""
    total = Fraction(0)
    for ms in range(around):
        demand = sum(
            rate
            for (period, begin, end, rate), turn in zip(jobs, turns, strict=True)
            if begin <= (ms - turn) % period < end
        )
        total += max(Fraction(demand) - 1, 0)
    return total / around


@pytest.mark.parametrize("seed", range(12))
def test_two_jobs_are_turned_as_a_search_through_all_turns_does(seed):
    draw = np.random.default_rng(seed)
    jobs = []
    for period in draw.choice([4, 6, 8, 12], 2).tolist():
        begin = int(draw.integers(period - 1))
        jobs.append((period, begin, int(draw.integers(begin + 1, period + 1)), Fraction(int(draw.integers(2, 5)), 4)))
    around = int(np.lcm.reduce([job[0] for job in jobs]))
    by_turn = [excess_by_hand(jobs, (0, turn), around) for turn in range(jobs[1][0])]
    circles = [on_off(*job[:3], float(job[3])) for job in jobs]
    found = rotations(circles, capacity=1)
    assert found.score == pytest.approx(1 - float(min(by_turn)), abs=1e-9)
    assert found.shift_s[1] * 1e3 == pytest.approx(by_turn.index(min(by_turn)), abs=1e-9)
    assert score_of(circles, 1, found.shift_s) == pytest.approx(found.score, abs=1e-9)


def test_eight_jobs_that_fill_a_link_interleave():
    found = rotations([on_off(80, 70, 80)] * 8, capacity=1)
    assert found.score == pytest.approx(1, abs=1e-9)
    assert sorted(round(1e3 * shift) for shift in found.shift_s) == list(range(0, 80, 10))


def test_one_shift_per_job_over_a_chain_of_links_keeps_every_score():
    # Jobs 0-1 share link a, 1-2 link b, 2-3 link c: without loops, the walk gives every link what it asked for.
    job = [on_off(100, 50, 100), on_off(100, 20, 70), on_off(200, 0, 50), on_off(200, 100, 160)]
    links = {name: (1.0, {j: job[j] for j in pair}) for name, pair in (("a", (0, 1)), ("b", (1, 2)), ("c", (2, 3)))}
    found = time_shifts([circle.period_s for circle in job], links | {"alone": (1.0, {3: job[3]})})
    assert set(found.links) == {"a", "b", "c"}
    assert found.passed_over == ()
    for name, (capacity, of) in links.items():
        score = score_of(list(of.values()), capacity, found.shift_s[list(of)])
        assert score == pytest.approx(found.links[name].score, abs=1e-9)
    assert found.score == pytest.approx(np.mean([one.score for one in found.links.values()]), abs=1e-9)
    assert found.shift_s[0] == 0
    assert np.all(found.shift_s < [circle.period_s for circle in job])


def test_a_loop_is_broken_at_the_link_that_needs_it_least():
    heavy, light = on_off(100, 50, 100), on_off(100, 60, 100, 0.6)
    pairs = {"a": (0, 1), "b": (1, 2), "c": (2, 0)}
    of = {0: heavy, 1: heavy, 2: light}
    links = {name: (1.0, {j: of[j] for j in pair}) for name, pair in pairs.items()}
    found = time_shifts([0.1] * 3, links | {"a too": links["a"]})
    assert found.passed_over == ("c",)  # of b and c, which ask for the same, the later one
    assert found.links["a too"] == found.links["a"]
    assert found.score < np.mean([one.score for one in found.links.values()]) + 1e-12


def test_jobs_that_share_nothing_are_not_shifted():
    found = time_shifts([0.1, 0.2], {"a": (1.0, {0: on_off(100, 0, 100)}), "b": (1.0, {1: on_off(200, 0, 100)})})
    np.testing.assert_array_equal(found.shift_s, 0)
    assert (found.score, found.links) == (1, {})


def test_ticks_become_coarser_where_the_circle_would_be_too_long():
    assert common_ticks([0.04, 0.06], 0.001) == [40, 60]
    assert common_ticks([0.997, 0.991], 0.001) == [125, 124]  # of 8 ms: 15,500 ticks; of 4 ms they were 61,752
    assert common_ticks([1.0, 0.0001], 0.001) == [1000, 1]


def test_three_jobs_are_no_worse_than_any_turns_on_a_coarse_grid():
    jobs = [on_off(12, 6, 12), on_off(12, 8, 12), on_off(6, 4, 6)]
    found = rotations(jobs, capacity=1)
    for turns in itertools.product(range(12), range(6)):
        assert found.score >= score_of(jobs, 1, (0, turns[0] / 1e3, turns[1] / 1e3)) - 1e-9


def test_pieces_have_the_function_at_their_middle_and_go_on_in_the_next_phase():
    rule = Mltcp(slope=2, intercept=1, pieces=2)
    # 8 bytes an iteration, 4 in each of two phases: middles at 1/8, 3/8 and 5/8, 7/8.
    np.testing.assert_allclose(rule.piece_weights([0, 4], [4, 4], [8, 8]), [[1.25, 1.75], [2.25, 2.75]], rtol=1e-12)
    np.testing.assert_allclose(rule.piece_weights([0], [0], [0]), [[1, 1]])
