"""Valid files with something changed in them: bytes, numbers, kinds of values, keys, depth, arrays."""

import copy
import io
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.seeds import toml

LEAVES: tuple[Any, ...] = (
    *(0, 1, -1, 0.0, -0.0, 1e-320, 1e-300, 1e-30, 1e30, 1e300, 1e308, -1e308, 2**31, 2**63, 2**64, 10**12, 10**400),
    *(
        float("nan"),
        float("inf"),
        -float("inf"),
        True,
        False,
        None,
        "",
        "x",
        "=1+1",
        "\ud800",
        "x" * 200_000,
        "1",
        "nan",
    ),
    *([], {}, [1], [[1]], [1, 2], {"a": 1}, {"low": -1e308, "high": 1e308}, {"of": [1, "x"]}, "a\nb", "a\0b", "é"),
)
CELLS = (
    *("", "nan", "inf", "-inf", "1e308", "-1", "1e-320", "1" * 400, "x", "=1+1", "@x", "True", '"', "x" * 140_000, "é"),
    *("\0", "a\nb", ",", "1,2", "9" * 5000, "{}"),
)
NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?([eE][-+]?\d+)?")


def mutate(rng: random.Random, path: Path) -> str:
    """Change a file in place; returns what was done."""
    data = path.read_bytes()
    kinds = {".json": _json, ".toml": _toml, ".csv": _csv, ".jsonl": _lines, ".npz": _arrays, ".npy": _array}
    kind = kinds.get(path.suffix, _json if path.name == "weight.txt" else None)
    if path.suffix == ".parquet" and rng.random() < 0.7:
        kind = _parquet
    if kind is None or rng.random() < 0.2:
        changed, said = _bytes(rng, data)
    else:
        changed, said = kind(rng, data)
    path.write_bytes(changed)
    return said


