"""Files that are whole or as they were: names, links, permissions, what is in the way."""

import json
import os
import stat

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, units
from mfabric_jax.apps.sweep import read_sweep
from mfabric_jax.apps.validation import read_runs
from mfabric_jax.case import Case
from mfabric_jax.checks import fraction, not_negative, number, one_of, positive, whole
from mfabric_jax.fabric import Prices, read_graph
from mfabric_jax.policies import load
from mfabric_jax.report import QueryOptions, query, read_rows, write_rows
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.support.parts import SweepFolder
from mfabric_jax.support.text_files import DEEPEST, read_mapping
from mfabric_jax.traffic import Knobs, open_trace
from tests.mistakes import check_refused, refused

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
        ("pipe.csv", r"file .*pipe.csv' is not a regular file; give a .csv file"),
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
        (
            "a.json",
            '{"a": 1, "b": {"c": 1, "c": 1}}',
            r"is not JSON \(it has the key 'c' twice\); give a file of things",
        ),
        ("a.toml", "a = 1\na = 2", r"is not TOML \(Cannot overwrite a value \(at end of document\)\); give"),
        (
            "a.toml",
            "a.b = 1\na.b.c = 2",
            r"Cannot overwrite a value \(.*\): omit a.b = ..., as a.b.c chooses it\); give",
        ),
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


def test_the_folder_of_a_relative_path_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(rf"cannot read 'none.json' \(No such .*\) in {tmp_path}; give", read_mapping, "none.json", "things")
    check_refused(rf"must be an existing file or folder, got none.npz in {tmp_path}; formats", open_trace, "none.npz")
    path = tmp_path / "none.json"
    check_refused(r"cannot read .*none.json' \(No such file or directory\); give", read_mapping, path, "things")


def test_a_device_without_end_is_not_read_to_its_end():
    if os.path.exists("/dev/zero"):
        check_refused("is too large", read_mapping, "/dev/zero", "things", ".json", 1000)


DEEP_OR_TWICE = [
    (DEEP[".json"], "nested more than 100 deep"),
    ('{"gbps": [1], "gbps": [2]}', "has the key 'gbps' twice"),
]


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
    assert sentence in refused(query, [tmp_path / "rows.csv"], QueryOptions())
    (tmp_path / "one.policy").write_text(text + "\n")
    assert "is not a policy file" in refused(load, tmp_path / "one.policy")


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


NAN, INF = float("nan"), float("inf")


def test_right_numbers_come_back():
    for value in (1, 0.5, np.float32(2), np.asarray([1.0, 2.0]), jnp.asarray([3, 4])):
        assert positive("field", value) is value
        assert not_negative("field", value) is value
    assert not_negative("field", 0) == 0
    assert fraction("field", 1) == number("field", np.float32(1)) == 1
    assert (whole("field", 0, at_least=0), type(whole("field", np.int32(7)))) == (0, int)


WRONG = [(positive, value, "finite and above 0") for value in (0, -1, NAN, -INF, np.float32(-2.5))]
WRONG += [(not_negative, value, "finite and not negative") for value in (-1, INF, [1.0, -1.0])]
WRONG += [(check, value, "a number") for check in (positive, number) for value in ("1", None, True, [1, "x"], 1j)]
WRONG += [(fraction, value, "above 0 and at most 1") for value in (0, 1.5, NAN)]
WRONG += [(number, value, "a number") for value in ([1, 2], np.ones(2), [1, [2, 3]])]
WRONG += [(whole, value, "a whole number of at least 1") for value in (0, -1, 1.0, "1", None, True, NAN)]


@pytest.mark.parametrize(("check", "value", "words"), WRONG)
def test_wrong_numbers(check, value, words):
    assert refused(check, "field", value).startswith(f"field must be {words}, got ")


def test_traced_values_pass():
    got = jax.jit(lambda x: positive("field", x) + not_negative("field", x))(jnp.asarray(-1.0))
    assert got == -2
    np.testing.assert_array_equal(jax.vmap(lambda x: positive("field", x))(jnp.asarray([-1.0, 1.0])), [-1, 1])


def test_one_of():
    assert issubclass(InputError, ValueError)
    assert one_of("colour", "red", {"red": 1}) == "red"
    for value, hint in (("gren", " (did you mean 'green'?)"), ("mauve", ""), (None, ""), (3, "")):
        said = refused(one_of, "colour", value, (name for name in ("red", "green")))
        assert said == f"colour {value!r} is unknown{hint}; allowed: red, green."


