"""Mutations of good files: of bytes, lines and numbers, and of the names and values of JSON, TOML, CSV and XML."""

import io
import json
import random
import re
from typing import Any, NamedTuple

import numpy as np

SPECIAL = [  # as a number or word of a text file
    *(
        "0",
        "-1",
        "1e-300",
        "1e308",
        "1e309",
        "nan",
        "inf",
        "-inf",
        "2147483648",
        "9223372036854775808",
        "1" + "0" * 400,
    ),
    *(
        "text",
        "",
        "0.5",
        "-0.0",
        "18446744073709551616",
        "1_000",
        "0x10",
        "true",
        "null",
        "1e-3",
        "\u0661",
        "--",
        "1;2",
    ),
]
RAW = "@@{}@@"  # a word that stands for its content, unquoted, in JSON
JSON_SPECIAL: list[Any] = [
    *(0, -1, 1e-300, 1e308, 2**31, 2**63, 10**400, 0.5, -0.0, True, None, [], {}, "", "text", [1], {"a": 1}, 1e30),
    *(RAW.format(word) for word in ("1e309", "NaN", "Infinity", "-Infinity", "1e-400")),
    [[[[[[0]]]]]],
]
TOML_SPECIAL = [
    *("0", "-1", "1e-300", "1e308", "1e309", "nan", "inf", "-inf", "2147483648", "9223372036854775808", '"text"', '""'),
    *("1" + "0" * 400, "[]", "{}", "{ a = 1 }", "[1]", "true", "1979-05-27", "0.5", "[[1]]", "12:30:00"),
]
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
WORD = re.compile(r"[A-Za-z_]{3,}")
UNITS = [("_s", "_ms"), ("gbps", "gigabytes_per_s"), ("_us", "_s"), ("bytes", "kb"), ("_hours", "_s"), ("_ns", "_us")]
UNKNOWN = "zz_unknown"
DEEP = 3000


class Mutation(NamedTuple):
    """`name`: the name in the file that no reader knows, where there is one; `old`: what stood there before."""

    data: bytes
    what: str
    kind: str = "bytes"  # name, unknown, missing, value, bytes
    name: str = ""
    old: str = ""


def mutated(data: bytes, form: str, draw: random.Random) -> Mutation:
    """One mutation of a file, in the manner of its form: json, jsonl, toml, csv, xml, text or binary."""
    if form == "binary":
        return _of_bytes(data, draw)
    manner = OF_FORM.get(form)
    if manner and draw.random() < 0.7:
        for _ in range(20):
            if found := manner(data, draw):
                return found
    return _of_text(data, draw)


# ------------------------------------------------------------------------------------------------------------- names
def misspelt(name: str, draw: random.Random) -> str:
    """Another name: a letter more, less, twice or of another case, or another unit."""
    at = draw.randrange(len(name)) if name else 0
    ways = [name[:at] + name[at + 1 :], name[:at] + name[at : at + 1] + name[at:], name + "s", name.upper(), name + "2"]
    ways += [name.replace(one, other) for one, other in UNITS if one in name] * 2
    ways += [name.replace("_", "-"), name.capitalize(), "x" + name]
    return draw.choice([way for way in ways if way not in (name, "")] or [UNKNOWN])


# ------------------------------------------------------------------------------------------------------ bytes and text
def _of_bytes(data: bytes, draw: random.Random) -> Mutation:
    def flip(count):
        changed = bytearray(data)
        for _ in range(count):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)

    at, end = draw.randrange(len(data)), draw.randrange(len(data))
    words = [*re.finditer(rb"[a-z_]{4,}", data)]
    ways = [
        ("flip a bit", flip(1)),
        ("flip 8 bits", flip(8)),
        ("truncate", data[:at]),
        ("a byte less", data[:at] + data[at + 1 :]),
        ("a byte more", data[:at] + bytes([draw.randrange(256)]) + data[at:]),
        ("a part of 0", data[:at] + bytes(min(16, len(data) - at)) + data[at + 16 :]),
        ("a part of 255", data[:at] + b"\xff" * min(8, len(data) - at) + data[at + 8 :]),
        ("a part twice", data[:at] + data[min(at, end) :]),
        ("nothing", b""),
    ]
    if words and draw.random() < 0.3:
        word = draw.choice(words)
        place = draw.randrange(word.start(), word.end())
        return Mutation(data[:place] + b"q" + data[place + 1 :], f"a letter of {word[0]!r}")
    what, changed = draw.choice(ways)
    return Mutation(changed, what)


