"""`mfabric sweep` and `mfabric query`."""

import re

import pytest

from mfabric_jax import cases, simulate
from mfabric_jax.cli import main
from mfabric_jax.report import read_rows, write_rows
from mfabric_jax.support import progress
from tests.small import small

pytestmark = pytest.mark.usefixtures("command_line")

SPACE = """
preset = "paper"
model = "mixtral-8x7b"
network.nic_gbps = [100, 200]
network.link_delay_s = [0, "1 us", "10 us", "1 ms", "25 ms"]
compute.efficiency = 0.5
run.dtype = "float64"
[job.batch]
micro_batches = 2
[sweep]
rows_per_file = 4
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


def test_a_sweep_in_parts_and_questions_to_it(space, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    monkeypatch.setattr(progress, "PART", 0.0)
    monkeypatch.setattr(progress, "FIRST_S", 0.0)
    out, best = str(tmp_path / "rows"), str(tmp_path / "best.csv")
    assert main(["sweep", str(space), "--out", out, "--shard", "1/2"]) == 0
    assert "6 configurations in 2 files" in capsys.readouterr().out
    assert main(["query", out]) == 0
    assert "holds 2 of 3 files; rows-00001.parquet is missing" in capsys.readouterr().err
    assert main(["sweep", str(space), "--out", out]) == 0
    said = capsys.readouterr()
    assert "10 configurations in 3 files" in said.out
    assert re.search(r"4 of them by this run, [\d.]+ (s a case|cases a second)", said.out)
    assert "sweep: 10 cases in 3 files; 2 files with 6 cases exist already" in said.err
    assert "sweep: 10 of 10 done" in said.err
    words = ["--where", "nic_gbps = 200", "--sort", "iteration_s:down", "--limit", "3", "--out", best]
    assert main(["query", out, *words]) == 0
    rows, config = read_rows(best)
    assert [row["nic_gbps"] for row in rows] == [200] * 3
    assert rows[0]["iteration_s"] >= rows[1]["iteration_s"] >= rows[2]["iteration_s"]
    assert config["of"]["stated"]["model.name"] == "mixtral-8x7b"
    axes = {"network.nic_gbps": [100, 200], "network.link_delay_s": [0, 1e-6, 1e-5, 1e-3, 0.025]}
    want = simulate(cases(small(), axes)).rows()
    slowest = sorted((row for row in want if row["nic_gbps"] == 200), key=lambda row: -row["iteration_s"])[:3]
    for name in ("network.link_delay_s", "iteration_s"):
        assert [row[name] for row in rows] == pytest.approx([row[name] for row in slowest], rel=1e-12)
    assert main(["query", out, "--by", "nic_gbps"]) == 0
    assert "iteration_s_mean" in capsys.readouterr().out
    assert main(["query", out, "--where", "iteration_s < 0"]) == 0
    assert "no row matches" in capsys.readouterr().out


def test_columns_of_groups_are_repeated_where_a_table_continues_below(tmp_path, capsys):
    times = {f"a_long_name_of_a_column_of_times_{number}": 1.5 + number for number in range(3)}
    designs = [("mfabric", gbps, degree) for gbps in (100, 400) for degree in (4, 6)]
    rows = [
        {"fabric": fabric, "nic_gbps": gbps, "degree": degree} | {name: at * time for name, time in times.items()}
        for at, (fabric, gbps, degree) in enumerate([*designs, ("fat-tree", 400, 4)])
    ]
    path = write_rows(rows, tmp_path / "rows.csv", {})
    measures = ",".join(f"{name}:mean" for name in times)
    assert main(["query", str(path), "--by", "fabric,nic_gbps,degree", "--measures", measures]) == 0
    headings = [part.splitlines()[0].split() for part in capsys.readouterr().out.split("\n\n")[-2:]]
    assert [heading[:3] for heading in headings] == [["fabric", "nic_gbps", "degree"]] * 2
