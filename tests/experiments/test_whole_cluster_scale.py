"""A small cluster in processes of its own, and processes that fail; tables and figure from rows made by hand."""

import subprocess
import sys

import pytest

from experiments import whole_cluster_scale
from experiments.whole_cluster_scale import PICTURE, SCRIPT, Config, run, table
from mfabric_jax import report, resolve
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.traffic import measured, training_flows

SMALL = {"model": "llama-moe", "servers": (8,)}
KINDS = {"EP": 1.0, "DP experts": 1.5, "DP between": 0.03, "DP inside": 0.01, "PP": 0.4}


@pytest.mark.slow
def test_main_solves_in_processes_of_its_own(tmp_path, capsys):
    words = ["--model", "llama-moe", "--fabrics", "fat-tree", "--servers", "8", "--radix", "16", "--seed", "3"]
    assert SCRIPT.main([*words, "--out", str(tmp_path / "made")]) == 0
    rows, config = report.read_rows(tmp_path / "made" / "whole_cluster_scale.csv")
    job = resolve(Config(**SMALL).setting("fat-tree", 8)).job
    flows = training_flows(job, measured(job, iterations=1, drift=0.0, seed=3).count)
    kinds = ["EP", "DP inside", "DP between", "PP"]
    assert [row["traffic"] for row in rows] == ["all", *kinds]
    for row in rows[1:]:
        mask = flows.of(row["traffic"])
        assert row["flows"] == mask.sum()
        assert row["bytes"] == pytest.approx(flows.size[mask].sum(), rel=1e-12)
    for row in rows:
        assert (row["fabric"], row["servers"], row["gpus"], row["nic_gbps"]) == ("fat-tree", 8, 64, 400.0)
        assert min(row["build_s"], row["solve_s"], row["first_s"]) > 0
        assert row["peak_mb"] > 50
    assert rows[0]["end_s"] == max(row["end_s"] for row in rows[1:])
    assert (config["servers"], config["radix"], config["seed"], config["dtype"]) == ([8], 16, 3, "float32")
    assert {"version", "commit", "device", "fabrics"} <= set(config)
    assert (tmp_path / "made" / "whole_cluster_scale.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith(table(rows) + "\n\nclaim")


def test_a_process_that_fails_is_reported(tmp_path, capsys):
    words = ["--model", "llama-moe", "--fabrics", "fat-tree", "--servers", "8", "--radix", "4"]
    assert SCRIPT.main([*words, "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == (
        "whole_cluster_scale: fat-tree on 8 servers ended with status 2: mfabric: a tree of 3 tiers and radix 4 has "
        "room for 16 hosts, got 64; choose a larger radix."
    )
    assert said.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_dies_without_a_word(monkeypatch):
    dead = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: dead)
    with pytest.raises(InputError, match=r"^mfabric on 8 servers ended with status -9: it said nothing$"):
        run(Config(**SMALL, fabrics=("mfabric",)))


def test_the_second_process_counts_and_the_first_tells_what_compiling_costs(monkeypatch):
    ran = []

    def solve(command, env, **kwargs):
        """Slow and large at first, then quick and small."""
        first = len(ran) % 2 == 0
        ran.append((command, env))
        given = dict(zip(command[4::2], command[5::2], strict=True))
        row = {"fabric": given["--fabric"], "servers": int(given["--gpus"]) // 8, "traffic": "all", "end_s": 1.0}
        row |= {"build_s": 1.0, "solve_s": 9.0, "peak_mb": 500} if first else {}
        report.write_rows([{"build_s": 0.25, "solve_s": 0.5, "peak_mb": 400} | row], given["--out"], {})
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", solve)
    settings = {"nic_gbps": 200.0, "radix": 8, "seed": 7}
    rows = run(Config(model="llama-moe", servers=(8, 16), fabrics=("fat-tree", "mfabric"), **settings))
    places = [(row["servers"], row["fabric"]) for row in rows]
    assert places == [(8, "fat-tree"), (8, "mfabric"), (16, "fat-tree"), (16, "mfabric")]
    for row in rows:
        assert (row["build_s"], row["solve_s"], row["first_s"], row["peak_mb"]) == (0.25, 0.5, 10.0, 500)
    command, _ = ran[-1]
    assert command[:4] == [sys.executable, "-m", "mfabric_jax.cli", "cluster"]
    said = "--model llama-moe --fabric mfabric --gpus 128 --nic-gbps 200.0 --set network.radix=8 --seed 7"
    assert said in " ".join(command)
    kept = [env["JAX_COMPILATION_CACHE_DIR"] for _, env in ran]
    assert kept[::2] == kept[1::2]
    assert len(set(kept)) == len(rows)


def made(fabric, servers, slow=1.0, kinds=KINDS):
    """Rows of a cluster: all traffic, and the kinds by when they end."""
    facts = {"fabric": fabric, "servers": servers, "gpus": 8 * servers, "flows": 100 * servers, "links": 40 * servers}
    facts |= {"build_s": 0.25 * slow, "solve_s": 0.5 * slow, "first_s": 8 * slow, "peak_mb": 1500 * slow}
    ends = {"all": max(kinds.values())} | kinds
    return [facts | {"traffic": kind, "end_s": end * slow} for kind, end in ends.items()]


ROWS = [*made("fat-tree", 128), *made("mfabric", 128, 2), *made("fat-tree", 512, 4), *made("mfabric", 512, 8)]


def test_the_table_by_hand():
    took, _, ends = table(ROWS).split("\n\n")
    assert [float(cell) for cell in took.splitlines()[2].split()[1:]] == [128, 1024, 12800, 5120, 0.25, 0.5, 8, 1500]
    heading, _, *lines = ends.splitlines()
    assert " ".join(heading.split()) == "fabric servers " + " ".join(KINDS)
    assert [float(cell) for cell in lines[1].split()[1:]] == [128, 2.0, 3.0, 0.06, 0.02, 0.8]
    assert max(map(len, table(ROWS).splitlines())) <= 100
    rows = [*made("fat-tree", 128), *made("fat-tree", 256, kinds={"EP": 2.0, "own": 3.0})]  # one lacks most kinds
    ends = [line.split() for line in table(rows).split("\n\n")[-1].splitlines()]
    assert (ends[0][-1], ends[2][-1]) == ("own", "-")
    assert ends[3] == ["fat-tree", "256", "2.000", "-", "-", "-", "-", "3.000"]


def test_verdicts_are_on_the_largest_cluster_and_the_figure_compares_sizes():
    assert [(one.claim, one.found) for one in whole_cluster_scale.verdicts(ROWS)] == [
        ("4,096 GPUs, fat-tree, built and solved", "3.0 s, 6.0 GB"),
        ("4,096 GPUs, mfabric, built and solved", "6.0 s, 12.0 GB"),
    ]
    with style.look():
        seconds, memory, ends = PICTURE.build(ROWS).axes
    lines = [(line.get_color(), line.get_linestyle(), [*line.get_ydata()]) for line in seconds.get_lines()]
    tree, mfabric = (style.FABRICS[fabric].colour for fabric in ("fat-tree", "mfabric"))
    assert (tree, "-", [0.75, 3]) in lines
    assert (mfabric, "--", [16, 64]) in lines
    assert [list(line.get_ydata()) for line in memory.get_lines()] == [[1.5, 6.0], [3.0, 12.0]]
    names = [label.get_text().replace("\n", " ") for label in ends.get_yticklabels()]
    assert names == list(whole_cluster_scale.KINDS.values())
