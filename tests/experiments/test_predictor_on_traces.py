"""Predictions of recorded all-to-alls: the rows say what direct calls say; how the figure looks was judged by eye."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.predictor_on_traces import (
    HITS,
    ITERATIONS,
    KNOBS,
    MODEL,
    PICTURE,
    SCRIPT,
    Config,
    resolved,
    run,
    summary,
)
from mfabric_jax import all_to_all_time, report, traffic, workload
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style
from tests.mistakes import check_refused

RANKS, EXPERTS = 16, 32
NAMES = ("previous-layer", "previous-iteration", "moving-average", "uniform")
SMALL = {"samples": 4, "servers": (4,), "window": 3, "predictors": NAMES, "optical_degree": 2, "electrical_nics": 1}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Eight records of two layers: popular experts that drift, on which ranks hardly agree."""
    path = tmp_path_factory.mktemp("trace") / "tokens.npy"
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(EXPERTS, 0.3), (1, 2, 1, 1)) + 0.01 * rng.uniform(size=(8, 2, 1, 1, EXPERTS))
    np.save(path, np.round(4096 * (0.7 * popular + 0.3 * rng.dirichlet(np.full(EXPERTS, 0.3), (8, 2, 1, RANKS)))))
    return path


@pytest.fixture(scope="module")
def rows(trace):
    return run(Config(str(trace), **SMALL))


@eqx.filter_jit
def seconds(where, guess, true):
    return all_to_all_time(where, greedy(guess, where).circuits, true)


def between(tokens, servers):
    """Selections between servers, up to a factor: every rank's row sums to the same, expert e is on rank e // 2."""
    ranks = (tokens / tokens.sum(1, keepdims=True)).reshape(RANKS, RANKS, 2).sum(2)
    demand = ranks.reshape(servers, RANKS // servers, servers, RANKS // servers).sum((1, 3))
    return demand - np.diag(np.diagonal(demand))


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


def test_main_names_the_recording_and_too_few_records_are_refused(trace, tmp_path, capsys):
    words = ["--trace", str(trace), "--out", str(tmp_path), "--samples", "4", "--servers", "4", "--window", "3"]
    assert SCRIPT.main([*words, "--predictors", "uniform,moving-average"]) == 0
    rows, config = report.read_rows(tmp_path / "predictor_on_traces.csv")
    assert [row["predictor"] for row in rows] == 4 * ["uniform"] + 4 * ["moving-average"]
    assert (config["samples"], config["window"], config["dtype"]) == (4, 3, "float64")
    assert "(recorded)" in capsys.readouterr().out
    check_refused(r"window must be less than the 8 records, got 8\.", run, Config(str(trace), **SMALL | {"window": 8}))


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


def test_the_draw_is_seeded_and_takes_nothing_twice():
    for first in ((0, 0, 0), (2, 1, 0)):
        shape = (7, 3, 4)
        one, again, other = (Config(samples=20, seed=seed).drawn(shape, first) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)
        assert len({tuple(place) for place in one}) == 20
        assert ((one >= first) & (one < shape)).all()
        assert len(Config(samples=100).drawn(shape, first)) == np.prod(np.subtract(shape, first))


def test_a_recording_is_read_as_it_is_and_without_one_traffic_is_generated(tmp_path):
    job, trace, few = workload.get(MODEL), str(tmp_path / "tokens.npy"), {"window": 1}
    np.save(trace, np.random.default_rng(0).integers(1, 9, (5, 2, 1, 16, 32)))
    share = np.load(trace) / np.load(trace).sum(-1, keepdims=True)
    for records, iterations, first, last in ((None, None, 0, 5), ((1, 3), None, 1, 4), (None, 2, 0, 2)):
        source = Config(trace, records, iterations, **few)
        count = source.tokens().count
        np.testing.assert_allclose(count[:, :2] / job.selections, share[first:last], rtol=1e-12)
        assert resolved(source) == {"traffic": "recorded"}
    source = Config(iterations=2, seed=1, **few)
    count = source.tokens().count
    assert count.shape == (2, job.moe_layers, 4, job.ep, job.architecture.experts)
    np.testing.assert_array_equal(count, traffic.from_knobs(job, KNOBS, 2, 4, 1).count)
    assert resolved(source) == {"traffic": "generated", "knobs": KNOBS.turned, "iterations": 2}
    assert resolved(Config())["iterations"] == ITERATIONS


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
