"""One value of a setting: text with a unit, words of a command line, and the sentence for what it cannot be."""

import math
import re
import types
import typing
from typing import Any

import msgspec

from mfabric_jax import units
from mfabric_jax.checks import InputError, check_size

AUTO = "auto"  # in files and on the command line: left open
KILO = 1000.0
UNITS = {  # by the end of a name: what a text may be in, as a multiple of what the name says
    "_s": {"s": 1.0, "ms": units.ms(1.0), "us": units.us(1.0), "ns": units.ns(1.0), "min": 60.0, "h": 3600.0},
    "_gbps": {"Gbps": 1.0, "Tbps": KILO, "Mbps": 1 / KILO},
    "_tbps": {"Tbps": 1.0, "Gbps": 1 / KILO},
    "_tflops": {"TFLOP/s": 1.0, "PFLOP/s": KILO},
    "_gigabytes_per_s": {"GB/s": 1.0, "TB/s": KILO, "MB/s": 1 / KILO},
    "_gigabytes": {"GB": 1.0, "TB": KILO, "MB": 1 / KILO},
    "watts": {"W": 1.0, "kW": KILO},
}
RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")
WITH_UNIT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]+)")


def of_text(kind: Any, text: str) -> Any:
    """A word of a command line as the value that the type takes: a number where it is one and may be one."""
    word = text.strip()
    if Any in parts_of(kind):
        return word
    tried: list[Any] = []
    for number in (int, float):
        try:
            tried.append(number(word))
        except ValueError:
            continue
    tried += [word == "true"] if word in ("true", "false") else []
    tried += [tuple(part.strip() for part in word.split("+"))] if "+" in word else [(word,)]
    tried += [word]
    for value in tried:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
    return tried[0] if isinstance(tried[0], int | float) else word


def converted(path: str, kind: Any, value: Any) -> Any:
    """The value as its type has it. `InputError` with a sentence for what it cannot be."""
    value = _in_units(path, kind, value)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{path} must be {words(kind)}, got nan.")
    if isinstance(value, bool) and bool not in parts_of(kind):
        raise InputError(f"{path} must be {words(kind)}, got {str(value).lower()}.")
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise InputError(f"{path} must be {words(kind)}, got {value!r:.80}.") from None
    if isinstance(found, int | float) and not isinstance(found, bool) and not math.isinf(found):
        check_size(path, found)
    if isinstance(found, float) and math.isinf(found) and not path.endswith("capacity_factor"):
        raise InputError(f"{path} must be {words(kind)}, got {found}.")
    return found


def _in_units(path: str, kind: Any, value: Any) -> Any:
    """A number from a text with a unit, and a range from FIRST-LAST."""
    if not isinstance(value, str):
        return value
    if tuple in {typing.get_origin(one) for one in parts_of(kind)} and (ends := RANGE.fullmatch(value.strip())):
        return int(ends[1]), int(ends[2])
    unit = max((unit for unit in UNITS if path.endswith(unit)), key=len, default=None)
    found = WITH_UNIT.fullmatch(value.strip()) if unit else None
    if found is None or unit is None:
        return value
    if found[2] not in UNITS[unit]:
        raise InputError(f"{path} must be a number or a text in {', '.join(UNITS[unit])}, got {value!r:.80}.")
    return float(found[1]) * UNITS[unit][found[2]]


def parts_of(kind: Any) -> list[Any]:
    """The types of a union, without annotations."""
    if typing.get_origin(kind) is typing.Annotated:
        return parts_of(kind.__origin__)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for one in typing.get_args(kind) for part in parts_of(one)]
    return [kind]


def _bounds(kind: Any) -> list[str]:
    """Bounds of numbers, in words."""
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = []
    for one in _annotated(kind):
        for meta in one.__metadata__:
            if isinstance(meta, msgspec.Meta):
                found += [
                    f"{word} {getattr(meta, name):g}" for name, word in words.items() if getattr(meta, name) is not None
                ]
    return found


def _annotated(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Annotated:
        return [kind, *_annotated(kind.__origin__)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for one in typing.get_args(kind) for part in _annotated(one)]
    return []


def words(kind: Any) -> str:
    """What a type takes, in words."""
    said: list[str] = []
    bounds = " and ".join(_bounds(kind))
    for one in parts_of(kind):
        if typing.get_origin(one) is typing.Literal:
            said += [str(value) for value in typing.get_args(one)]
        elif typing.get_origin(one) is tuple:
            said.append("FIRST-LAST" if typing.get_args(one) == (int, int) else "a list")
        elif one is not type(None):
            plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
            number = f" {bounds}" if one in (int, float) and bounds else ""
            said.append(plain.get(one, "a value") + number)
        else:
            said.append(AUTO)
    last = said.pop()
    return f"{', '.join(said)} or {last}" if said else last
