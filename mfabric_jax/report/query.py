"""Query rows on disk (a sweep's folder or files of rows): filter, group, take the Pareto front, sort."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax.report.rows import journal_of
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.parts import CONFIG, SweepFolder

COUNT = "rows"
# configuration keys that describe the run, not the case
OF_A_RUN = {"command", "schema", "version", "commit", "jax", "jaxlib", "device", "complete", "part", "out"}
FILE = "file"  # this column names the file when runs differ
RUNS = "runs"  # this key of a configuration holds the settings in which files differ, by file


class QueryOptions(NamedTuple):
    """Options of `query`: conditions, groups, Pareto front, order, columns.

    - `where`: conditions as typed. `by`: columns to group by, which also sort the groups. `measures`: "column:measure"
      for each group.
    - `over`: a condition that marks baseline rows, or several with commas. Measures are then of ratios: each row over
      the baseline row that has the same settings.
    - `pareto`: columns of the Pareto front of each group. A column that `rises` is maximised, others are
      minimised; "column:min" and "column:max" override that.
    - `sort`: a column, ascending ("column:down": descending). `columns`: to keep (none: all). `limit`: most rows; None:
      all.
    """

    where: Sequence[str] = ()
    by: Sequence[str] = ()
    measures: Sequence[str] = ()
    pareto: Sequence[str] = ()
    sort: str | None = None
    columns: Sequence[str] = ()
    limit: int | None = None
    over: str | None = None


def query(paths: Sequence[str | Path], options: QueryOptions) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows of the answer, and the configuration of their files: the first one's, with lists of the settings
    in which the others differ, and these settings by file (`RUNS`).

    If the settings of the files differ, columns name the stated ones, or else the file of each row; groups and
    selected columns keep these. Raise InputError if a file or column is missing, or if a sweep's file is damaged,
    misplaced or from another sweep.
    """
    return _answers().query(paths, options)


def without_values(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """Return a sentence on rows that lack a number and so are on no Pareto front; None if there are none."""
    return _answers().without_values(paths, options)


def pairing(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """Return a sentence on how rows and baseline rows pair, and on rows without a baseline row; None without `over`."""
    return _answers().pairing(paths, options)


def equal_over_seeds(paths: Sequence[str | Path], options: QueryOptions) -> str | None:
    """Return a sentence on columns whose spreads are 0 because rows are equal for all seeds; None if there are none."""
    return _answers().equal_over_seeds(paths, options)


def _answers() -> Any:
    """The module `queried`, which needs pyarrow."""
    return load_extra("store", "a query", "mfabric_jax.report.queried")


def notes(paths: Sequence[str | Path]) -> list[str]:
    """Return a sentence for each run or sweep that is unfinished or cannot be checked."""
    sentences = []
    for path in map(Path, paths):
        if not path.is_dir() and journal_of(path).exists():
            sentences.append(f"{path} is from an unfinished run; run it again.")
        if folder := sweep_of(path):
            missing = [part.name for part in map(folder.part, range(folder.parts)) if not part.exists()]
            there = f"{folder.parts - len(missing):,} of {folder.parts:,} files"
            if missing:
                sentences.append(
                    f"{path} holds {there}; {missing[0]} is missing, so its sweep is unfinished; run it again."
                )
            elif not folder.parts:
                version = folder.sweep.get("version")
                sentences.append(f"{path} was written by version {version} without digests, so it was not checked.")
        elif any(path.glob("rows-[0-9]*.parquet")):
            sentences.append(
                f"{path} holds files of a sweep without {CONFIG}, so it cannot be checked for missing files."
            )
    return sentences


def sweep_of(path: Path) -> SweepFolder | None:
    return SweepFolder.read(path) if (path / CONFIG).is_file() else None
