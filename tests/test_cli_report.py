"""`mfabric report`: a page of a rows file, and a sentence for every mistake."""

from mfabric_jax import report
from mfabric_jax.commands import shared
from tests.command_line import check_mistakes, status
from tests.report import synthetic


def test_a_page_of_a_file_of_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shared, "start_jax", None)  # it starts no device
    stored = report.write_rows(synthetic.rows(), tmp_path / "rows.csv", {"version": "0.1.0", "knob": "v&w"})
    (tmp_path / "fabric.svg").write_text("<svg/>")
    out = tmp_path / "new" / "report.html"
    assert status("report", stored, "--out", out, "--pictures", tmp_path, "--title", "Ours <1>") == 0
    assert capsys.readouterr().err == f"{out}\n"
    text = out.read_text(encoding="utf-8")
    for part in ("<h1>Ours &lt;1&gt;</h1>", "fabric.svg</figcaption>", "<td>v&amp;w</td>", "80 rows:"):
        assert part in text
    assert text.count("<tr><td>") == 80


MISTAKES = [
    ([], "report needs the rows first, a .csv or .parquet file or the folder of a sweep."),
    (["--out", "x.html"], "report needs the rows first, a .csv or .parquet file or the folder of a sweep."),
    (["rows.csv"], "report needs --out, a .html file."),
    (["rows.csv", "--out"], "option --out needs a value behind it; mfabric report --help says which."),
    (["rows.csv", "--out", "x.pdf"], "report 'x.pdf': extension '.pdf' is unknown; allowed: .html."),
    (["rows.csv", "--out", "x"], "report 'x' has no extension; allowed: .html."),
    (["rows.csv", "--out", "x.html", "--picture", "y"], "option '--picture' is unknown (did you mean '--pictures'"),
    (["rows.csv", "--out", "x.html", "--pictures", "none"], "pictures 'none' is not a folder; give one that holds"),
    (["rows.csv", "--out", "x.html", "--pictures", "."], "pictures '.' holds no .png or .svg file; give another"),
    (["rows.csv", "--out", "old.html"], "report 'old.html' is a folder; give a .html file."),
    (["rows.csv", "--out", "file/x.html"], "cannot write into 'file'"),
    (["rows.txt", "--out", "x.html"], "rows file 'rows.txt': extension '.txt' is unknown; allowed: .csv, .parq"),
    (["none.csv", "--out", "x.html"], "cannot read 'none.csv' (No such file or directory); give a .csv or"),
    (["empty.csv", "--out", "x.html"], "rows must hold at least one row, got none."),
]


def test_mistakes_are_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.html").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "empty.csv").touch()
    check_mistakes(capsys, ("report",), MISTAKES[-3:])
    monkeypatch.setattr(report, "read_rows", None)  # what is wrong elsewhere is said before rows are read
    check_mistakes(capsys, ("report",), MISTAKES[:-3])
    assert not (tmp_path / "x.html").exists()


def test_a_folder_of_shards_is_one_page_unless_it_is_too_long(tmp_path, monkeypatch, capsys):
    from mfabric_jax.commands import report as report_command

    rows = synthetic.rows()
    for number, part in enumerate((rows[:50], rows[50:])):
        report.write_rows(part, tmp_path / "shards" / f"rows-{number}.parquet", {})
    assert status("report", tmp_path / "shards", "--out", tmp_path / "report.html") == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<tr><td>") == 80
    monkeypatch.setattr(report_command, "MOST_ROWS", 79)
    assert status("report", tmp_path / "shards", "--out", tmp_path / "more.html") == 2
    assert "holds 80 rows, a page at most 79: take fewer by mfabric query --out." in capsys.readouterr().err
