"""Knobs come back from the traffic they made, and fitted traffic has the statistics of real recordings."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax.traffic import Knobs, Recording, Tokens, fit, open_trace, statistics
from mfabric_jax.traffic.fitting import Fit
from mfabric_jax.traffic.generator import Shape, draw
from mfabric_jax.traffic.recording import Sources, Targets
from tests.mistakes import refused

TRUTH = Knobs(
    popularity="log-normal",
    skew=1.2,
    layer_spread=0.3,
    row_noise=0.1,
    row_shared=0.5,
    micro_drift=0.05,
    drift=0.1,
    persistence=0.9,
    jitter=0.03,
    sampled=True,
)
SHAPE = Shape(layers=16, micro_batches=2, ranks=4, experts=16, selections=20_000)


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(Tokens(draw(SHAPE, TRUTH, 77, np.arange(40)), "made"))


def test_known_knobs_are_recovered(found):
    got = found.knobs
    assert got.popularity == "log-normal"
    assert got.sampled
    assert got.skew == pytest.approx(1.2, rel=0.1)
    assert got.layer_spread == pytest.approx(0.3, abs=0.1)
    assert got.row_noise == pytest.approx(0.1, rel=0.05)
    assert got.row_shared == pytest.approx(0.5, abs=0.05)
    assert got.micro_drift == pytest.approx(0.05, rel=0.1)
    assert got.drift_spread == pytest.approx(TRUTH.drift_spread, rel=0.5)
    assert got.sparsity == got.pair_sparsity == got.hot_share == 0


def test_the_statistics_agree(found):
    for row in found.rows():
        if not row["recorded"]:
            assert row["error"] is None
            continue
        assert row["error"] == pytest.approx(row["fitted"] / row["recorded"] - 1)
        if row["statistic"] in statistics.LAGGED.values():
            assert 1 - row["fitted"] == pytest.approx(1 - row["recorded"], rel=0.4), row
        else:
            assert abs(row["error"]) < (0.5 if "pairs" in row["statistic"] else 0.15), row  # few ranks: much luck
    assert list(found.recorded) == list(found.fitted)


def test_even_traffic_stays_even():
    got = fit(Tokens(np.full((1, 2, 1, 4, 8), 2.0), "even"))
    assert got.knobs == dataclasses.replace(got.knobs, row_noise=0, micro_drift=0, drift=0, jitter=0, sparsity=0)
    assert got.fitted[f"{statistics.LOAD}, median"] < 1.1
    assert got.recorded[f"{statistics.LOAD}, median"] == 1


def test_without_sources_load_and_drift_are_fitted():
    shape = Shape(layers=8, micro_batches=2, ranks=1, experts=4, selections=50_000)
    count = draw(shape, Knobs(skew=0.5, layer_spread=0.3, micro_drift=0.1, sampled=True), 5, np.arange(4))
    recording = Recording(
        count, np.arange(4), "run", "made up", sources=Sources.UNKNOWN, targets=Targets.RANKS, experts=8
    )
    got = fit(recording)
    assert set(got.recorded) == {
        *(f"{of}, {name}" for of in (statistics.LOAD, statistics.LOAD_GINI) for name in statistics.QUANTILES),
        statistics.MICRO,
        statistics.MICRO_CHANCE,
        statistics.LAGGED[1],
    }
    assert got.knobs.row_noise == got.knobs.sparsity == 0
    assert got.knobs.micro_drift == pytest.approx(0.1, rel=0.1)
    for name, value in got.recorded.items():
        assert got.fitted[name] == pytest.approx(value, rel=0.25), name


def test_a_phase_is_seen():
    made = dataclasses.replace(TRUTH, drift=0.0, phase_start=2.0, phase_floor=1.0, half_life=5.0)
    count = draw(SHAPE._replace(layers=4, micro_batches=1), made, 7, np.arange(25))
    got = fit(Tokens(count, "made"), iterations=1).knobs
    assert got.phase_start / got.phase_floor == pytest.approx(2.0, rel=0.25)
    assert got.half_life == pytest.approx(5, rel=0.6)


# ------------------------------------------------------------------------------------------------------------- moments
def test_moments_by_hand():
    # Two ranks with one expert each; rank 0 sends 3 and 1, rank 1 sends 1 and 3, in both micro-batches; then nothing.
    one = np.array([[3, 1], [1, 3]])
    got = statistics.moments_of(np.stack([np.stack([one, one])[None], np.stack([one, one])[None] * 2]))
    assert got[f"{statistics.LOAD}, p90"] == 1
    assert got[f"{statistics.GINI}, median"] == got[statistics.ZERO] == got[statistics.MICRO] == 0
    assert got[statistics.ROWS] == got[statistics.ROWS_ONE] == 0.25
    assert statistics.LAGGED[1] not in got  # even loads have no correlation
    assert f"{statistics.TOPS[0.1]}, median" in got
    assert not [n for n in statistics.moments_of(one[None, None, None], pairs=False) if "pairs" in n]


def test_mistakes():
    said = refused(fit, Tokens(np.zeros((1, 1, 1, 2, 4)), "nothing"))
    assert said == "a recording to fit must have selections, got none in nothing."
    tokens = Tokens(np.ones((1, 1, 1, 2, 4)), "ones")
    assert "iterations must be a whole number of at least 1, got 0" in refused(fit, tokens, iterations=0)
    assert "seed must be a whole number of at least 0, got -1" in refused(fit, tokens, seed=-1)


# ----------------------------------------------------------------------------------------------------------------- real
@pytest.mark.slow
def test_a_real_recording_within_what_is_documented(shared_data):
    (whole,) = open_trace(shared_data / "smartmoe_gate_trace")
    chosen = whole.chosen((2011, 5001))
    every = np.arange(0, 300, 60)
    got = fit(dataclasses.replace(chosen, count=chosen.count[every], number=chosen.number[every]))
    published = json.loads((shared_data / "trace_statistics.json").read_text())["smartmoe_gate_trace"]
    wanted = published["iter_2011_5001"]
    for name, values, close in (
        (statistics.LOAD, wanted["expert_max_over_mean_p10_50_90"], 0.15),
        (statistics.TOPS[0.1], wanted["EP16_pairs"]["top10pct_pairs_share"], 0.2),
        (statistics.TOPS[0.2], wanted["EP16_pairs"]["top20pct_pairs_share"], 0.15),
        (statistics.GINI, wanted["EP16_pairs"]["gini"], 0.2),
    ):
        for quantile, value in zip(statistics.QUANTILES, values, strict=True):
            assert got.fitted[f"{name}, {quantile}"] == pytest.approx(value, rel=close), (name, quantile)
    assert got.fitted[statistics.ZERO] == pytest.approx(wanted["EP16_pairs"]["zero_pair_fraction"], abs=0.06)
    assert got.fitted[statistics.ROWS] == pytest.approx(wanted["TV_source_rank_vs_mean"], rel=0.1)
