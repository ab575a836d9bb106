"""Files of settings: one reader, which refuses with a sentence what cannot be meant; every file is read by it."""

import json
import os

import pytest

from mfabric_jax.fabric import Prices, read_graph
from mfabric_jax.parts import SweepFolder
from mfabric_jax.policies import load
from mfabric_jax.report import Asked, query, read_rows, write_rows
from mfabric_jax.sweep import read_sweep
from mfabric_jax.text_files import DEEPEST, read_mapping
from mfabric_jax.traffic import Knobs
from mfabric_jax.tuned_file import entries, forget
from mfabric_jax.validation import read_runs
from tests.mistakes import check_refused, refused

DEEP = {".json": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", ".toml": "a = " + "[" * 9999 + "]" * 9999}


def nested(times):
    return "[" * times + "]" * times


def test_what_is_right_is_read(tmp_path):
    for name, text in (("a.TOML", 'a = [1, "x"]\n[b]\nc = 1e3'), ("a.json", '\ufeff{"a": [1, "x"], "b": {"c": 1e3}}')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_mapping(tmp_path / name, "things") == {"a": [1, "x"], "b": {"c": 1000}}
    (tmp_path / "a.txt").write_text("{}")
    assert read_mapping(tmp_path / "a.txt", "things", ".json") == {}
    (tmp_path / "deep.json").write_text('{"a": ' + nested(DEEPEST - 1) + "}")
    assert read_mapping(tmp_path / "deep.json", "things")


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.json", '{"a": 1, "b": {"c": 1, "c": 1}}', r"is not JSON \(it says 'c' twice\); give a file of things"),
        ("a.toml", "a = 1\na = 2", r"is not TOML \(Cannot overwrite a value"),
        ("a.json", DEEP[".json"], r"is not JSON \(it is nested more than 100 deep\)"),
        ("a.json", '{"a": ' + nested(DEEPEST) + "}", r"is not JSON \(it is nested more than 100 deep\)"),
        ("a.toml", DEEP[".toml"], r"is not TOML \(it is nested more than 100 deep\)"),
        ("a.toml", ".".join("a" * 300) + " = 1", r"is not TOML \(it is nested more than 100 deep\)"),
        ("a.json", "[1]", r"must hold things by name, got \[1\]"),
        ("a.json", b'{"a": "\xff"}', r"is not JSON \(it is not text in UTF-8, from byte 7 on\)"),
        ("a.json", '{"a": "\\ud800"}', r"is not JSON \(.*surrogates not allowed"),
        ("a.json", '{"a": ["b\\u0000"]}', r"is not JSON \(it holds a zero byte\)"),
        ("a.json", '{"a": 1' + "0" * 5000 + "}", r"is not JSON \(Exceeds the limit"),
        ("a.yaml", "a: 1", r"things .*a.yaml': extension '.yaml' is unknown .*; allowed: .toml, .json"),
        ("a.json", " " * 1001, "is too large, above 1,000 bytes; give a .toml or .json file of things"),
        ("a" * 300 + ".json", None, r"cannot read .* \(File name too long\); give a .toml or .json file of things"),
        ("a\0.json", None, r"cannot read .* \(embedded null byte\)"),
        ("none.json", None, r"cannot read .* \(No such file or directory\)"),
    ],
)
def test_what_is_wrong_is_said(name, content, sentence, tmp_path):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    largest = 1000 if name == "a.json" and len(content) == 1001 else 1 << 20
    check_refused(sentence, read_mapping, path, "things", largest=largest)


def test_a_device_without_end_is_not_read_to_its_end():
    if os.path.exists("/dev/zero"):
        check_refused("is too large", read_mapping, "/dev/zero", "things", ".json", 1000)


DEEP_OR_TWICE = [(DEEP[".json"], "nested more than 100 deep"), ('{"gbps": [1], "gbps": [2]}', "says 'gbps' twice")]


@pytest.mark.parametrize(("text", "sentence"), DEEP_OR_TWICE)
def test_every_file_is_read_by_it(text, sentence, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text(text)
    for reader in (Prices.read, read_graph, Knobs.read, read_sweep):
        assert sentence in refused(reader, file), reader
    assert sentence in refused(read_runs, tmp_path)
    (tmp_path / "sweep.json").write_text(text)
    assert sentence in refused(SweepFolder.read, tmp_path)
    write_rows([{"a": 1.0}], tmp_path / "rows.csv", {})
    (tmp_path / "rows.config.json").write_text(text)
    assert sentence in refused(read_rows, tmp_path / "rows.csv")
    assert sentence in refused(query, [tmp_path / "rows.csv"], Asked())
    (tmp_path / "one.policy").write_text(text + "\n")
    assert "is no policy file" in refused(load, tmp_path / "one.policy")
    monkeypatch.setenv("MFABRIC_TUNED", str(file))
    forget()
    assert sentence in refused(entries)
    forget()


@pytest.mark.parametrize("footer", ["[1]", "no JSON", DEEP[".json"], b"\xff"])
def test_the_footer_of_a_parquet_file(footer, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"a": [1.0]}).replace_schema_metadata({b"mfabric": footer})
    parquet.write_table(table, tmp_path / "rows.parquet")
    said = refused(read_rows, tmp_path / "rows.parquet")
    assert said.startswith(f"the footer of {str(tmp_path / 'rows.parquet')!r} ")


@pytest.mark.parametrize("text", ["[1, 2]", '["ab", "cd"]', "null", json.dumps([["parts", 1]])])
def test_a_sweep_of_a_list(text, tmp_path):
    (tmp_path / "sweep.json").write_text(text)
    assert "must hold settings of a sweep by name" in refused(SweepFolder.read, tmp_path)
