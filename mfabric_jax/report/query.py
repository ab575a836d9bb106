"""Query rows on disk (a sweep's folder or files of rows): filter, group, Pareto front, sort."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax.report.rows import journal_of
from mfabric_jax.support.extras import needed
from mfabric_jax.support.parts import CONFIG, SweepFolder

COUNT = "rows"
# keys of a configuration that are not settings of a case
OF_A_RUN = {"command", "schema", "version", "commit", "jax", "jaxlib", "device", "complete", "part", "out"}
FILE = "file"  # the column that tells files of different runs apart


class Asked(NamedTuple):
    """What is asked of `query`: conditions, groups, Pareto front, order, columns.

    - `where`: conditions as typed. `by`: columns to group by; `measures`: "column:measure" of each group.
    - `over`: a condition; measures are of ratios, of each row over the row that fulfils it and is otherwise set alike.
    - `pareto`: columns to minimise, or to maximise if it `rises` ("column:min", "column:max": as said),
      within every group.
    - `sort`: columns, rising ("column:down": falling). `columns`: to keep (none: all). `limit`: of rows; None: all.
    """

    where: Sequence[str] = ()
    by: Sequence[str] = ()
    measures: Sequence[str] = ()
    pareto: Sequence[str] = ()
    sort: str | None = None
    columns: Sequence[str] = ()
    limit: int | None = None
    over: str | None = None


def query(paths: Sequence[str | Path], asked: Asked) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of the answer, and the configuration of the first file.

    Where files have different settings, a column names the file of each row, also in groups and in selected columns.
    `InputError` for missing files or columns, and for files of a sweep that are damaged, misplaced or of another sweep.
    """
    return _answers().query(paths, asked)


def without_values(paths: Sequence[str | Path], asked: Asked) -> str | None:
    """A sentence on rows that no Pareto front includes because they lack a number; None without such rows."""
    return _answers().without_values(paths, asked)


def pairing(paths: Sequence[str | Path], asked: Asked) -> str | None:
    """A sentence on what a row and its baseline row have in common, and on rows without one; None without `over`."""
    return _answers().pairing(paths, asked)


def _answers() -> Any:
    """`queried`, which pyarrow is for."""
    return needed("store", "a query", "mfabric_jax.report.queried")


def notes(paths: Sequence[str | Path]) -> list[str]:
    """A sentence for every unfinished run or sweep, and for every one that cannot be checked."""
    found = []
    for path in map(Path, paths):
        if not path.is_dir() and journal_of(path).exists():
            found.append(f"{path} is of a run that is not over; run it again.")
        if folder := sweep_of(path):
            missing = [part.name for part in map(folder.part, range(folder.parts)) if not part.exists()]
            there = f"{folder.parts - len(missing):,} of {folder.parts:,} files"
            if missing:
                found.append(f"{path} holds {there}, {missing[0]} is missing: its sweep is not over; run it again.")
            elif not folder.parts:
                version = folder.sweep.get("version")
                found.append(f"{path} was written by version {version} without digests: not checked.")
        elif any(path.glob("rows-[0-9]*.parquet")):
            found.append(f"{path} holds files of a sweep without {CONFIG}: whether all are there cannot be checked.")
    return found


def sweep_of(path: Path) -> SweepFolder | None:
    return SweepFolder.read(path) if (path / CONFIG).is_file() else None
