"""Rows on disk come back as they were, and a write that fails leaves the old file."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import html_report, read_rows, write_rows
from mfabric_jax.report.rows import read_texts, sidecar
from tests.mistakes import check_refused
from tests.report import synthetic

CONFIG = {"seed": 3, "delay_s": 0.025, "models": ["llama-moe"], "version": "0.1.0"}
AWKWARD = [
    {"name": 'a,"b"\nc', "time_s": 0.1 + 0.2, "count": 7, "usd": None, "hidden": True},
    {"name": "12e5", "time_s": 1e-300, "count": -1, "usd": 2.0, "hidden": False},
    {"name": "ü", "time_s": float("inf"), "count": 2**53 + 1, "usd": 1e22, "late": 4},
]


@pytest.fixture(params=[".csv", ".parquet"])
def extension(request):
    return request.param


THREADS = """
import os, pathlib, sys
import pyarrow
from mfabric_jax.report.rows import read_rows
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
read_rows(sys.argv[1])
print(count() - before)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts the threads of Linux")
def test_reading_parquet_leaves_no_thread_to_end_with_the_process(tmp_path):
    file = write_rows([{f"x{column}": float(column) for column in range(9)}] * 99, tmp_path / "rows.parquet", CONFIG)
    done = subprocess.run([sys.executable, "-c", THREADS, file], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_round_trip(tmp_path, extension):
    for rows in (synthetic.rows(models=("llama-moe",)), AWKWARD, []):
        path, again = (write_rows(rows, tmp_path / name / f"rows{extension}", CONFIG) for name in ("one/new", "other"))
        got, config = read_rows(path)
        keys = dict.fromkeys(key for row in rows for key in row)
        assert got == [{key: row.get(key) for key in keys} for row in rows]
        for one, other in zip(got, rows, strict=True):
            assert all(type(one[key]) is type(other.get(key)) for key in keys)
        assert config == CONFIG
        assert path.read_bytes() == again.read_bytes()
    wanted = {"rows.csv", "rows.config.json"} if extension == ".csv" else {"rows.parquet"}
    assert set(os.listdir(tmp_path / "other")) == wanted


def test_a_csv_holds_floats_by_repr_and_its_configuration_beside_it(tmp_path):
    path = write_rows([{"x": 0.1 + 0.2, "n": None, "a": np.int64(3)}], tmp_path / "r.csv", CONFIG)
    assert path.read_text() == "x,n,a\n0.30000000000000004,,3\n"
    assert json.loads((tmp_path / "r.config.json").read_text()) == CONFIG
    sidecar(path).unlink()
    assert read_rows(path) == ([{"x": 0.1 + 0.2, "n": None, "a": 3}], {})


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, extension):
    path = write_rows([{"x": 1}], tmp_path / f"rows{extension}", {"old": True})
    before = sorted(os.listdir(tmp_path))

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for broken in ("os.replace", "csv.writer" if extension == ".csv" else "pyarrow.parquet.write_table"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, full)
            check_refused(r"cannot write .*rows.*No space left on device", write_rows, [{"x": 2}], path, {"old": False})
        assert read_rows(path) == ([{"x": 1}], {"old": True})
        assert sorted(os.listdir(tmp_path)) == before


def test_what_cannot_be_written_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("here")
    with pytest.raises(InputError, match=r"cannot write .*rows\.csv.*folder that can be written"):
        write_rows([{"x": 1}], tmp_path / "file" / "rows.csv", {})
    (tmp_path / "rows.csv").mkdir()
    check_refused(r"cannot write", write_rows, [{"x": 1}], tmp_path / "rows.csv", {})
    assert sorted(os.listdir(tmp_path)) == ["file", "rows.csv"]


def test_text_that_a_spreadsheet_runs_is_marked_in_the_file_and_read_as_it_was(tmp_path):
    run = ["=1+1", "+1", "@x", "-x", "-", "\tx", "'=1", "'", "''x", "'@", "=HYPERLINK(a)"]
    plain = ["-1.5 %", "-.5 %", "x=1", "1", "", "it's"]
    rows = [{"=name": text, "number": -1.5} for text in (*run, *plain)]
    file = write_rows(rows, tmp_path / "rows.csv", {})
    header, *lines = file.read_text().splitlines()
    assert header == "'=name,number"
    cells = [line.rpartition(",")[0] for line in lines]
    assert cells == [*(f"'{text}" for text in run), *plain]
    assert all(line.endswith(",-1.5") for line in lines)
    back, _ = read_rows(file)
    assert back == [{"=name": row["=name"] or None, "number": -1.5} for row in rows]
    assert [row["=name"] for row in read_texts(file)] == [row["=name"] or None for row in rows]


def test_long_cells_are_read(tmp_path):
    rows = [{"text": "x" * 200_000, "number": 1}]
    assert read_rows(write_rows(rows, tmp_path / "rows.csv", {}))[0] == rows


@pytest.mark.parametrize(
    ("values", "kind"),
    [([b"\xff"], "binary"), ([[1, 2]], "list<"), ([{"a": 1}], "struct<"), ([np.datetime64(0, "s")], "t")],
)
def test_columns_of_what_no_row_holds(values, kind, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": values}), tmp_path / "rows.parquet")
    said = rf"does not hold rows \(column 'a' is of {kind}.*, not of numbers, text, true or false\)"
    check_refused(said, read_rows, tmp_path / "rows.parquet")


def test_a_name_that_is_no_text_is_written_as_its_bytes(tmp_path):
    rows = [{"model": "\udcff", "iteration_s": 1.0}]  # as a path of other bytes comes from a shell
    assert read_rows(write_rows(rows, tmp_path / "rows.csv", {}))[0][0]["model"] == "\\udcff"
    assert "\\udcff" in html_report(rows, {}, tmp_path / "page.html", title="\udcff").read_text()
