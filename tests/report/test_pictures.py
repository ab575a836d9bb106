"""What all pictures have in common: words apart, the same bytes each time, nothing left where they are refused."""

import os

import matplotlib
import numpy as np

from mfabric_jax import report
from mfabric_jax.report import charts, figures, style
from mfabric_jax.report.compared import COMPARISONS
from mfabric_jax.report.figures.clusters import build_fabric
from mfabric_jax.report.figures.networks import build_graph
from mfabric_jax.report.figures.studies import failures_chart, forecasts_chart, scoreboard_chart
from mfabric_jax.report.figures.trace import build_load, build_pairs
from mfabric_jax.report.grid import arrange
from tests.mistakes import check_refused
from tests.report import synthetic
from tests.report.readable import assert_readable
from tests.report.test_fabric_figure import NAMES, ODD, made
from tests.report.test_studies import board, failed_rows, forecast_rows
from tests.report.test_timelines import iteration
from tests.report.test_validation import rows as validated

LOAD = np.random.default_rng(0).pareto(1.0, (30, 9, 8))
DRAWN = {
    "a comparison": lambda path: figures.compared_picture("pareto", synthetic.rows(models=("qwen-moe",)), path),
    "failures": lambda path: figures.failures(failed_rows(), path),
    "a validation": lambda path: figures.validation(validated(), path),
    "a trace's load": lambda path: figures.trace_load(LOAD, np.arange(30), path),
    "a trace's pairs": lambda path: figures.trace_pairs(LOAD[:2, :8], path),
    "an iteration": lambda path: figures.gantt(iteration(2), path),
    "one segment": lambda path: figures.gantt(iteration(1)[:1], path),
    "a block": lambda path: figures.block_timeline(synthetic.segments(), path),
    "a region": lambda path: figures.region(*synthetic.region(4), path),
    "a fabric": lambda path: report.draw_fabric(made("mfabric", 16), path, title="A title"),
    "a network": lambda path: report.draw_graph(made("fat-tree", 2, radix=8).network, path),
}


def test_written_whole_and_the_same_each_time(tmp_path):
    before = dict(matplotlib.rcParams)
    for name, draw in DRAWN.items():
        folder = tmp_path / name
        one, other = (draw(folder / file) for file in ("a.png", "b.png"))
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(b"\x89PNG")
        check_refused(r"allowed: \.png, \.pdf, \.svg", draw, folder / "d.gif")
        assert sorted(os.listdir(folder)) == ["a.png", "b.png"]
    assert draw(folder / "c.svg").read_text().startswith("<?xml")
    assert dict(matplotlib.rcParams) == before


def test_words_of_charts_and_heat_maps_do_not_lie_over_words():
    made = synthetic.both_uses(fabrics=[*synthetic.FABRICS, *synthetic.MORE], models=("llama-moe", "deepseek-r1"))
    rows = [row | {"tokens_per_s": 1e6 / row["iteration_s"]} for row in synthetic.whole_clusters(made)]
    shown = [comparison.chart(arrange(rows)) for comparison in COMPARISONS.values()]
    shown += [failures_chart(failed_rows()), scoreboard_chart(board()), forecasts_chart(forecast_rows())]
    with style.look():
        for chart in shown:
            assert_readable(charts.figure(chart), texts=False)
        for shape in ((1, 3, 64), (2, 1, 4), (500, 24, 128)):
            load = np.random.default_rng(0).pareto(1.0, shape)
            assert_readable(build_load(load, 10000 + np.arange(shape[0]), "SmartMoE gate trace"))
        assert_readable(build_pairs(LOAD[:2, :8]))


def test_every_fabric_is_readable_at_every_size():
    for name in NAMES:
        for servers in (2, 128) if name == "topoopt" else (2, 1024):
            assert_readable(build_fabric(made(name, servers)))
        drawn = made(name, 16)
        assert_readable(build_fabric(drawn, utilisation=np.random.default_rng(0).random(len(drawn.sprayed.tail))))
        if name not in ("nvl72", "mfabric-cpo"):
            assert_readable(build_fabric(made(name, 4, radix=8)))
    for odd in ODD.values():
        assert_readable(build_fabric(odd()))


def test_arrays_that_cannot_be_drawn():
    drawn = made("fat-tree", 2, radix=8)
    cases = [
        (lambda: build_load(np.ones((3, 4)), [0, 1, 2]), r"load must have three axes, .* got shape \(3, 4\)\."),
        (lambda: build_load(np.ones((3, 0, 4)), [0, 1, 2]), r"load must have three axes, none empty"),
        (lambda: build_load(np.full((3, 1, 4), np.nan), [0, 1, 2]), "numbers from 0 on"),
        (lambda: build_load(np.ones((3, 1, 4)), [0]), "number must name each of the 3 iterations of load, got 1"),
        (lambda: build_pairs(-np.ones((1, 4, 4))), "matrix must have three axes, none empty, of numbers from 0 on"),
        (lambda: figures.gantt([], "g.png"), r"segments must hold at least one segment, got none\."),
        (lambda: figures.block_timeline([], "g.png"), r"segments must hold at least one segment, got none\."),
        (lambda: build_fabric(drawn, utilisation=np.zeros(3)), r"utilisation must have the shape \[\d+\], got \[3\]\."),
    ]
    for load, reach in ((2.0, r"2\.\.2"), (-0.5, r"-0\.5\.\.-0\.5"), (np.nan, r"nan\.\.nan")):
        for build, of, network in ((build_fabric, drawn, drawn.sprayed), (build_graph, drawn.network, drawn.network)):
            values = np.full(len(network.tail), load)
            sentence = rf"utilisation must be between 0 and 1, got {reach}\."
            cases.append((lambda b=build, o=of, v=values: b(o, utilisation=v), sentence))
    for draw, sentence in cases:
        check_refused(sentence, draw)
