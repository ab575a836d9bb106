"""Predictions of recorded all-to-alls: the rows say what direct calls say; how the figure looks was judged by eye."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import all_to_all_time, report
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style

pytest.importorskip("matplotlib")
pytest.importorskip("tyro")
from experiments.predictor_on_traces import HITS, Config, build, draw, drawn, fits, main, run, summary

RANKS, EXPERTS = 16, 32
NAMES = ("previous-layer", "previous-iteration", "moving-average", "uniform")
SMALL = {"samples": 4, "servers": (4,), "window": 3, "predictors": NAMES, "optical_degree": 2, "electrical_nics": 1}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Eight records, two layers, one micro-batch: popular experts that drift, and ranks that hardly agree on them."""
    rng = np.random.default_rng(0)
    popular = rng.dirichlet(np.full(EXPERTS, 0.3), (1, 2, 1, 1)) + 0.01 * rng.uniform(size=(8, 2, 1, 1, EXPERTS))
    share = 0.7 * popular + 0.3 * rng.dirichlet(np.full(EXPERTS, 0.3), (8, 2, 1, RANKS))
    path = tmp_path_factory.mktemp("trace") / "tokens.npy"
    np.save(path, np.round(4096 * share))
    return path


@pytest.fixture(scope="module")
def rows(trace):
    return run(Config(str(trace), **SMALL))


def test_a_row_for_each_all_to_all_and_predictor(trace, rows):
    assert len(rows) == 4 * len(NAMES)
    for name in NAMES:
        places = [(row["record"], row["layer"], row["micro_batch"]) for row in rows if row["predictor"] == name]
        assert places == [tuple(place) for place in drawn(Config(str(trace), **SMALL), (8, 24, 1))]


def between(tokens):
    """Selections between 4 servers, up to a factor: every rank's row sums to the same, expert e is on rank e // 2."""
    demand = (tokens / tokens.sum(1, keepdims=True)).reshape(4, 4, 4, 8).sum((1, 3))
    return jnp.asarray(demand - np.diag(np.diagonal(demand)))


@eqx.filter_jit
def seconds(where, guess, true):
    return all_to_all_time(where, greedy(guess, where).circuits, true)


def test_rows_equal_direct_calls(trace, rows):
    recorded = np.load(trace)
    recorded /= recorded.sum(-1, keepdims=True)  # every rank's row is scaled to the same
    where = Region(4, 400.0, 2, 1)
    for row in rows:
        at, layer = row["record"], row["layer"] % 2
        true = recorded[at, layer, 0]
        load = {
            "previous-layer": recorded[at, 1 - layer, 0].sum(0),
            "previous-iteration": recorded[at - 1, layer, 0].sum(0),
            "moving-average": np.array([0.81, 0.9, 1]) @ recorded[at - 3 : at, layer, 0].sum(1),
            "uniform": np.ones(EXPERTS),
        }[row["predictor"]]
        guess = np.tile(load / load.sum(), (RANKS, 1))
        exact, time = (seconds(where, between(tokens), between(true)) for tokens in (true, guess))
        np.testing.assert_allclose(row["over_exact"], time / exact, rtol=1e-6)
        np.testing.assert_allclose(row["over_exact"], row["time_s"] / row["exact_s"], rtol=1e-12)
        np.testing.assert_allclose(row["variation"], np.abs(guess[0] - true.mean(0)).sum() / 2, rtol=1e-6)
        if row["predictor"] != "uniform":
            for k in HITS:
                hit = set(np.argsort(-load)[:k]) & set(np.argsort(-true.sum(0))[:k])
                assert row[f"top_{k}"] == len(hit) / k