def _of_text(data: bytes, draw: random.Random) -> Mutation:
    text = data.decode()
    lines = text.splitlines(keepends=True) or [""]
    at, other, cut = draw.randrange(len(lines)), draw.randrange(len(lines)), draw.randrange(len(text) or 1)

    def changed(number, *new):
        return "".join([*lines[:number], *new, *lines[number + 1 :]]).encode()

    swapped = list(lines)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    numbers, words = [*NUMBER.finditer(text)], [*WORD.finditer(text)]
    if numbers and draw.random() < 0.45:
        found, new = draw.choice(numbers), draw.choice(SPECIAL)
        put = text[: found.start()] + new + text[found.end() :]
        return Mutation(put.encode(), f"{found[0]} at {found.start()} is {new[:40]!r}", "value", new, found[0])
    if words and draw.random() < 0.4:
        found = draw.choice(words)
        new = misspelt(found[0], draw)
        put = text[: found.start()] + new + text[found.end() :]
        return Mutation(put.encode(), f"{found[0]} at {found.start()} is {new!r}", "name", new, found[0])
    ways = [
        (f"truncate at {cut}", text[:cut].encode()),
        (f"line {at} less: {lines[at].strip()[:60]!r}", changed(at)),
        (f"line {at} twice: {lines[at].strip()[:60]!r}", changed(at, lines[at], lines[at])),
        (f"lines {at} and {other} swapped", "".join(swapped).encode()),
        ("a byte order mark", b"\xef\xbb\xbf" + data),
        ("CRLF", text.replace("\n", "\r\n").encode()),
        ("UTF-16", text.encode("utf-16")),
        (f"a byte of Latin-1 at {cut}", text[:cut].encode() + b"\xe9" + text[cut:].encode()),
        (f"a zero byte at {cut}", text[:cut].encode() + b"\0" + text[cut:].encode()),
        ("nothing", b""),
        ("white space", b" \n\n"),
        (f"a line of words at {at}", changed(at, "some unknown line\n", lines[at])),
        (f"an empty line at {at}", changed(at, "\n", lines[at])),
        ("all brackets", text.encode() + b"[" * DEEP),
    ]
    what, data = draw.choice(ways)
    return data if isinstance(data, Mutation) else Mutation(data, what)


# --------------------------------------------------------------------------------------------------------------- JSON
def _places(value: Any, path: tuple = ()) -> list[tuple]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [path] if path else []
    for key, one in [*inside][:400]:
        found += _places(one, (*path, key))
    return found


def _dumped(value: Any) -> bytes:
    text = json.dumps(value)
    return re.sub(r'"@@(.*?)@@"', r"\1", text).encode()


def _of_json(data: bytes, draw: random.Random) -> Mutation | None:
    value = json.loads(data)
    places = _places(value)
    if not places:
        return None
    keys = [place for place in places if isinstance(place[-1], str)]
    path = draw.choice(keys) if keys and draw.random() < 0.7 else draw.choice(places)
    held = value
    for key in path[:-1]:
        held = held[key]
    key, old = path[-1], ".".join(map(str, path))
    way = draw.choice(["value", "value", "value", "name", "name", "unknown", "missing", "twice", "deep"])
    if way == "value":
        new = draw.choice(JSON_SPECIAL)
        was, held[key] = held[key], new
        same = was == new and type(was) is type(new)
        return None if same else Mutation(_dumped(value), f"{old} is {str(new)[:40]!r}", "value", str(key), str(was))
    if way == "deep":
        held[key] = "@@" + "[" * DEEP + "]" * DEEP + "@@"
        return Mutation(_dumped(value), f"{old} is nested", "value", str(key), str(key))
    if way == "missing":
        del held[key]
        return Mutation(_dumped(value), f"{old} is missing", "missing", str(key), str(key))
    if not isinstance(key, str):
        return None
    if way == "twice":
        again = json.dumps(key) + ":"
        text = json.dumps(value)
        return Mutation(text.replace(again, f"{again} 1, {again}", 1).encode(), f"{key} twice", "value", key, key)
    if way == "name":
        new = misspelt(key, draw)
        renamed = {new if name == key else name: one for name, one in held.items()}
        held.clear()
        held.update(renamed)
        return Mutation(_dumped(value), f"{old} is called {new!r}", "name", new, key)
    held[UNKNOWN] = draw.choice([5, "text", [1, 2], {"a": 1}])
    return Mutation(_dumped(value), f"{UNKNOWN} beside {old}", "unknown", UNKNOWN)


