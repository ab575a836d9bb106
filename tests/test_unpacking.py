"""Small files that stand for much: refused before they are laid out in memory, with the limit and how to raise it."""

import gzip
import io
import json
import lzma
import pickle
import warnings
import zipfile

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
from mfabric_jax.checks import InputError
from mfabric_jax.report import read_rows
from mfabric_jax.support import unpacking
from mfabric_jax.support.unread import Unread
from mfabric_jax.traffic import open_trace
from tests.mistakes import refused

MOST = 1 << 20  # the limit of these tests
MUCH = 3 << 20  # what their files become


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    monkeypatch.setattr(unpacking, "USUAL", MOST)
    monkeypatch.setattr(unpacking, "TIMES", 2)
    monkeypatch.delenv(unpacking.ENVIRONMENT, raising=False)


def answer(call, *args):
    """The sentence with which a call is refused, if it is; what it does not read does not matter."""
    try:
        with warnings.catch_warnings(action="ignore", category=Unread):
            call(*args)
    except InputError as mistake:
        return str(mistake)
    return ""


def npy(shape=(2, MUCH // 16)):
    np.save(file := io.BytesIO(), np.ones(shape, np.int64))
    return file.getvalue()


def torch_file(path, tensors, storage=8):
    """A file of `torch.save` by hand: tensors by name, each (size, stride) of one storage of zeros."""
    text = b"\x80\x02}("
    for name, (size, stride) in tensors.items():
        words = b"".join(b"X" + len(word).to_bytes(4, "little") + word for word in (b"storage", b"0", b"cpu"))
        kind = b"ctorch\nLongStorage\n"
        pid = b"(" + words[:12] + kind + words[12:] + b"J" + storage.to_bytes(4, "little") + b"tQ"
        numbers = [b"(" + b"".join(b"J" + n.to_bytes(4, "little") for n in each) + b"t" for each in (size, stride)]
        call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + pid + b"K\x00" + b"".join(numbers) + b"tR"
        text += b"X" + len(name).to_bytes(4, "little") + name.encode() + call
    return zipped(path, {"a/data.pkl": text + b"u.", "a/data/0": bytes(8 * storage)})


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def parquet(path, **columns):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table(columns), path, compression="zstd")


def lines(path, *rows):
    path.write_text("\n".join(rows) + "\n")


ROUTED = {"step": 0, "layer": 0, "rank": 0, "num_tokens": 1, "topk": 1, "top_indices": [[65535]]}
TRACES = {
    "a.npz": lambda path: zipped(path, {"tokens.npy": npy()}),
    "several.npz": lambda path: zipped(path, {f"a{n}.npy": npy((2, MOST // 32)) for n in range(3)}),
    "a.npy.xz": lambda path: path.write_bytes(lzma.compress(npy())),
    "a.csv.gz": lambda path: path.write_bytes(gzip.compress(b"layer,expert,tokens\n" + b"0,0,1\n" * (MUCH // 6))),
    "sparse.csv": lambda path: lines(path, "iteration,layer,expert,tokens", "0,0,0,1", "1,1,65535,1"),
    "a.parquet": lambda path: parquet(path, layer=[0] * MOST, expert=[0] * MOST, tokens=[1] * MOST),
    "text.parquet": lambda path: parquet(path, layer=["1" * MOST] * 9, expert=[0] * 9, tokens=[1] * 9),
    "stride.pt": lambda path: torch_file(path, {"weight": ((1 << 10, MUCH // (8 << 10)), (0, 0))}),
    "many.pt": lambda path: torch_file(path, {f"a{n}": ((1 << 10,), (1,)) for n in range(400)}, 1 << 10),
    "storage.pt": lambda path: torch_file(path, {"weight": ((1,), (1,))}, MUCH // 8),
    "a.jsonl": lambda path: lines(path, *[json.dumps(ROUTED | {"layer": n}) for n in range(6)]),
    "map.npz": lambda path: np.savez_compressed(
        path, logical=1, expert_load_window=np.ones((6, 1, 1)), physical_to_logical_map=np.full((1, 1), 65535)
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_a_small_recording_that_stands_for_much_is_refused(name, tmp_path, monkeypatch):
    path = tmp_path / name
    TRACES[name](path)
    packed = path.stat().st_size
    assert 20 * packed < MUCH
    said = refused(open_trace, path)
    assert said.startswith(f"{str(path)!r} of {packed:,} bytes becomes at least 0.0")
    assert "above the limit of 0.000977 GiB" in said
    assert said.endswith("if you trust the file, MFABRIC_UNPACKED_GIB=1 raises it.")
    monkeypatch.setenv(unpacking.ENVIRONMENT, "1")
    assert "limit" not in answer(open_trace, path)


def test_a_memo_of_a_pickle_that_none_can_fill_is_refused(tmp_path):
    text = b"\x80\x02}r" + (1 << 26).to_bytes(4, "little") + b"."
    pickle.Unpickler(io.BytesIO(text[:3] + b"."))  # what a reader would make a list of half a gigabyte for
    zipped(tmp_path / "memo.pt", {"a/data.pkl": text})
    assert "must be a readable file of torch.save" in refused(open_trace, tmp_path / "memo.pt")


def test_rows_that_no_analysis_has_are_refused_before_their_table_is_laid_out(tmp_path, monkeypatch):
    monkeypatch.setattr(np, "zeros", None)
    body = [f"{n},FSDP,mixtral-e8k2,{n},{n},1" for n in range(3000)]  # 3000^3 cells, three of four bytes in a row
    lines(tmp_path / "token_analysis.csv", "rank,method,model_name,layer,iter,token_num", *body)
    assert "must have one row for every rank, layer and iteration" in refused(
        open_trace, tmp_path / "token_analysis.csv"
    )


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_small_graph_of_tasks_that_stands_for_much_is_refused(pack, tmp_path):
    path = tmp_path / "a.goal.gz"
    path.write_bytes(pack(b"num_ranks 1\n" + b" " * MUCH))
    assert "above the limit of 0.000977 GiB" in refused(read_with_remarks, path)


def test_small_tables_of_rows_and_tasks_that_stand_for_much_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    for columns in ({"x": [1.0] * MOST}, {"x": ["long" * MOST] * 9}, {"x": [[1] * MOST] * 2}, {"x": [b"1" * MOST] * 9}):
        parquet(path, **columns)
        for read in (read_rows, read_with_remarks):
            assert "above the limit of" in refused(read, path)


def test_what_is_read_within_the_limit_is_what_was_written(tmp_path):
    columns = {"text": ["b", None, "", "ä" * 99], "n": [1, None, 3, 4], "x": [0.5, 1.5, None, 2.0], "t": [True] * 4}
    parquet(tmp_path / "a.parquet", **columns)
    rows, _ = read_rows(tmp_path / "a.parquet")
    assert rows == [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    torch_file(tmp_path / "a.pt", {"weight": ((2, 3), (3, 1))})
    (found,) = open_trace(tmp_path / "a.pt")
    np.testing.assert_array_equal(found.tokens().count.sum(), 0)


def test_the_limit_grows_with_the_file_and_with_the_environment(monkeypatch):
    unpacking.check_size("a", 4 * MOST, packed=2 * MOST)
    assert "above the limit" in refused(unpacking.check_size, "a", 4 * MOST + 1, packed=2 * MOST)
    monkeypatch.setenv(unpacking.ENVIRONMENT, "0.5")
    unpacking.check_size("a", unpacking.GIB // 2, packed=1)
    for wrong in ("none", "-1", "inf", "nan"):
        monkeypatch.setenv(unpacking.ENVIRONMENT, wrong)
        said = refused(unpacking.check_size, "a", 1, packed=1)
        assert said == f"MFABRIC_UNPACKED_GIB must be a number of GiB above 0, got {wrong!r}."
