"""`mfabric cluster` and `draw`: what they print and write, and one sentence for every mistake."""

import json
import math

import numpy as np
import pytest

from mfabric_jax.fabric import NAMES, cluster, get
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.report import read_rows
from tests.command_line import header, line_of, mistake, status

SMALL = ("--preset", "paper", "--model", "llama-moe", "--gpus", "64", "--dp", "1")
CLUSTER = ("cluster", "--all-columns", *SMALL, "--set", "run.dtype=float64")
pytestmark = pytest.mark.usefixtures("command_line")
OUT_COLUMNS = ["model", "fabric", "servers", "gpus", "nic_gbps", "links", "traffic", "flows", "bytes", "end_s"]
OUT_COLUMNS += ["flow_p50_s", "flow_p99_s", "busiest_link", "busiest_link_use", "build_s", "solve_s", "peak_mb"]
LINK_COLUMNS = ["link", "kind", "from", "to", "capacity_bytes_per_s", "bytes", "utilisation"]
FLOW_COLUMNS = ["flow", "traffic", "src", "dst", "bytes", "start_s", "finish_s", "rate_bytes_per_s", "bottleneck"]


def written(words, tmp_path, name, on_graph=False):
    """The rows of the three tables, and what was asked of the first."""
    files = {table: tmp_path / f"{name}-{table}.csv" for table in ("out", "links", "flows")}
    assert status(*words, *(word for table, file in files.items() for word in (f"--{table}", str(file)))) == 0
    out = [*OUT_COLUMNS[:2], *(["graph"] if on_graph else []), *OUT_COLUMNS[2:]]
    columns = {"out": out, "links": LINK_COLUMNS, "flows": FLOW_COLUMNS}
    for table, file in files.items():
        assert header(file) == columns[table]
        assert read_rows(file)[1]["table"] == table
    return *(read_rows(file)[0] for file in files.values()), read_rows(files["out"])[1]


