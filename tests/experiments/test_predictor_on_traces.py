"""Predictions of recorded all-to-alls: the rows say what direct calls say; how the figure looks was judged by eye."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.predictor_on_traces import (
    HITS,
    KNOBS,
    MODEL,
    SCRIPT,
    Config,
    run,
    summary,
)
from mfabric_jax import all_to_all_time, traffic, workload
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.traffic.predictor import DECAY, WINDOW
from tests.mistakes import check_refused

RANKS, EXPERTS = 16, 32
NAMES = ("previous-layer", "previous-iteration", "moving-average", "uniform")
SMALL = {"samples": 4, "servers": (4,), "predictors": NAMES, "optical_degree": 2, "electrical_nics": 1}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Twenty records of two layers: popular experts that drift, on which ranks hardly agree."""
    path = tmp_path_factory.mktemp("trace") / "tokens.npy"
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(EXPERTS, 0.3), (1, 2, 1, 1)) + 0.01 * rng.uniform(size=(20, 2, 1, 1, EXPERTS))
    np.save(path, np.round(4096 * (0.7 * popular + 0.3 * rng.dirichlet(np.full(EXPERTS, 0.3), (20, 2, 1, RANKS)))))
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
    drawn = Config(str(trace), **SMALL).drawn((20, 24, 1), (WINDOW, 1, 0))
    for name in NAMES:
        places = [(row["record"], row["layer"], row["micro_batch"]) for row in rows if row["predictor"] == name]
        assert places == [tuple(place) for place in drawn]
    for row in rows:
        record, layer = row["record"], row["layer"] % 2
        true = recorded[record, layer, 0]
        load = {
            "previous-layer": recorded[record, 1 - layer, 0].sum(0),
            "previous-iteration": recorded[record - 1, layer, 0].sum(0),
            "moving-average": DECAY ** np.arange(WINDOW)[::-1] @ recorded[record - WINDOW : record, layer, 0].sum(1),
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


def test_too_few_records_are_refused(tmp_path):
    np.save(tmp_path / "tokens.npy", np.ones((8, 2, 1, RANKS, EXPERTS)))
    check_refused("predictors need more than 16 records, got 8", run, Config(str(tmp_path / "tokens.npy"), **SMALL))


def test_the_summary_and_the_picture_show_means(rows, tmp_path):
    more = [row | {"servers": 8, "over_exact": row["over_exact"] + 1} for row in rows]
    lines = [line for line in summary([*rows, *more]) if line["predictor"] == "moving-average"]
    assert [line["servers"] for line in lines] == [4, 8]
    mine = [row for row in rows if row["predictor"] == "moving-average"]
    for name, key in (("top 2", "top_2"), ("TV", "variation"), ("time", "over_exact")):
        assert lines[0][name] == pytest.approx(np.mean([row[key] for row in mine]))
    assert SCRIPT.draw([*rows, *more], tmp_path / "a.svg").stat().st_size > 5000
    assert "moving-average" in SCRIPT.table(rows)
    assert "(recorded)" in SCRIPT.verdicts(rows)[0].claim


def test_the_draw_is_seeded_and_takes_nothing_twice():
    for first in ((0, 0, 0), (2, 1, 0)):
        shape = (7, 3, 4)
        one, again, other = (Config(samples=20, seed=seed).drawn(shape, first) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)
        assert len({tuple(place) for place in one}) == 20
        assert ((one >= first) & (one < shape)).all()
        assert len(Config(samples=100).drawn(shape, first)) == np.prod(np.subtract(shape, first))


def test_without_a_recording_traffic_is_generated():
    job = workload.get(MODEL)
    count = Config(iterations=WINDOW + 1, seed=1).tokens().count
    assert count.shape == (WINDOW + 1, job.moe_layers, 4, job.ep, job.architecture.experts)
    np.testing.assert_array_equal(count, traffic.from_knobs(job, KNOBS, WINDOW + 1, 4, 1).count)


@pytest.mark.slow
def test_the_recording(shared_data):
    # Where popularity drifts slowly, averages over iterations are closer than the last one, and both than a guess.
    names = ("moving-average", "previous-iteration", "uniform")
    folder = str(shared_data / "smartmoe_gate_trace")
    rows = run(Config(folder, samples=100, servers=(8,), predictors=names))
    average, last, blind = (line["TV"] for line in summary(rows))
    assert average < 0.9 * last < 0.1 * blind
    average, last, blind = (line["time"] for line in summary(rows))
    assert max(average, last) < 1.05 < blind