def _of_jsonl(data: bytes, draw: random.Random) -> Mutation | None:
    lines = data.splitlines()
    at = draw.randrange(len(lines))
    found = _of_json(lines[at], draw)
    if found is None:
        return None
    return found._replace(
        data=b"\n".join([*lines[:at], found.data, *lines[at + 1 :]]) + b"\n", what=f"{at}: {found.what}"
    )


# --------------------------------------------------------------------------------------------------------------- TOML
KEY = re.compile(r'^(\s*)((?:[\w.-]|"[^"]*")+)(\s*=\s*)(.*)$')
INLINE = re.compile(r"([{,]\s*)([\w.-]+)(\s*=\s*)([^,{}]+)")
HEAD = re.compile(r"^(\[+)([\w.\"-]+)(\]+)")


def _of_toml(data: bytes, draw: random.Random) -> Mutation | None:
    text = data.decode()
    found = [*re.finditer(KEY.pattern, text, re.M), *INLINE.finditer(text)]
    heads = [*re.finditer(HEAD.pattern, text, re.M)]
    if heads and draw.random() < 0.1:
        head = draw.choice(heads)
        new = misspelt(head[2].strip('"'), draw)
        put = text[: head.start(2)] + new + text[head.end(2) :]
        return Mutation(put.encode(), f"table {head[2]} is {new!r}", "name", new, head[2])
    if not found:
        return None
    one = draw.choice(found)
    key, before, after = one[2], text[: one.start()], text[one.end() :]
    way = draw.choice(["value", "value", "value", "name", "name", "unknown", "missing", "twice"])
    if way == "value":
        new = draw.choice(TOML_SPECIAL)
        return Mutation(
            f"{before}{one[1]}{key}{one[3]}{new}{after}".encode(), f"{key} is {new[:40]}", "value", key, one[4]
        )
    if way == "name":
        new = misspelt(key.strip('"'), draw)
        return Mutation(
            f"{before}{one[1]}{new}{one[3]}{one[4]}{after}".encode(), f"{key} is called {new}", "name", new, key
        )
    if way == "missing":
        left = one[1] if "{" in one[1] else ""
        return Mutation(f"{before}{left}{after}".encode(), f"{key} is missing", "missing", key, key)
    inline = one.re is INLINE
    if way == "twice":
        put = f"{before}{one[0]}, {key} = 1{after}" if inline else f"{before}{one[0]}\n{key} = 1\n{after}"
        return Mutation(put.encode(), f"{key} twice", "value", key, key)
    new = draw.choice(["5", '"text"', "[1, 2]"])
    put = f"{before}{one[0]}, {UNKNOWN} = {new}{after}" if inline else f"{before}{UNKNOWN} = {new}\n{one[0]}{after}"
    return Mutation(put.encode(), f"{UNKNOWN} beside {key}", "unknown", UNKNOWN)


