"""What all pictures have in common: words apart, the same bytes each time, nothing left where they are refused."""

import os
import re
from pathlib import Path

import matplotlib
import numpy as np

from mfabric_jax import report
from mfabric_jax.fabric import get
from mfabric_jax.report import figures, style
from mfabric_jax.report.compared import COMPARISONS
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.figures.clusters import build_fabric
from mfabric_jax.report.figures.studies import failures_chart, forecasts_chart
from mfabric_jax.report.figures.trace import build_load, build_pairs
from mfabric_jax.report.grid import arrange
from tests.mistakes import check_refused
from tests.report import synthetic
from tests.report.readable import assert_readable
from tests.report.test_fabric_figure import NAMES, ODD, made
from tests.report.test_studies import failed_rows, forecast_rows
from tests.report.test_timelines import iteration

LOAD = np.random.default_rng(0).pareto(1.0, (30, 9, 8))
DRAWN = {
    "a comparison": lambda path: figures.draw_comparison("pareto", synthetic.rows(models=("qwen-moe",)), path),
    "failures": lambda path: figures.failures(failed_rows(), path),
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
    shown += [failures_chart(failed_rows()), forecasts_chart(forecast_rows())]
    with paper.look():
        for chart in shown:
            assert_readable(drawn.figure(chart), texts=False)
        for shape in ((1, 3, 64), (2, 1, 4), (500, 24, 128)):
            load = np.random.default_rng(0).pareto(1.0, shape)
            assert_readable(build_load(load, 10000 + np.arange(shape[0]), "SmartMoE gate trace"))
        assert_readable(build_pairs(LOAD[:2, :8]))


def test_every_fabric_is_readable_at_every_size():
    for name in NAMES:
        for servers in (2, 128):
            assert_readable(build_fabric(made(name, servers)))
        drawn = made(name, 16)
        assert_readable(
            build_fabric(drawn, utilisation=np.random.default_rng(0).random(len(drawn.pooled_network.tail)))
        )
        if not get(name).domain_gpus:
            assert_readable(build_fabric(made(name, 4, radix=8)))
    for odd in ODD.values():
        assert_readable(build_fabric(odd()))


def test_figures_and_pages_share_their_colours():
    css = (Path(report.__file__).parent / "html" / "page.css").read_text()
    light = dict(re.findall(r"--(\w+): light-dark\((#\w+),", css))
    own = {"ink": style.INK, "soft": style.SOFT, "edge": style.FAINT, "rule": style.RULE, "paper": style.PAPER}
    own |= {"best": style.BEST, "equal": style.EQUAL, "behind": style.BEHIND}
    assert own == {name: light[name] for name in own}


def test_a_heading_and_its_note_lie_above_the_panels():
    with paper.look():
        figure, (axes,) = paper.panels(1)
        before = figure.get_figheight()
        axes.set_title("panel", loc="left")
        paper.set_heading(figure, "Heading", "A note. " * 40)
        figure.draw_without_rendering()
    heading, note = (text.get_window_extent() for text in figure.texts)
    assert heading.y0 >= note.y1
    assert note.y0 >= axes._left_title.get_window_extent().y1
    assert note.x1 <= figure.bbox.x1
    assert figure.get_figheight() > before
