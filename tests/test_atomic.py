"""Files that are whole or as they were: names, links, permissions, what is in the way."""

import os
import stat

import pytest

from mfabric_jax.atomic import check_file, replacing
from tests.mistakes import check_refused

ALLOWED = (".csv",)


def write(path, text="new"):
    with replacing(path) as (part,):
        part.write_text(text)


def test_a_link_goes_on_to_lead_to_the_file(tmp_path):
    real, link, dangling = tmp_path / "far" / "real.csv", tmp_path / "link.csv", tmp_path / "dangling.csv"
    real.parent.mkdir()
    real.write_text("old")
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "far" / "other.csv")
    for path in (link, dangling):
        write(path)
        assert path.is_symlink()
        assert path.read_text() == "new"
    assert real.read_text() == "new"
    assert sorted(file.name for file in (tmp_path / "far").iterdir()) == ["other.csv", "real.csv"]


def test_permissions_stay_and_new_files_have_those_of_any(tmp_path):
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_text("old")
    for mode in (0o640, 0o755, 0o600):
        old.chmod(mode)
        write(old)
        assert stat.S_IMODE(old.stat().st_mode) == mode
    before = os.umask(0o027)
    try:
        write(new)
    finally:
        os.umask(before)
    assert stat.S_IMODE(new.stat().st_mode) == 0o640


def test_names_of_any_length_that_the_system_takes(tmp_path):
    for name in ("x" * 251 + ".csv", "é" * 125 + ".csv"):
        assert check_file("file", tmp_path / name, ALLOWED) == ".csv"
        write(tmp_path / name)
        assert [file.name for file in tmp_path.iterdir()] == [name]
        (tmp_path / name).unlink()


def test_what_cannot_be_a_file_is_said_before(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name, sentence in (
        ("x" * 300 + ".csv", r"file .* cannot be used \(File name too long\); give another name"),
        ("folder.csv", r"file .*folder.csv' is a folder; give a .csv file"),
        ("pipe.csv", r"file .*pipe.csv' is no plain file; give a .csv file"),
        ("rows.txt", r"extension '.txt' is unknown; allowed: .csv"),
        ("rows", r"has no extension; allowed: .csv"),
    ):
        check_refused(sentence, check_file, "file", tmp_path / name, ALLOWED)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder.csv", "pipe.csv"]


def test_what_goes_wrong_leaves_nothing(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(file) as (part,):
        part.write_text(str(1 / 0))
    assert [one.name for one in tmp_path.iterdir()] == ["rows.csv"]
    assert file.read_text() == "old"
