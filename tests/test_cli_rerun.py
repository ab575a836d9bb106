"""`mfabric rerun`: rows of compare and of sweeps are found again; what differs is told, and files that changed."""

import json

import pytest

from tests.command_line import mistake, status

JOB = "--preset paper --model llama-moe --fabric fat-tree,mfabric --draws 1 --micro-batches 1"
MINE = """
from mfabric_jax.policies import greedy

def mine(demand, region, *, previous=None, key=None, power=1.0):
    return greedy(demand**power, region)
"""

pytestmark = pytest.mark.usefixtures("command_line")


def test_rows_are_found_again_and_what_differs_is_told(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    again = [tmp_path / "rows.csv", "--code", tmp_path / "mine.py"]
    rows, policy = tmp_path / "rows.csv", f"{tmp_path / 'mine.py'}:mine(power=[1.0, 2.0])"
    assert status("compare", *JOB.split(), "--policy", policy, "--nic-gbps", "400", "--out", rows) == 0
    capsys.readouterr()
    assert "names code to run, from" in mistake(capsys, "rerun", rows)
    assert status("rerun", *again) == 0
    assert capsys.readouterr().out == "equal: 3 rows, every column within 1e-05\n"
    lines = rows.read_text().splitlines()
    header = next(iter(lines)).split(",")
    first = lines[1].split(",")
    first[header.index("iteration_s")] = "1.0"
    rows.write_text("\n".join([lines[0], ",".join(first), *lines[2:]]) + "\n")
    assert status("rerun", *again) == 1
    assert capsys.readouterr().out.startswith("iteration_s differs in 1 of 3 rows, by up to ")
    (tmp_path / "mine.py").write_text(MINE + "\n")
    assert "has changed since the rows were made" in mistake(capsys, "rerun", *again)
    config = json.loads((tmp_path / "rows.config.json").read_text())
    (tmp_path / "rows.config.json").write_text(json.dumps({"schema": config["schema"]}))
    assert "must hold rows of compare or of a sweep of cases" in mistake(capsys, "rerun", rows)


def test_variants_and_sweeps_are_found_again(tmp_path, capsys):
    words = "--preset usual --preset paper --model llama-moe --nic-gbps 400 --fabric fat-tree"
    assert status("compare", *words.split(), "--out", tmp_path / "rows.csv") == 0
    assert status("rerun", tmp_path / "rows.csv") == 0
    assert status("sweep", *JOB.split(), "--nic-gbps", "100,400", "--out", tmp_path / "folder") == 0
    capsys.readouterr()
    assert status("rerun", tmp_path / "folder") == 0
    assert capsys.readouterr().out.startswith("equal: 4 rows")


def test_a_sweep_whose_files_changed_in_any_part_is_refused(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MINE)
    words = f"--policy uniform,{tmp_path / 'mine.py'}:mine --nic-gbps 400"
    again = ["rerun", tmp_path / "folder", "--code", tmp_path / "mine.py"]
    assert status("sweep", *JOB.split(), *words.split(), "--out", tmp_path / "folder") == 0
    (tmp_path / "mine.py").write_text(MINE + "\n")
    capsys.readouterr()
    assert "has changed since the rows were made" in mistake(capsys, *again)
