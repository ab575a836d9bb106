"""The figures show what the rows say; how they look was judged by eye."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report.figures import region
from mfabric_jax.report.figures.region import build as build_region
from tests.report import synthetic

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("servers", [2, 3, 8, 16, 20])
def test_region_draws_a_number_per_demand_and_a_line_per_joined_pair(servers):
    demand, circuits = synthetic.region(servers)
    heat, graph, *_ = build_region(demand, circuits, "title").axes
    assert len(texts(heat)) == (servers * (servers - 1) if servers <= 16 else 0)
    lines = [patch for patch in graph.patches if isinstance(patch, FancyArrowPatch)]
    joined = np.triu(circuits)[np.triu(circuits) > 0]
    assert len(lines) == len(joined)
    names = [str(i) for i in range(servers)]
    shown = texts(graph)
    assert sorted(t for t in shown if t != "EPS") == sorted(names + [str(n) for n in joined if n != 1])
    apart = (demand + demand.T > 0) & (circuits == 0) & ~np.eye(servers, dtype=bool)
    assert ("EPS" in shown) == (bool(apart.any()) and servers <= 16)
    spokes = [line for line in graph.get_lines() if line.is_dashed()]
    assert len(spokes) == (apart.any(axis=1).sum() if servers <= 16 else 0)
    assert graph.get_title().startswith(f"{joined.sum()} circuits")


def test_region_ignores_diagonals_and_leaves_its_arguments_alone():
    demand, circuits = np.full((2, 2), 5e9), np.array([[9, 1], [1, 9]])
    heat, graph, *_ = build_region(demand, circuits, servers=["left", "right"]).axes
    assert texts(heat) == ["5.00", "5.00"]
    assert graph.get_title() == "1 circuit, 100% of the bytes between joined pairs"
    assert demand[0, 0] == 5e9
    assert circuits[0, 0] == 9


@pytest.mark.parametrize("value", [0.0, 1.0, 1e13])
def test_region_of_no_demand_or_no_circuits_is_still_a_figure(tmp_path, value):
    assert region(np.full((4, 4), value), np.zeros((4, 4), int), tmp_path / "r.png").exists()


def test_region_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(InputError, match="circuits must have the shape"):
        region(np.ones((3, 3)), np.ones((2, 2)), tmp_path / "r.png")
    with pytest.raises(InputError, match="square matrix"):
        region(np.ones(3), np.ones(3), tmp_path / "r.png")
    with pytest.raises(InputError, match="must name all 3 servers"):
        region(np.ones((3, 3)), np.ones((3, 3)), tmp_path / "r.png", servers=["a"])