def test_a_cluster(capsys, tmp_path):
    picture = tmp_path / "cluster.png"
    words = (*CLUSTER, "--fabric", "rail-optimized")
    every, links, flows, config = written((*words, "--picture", str(picture)), tmp_path, "rails")
    output = capsys.readouterr()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert all(str(tmp_path / f"rails-{table}.csv") in output.err for table in ("out", "links", "flows"))
    assert str(picture) in output.err
    assert config["resolved"]["network.fabric"] == config["stated"]["network.fabric"] == "rail-optimized"
    assert (every[0]["traffic"], every[0]["flows"], every[0]["links"]) == ("all", len(flows), len(links))
    for row in every[1:]:
        own = [flow for flow in flows if flow["traffic"] == row["traffic"]]
        np.testing.assert_allclose(row["end_s"], max(flow["finish_s"] for flow in own), rtol=1e-12)
        took = sorted(flow["finish_s"] - flow["start_s"] for flow in own if flow["bytes"])
        for part, name in ((0.5, "flow_p50_s"), (0.99, "flow_p99_s")):
            np.testing.assert_allclose(row[name], took[math.ceil(part * len(took)) - 1], rtol=1e-9)
        assert row["busiest_link"].startswith(("gpu", "edge", "nvswitch"))
        printed = line_of(output.out, *row["traffic"].split())
        assert int(printed[0].replace(",", "")) == len(own)
        np.testing.assert_allclose(float(printed[2]), row["end_s"], rtol=5.1e-3)
    # Bytes between servers cross one NIC up and one down.
    apart = sum(flow["bytes"] for flow in flows if flow["src"] // 8 != flow["dst"] // 8)
    for kind in ("nic up", "nic down"):
        np.testing.assert_allclose(sum(row["bytes"] for row in links if row["kind"] == kind), apart, rtol=1e-9)
    busiest = f"{100 * max(row['utilisation'] for row in links):.1f}%"
    assert output.out.split("busiest links")[1].splitlines()[3].endswith(busiest)


def star(gbps):
    """64 GPUs around one switch: link 2 g goes up from GPU g, link 2 g + 1 down to it."""
    nodes = [{"id": "hub", "kind": "switch"}, *({"id": f"gpu {g}", "kind": "gpu"} for g in range(64))]
    edges = [{"source": f"gpu {g}", "target": "hub", "capacity_gbps": gbps} for g in range(64)]
    return json.dumps({"directed": False, "nodes": nodes, "edges": edges})


def test_a_cluster_on_a_graph_of_one_s_own(capsys, tmp_path):
    graph = tmp_path / "own.json"
    graph.write_text(star(400))
    words = (*CLUSTER, "--graph", str(graph), "--set", "network.goodput=0.5", "--picture", str(tmp_path / "own.png"))
    every, links, flows, _ = written(words, tmp_path, "graph", on_graph=True)
    assert "64 GPUs, 128 links" in capsys.readouterr().out
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    assert (every[0]["fabric"], every[0]["nic_gbps"], every[0]["servers"]) == ("graph", None, 8)
    assert every[0]["graph"] == str(graph)
    ends = [f"gpu {g}" for g in range(64)]
    assert [(row["from"], row["to"]) for row in links[::2]] == [(name, "hub") for name in ends]
    assert [(row["from"], row["to"]) for row in links[1::2]] == [("hub", name) for name in ends]
    sizes = [row["bytes"] for row in flows]
    sent, got = (np.bincount([row[end] for row in flows], sizes, 64) for end in ("src", "dst"))
    np.testing.assert_allclose([row["bytes"] for row in links[::2]], sent, rtol=1e-9)
    np.testing.assert_allclose([row["bytes"] for row in links[1::2]], got, rtol=1e-9)
    assert {row["capacity_bytes_per_s"] for row in links} == {25e9}
    bound = max(*sent, *got) / 25e9
    assert bound * (1 - 1e-9) <= every[0]["end_s"] < 1.2 * bound


def test_graphs_fabrics_and_settings_stand_in_one_table(capsys, tmp_path, monkeypatch):
    """On a star of half the bandwidth, and at NICs of half the bandwidth, everything takes twice as long."""
    monkeypatch.chdir(tmp_path)
    files = ["fast.json", "slow.json"]
    for file, gbps in zip(files, (400, 200), strict=True):
        (tmp_path / file).write_text(star(gbps))
    out = tmp_path / "rows.csv"
    paths = ("--set", "network.paths=spray,ecmp")
    assert status(*CLUSTER, "--graph", ",".join(files), *paths, "--out", str(out)) == 0
    rows = [row for row in read_rows(out)[0] if row["traffic"] == "all"]
    assert [(row["graph"], row["network.paths"]) for row in rows] == [
        (file, name) for file in files for name in ("spray", "ecmp")
    ]
    ends = [row["end_s"] for row in rows]
    np.testing.assert_allclose(ends, [ends[0], ends[0], 2 * ends[0], 2 * ends[0]], rtol=1e-9)
    output = capsys.readouterr().out
    assert f"busiest links on {files[0]}" in output
    assert line_of(output, files[1], "-", "ecmp", "all")[0] == str(rows[0]["flows"])
    alone = ("--set", "gpu.gpus_per_server=1", "--set", "network.link_delay_s=0")
    both = ("--fabrics", f"{files[0]},fat-tree", *alone)
    assert status(*CLUSTER, *both, "--out", str(out)) == 0
    fast, tree = (row for row in read_rows(out)[0] if row["traffic"] == "all")
    assert (fast["fabric"], fast["graph"], tree["fabric"], tree["graph"]) == ("graph", files[0], "fat-tree", None)
    np.testing.assert_allclose(fast["end_s"], tree["end_s"], rtol=1e-9)  # a NIC a GPU, and switches that never block


def test_a_graph_that_does_not_fit(capsys, tmp_path):
    graph = tmp_path / "own.json"
    graph.write_text(graph_text(cluster("fat-tree", 2, 400.0).pooled_network))
    output = mistake(capsys, *CLUSTER, "--graph", str(graph))
    assert output.startswith(f"graph {str(graph)!r} has 16 endpoints (gpu or host nodes; there are ")


def test_draw_every_fabric_and_a_graph(capsys, tmp_path):
    for name in NAMES:
        out = tmp_path / f"{name}.svg"
        gpus = 512 if get(name).domain_gpus else 128 if name == "twisted-torus" else 64
        size = ("--gpus", str(gpus), "--dp", str(gpus // 64))
        assert status("draw", name, "--preset", "paper", "--model", "llama-moe", *size, "--out", out) == 0
        assert capsys.readouterr().out == f"{out}\n"
        assert "<svg" in out.read_text()
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    graph, out = tmp_path / "own.json", tmp_path / "own.png"
    graph.write_text(graph_text(cluster("fat-tree", 2, 400.0).pooled_network))
    assert status("draw", str(graph), "--out", str(out)) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out == f"{out}\n"
    for option, path in (("gpus", "job.parallel.gpus"), ("model", "model.name"), ("gpu", "gpu.name")):
        said = mistake(capsys, "draw", graph, "--out", out, f"--{option}", {"gpus": 8}.get(option, "H100-SXM"))
        assert said.startswith(f"{path} is not ")
