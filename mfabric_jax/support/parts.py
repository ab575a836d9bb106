"""A sweep's folder: `sweep.json` describes the sweep; numbered parquet files, the parts, hold the rows.

A label in each part detects damaged or misplaced parts. It holds the part's number, the digest of `sweep.json`, and the
digest of the part's bytes, computed with zeros where this digest stands.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, whole
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.extras import PARQUET, load_extra
from mfabric_jax.support.text_files import read_mapping

CONFIG = "sweep.json"
METADATA_KEY = b"mfabric"  # key of the configuration in every parquet file of rows
LABEL_KEY = b"mfabric-part"
MISSING = "is missing"
_MOST_CHANGES, _LETTERS = 3, 60  # most differences of sweeps in a message, and letters of a value
_DIGEST_OF_CASES = "cases was"  # a difference that is left out if there are others
_BLANK = b"0" * 64
_LABEL = re.compile(rb'\{"part": (\d+), "sweep": "([0-9a-f]{64})", "sha256": "([0-9a-f]{64})"\}')
_NAME = re.compile(r"rows-(\d{5,})\.parquet")


@dataclasses.dataclass(frozen=True)
class SweepFolder:
    """The folder of a sweep; `sweep`: content of its `sweep.json`, where `parts` is the number of files."""

    path: Path
    sweep: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> "SweepFolder":
        file = path / CONFIG
        try:
            sweep = read_mapping(file, "settings of a sweep")
            whole("parts", sweep.get("parts", 0), at_least=0)
            return cls(path, sweep)
        except InputError as error:
            again = "delete it and run the sweep again, which keeps its finished rows"
            why = str(error).partition("; ")[0].rstrip(".")
            raise InputError(f"{why}; {again}.") from None

    @property
    def parts(self) -> int:
        """Number of files of the complete sweep; 0 in older folders, which do not record it."""
        return self.sweep.get("parts", 0)

    @functools.cached_property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.sweep, sort_keys=True).encode()).hexdigest()

    def part(self, number: int) -> Path:
        return self.path / f"rows-{number:05d}.parquet"

    def claim(self) -> bool:
        """Write `sweep.json` and return True; return False if it exists.

        Raise InputError if the folder holds another sweep or cannot be written.
        """
        if (self.path / CONFIG).exists():
            there = self.read(self.path).sweep
            if changes := list(_changes(there, self.sweep)):
                changes = [change for change in changes if not change.startswith(_DIGEST_OF_CASES)] or changes
                differences = "; ".join(changes[:_MOST_CHANGES])
                more = f"; and {len(changes) - _MOST_CHANGES} more" if len(changes) > _MOST_CHANGES else ""
                raise InputError(f"{str(self.path)!r} holds another sweep: {differences}{more}; give another folder.")
            return False
        for file in sorted(self.path.glob("rows-*.parquet")):
            label = _LABEL.search(file.read_bytes())
            if not label or label[2].decode() != self.digest:
                raise InputError(
                    f"{str(self.path)!r} holds {file.name}, which is not of this sweep; give another folder."
                )
        with replacing(self.path / CONFIG) as (beside,):
            beside.write_text(json.dumps(self.sweep, indent=1) + "\n", encoding="utf-8")
        return True

    def release(self) -> None:
        if not any(self.path.glob("rows-*.parquet")):
            (self.path / CONFIG).unlink(missing_ok=True)

    def fault(self, number: int) -> str | None:
        """Return what is wrong with a part, in words; None if it is valid."""
        try:
            return _fault(self.part(number).name, self.part(number).read_bytes(), self.digest)
        except FileNotFoundError:
            return MISSING
        except OSError as error:
            return f"cannot be read ({error.strerror})"

    def write(self, number: int, columns: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        """Write a part, with `config` in its footer; NaN becomes null."""
        parquet = load_extra("store", "writing .parquet", PARQUET)
        text = json.dumps(dict(config), default=str)
        label = json.dumps({"part": number, "sweep": self.digest, "sha256": _BLANK.decode()})
        table = parquet.table_of(columns, {METADATA_KEY: text, LABEL_KEY: label})
        with replacing(self.part(number)) as (beside,):
            parquet.save_table(table, beside)
            data = beside.read_bytes()
            beside.write_bytes(_LABEL.sub(lambda label: label[0].replace(_BLANK, _digest(data, label)), data))


def _changes(was: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield the values that differ, each as "PATH was OLD, now NEW"."""
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for name in {**was, **now}:
            yield from _changes(was.get(name), now.get(name), f"{path}.{name}" if path else str(name))
    elif _variants_by_name(was) and _variants_by_name(now):
        yield from _changes(_variants_by_name(was), _variants_by_name(now), path)
    elif was != now:
        yield f"{path} was {_short(was)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 20]} ... {text[-15:]}"


def _variants_by_name(variants: Any) -> dict[str, Any] | None:
    """Return the variants by name; None if the value is not a list of variants."""
    tables = isinstance(variants, list) and all(
        isinstance(variant, Mapping) and "name" in variant for variant in variants
    )
    return {str(variant["name"]): variant for variant in variants} if tables and variants else None


def read_verified(file: Path, sweep: str | None = None) -> bytes:
    """Return the bytes of a parquet file. Raise InputError if it is damaged, misplaced or of another sweep."""
    data = file.read_bytes()
    if why := _fault(file.name, data, sweep):
        raise InputError(f"{str(file)!r} {why}; run its folder's sweep again to replace it.")
    return data


def _fault(name: str, data: bytes, sweep: str | None) -> str | None:
    """Return what is wrong with a file. `sweep`: digest of its sweep; None: all but damaged parts are valid."""
    label, name_match = _LABEL.search(data), _NAME.fullmatch(name)
    if not label and LABEL_KEY not in data:
        return None if sweep is None else "has no digest, so it is damaged or not a part of this sweep"
    if not label or label[3] != _digest(data, label):
        return "is damaged: its digest does not match its bytes"
    if name_match and int(name_match[1]) != int(label[1]):
        return f"holds the rows of rows-{int(label[1]):05d}.parquet: it was copied or renamed"
    return None if sweep in (None, label[2].decode()) else "belongs to another sweep"


def _digest(data: bytes, label: re.Match[bytes]) -> bytes:
    start, end = label.span(3)
    held = hashlib.sha256(memoryview(data)[:start])
    held.update(_BLANK)
    held.update(memoryview(data)[end:])
    return held.hexdigest().encode()
