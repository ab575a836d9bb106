"""Rows of a long run, on disk as they are finished: a kill loses what is in work alone, and the same run goes on.

Beside `rows.csv` lies `rows.csv.journal` until the run is over. Its first line says of which run it is; every further
line holds a number of the run's work and the rows of that work, and is on disk before the next is begun. A last line
that was not finished is dropped.
"""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mfabric_jax.atomic import locked, sweep_up
from mfabric_jax.checks import InputError
from mfabric_jax.report.rows import Row, in_order, journal_of, jsonable, plain_row, read_journal, sidecar, write_rows


class Kept:
    """What a run has so far.

    - `done`: {number: rows} of finished work; what was there before the run began (`found` of them) is among them.
    """

    def __init__(self, journal: BinaryIO | None, done: Mapping[int, list[Row]] | None = None):
        self._journal, self.done = journal, dict(done or {})
        self.found = len(self.done)

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of the numbers."""
        return in_order(self.done)

    def add(self, rows: list[Row], number: int | None = None) -> None:
        """The rows of a piece of work (default: the next one); they are on disk when this returns."""
        number = len(self.done) if number is None else number
        rows = [plain_row(row) for row in rows]
        if self._journal is not None:
            _write(self._journal, {"number": number, "rows": rows})
        self.done[number] = rows


@contextlib.contextmanager
def keeping(path: str | Path | None, config: Mapping[str, Any]) -> Iterator[Kept]:
    """Keeps rows while the block runs, and puts them into the file when it ends, however it ends.

    - `path`: None keeps them in memory alone.   - `config`: of the run; with `complete` it goes beside the rows.

    Where the block is left by an error or an interrupt the journal stays, and the same run goes on from it.
    `InputError` for the journal of another run, for one that another process writes, and where it cannot be written.
    """
    if path is None:
        yield Kept(None)
        return
    path = Path(path)
    with opened_journal(path, jsonable(config)) as (journal, done):
        for left in (path, sidecar(path)):
            sweep_up(left, older_s=0)
        kept, complete, stored = Kept(journal, done), False, False
        try:
            yield kept
            complete = True
        finally:
            try:
                if kept.done:
                    write_rows(kept.rows, path, dict(config) | {"complete": complete})
                stored = True
            finally:
                if stored and (complete or not kept.done):
                    journal_of(path).unlink(missing_ok=True)


@contextlib.contextmanager
def opened_journal(path: Path, config: Mapping[str, Any]) -> Iterator[tuple[BinaryIO, dict[int, list[Row]]]]:
    """The journal of the rows file `path` for the run of this configuration, open and locked, and the work in it."""
    where = journal_of(path)
    run = json.loads(json.dumps({"config": dict(config), "files": _files(config.values())}))
    try:
        journal = where.open("a+b")
    except OSError as error:
        raise _unwritable(where, error) from error
    with journal:
        try:
            if not locked(journal):
                raise InputError(f"another run writes {str(path)!r}; give another file, or wait for its end.")
            there, done, good = read_journal(where)
            if there is None:
                journal.truncate(0)
                _write(journal, run)
            elif change := _change(there, run):
                rest = f"give another file for the rows, or delete {str(where)!r} to begin again"
                raise InputError(f"{str(path)!r} was begun by another run ({change}); {rest}.")
            else:
                journal.truncate(good)
        except OSError as error:
            raise _unwritable(where, error) from error
        yield journal, done


def _unwritable(where: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {str(where)!r} ({error.strerror or error}); give a file in another folder.")


def _write(journal: BinaryIO, line: dict[str, Any]) -> None:
    journal.write(json.dumps(line).encode() + b"\n")
    journal.flush()
    os.fsync(journal.fileno())


def _change(there: dict[str, Any], now: dict[str, Any]) -> str | None:
    """What differs between two runs, in words."""
    for name in {**there["config"], **now["config"]}:
        old, new = there["config"].get(name), now["config"].get(name)
        if json.dumps(old) != json.dumps(new):  # NaN is itself
            return f"{name} was {old!r}, now {new!r}"
    for name in {**there["files"], **now["files"]}:
        if there["files"].get(name) != now["files"].get(name):
            return f"the file {name!r} has changed since"
    return None


def _files(values: Iterable[Any]) -> dict[str, list[int]]:
    """Size and time of the files that a configuration names, `FILE.py:FUNCTION` among them."""
    found = {}
    for value in values:
        for name in value if isinstance(value, list | tuple) else (value,):
            for file in {name, name.rpartition(":")[0]} if isinstance(name, str) else ():
                if file and os.path.exists(file):
                    about = os.stat(file)
                    found[file] = [about.st_size, about.st_mtime_ns]
    return dict(sorted(found.items()))
