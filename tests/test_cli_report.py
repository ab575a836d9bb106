"""`mfabric report`: a page of a rows file, and a sentence for every mistake."""

from mfabric_jax import report
from mfabric_jax.commands import shared
from tests.command_line import status
from tests.report import synthetic


def test_a_page_of_a_file_of_rows(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(shared, "start_jax", None)  # it starts no device
    stored = report.write_rows(
        synthetic.rows(models=("llama-moe",)), tmp_path / "rows.csv", {"version": "0.1.0", "knob": "v&w"}
    )
    (tmp_path / "fabric.svg").write_text("<svg/>")
    out = tmp_path / "new" / "report.html"
    assert status("report", stored, "--out", out, "--pictures", tmp_path, "--title", "Ours <1>") == 0
    assert capsys.readouterr().err == f"{out}\n"
    text = out.read_text(encoding="utf-8")
    for part in ("<h1>Ours &lt;1&gt;</h1>", "fabric.svg</figcaption>", "v&amp;w", "16 rows of"):
        assert part in text
    assert text.partition('<table id="rows">')[2].count("<tr><td>") == 16


def test_a_folder_of_shards_is_one_page_unless_it_is_too_long(tmp_path, monkeypatch, capsys):
    from mfabric_jax.commands import report as report_command

    rows = synthetic.rows(models=("llama-moe",))
    for number, part in enumerate((rows[:9], rows[9:])):
        report.write_rows(part, tmp_path / "shards" / f"rows-{number}.parquet", {})
    assert status("report", tmp_path / "shards", "--out", tmp_path / "report.html") == 0
    assert (tmp_path / "report.html").read_text(encoding="utf-8").partition('<table id="rows">')[2].count(
        "<tr><td>"
    ) == 16
    monkeypatch.setattr(report_command, "MOST_ROWS", 15)
    assert status("report", tmp_path / "shards", "--out", tmp_path / "more.html") == 2
    assert "holds 16 rows, but a page at most 15: select fewer with mfabric query --out." in capsys.readouterr().err