# ---------------------------------------------------------------------------------------------------------------- CSV
def _of_csv(data: bytes, draw: random.Random) -> Mutation | None:
    rows = [line.split(",") for line in data.decode().splitlines()]
    head = rows[0]
    if len(head) < 2:
        return None
    column, other, at = draw.randrange(len(head)), draw.randrange(len(head)), draw.randrange(1, len(rows))
    key = head[column]
    way = draw.choice(["value", "value", "value", "name", "name", "unknown", "missing", "swap", "twice", "ragged"])
    if way == "value":
        new = draw.choice(SPECIAL)
        if column >= len(rows[at]):
            return None
        was, rows[at][column] = rows[at][column], new
        what = f"{key} of line {at + 1} is {new[:40]!r}"
    elif way == "name":
        was, new = key, misspelt(key, draw)
        head[column], key = new, new
        what = f"{was} is called {new!r}"
    elif way == "unknown":
        was = ""
        rows = [[*row, UNKNOWN if number == 0 else "5"] for number, row in enumerate(rows)]
        what, key = f"a column {UNKNOWN}", UNKNOWN
    elif way == "missing":
        was = key
        rows = [row[:column] + row[column + 1 :] for row in rows]
        what = f"column {key} is missing"
    elif way == "swap":
        was, way = head[other], "bytes"
        head[column], head[other] = head[other], head[column]
        what = f"headers {key} and {was} swapped"
    elif way == "twice":
        was, way, head[column] = key, "value", head[other]
        what = f"two columns {head[other]}"
    else:
        was, way = "", "bytes"
        rows[at] = rows[at][:column] if draw.random() < 0.5 else [*rows[at], "7"]
        what = f"line {at + 1} has {len(rows[at])} cells"
    return Mutation("\n".join([*map(",".join, rows), ""]).encode(), what, way, key, was)


# ---------------------------------------------------------------------------------------------------------------- XML
ATTRIBUTE = re.compile(r'\s([\w:]+)="([^"]*)"')
ELEMENT = re.compile(r"<(\w+)")


def _of_xml(data: bytes, draw: random.Random) -> Mutation | None:
    text = data.decode()
    found, elements = [*ATTRIBUTE.finditer(text)], [*ELEMENT.finditer(text)]
    one, element = draw.choice(found), draw.choice(elements)
    before, after, key = text[: one.start()], text[one.end() :], one[1]
    way = draw.choice(["value", "value", "value", "name", "name", "unknown", "missing", "element", "inside"])
    if way == "value":
        new = draw.choice(SPECIAL)
        return Mutation(f'{before} {key}="{new}"{after}'.encode(), f"{key} is {new[:40]!r}", "value", key, one[2])
    if way == "name":
        new = misspelt(key, draw)
        return Mutation(f'{before} {new}="{one[2]}"{after}'.encode(), f"{key} is called {new!r}", "name", new, key)
    if way == "missing":
        return Mutation((before + after).encode(), f"{key} is missing", "missing", key, key)
    if way == "unknown":
        return Mutation(f'{before} {UNKNOWN}="5"{one[0]}{after}'.encode(), UNKNOWN, "unknown", UNKNOWN)
    if way == "inside":
        put = text[: element.start()] + f"<{UNKNOWN}/>" + text[element.start() :]
        return Mutation(put.encode(), f"element {UNKNOWN} before {element[1]}", "unknown", UNKNOWN)
    name, new = element[1], misspelt(element[1], draw)
    put = text[: element.start(1)] + new + text[element.end(1) :]
    put = put.replace(f"</{name}>", f"</{new}>", 1) if draw.random() < 0.8 else put
    return Mutation(put.encode(), f"element {name} is called {new!r}", "name", new, name)


OF_FORM = {"json": _of_json, "jsonl": _of_jsonl, "toml": _of_toml, "csv": _of_csv, "xml": _of_xml}


# ------------------------------------------------------------------------------------------------- through a library
def of_arrays(arrays: dict[str, np.ndarray], draw: random.Random) -> tuple[dict[str, np.ndarray], Mutation]:
    """Arrays by name with one of them called, shaped, typed or valued differently."""
    key = draw.choice([*arrays])
    array, arrays = arrays[key], dict(arrays)
    way = draw.choice(["name", "unknown", "missing", "dtype", "shape", "value", "value"])
    if way == "name":
        new = misspelt(key, draw)
        return {new if name == key else name: one for name, one in arrays.items()}, Mutation(
            b"", f"{key} is called {new!r}", "name", new, key
        )
    if way == "unknown":
        return arrays | {UNKNOWN: np.arange(3)}, Mutation(b"", f"an array {UNKNOWN}", "unknown", UNKNOWN)
    if way == "missing":
        del arrays[key]
        return arrays, Mutation(b"", f"{key} is missing", "missing", key, key)
    number = array.dtype.kind in "iufb"
    if way == "dtype":
        kinds = ["f4", "f2", "i1", "u8", "c16", "U8", "S4", "?", "M8[s]", ">i4", "f8", "O"]
        kind = draw.choice(kinds)
        try:
            with np.errstate(all="ignore"):
                arrays[key] = array.astype(kind)
        except (ValueError, TypeError):
            arrays[key] = np.zeros(array.shape, kind)
        return arrays, Mutation(b"", f"{key} is of {kind}", "bytes", key, key)
    if way == "shape":
        flat = array.ravel()
        new = draw.choice([flat, array[None], array[..., None], array.T, flat[:0], np.atleast_1d(array)[..., :1]])
        arrays[key] = new
        return arrays, Mutation(b"", f"{key} has shape {new.shape}", "bytes", key, key)
    if not number or not array.size:
        arrays[key] = np.array("text")
        return arrays, Mutation(b"", f"{key} is text", "bytes", key, key)
    value = draw.choice([0, -1, 2**31, 2**62, 0.5, float("nan"), float("inf"), 1e308, 1e-300, -0.5])
    changed = array.copy() if isinstance(value, int) and array.dtype.itemsize == 8 else array.astype(float)
    changed.flat[draw.randrange(changed.size)] = value
    if draw.random() < 0.2:
        changed[...] = value
    arrays[key] = changed
    return arrays, Mutation(b"", f"{key} has {value}", "value", key, key)


