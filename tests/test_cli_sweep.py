"""`mfabric sweep` and `mfabric query`."""

import shutil

import pytest

from mfabric_jax.cli import main
from mfabric_jax.commands.sweep import _micro_batches
from mfabric_jax.report import read_rows
from mfabric_jax.sweep import Sweep

pytestmark = pytest.mark.usefixtures("command_line")

SPACE = """
evaluate = "all-to-all"
rows_per_shard = 4
dtype = "float64"
[fixed]
servers = 4
policy = "uniform"
optical_degree = 2
[grid]
sample = [0, 1, 2, 3, 4]
nic_gbps = [100, 200]
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    return path


def test_a_sweep_in_parts_and_questions_to_it(space, tmp_path, capsys):
    out, best = str(tmp_path / "rows"), str(tmp_path / "best.csv")
    assert main(["sweep", str(space), "--out", out, "--shard", "1/2"]) == 0
    assert "6 configurations in 2 files" in capsys.readouterr().out
    assert main(["query", out]) == 0
    assert "holds 2 of 3 files, rows-00001.parquet is missing" in capsys.readouterr().err
    assert main(["sweep", str(space), "--out", out]) == 0
    said = capsys.readouterr()
    assert "10 configurations in 3 files" in said.out
    assert "4 of them now" in said.out
    words = ["--where", "nic_gbps = 200", "--sort", "seconds:down", "--limit", "3", "--out", best]
    assert main(["query", out, *words]) == 0
    rows, config = read_rows(best)
    assert [row["nic_gbps"] for row in rows] == [200] * 3
    assert rows[0]["seconds"] >= rows[1]["seconds"] >= rows[2]["seconds"]
    assert config["of"]["sweep"]["fixed"]["servers"] == 4
    shown = capsys.readouterr().out
    assert "in every row: servers 4, policy uniform, routing unsplit, nic_gbps 200\n" in shown
    assert "policy" not in shown.split("\n\n")[1]
    assert main(["query", out, "--by", "nic_gbps"]) == 0
    assert "seconds_mean" in capsys.readouterr().out
    assert main(["query", out, "--where", "seconds < 0"]) == 0
    assert "no row fulfils this" in capsys.readouterr().out


def test_a_sweep_says_where_micro_batches_are_open():
    def said(**fixed):
        return _micro_batches(Sweep(fixed=fixed))

    for model in ("llama-moe", "llama-moe:dp=4"):
        assert 'preset = "today"' in said(model=model)
    assert _micro_batches(Sweep(fixed={"model": "llama-moe"}, preset="today")) is None
    assert said(bubble=0.15) is said(micro_batches=4) is None
    assert _micro_batches(Sweep("all-to-all")) is None


def test_a_damaged_file_is_refused_by_query_and_report_and_made_again(space, tmp_path, capsys):
    out = tmp_path / "rows"
    assert main(["sweep", str(space), "--out", str(out)]) == 0
    shutil.copy(out / "rows-00000.parquet", out / "rows-00001.parquet")
    for words in (["query", str(out)], ["report", str(out), "--out", str(tmp_path / "page.html")]):
        assert main(words) == 2
        assert "rows-00001.parquet' holds the rows of rows-00000.parquet" in capsys.readouterr().err
    assert main(["sweep", str(space), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "rows-00001.parquet holds the rows of rows-00000.parquet, it was copied or renamed; it is made" in said.err
    assert "4 of them now" in said.out
