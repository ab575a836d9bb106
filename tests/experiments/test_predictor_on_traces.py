"""Predictions of recorded all-to-alls: the rows say what direct calls say; how the figure looks was judged by eye."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.predictor_on_traces import HITS, PICTURE, SCRIPT, Config, fits, run, summary
from mfabric_jax import all_to_all_time, report
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style
from tests.experiments.recorded import EXPERTS, RANKS, between, written
from tests.mistakes import check_refused

NAMES = ("previous-layer", "previous-iteration", "moving-average", "uniform")
SMALL = {"samples": 4, "servers": (4,), "window": 3, "predictors": NAMES, "optical_degree": 2, "electrical_nics": 1}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Eight records, whose popular experts drift."""
    return written(tmp_path_factory.mktemp("trace") / "tokens.npy", 8, drift=0.01)


@pytest.fixture(scope="module")
def rows(trace):
    return run(Config(str(trace), **SMALL))


@eqx.filter_jit
def seconds(where, guess, true):
    return all_to_all_time(where, greedy(guess, where).circuits, true)


def test_rows_equal_direct_calls(trace, rows):
    recorded = np.load(trace)
    recorded /= recorded.sum(-1, keepdims=True)  # every rank's row is scaled to the same
    where = Region(4, 400.0, 2, 1)
    drawn = Config(str(trace), **SMALL).drawn((8, 24, 1), (3, 1, 0))
    for name in NAMES:
        places = [(row["record"], row["layer"], row["micro_batch"]) for row in rows if row["predictor"] == name]
        assert places == [tuple(place) for place in drawn]
    for row in rows:
        record, layer = row["record"], row["layer"] % 2
        true = recorded[record, layer, 0]
        load = {
            "previous-layer": recorded[record, 1 - layer, 0].sum(0),
            "previous-iteration": recorded[record - 1, layer, 0].sum(0),
            "moving-average": np.array([0.81, 0.9, 1]) @ recorded[record - 3 : record, layer, 0].sum(1),
            "uniform": np.ones(EXPERTS),
        }[row["predictor"]]
        guess = np.tile(load / load.sum(), (RANKS, 1))
        demand = jnp.asarray(between(true, 4))
        exact, time = (seconds(where, jnp.asarray(between(tokens, 4)), demand) for tokens in (true, guess))
        np.testing.assert_allclose(row["over_exact"], time / exact, rtol=1e-6)
        np.testing.assert_allclose(row["over_exact"], row["time_s"] / row["exact_s"], rtol=1e-12)
        np.testing.assert_allclose(row["variation"], np.abs(guess[0] - true.mean(0)).sum() / 2, rtol=1e-6)
        if row["predictor"] != "uniform":
            for k in HITS:
                hit = set(np.argsort(-load)[:k]) & set(np.argsort(-true.sum(0))[:k])
                assert row[f"top_{k}"] == len(hit) / k


def test_fits_agree_with_slsqp_and_too_few_records_are_refused(trace):
    (line,) = fits(Config(str(trace), **SMALL, fit_experts=(4,)))
    assert (line["experts"], line["layers"], line["finished"]) == (4, 23, 23)
    assert -1e-3 < line["excess"] <= 1e-6
    assert line["kkt"] <= 1e-6
    assert line["ratio"] == line["slsqp_s"] / line["s"]
    assert fits(Config(str(trace), **SMALL, fit_experts=())) == []
    check_refused(r"window must be less than the 8 records, got 8\.", run, Config(str(trace), **SMALL | {"window": 8}))


def test_main_writes_the_fits_into_a_file_of_their_own(trace, tmp_path, capsys):
    words = ["--trace", str(trace), "--out", str(tmp_path), "--samples", "4", "--servers", "4", "--window", "3"]
    assert SCRIPT.main([*words, "--predictors", "uniform,moving-average", "--fit-experts", "2"]) == 0
    rows, config = report.read_rows(tmp_path / "predictor_on_traces.csv")
    assert [row["predictor"] for row in rows] == 4 * ["uniform"] + 4 * ["moving-average"]
    assert (config["samples"], config["window"], config["dtype"]) == (4, 3, "float64")
    assert [row["experts"] for row in report.read_rows(tmp_path / "predictor_on_traces_fits.csv")[0]] == [2]
    parts = [part.splitlines() for part in capsys.readouterr().out.split("\n\n")]
    assert list(map(len, parts)) == [2 + 2, 2 + 1, 2 + 4]
    assert "(recorded)" in parts[-1][2]


def test_the_summary_and_the_figure_show_means(rows):
    more = [row | {"servers": 8, "over_exact": row["over_exact"] + 1} for row in rows]
    with style.look():
        hits, variation, left, right = PICTURE.build([*rows, *more]).axes
    titles = [axes.get_title(loc="left") for axes in (left, right)]
    assert titles == ["Time over exact, 4 servers", "Time over exact, 8 servers"]
    place = [label.get_text() for label in hits.get_yticklabels()].index("Moving average")
    mine = [row for row in rows if row["predictor"] == "moving-average"]
    for axes, key, extra in ((variation, "variation", 0), (left, "over_exact", 0), (right, "over_exact", 1)):
        assert axes.texts[place].get_text() == f"{np.mean([row[key] for row in mine]) + extra:.3f}"
    lines = [line for line in summary([*rows, *more]) if line["predictor"] == "moving-average"]
    assert [line["servers"] for line in lines] == [4, 8]
    for name, key in (("top 2", "top_2"), ("TV", "variation"), ("time", "over_exact")):
        assert lines[0][name] == pytest.approx(np.mean([row[key] for row in mine]))


@pytest.mark.slow
def test_the_recording(shared_data):
    # Where popularity drifts slowly, averages over iterations are closer than the last one, and both than a guess.
    names = ("moving-average", "previous-iteration", "uniform")
    folder = str(shared_data / "smartmoe_gate_trace")
    rows = run(Config(folder, records=(4701, 5001), samples=100, servers=(8,), predictors=names))
    average, last, blind = (line["TV"] for line in summary(rows))
    assert average < 0.9 * last < 0.1 * blind
    average, last, blind = (line["time"] for line in summary(rows))
    assert max(average, last) < 1.05 < blind