def test_the_draw_is_seeded_leaves_out_the_first_records_and_layer_and_takes_nothing_twice():
    shape = (8, 3, 4)
    one, again, other = (drawn(Config("x", samples=20, window=5, seed=seed), shape) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len({tuple(place) for place in one}) == 20
    assert (one >= [5, 1, 0]).all()
    assert (one < shape).all()
    assert len(drawn(Config("x", samples=100, window=5), shape)) == 3 * 2 * 4


def test_the_summary_is_that_of_the_groups():
    row = {"predictor": "uniform", "top_1": 1.0, "top_2": 0.5, "top_4": 0.25, "top_8": 0.0, "variation": 0.5}
    lines = summary([row | {"servers": s, "over_exact": v} for s in (8, 16) for v in (1.0, 2.0, 6.0)])
    assert [line["servers"] for line in lines] == [8, 16]
    assert (lines[0]["top 2"], lines[0]["TV"], lines[0]["time"], lines[0]["samples"]) == (0.5, 0.5, 3.0, 3)
    assert lines[0]["time p90"] == pytest.approx(5.2)


def test_fits_agree_with_slsqp(trace):
    (line,) = fits(Config(str(trace), **SMALL, fit_experts=(4,)))
    assert (line["experts"], line["layers"], line["finished"]) == (4, 23, 23)
    assert -1e-3 < line["excess"] <= 1e-6
    assert line["kkt"] <= 1e-6
    assert line["ratio"] == line["slsqp_s"] / line["s"]
    assert fits(Config(str(trace), **SMALL, skip_fits=True)) == []


def test_main_writes_rows_configuration_and_picture(trace, tmp_path, capsys):
    words = ["--trace", str(trace), "--out", str(tmp_path), "--samples", "4", "--servers", "4", "--window", "3"]
    words += ["--optical-degree", "2", "--electrical-nics", "1"]
    assert main([*words, "--predictors", "uniform", "moving-average", "--fit-experts", "2"]) == 0
    rows, config = report.read_rows(tmp_path / "predictor_on_traces.csv")
    assert [row["predictor"] for row in rows] == 4 * ["uniform"] + 4 * ["moving-average"]
    assert (config["samples"], config["servers"], config["window"], config["dtype"]) == (4, [4], 3, "float64")
    assert {"version", "commit", "device", "trace"} <= set(config)
    assert (tmp_path / "predictor_on_traces.png").read_bytes().startswith(b"\x89PNG")
    assert [row["experts"] for row in report.read_rows(tmp_path / "predictor_on_traces_fits.csv")[0]] == [2]
    said = capsys.readouterr()
    assert said.err == ""
    parts = [part.splitlines() for part in said.out.split("\n\n")]
    assert list(map(len, parts)) == [2 + 2, 2 + 1, 2 + 4]
    assert "(recorded)" in parts[-1][2]
    assert max(map(len, said.out.splitlines())) <= 100


def test_the_figure_shows_the_rows(rows):
    more = [row | {"servers": 8, "over_exact": row["over_exact"] + 1} for row in rows]
    with style.look():
        figure = build([*rows, *more])
    hits, variation, left, right = figure.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["All-to-all, 4 servers", "All-to-all, 8 servers"]
    place = [label.get_text() for label in hits.get_yticklabels()].index("Moving average")
    mine = [row for row in rows if row["predictor"] == "moving-average"]
    for axes, key, more, form in (
        (variation, "variation", 0, ".3f"),
        (left, "over_exact", 0, ".3f"),
        (right, "over_exact", 1, ".3f"),
    ):
        assert axes.texts[place].get_text() == format(np.mean([row[key] for row in mine]) + more, form)
    widths = [bars[place].get_width() for bars in hits.containers]
    np.testing.assert_allclose(widths, [np.mean([row[f"top_{k}"] for row in mine]) for k in HITS])


def test_mistakes_are_one_sentence(trace, tmp_path, capsys):
    with pytest.raises(InputError, match="there are none"):
        draw([], tmp_path / "a.png")
    with pytest.raises(InputError, match=r"window must be less than the 8 records, got 8\."):
        run(Config(str(trace), **SMALL | {"window": 8}))
    assert main(["--trace", str(tmp_path / "nowhere"), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("predictor_on_traces: trace must be")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"servers": (3,)}, r"servers must divide the 16 ranks of the recording, got 3\."),
        ({"servers": ()}, r"servers must name at least one and none twice, got \[\]\."),
        ({"predictors": ("uniform", "uniform")}, r"predictors must name at least one and none twice"),
        ({"predictors": ("unifrom",)}, r"predictor 'unifrom' is unknown \(did you mean 'uniform'\?\)"),
        ({"fit_experts": (3,)}, r"fit_experts must divide the 32 experts, got 3\."),
        ({"window": 0}, r"window must be a whole number of at least 1, got 0\."),
        ({"decay": 2.0}, r"decay must be at most 1, got 2\.0\."),
        ({"samples": 0}, r"samples must be a whole number of at least 1, got 0\."),
        ({"electrical_nics": 0}, r"electrical_nics must be a whole number of at least 1, got 0\."),
        ({"rule": "print"}, r"rule 'print' is unknown \(did you mean 'printed'\?\)"),
    ],
)
def test_mistakes_are_found_before_anything_runs(given, sentence):
    with pytest.raises(InputError, match=sentence):
        Config("x", **given)


def test_the_recording(shared_data):
    # Where popularity drifts slowly, averages over iterations are closer than the last one, and both than a guess.
    names = ("moving-average", "previous-iteration", "uniform")
    folder = str(shared_data / "smartmoe_gate_trace")
    rows = run(Config(folder, records=(4701, 5001), samples=100, servers=(8,), predictors=names))
    average, last, blind = (line["TV"] for line in summary(rows))
    assert average < 0.9 * last < 0.1 * blind
    average, last, blind = (line["time"] for line in summary(rows))
    assert max(average, last) < 1.2 < blind
