"""`mfabric jobs`: what it prints and writes, and one sentence for every mistake."""

import csv

import pytest

from tests.command_line import status

pytestmark = pytest.mark.usefixtures("command_line")
FILE = """
iterations = 4
[links]
trunk = 8
[[jobs]]
compute_s = 1
gigabytes = 1
links = ["trunk"]
[[jobs]]
compute_s = 1
gigabytes = 1
links = ["trunk"]
"""


@pytest.fixture
def jobs(tmp_path):
    file = tmp_path / "jobs.toml"
    file.write_text(FILE, encoding="utf-8")
    return file


def test_prints_every_way_and_writes_rows_and_a_picture(jobs, tmp_path, capsys):
    out, links = tmp_path / "jobs.csv", tmp_path / "links.csv"
    assert status("jobs", jobs, "--ways", "fair,cassini", "--out", out, "--links", links, "--figures", tmp_path) == 0
    output = capsys.readouterr()
    assert output.err.split() == [str(out), str(links), str(tmp_path / "interleaving.png")]
    lines = [line.split() for line in output.out.splitlines() if line]
    shown = [line for line in lines if line[:2] in (["fair", "job"], ["cassini", "job"])]
    assert [(line[0], float(line[5]), float(line[-1])) for line in shown] == [
        *[("fair", 3, 1.5)] * 2,
        *[("cassini", 2, 1)] * 2,
    ]
    with out.open(encoding="utf-8") as opened:
        first = next(csv.DictReader(opened))
    assert (first["way"], first["job"], float(first["mean_s"])) == ("fair", "job 0", 3)
    assert (tmp_path / "interleaving.png").read_bytes().startswith(b"\x89PNG")


def test_times_of_a_table_have_one_unit_and_one_scale(jobs, capsys):
    jobs.write_text(FILE.replace("trunk = 8", "trunk = 8000").replace("compute_s = 1\n", "compute_s = 0.001\n", 1))
    assert status("jobs", jobs, "--ways", "cassini", "--tick-s", "0.01") == 0
    head, _, *lines = capsys.readouterr().out.splitlines()[:4]
    assert "alone [ms]  mean [ms]  p99 [ms]  shift [ms]" in head
    assert [line.split()[4] for line in lines] == ["2", "1001"]
