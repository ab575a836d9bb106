"""Work of a run kept as it is finished, so that a kill loses what is in work alone and the same run goes on.

Beside `rows.csv` lies `rows.csv.journal` until the run is over. Its first line says of which run it is; every further
line holds a number of the run's work and the rows of that work, and is on disk before the next is begun. A last line
that was not finished is dropped.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from mfabric_jax.atomic import locked
from mfabric_jax.checks import InputError
from mfabric_jax.text_files import parsed_json

Rows = list[dict[str, Any]]


class Journal:
    """The journal of the rows file `path` for the run of this configuration, open and locked.

    - `done`: {number: rows} of the work that is there.

    `InputError` for the journal of another run, for one that another process writes, and where it cannot be written.
    """

    def __init__(self, path: Path, config: Mapping[str, Any]):
        self.path, self.done, self._file = journal_of(path), {}, None
        run = json.loads(json.dumps({"config": dict(config), "files": _files(config.values())}))
        try:
            self._file = self.path.open("a+b")
            if not locked(self._file):
                raise InputError(f"another run writes {str(path)!r}; give another file, or wait for its end.")
            self._go_on(path, run)
        except OSError as error:
            self.close()
            reason = error.strerror or str(error)
            raise InputError(f"cannot write {str(self.path)!r} ({reason}); give a file in another folder.") from error
        except InputError:
            self.close()
            raise

    def _go_on(self, path: Path, run: dict[str, Any]) -> None:
        there, self.done, good = _read(self.path)
        if there is None:
            self._opened.truncate(0)
            self._write(run)
            return
        if change := _change(there, run):
            rest = f"give another file for the rows, or delete {str(self.path)!r} to begin again"
            raise InputError(f"{str(path)!r} was begun by another run ({change}); {rest}.")
        self._opened.truncate(good)

    @property
    def _opened(self) -> BinaryIO:
        assert self._file is not None
        return self._file

    def add(self, number: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """The rows of a piece of work; they are on disk when this returns."""
        self.done[number] = [dict(row) for row in rows]
        self._write({"number": number, "rows": self.done[number]})

    def _write(self, line: dict[str, Any]) -> None:
        self._opened.write(json.dumps(line).encode() + b"\n")
        self._opened.flush()
        os.fsync(self._opened.fileno())

    def close(self, *, remove: bool = False) -> None:
        """Let others write it; `remove` where nobody needs it any more."""
        if self._file is not None:
            if remove:
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def journal_of(path: Path) -> Path:
    """Where the journal of a rows file lies."""
    return path.with_name(f"{path.name}.journal")


def rows_so_far(path: Path) -> tuple[Rows, dict[str, Any]] | None:
    """Rows and configuration of a run that is not over (`complete` is False), from its journal; None without one."""
    try:
        run, done, _ = _read(journal_of(path))
    except OSError:
        return None
    return None if run is None else (in_order(done), run["config"] | {"complete": False})


def in_order(done: Mapping[int, Rows]) -> Rows:
    """Rows by the numbers of their work."""
    return [row for number in sorted(done) for row in done[number]]


def _read(path: Path) -> tuple[dict[str, Any] | None, dict[int, Rows], int]:
    """The run, its work, and the bytes up to the first line that does not hold any; no run where the first does not."""
    run, done, good = None, {}, 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            held = parsed_json(line)
            if not line.endswith(b"\n"):
                break
            if run is None:
                run = {"config": dict(held["config"]), "files": dict(held["files"])}
            else:
                done[int(held["number"])] = [dict(row) for row in held["rows"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        good += len(line)
    return run, done, good


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
            if isinstance(name, str):
                for file in {name, name.rpartition(":")[0]}:
                    if file and os.path.exists(file):
                        about = os.stat(file)
                        found[file] = [about.st_size, about.st_mtime_ns]
    return dict(sorted(found.items()))