def test_a_name_in_other_letter_case_is_answered_with_the_right_one():
    assert refused(one_of, "gpu", "h200-sxm", ["H100-SXM", "H200-SXM"]) == (
        "gpu must be 'H200-SXM' in this letter case, got 'h200-sxm'."
    )
    assert "(did you mean 'H200-SXM'?)" in refused(one_of, "gpu", "h200", ["H200-SXM", "MI300X"])
    assert refused(Case().with_, {"network.fabric": "Fat-Tree"}) == (
        "network.fabric must be 'fat-tree' in this letter case, got 'Fat-Tree'."
    )


def test_no_name_of_another_unit_is_proposed():
    names = ["capacity_gbps", "latency_s", "kind"]
    for word, hint in (
        ("capacity_mbps", ""),
        ("latency_ms", ""),
        ("capacty_gbps", " (did you mean 'capacity_gbps'?)"),
        ("latency", " (did you mean 'latency_s'?)"),
    ):
        assert f"is unknown{hint}; allowed:" in refused(one_of, "field", word, names)


def test_what_is_sensible_is_told_by_the_name_of_the_field():
    for check, field, right, wrong, sizes in (
        (positive, "efficiency", (1e-6, 0.5, 3), (1e-300, 1e308), "1e-06 to 100"),
        (positive, "nic_gbps", (0.01, 1600), (1e-320, 1e30), "1e-09 to 1e+09"),
        (not_negative, "delay_s", (0, 0.0, 1e-9, 600), (1e-320, 1e30), "1e-12 to 1e+09"),
        (positive, "run.json: collective_s", (1e-9,), (1e308,), "1e-12 to 1e+09"),
        (not_negative, "latency_s of link 3 (a -> b)", (0, 1e-6), (1e30,), "1e-12 to 1e+09"),
        (positive, "seconds", (1e-9,), (1e308,), "1e-12 to 1e+09"),
        (positive, "gigabytes", (1e-9, 1e6), (1e-320,), "1e-09 to 1e+12"),
        (positive, "nvswitch_gigabytes_per_s", (900,), (1e300,), "1e-09 to 1e+18"),
        (positive, "anything", (1e-30, 1e30, [1, 1e30]), (1e-31, 1e31, [1.0, 1e31]), "1e-30 to 1e+30"),
        (fraction, "goodput", (1e-6, 1), (1e-300,), "1e-06 to 1"),
    ):
        for value in right:
            assert check(field, value) is value
        for value in wrong:
            worst = value[-1] if isinstance(value, list) else value
            assert refused(check, field, value) == f"{field} must be from {sizes}, got {worst:g}."
    data = np.array([1e-40, 1e40])  # is measured, not typed
    assert positive("anything", data) is data
    assert "got 1e-40." in refused(positive, "gigabytes", data)


def test_counts_have_a_most():
    for field, most in (("optical_degree", 4096), ("servers", 2**18), ("seed", 2**32 - 1), ("limit", 2**31 - 1)):
        assert whole(field, most) == most
        for value in (most + 1, 2**63, 10**90):
            assert refused(whole, field, value).startswith(f"{field} must be at most {most:,}, got {value!r:.80}")
        for value in (10**400, 10**5000):  # Python writes no more than 4,300 digits
            assert refused(whole, field, value) == f"{field} must be at most {most:,}, got a whole number above 1e308."


FACTOR = {
    "bps": 1 / 8,
    "kbps": 1e3 / 8,
    "mbps": 1e6 / 8,
    "gbps": 1e9 / 8,
    "tbps": 1e12 / 8,
    "gigabytes_per_s": 1e9,
    "gigabytes": 1e9,
    "tflops": 1e12,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "ps": 1e-12,
    "to_us": 1e6,
    "to_ps": 1e12,
    "to_gbps": 8 / 1e9,
    "to_ms": 1e3,
    "to_gigabytes": 1e-9,
}


def test_every_conversion_holds_for_numbers_arrays_and_traced_ones():
    public = [
        name for name, value in vars(units).items() if callable(value) and name.islower() and not name.startswith("_")
    ]
    assert sorted(public) == sorted(FACTOR)
    traced = jax.jit(lambda x: {name: getattr(units, name)(x) for name in FACTOR})(jnp.asarray([1.0, 2.0], jnp.float32))
    for name, factor in FACTOR.items():
        convert = getattr(units, name)
        assert type(convert(3.0)) is float
        assert convert(3.0) == pytest.approx(3 * factor, rel=1e-15)
        np.testing.assert_allclose(convert(np.asarray([1.0, 2.0])), [factor, 2 * factor], rtol=1e-15)
        assert traced[name].dtype == jnp.float32
        np.testing.assert_allclose(traced[name], [factor, 2 * factor], rtol=1e-6)
    assert [units.to_gigabytes(units.gigabytes(size)) for size in range(1, 2000)] == [*range(1, 2000)]
