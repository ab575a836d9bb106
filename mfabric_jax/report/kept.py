"""Rows of a long run: on disk as they are finished, in their file at the end. Started again, the run goes on."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mfabric_jax.atomic import sweep_up
from mfabric_jax.report.journal import Journal, in_order
from mfabric_jax.report.rows import Row, jsonable, plain_row, sidecar, write_rows


class Kept:
    """What a run has so far.

    - `done`: {number: rows} of finished work; what was there before the run began (`found` of them) is among them.
    """

    def __init__(self, journal: Journal | None):
        self._journal = journal
        self.done: dict[int, list[Row]] = {} if journal is None else dict(journal.done)
        self.found = len(self.done)

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of the numbers."""
        return in_order(self.done)

    def add(self, rows: list[Row], number: int | None = None) -> None:
        """The rows of a piece of work (default: the next one)."""
        number = len(self.done) if number is None else number
        rows = [plain_row(row) for row in rows]
        if self._journal is not None:
            self._journal.add(number, rows)
        self.done[number] = rows


@contextlib.contextmanager
def keeping(path: str | Path | None, config: Mapping[str, Any]) -> Iterator[Kept]:
    """Keeps rows while the block runs, and puts them into the file when it ends, however it ends.

    - `path`: None keeps them in memory alone.   - `config`: of the run; with `complete` it goes beside the rows.

    Where the block is left by an error or an interrupt the journal stays, and the same run goes on from it.
    """
    if path is None:
        yield Kept(None)
        return
    path = Path(path)
    journal = Journal(path, jsonable(config))
    for left in (path, sidecar(path)):
        sweep_up(left, older_s=0)
    kept, complete = Kept(journal), False
    try:
        yield kept
        complete = True
    finally:
        try:
            if kept.done:
                write_rows(kept.rows, path, dict(config) | {"complete": complete})
        except BaseException:
            complete = False
            raise
        finally:
            journal.close(remove=complete or not kept.done)
