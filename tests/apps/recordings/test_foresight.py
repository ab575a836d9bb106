"""Predictors ranked on recordings whose best predictor and horizon are known."""

import numpy as np
import pytest

from mfabric_jax.apps.recordings.foresight import foresight_rows, is_balanced, rank_predictors
from mfabric_jax.traffic.recording import Recording

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SHAPE = (40, 3, 8)  # iterations, layers, experts: one shape, one program a predictor
RNG = np.random.default_rng(0)


LATE = {  # of each predictor, the error at each horizon
    "uniform": {1: 0.5, 10: 0.5, 20: 0.5},
    "previous-iteration": {1: 0.1, 10: 0.2, 20: 0.4},
    "moving-average": {1: 0.11, 10: 0.19, 20: 0.3},
    "transition": {1: 0.05, 10: 0.1, 20: 0.4},
}


def rows_of(load, number=None):
    """Rows of a recording with these loads [iteration layer expert]."""
    number = np.arange(len(load)) if number is None else number
    return foresight_rows(Recording(load[:, :, None, None], number, "run", "made up"))


def errors(rows, name):
    return {row["records"]: row["error"] for row in rows if row["predictor"] == name}


def test_loads_that_never_change_are_repeated_for_ever():
    rows = rows_of(np.broadcast_to(RNG.pareto(1.0, SHAPE[1:]), SHAPE))
    first, *others = rank_predictors(rows)
    assert (first["predictor"], first["error"], first["works_to"], first["reaches_end"]) == (
        "previous-iteration",
        0,
        20,
        True,
    )
    assert {row["beats_repeating_to"] for row in others} == {0}  # nothing is better than right
    assert {row["beats_repeating_from"] for row in others} == {None}
    late = [{"predictor": name, "records": n, "error": e} for name, row in LATE.items() for n, e in row.items()]
    found = {row["predictor"]: row["beats_repeating_from"] for row in rank_predictors(late)}
    assert found == {"uniform": None, "previous-iteration": None, "moving-average": 10, "transition": None}
    assert rank_predictors(rows)[-1]["predictor"] in ("uniform", "previous-layer")


def test_loads_drawn_anew_are_best_foreseen_by_their_mean():
    mean = np.array([8, 4, 2, 1, 1, 1, 1, 1.0])
    rows = rows_of(RNG.gamma(4 * np.broadcast_to(mean, SHAPE)))
    best = rank_predictors(rows)[0]
    assert (best["predictor"], best["works_to"], best["beats_repeating_to"]) == ("moving-average", 20, 20)
    near, *_, far = errors(rows, "moving-average").values()
    assert far == pytest.approx(near, rel=0.1)  # nothing is forgotten: no horizon is worse


def test_drawn_anew_around_even_shares_nothing_beats_these():
    rows = rows_of(RNG.gamma(4.0, size=SHAPE))
    best = rank_predictors(rows)[0]
    assert (best["predictor"], best["works_to"]) == ("uniform", 0)
    assert not is_balanced(rows)
    assert is_balanced(rows_of(np.ones(SHAPE)))


def test_a_pattern_that_turns_is_foreseen_no_further_than_it_lasts():
    turn = np.arange(SHAPE[0]) // 4 % 8  # a hot expert, the next one every four iterations
    load = np.broadcast_to(1 + 20.0 * (np.arange(8) == turn[:, None])[:, None], SHAPE)
    rows = rows_of(load, number=10 * np.arange(SHAPE[0]))
    found = {row["predictor"]: row for row in rank_predictors(rows)}
    assert [row["iterations"] for row in rows if row["predictor"] == "uniform"] == [10, 20, 50, 100, 200]
    # Layers are alike, so the one before in the same iteration tells all but the first.
    assert found["previous-layer"]["over_even"] < 0.5
    assert found["previous-iteration"]["works_to"] == 2
    assert not found["previous-iteration"]["reaches_end"]
    # The tried iterations are 20 to 39, every one but a fourth of them like the one before.
    share = 21 / 28 - 1 / 28
    hit = np.mean(turn[20:] == turn[19:-1])
    assert errors(rows, "previous-iteration")[1] == pytest.approx((1 - hit) * share, abs=2e-5)


def test_short_recordings():
    load = np.zeros(SHAPE)
    assert rows_of(load) == []
    assert rows_of(RNG.pareto(1.0, (1, 2, 4))) == []
    assert rank_predictors([]) == []
    two = rows_of(RNG.pareto(1.0, (2, 2, 4)), number=[3, 7])
    assert {(row["records"], row["iterations"]) for row in two} == {(1, 4)}
    load[:, 0], load[:, 1, :4] = 1, 1  # the third layer is empty and counts nowhere
    assert errors(rows_of(load), "uniform")[1] == pytest.approx((0 + 0.5) / 2)


def test_fits_that_take_minutes_are_left_out():
    load = RNG.pareto(1.0, (4, 8, 128))
    names = {row["predictor"] for row in rows_of(load)}
    assert names == {"uniform", "previous-iteration", "previous-layer", "moving-average"}
