"""The picture of a region shows its demand and its circuits; how it looks was judged by eye."""

import numpy as np
from matplotlib.collections import LineCollection

from mfabric_jax.report.figures import region, save_all
from mfabric_jax.report.figures.circuits import build_region
from tests.mistakes import check_refused
from tests.report import synthetic


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_region_draws_a_number_per_demand_and_a_line_per_joined_pair():
    for servers in (2, 8, 16, 30):
        demand, circuits = synthetic.region(servers)
        heat, graph, *_ = build_region(demand, circuits, "title").axes
        assert len(texts(heat)) == (servers * (servers - 1) if servers <= 16 else 0)
        joined = np.triu(circuits)[np.triu(circuits) > 0]
        lines = [path for c in graph.collections if isinstance(c, LineCollection) for path in c.get_segments()]
        assert len(lines) == len(joined)
        assert graph.get_title().startswith(f"{joined.sum()} circuits")
        if servers <= 16:
            apart = (demand + demand.T > 0) & (circuits == 0) & ~np.eye(servers, dtype=bool)
            assert ("EPS" in texts(graph)) == bool(apart.any())
            names = [*map(str, range(servers)), *(str(n) for n in joined if n != 1)]
            assert sorted(text for text in texts(graph) if text != "EPS") == sorted(names)


def test_region_ignores_diagonals_may_be_empty_and_refuses_what_does_not_fit(tmp_path):
    demand, circuits = np.full((2, 2), 5e9), np.array([[9, 1], [1, 9]])
    heat, graph, *_ = build_region(demand, circuits, servers=["left", "right"]).axes
    assert (texts(heat), texts(graph)) == (["5.00", "5.00"], ["left", "right"])
    assert graph.get_title() == "1 circuit, 100% of the bytes between joined pairs"
    assert (demand[0, 0], circuits[0, 0]) == (5e9, 9)
    path = tmp_path / "r.png"
    for value in (0.0, 1e13):
        assert region(np.full((4, 4), value), np.zeros((4, 4), int), path).exists()
    for demand, circuits, names, sentence in (
        (np.ones((3, 3)), np.ones((2, 2)), None, "circuits must have the shape"),
        (np.ones(3), np.ones(3), None, "square matrix"),
        (np.ones((3, 3)), np.ones((3, 3)), ["a"], "must name all 3 servers"),
    ):
        check_refused(sentence, region, demand, circuits, path, servers=names)


def test_one_server_alone_has_no_picture_of_a_region(tmp_path):
    alone = {"alone": {"demand": np.zeros((1, 1)), "circuits": np.zeros((1, 1), int)}}
    written = save_all(synthetic.rows(models=("qwen-moe",), bandwidths=(400,)), tmp_path, alone)
    assert [path.name for path in written] == ["iteration_time.png", "breakdown.png", "pareto.png"]