def _bytes(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    held = bytearray(data)
    at = rng.randrange(len(held) or 1)
    match rng.randrange(5):
        case 0:
            for _ in range(rng.choice((1, 1, 4, 30))):
                held[rng.randrange(len(held))] ^= 1 << rng.randrange(8)
            return bytes(held), "bits"
        case 1:
            return bytes(held[:at]), "cut off"
        case 2:
            return bytes(held[:at] + rng.randbytes(8) + held[at:]), "bytes put in"
        case 3:
            return b"", "empty"
        case _:
            return bytes(held[:at] + held[at + rng.randrange(1, 40) :]), "bytes taken out"


def _json(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    value = json.loads(data)
    if rng.random() < 0.15:
        return _twisted(rng, data.decode())
    value, said = _changed(rng, value)
    return json.dumps(value).encode(), said


def _twisted(rng: random.Random, text: str) -> tuple[bytes, str]:
    """What only the text can hold: keys twice, depth, other encodings."""
    deep = rng.choice((101, 5000, 200_000))
    nested = "[" * deep + "]" * deep
    forms = {
        "a key twice": re.sub(r'("\w+": *[^,{\[}]+)([,}])', r"\1, \1\2", text, count=1),
        "nested": re.sub(r": *[^,{}\[\]]+", ": " + nested, text, count=1),
        "nested whole": nested,
        "utf-16": text.encode("utf-16").decode("latin-1"),
        "a list": f"[{text}]",
        "text": json.dumps(text),
    }
    said = rng.choice(list(forms))
    return forms[said].encode("latin-1", "replace"), said


def _changed(rng: random.Random, value: Any) -> tuple[Any, str]:
    """With another leaf, or a key more, less or of another name."""
    value = copy.deepcopy(value)
    places = [*_places(value)]
    if not places:
        return rng.choice(LEAVES), "whole"
    held, key = rng.choice(places)
    match rng.randrange(8):
        case 0 if isinstance(held, dict):
            del held[key]
            return value, f"without {key}"
        case 1 if isinstance(held, dict):
            held[rng.choice(("x", "", "=1", "a" * 5000, "é"))] = held.pop(key)
            return value, f"{key} by another name"
        case _:
            held[key] = rng.choice(LEAVES)
            return value, f"{key} = {held[key]!r:.60}"


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _toml(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    import tomllib

    text = data.decode()
    if rng.random() < 0.6:
        value, said = _changed(rng, tomllib.loads(text))
        try:
            return toml(value).encode(), said
        except (AttributeError, UnicodeError):
            return str(value).encode("utf-8", "replace"), said
    numbers = [*NUMBER.finditer(text)]
    found = rng.choice(numbers)
    odd = rng.choice(
        ("nan", "inf", "-inf", "1e308", "1e-320", "-1", "1e400", "2026-11-22", "9" * 30, "[" * 5000 + "]" * 5000)
    )
    odd = rng.choice((odd, "''", "true", "{}", "[]", "x", f"{found[0]}\nagain = {found[0]}\nagain = 1", "a.b"))
    return (text[: found.start()] + odd + text[found.end() :]).encode(), f"{found[0]} -> {odd:.40}"


def _csv(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    lines = [line.split(",") for line in data.decode().splitlines()]
    row = rng.choice((0, rng.randrange(len(lines))))
    at = rng.randrange(len(lines[row]))
    match rng.randrange(6):
        case 0:
            lines[0][at] = lines[0][0]
            said = "two columns of one name"
        case 1:
            del lines[row][at]
            said = "a cell less"
        case _:
            lines[row][at] = rng.choice(CELLS)
            said = f"{row},{at} = {lines[row][at]!r:.40}"
    return "\n".join(map(",".join, lines)).encode("utf-8", "replace"), said


def _lines(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at], said = _json(rng, lines[at])
    return b"\n".join(lines) + b"\n", f"line {at}: {said}"


def _arrays(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    with np.load(io.BytesIO(data)) as opened:
        arrays = {key: opened[key] for key in opened}
    key = rng.choice(list(arrays))
    held, said = io.BytesIO(), "member"
    match rng.randrange(4):
        case 0:
            import zipfile

            with zipfile.ZipFile(held, "w") as packed:
                packed.writestr(f"{key}.npy", rng.choice((b"no array", b"", b"\x93NUMPY\x01\x00", _huge())))
                packed.writestr("readme.txt", b"words")
            return held.getvalue(), "a member that is no array"
        case 1:
            arrays[rng.choice(("other", "weight", "tokens", ""))] = arrays.pop(key)
            said = f"{key} by another name"
        case _:
            arrays[key], said = _odd_array(rng, arrays[key])
    np.savez(held, **{name or "arr": array for name, array in arrays.items()})
    return held.getvalue(), said


def _array(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    if rng.random() < 0.2:
        return _huge(), "claims 20 TB"
    array, said = _odd_array(rng, np.load(io.BytesIO(data)))
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue(), said


def _huge() -> bytes:
    """An array that claims 20 TB and has nothing."""
    held = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        held, {"descr": "<f8", "fortran_order": False, "shape": (50_000, 50, 1, 1000, 1000)}
    )
    return held.getvalue()


def _odd_array(rng: random.Random, array: np.ndarray) -> tuple[np.ndarray, str]:
    """Of another kind, shape or with a strange number in it."""
    if rng.random() < 0.5:
        odd = rng.choice((-1.0, np.nan, np.inf, -np.inf, 1e308, 1e-320, 0.0))
        array = array.astype(np.float64)
        array.flat[rng.randrange(array.size)] = odd
        return array, f"holds {odd}"
    kind = rng.choice(("c16", "?", "f2", "i1", "U3", "datetime64[s]", "u8", "f4", "m8[s]", "V4"))
    if rng.random() < 0.5 and kind not in ("V4",):
        return array.astype(np.int64).astype(kind), f"of {kind}"
    shapes = (array[..., None], array[0], array[:0], array.reshape(-1), np.float64(1), array[None], array * 0)
    one = np.asarray(rng.choice([*map(tuple, ())] or range(len(shapes))))
    return np.asarray(shapes[int(one)]), f"shape {np.shape(shapes[int(one)])}"


def _parquet(rng: random.Random, data: bytes) -> tuple[bytes, str]:
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(pyarrow.BufferReader(data))
    metadata, name = table.schema.metadata, rng.choice(table.column_names)
    count, at = len(table), table.column_names.index(name)
    columns = {
        "binary": [b"\xff\x00"] * count,
        "lists": [[1, 2]] * count,
        "structs": [{"a": 1}] * count,
        "nan": [float("nan")] * count,
        "inf": [float("inf")] * count,
        "huge": [1e308] * count,
        "nothing": [None] * count,
        "texts": ["=1+1"] * count,
        "negative": [-1.0] * count,
        "truths": [True] * count,
        "whole": [2**62] * count,
    }
    if rng.random() < 0.25:
        footer = rng.choice((b"no JSON", b"[1]", b"\xff", b"[" * 99999 + b"]" * 99999, b'{"a": 1, "a": 2}', b"null"))
        table, said = table.replace_schema_metadata({b"mfabric": footer}), "footer"
    elif rng.random() < 0.15:
        twice = pyarrow.Table.from_arrays(
            [*table.columns, table.columns[0]], names=[*table.column_names, table.column_names[0]]
        )
        table, said = twice.replace_schema_metadata(metadata), "two columns of one name"
    else:
        said = rng.choice(list(columns))
        table = table.set_column(at, name, pyarrow.array(columns[said]))
        said = f"{name}: {said}"
    held = io.BytesIO()
    parquet.write_table(table, held)
    return held.getvalue(), said