def of_npz(data: bytes, draw: random.Random) -> Mutation:
    with np.load(io.BytesIO(data), allow_pickle=True) as held:
        arrays, told = of_arrays({key: held[key] for key in held}, draw)
    packed = io.BytesIO()
    np.savez(packed, **arrays)
    return told._replace(data=packed.getvalue())


def of_npy(data: bytes, draw: random.Random) -> Mutation:
    arrays, told = of_arrays({"tokens": np.load(io.BytesIO(data))}, draw)
    packed = io.BytesIO()
    np.save(packed, next((array for name, array in arrays.items() if name != UNKNOWN), np.zeros(0)))
    return told._replace(data=packed.getvalue(), kind="bytes")


def of_table(data: bytes, draw: random.Random) -> Mutation:
    """Of a parquet file: a column of another name, type or value, more, less or in another place."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(data))
    at, kept = draw.randrange(table.num_columns), table.schema.metadata
    name, column = table.column_names[at], table.column(at)
    way = draw.choice(["name", "unknown", "missing", "twice", "type", "null", "value", "value", "swap", "meta"])
    told = Mutation(b"", f"{way} of {name}", "bytes", name, name)
    if way == "name":
        new = misspelt(name, draw)
        told = Mutation(b"", f"{name} is called {new!r}", "name", new, name)
        table = table.rename_columns([new if one == name else one for one in table.column_names])
    elif way == "unknown":
        table = table.append_column(UNKNOWN, pyarrow.array(np.arange(table.num_rows)))
        told = Mutation(b"", f"a column {UNKNOWN}", "unknown", UNKNOWN)
    elif way == "missing":
        table = table.remove_column(at)
        told = told._replace(kind="missing")
    elif way == "twice":
        table = table.append_column(name, column)
    elif way == "swap":
        names = list(table.column_names)
        other = draw.randrange(len(names))
        names[at], names[other] = names[other], names[at]
        table = table.rename_columns(names)
    elif way == "meta":
        held = dict(table.schema.metadata or {b"pandas": b"{}"})
        key = draw.choice([*held])
        held[key] = _of_bytes(held[key] or b"x", draw).data
        table = table.replace_schema_metadata(held)
        told = told._replace(what=f"metadata {key!r}")
    else:
        values = column.to_pylist()
        row = draw.randrange(len(values) or 1)
        news = [None] if way == "null" else [0, -1, 2**31, 2**62, 0.5, float("nan"), float("inf"), 1e308, "text", True]
        new = draw.choice(news)
        if way == "type":
            values = [None if one is None else str(one) for one in values]
        else:
            values[row : row + 1] = [new]
        told = told._replace(what=f"{name} of row {row}: {way} {new!r}", kind="value" if way == "value" else "bytes")
        try:
            array = pyarrow.array(values)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError):
            array = pyarrow.array([None if one is None else str(one) for one in values])
        table = table.set_column(at, name, array)
    if way != "meta":  # which renaming columns takes away
        table = table.replace_schema_metadata(kept)
    packed = io.BytesIO()
    parquet.write_table(table, packed)
    return told._replace(data=packed.getvalue())
