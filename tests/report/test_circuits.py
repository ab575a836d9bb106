"""The picture of a region shows its demand and its circuits; how it looks was judged by eye."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report.figures import region
from mfabric_jax.report.figures.circuits import build_region
from tests.report import synthetic

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection  # noqa: E402


def texts(axes):
    return [text.get_text() for text in axes.texts]


def lines(axes):
    return [path for own in axes.collections if isinstance(own, LineCollection) for path in own.get_segments()]


def test_region_draws_a_number_per_demand_and_a_line_per_joined_pair():
    for servers in (2, 3, 8, 16, 30):
        demand, circuits = synthetic.region(servers)
        heat, graph, *_ = build_region(demand, circuits, "title").axes
        assert len(texts(heat)) == (servers * (servers - 1) if servers <= 16 else 0)
        joined = np.triu(circuits)[np.triu(circuits) > 0]
        assert len(lines(graph)) == len(joined)
        shown, names = texts(graph), [str(i) for i in range(servers)]
        if servers <= 16:
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
    assert texts(graph) == ["left", "right"]
    assert graph.get_title() == "1 circuit, 100% of the bytes between joined pairs"
    assert demand[0, 0] == 5e9
    assert circuits[0, 0] == 9


def test_region_of_no_demand_or_no_circuits_is_still_a_figure(tmp_path):
    for value in (0.0, 1e13):
        assert region(np.full((4, 4), value), np.zeros((4, 4), int), tmp_path / "r.png").exists()


def test_region_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(InputError, match="circuits must have the shape"):
        region(np.ones((3, 3)), np.ones((2, 2)), tmp_path / "r.png")
    with pytest.raises(InputError, match="square matrix"):
        region(np.ones(3), np.ones(3), tmp_path / "r.png")
    with pytest.raises(InputError, match="must name all 3 servers"):
        region(np.ones((3, 3)), np.ones((3, 3)), tmp_path / "r.png", servers=["a"])
