"""Rows that somebody edited: what has no room or no meaning is a sentence, what has no place is not drawn."""

import csv
import json

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import read_rows, style, write_rows
from mfabric_jax.report.charts import drawable_panel
from mfabric_jax.report.compared import comparison_charts
from tests.command_line import mistake, status
from tests.report import synthetic

MEMORY = {"memory_gb": 40.0, "gpu_memory_gb": 80.0, "fits": True} | dict.fromkeys(style.MEMORY, 5.0)
ROWS = [row | MEMORY for row in synthetic.rows(models=("llama-moe",))]
CONFIG = {"schema": 1, "resolved": {}, "version": "0.2.0"}


@pytest.fixture
def edited(tmp_path):
    """A file of rows in which one cell has another text."""

    def edit(column, text, config=CONFIG):
        path = write_rows(ROWS, tmp_path / "rows.csv", config)
        with path.open(newline="") as file:
            header, first, *others = list(csv.reader(file))
        first[header.index(column)] = text
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([header, first, *others])
        return path

    return edit


@pytest.mark.parametrize("text", ["9" * 30, "-" + "9" * 5000, "1e400", str(2**63)])
def test_numbers_without_room_in_64_bits_are_a_sentence(edited, text, tmp_path, capsys):
    file = edited("gpus", text)
    for words in (("query", file), ("report", file, "--out", tmp_path / "page.html")):
        assert "column 'gpus' holds" in mistake(capsys, *words)


def test_a_whole_number_without_room_is_not_written_either(tmp_path):
    for name in ("rows.csv", "rows.parquet"):
        with pytest.raises(InputError, match=r"column 'seed' holds 9223372036854775808; allowed: whole numbers of 64"):
            write_rows([{"seed": 2**63}], tmp_path / name, {})
    with pytest.raises(InputError, match="a whole number above 1e308"):
        write_rows([{"seed": 10**5000}], tmp_path / "rows.csv", {})
    largest = [{"seed": 2**63 - 1}]
    assert read_rows(write_rows(largest, tmp_path / "rows.csv", {}))[0] == largest


@pytest.mark.parametrize("column", ["iteration_s", "network_cost_usd", "gpus", "nic_gbps"])
@pytest.mark.parametrize("text", ["about 3", "-Infinity", "", "1,5"])
def test_text_in_a_column_of_numbers_is_a_sentence(edited, column, text, tmp_path, capsys):
    file = edited(column, text)
    page = tmp_path / "page.html"
    if not text:
        assert status("query", file) == 0
        return
    for words in (("query", file), ("report", file, "--out", page)):
        assert mistake(capsys, *words).startswith(f"column {column} of {str(file)!r} must hold numbers, got {text!r}")
    sidecar = file.with_suffix(".config.json")
    sidecar.write_text(json.dumps({}))  # a table of unknown origin is read as it is
    assert isinstance(read_rows(file)[0][0][column], str)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "1e308"])
def test_charts_leave_out_what_has_no_place(text):
    """Of every column of numbers, in turn."""
    for column in (name for name, value in ROWS[0].items() if isinstance(value, float)):
        charts, _ = comparison_charts([ROWS[0] | {column: float(text)}, *ROWS[1:]])
        for panel in (drawable_panel(panel) for chart in charts.values() for panel in chart.panels):
            drawn = [x for bar in panel.bars for x in (bar.start, bar.end)] + [end for end, _ in panel.totals]
            drawn += [x for point in panel.points for x in point] + [x for ends in panel.spread.values() for x in ends]
            assert all(abs(x) <= 1e150 for x in drawn), (column, drawn)


def test_a_page_of_rows_with_an_infinite_number_is_drawn(edited, tmp_path):
    assert status("report", edited("memory_weights_gb", "inf"), "--out", tmp_path / "page.html") == 0


def test_a_file_without_rows_is_no_answer_of_none(tmp_path, capsys):
    empty, head, foreign = (tmp_path / f"{name}.csv" for name in ("empty", "head", "foreign"))
    empty.write_text("")
    head.write_text("model,fabric\n")
    foreign.write_text("not a table\n")
    for file in (empty, head, foreign):
        assert mistake(capsys, "query", file) == f"{file} holds no row; give files with rows."
    file = write_rows([{"gpus": 8}], tmp_path / "rows.csv", {})
    assert status("query", file, "--where", "gpus > 8") == 0
    assert "no row matches" in capsys.readouterr().out


def test_the_folder_where_one_stands_is_a_folder(tmp_path, monkeypatch, capsys):
    write_rows([{"gpus": 8}, {"gpus": 16}], tmp_path / "rows.parquet", {})
    monkeypatch.chdir(tmp_path)
    for folder in (".", "..", "./"):
        known = folder != ".."
        assert status("query", folder) == (0 if known else 2)
        assert ("8" in capsys.readouterr().out) == known
    assert status("report", ".", "--out", "page.html") == 0
