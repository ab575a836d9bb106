"""`mfabric rerun ROWS`: simulate the cases of rows again, and report differences."""

import dataclasses
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import is_number
from mfabric_jax.case.layers import layers_of, merge_layers
from mfabric_jax.case.own_code import check_data
from mfabric_jax.checks import InputError, in_file, not_negative
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional
from mfabric_jax.support.parts import SweepFolder

ORIGIN = ("version", "jax", "jaxlib", "device", "commit")
ROWS = "rows of compare or of a sweep of cases"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Simulate the cases of stored rows again, and compare every column.

    The exit status is 1 if a column differs.
    """

    rows: Annotated[str, Positional("ROWS", ROWS)]
    """A .csv file (with its .config.json) or .parquet file of compare, or the folder of a sweep of cases."""
    rtol: float = 0.00001
    """Largest relative difference of equal numbers."""
    device: str | None = None
    """cpu, gpu or tpu (default: the one that JAX chooses)."""


def run(options: Options) -> int:
    """Return the exit status."""
    from mfabric_jax import report

    not_negative("rtol", options.rtol)
    before, config = report.query([options.rows], report.QueryOptions())
    cases = cases_of(options.rows, config)
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax.apps.sweep.case_space import CaseSpace
    from mfabric_jax.evaluate.rows.results import provenance, simulate

    _check_files(cases, _files_then(pathlib.Path(options.rows), config))
    after = simulate(CaseSpace(cases).cases).rows(progress=True)
    if len(before) != len(after):
        raise InputError(
            f"{options.rows!r} has {len(before)} rows, but its settings make {len(after)}: the rows are of an "
            f"interrupted run, are a selection, or were made in Python."
        )
    now = provenance(shared.dtype_of(cases))
    for name in ORIGIN:
        if config.get(name) != now[name]:
            print(f"{name} was {config.get(name)}, now {now[name]}")
    return _print_differences(before, after, options.rtol)


def cases_of(path: str, config: Mapping[str, Any]) -> Cases:
    """Return the cases that a configuration of rows states. Raise InputError if it states none."""
    if not config.get("stated") or "varied" not in config:
        raise InputError(f"{path!r} must hold {ROWS}, with their configuration.")
    check_data([config.get(key) for key in ("stated", "variants", "random")], repr(path))
    with in_file(path):
        tables = {"random": config.get("random", {}), "sweep": config.get("rules", {})}
        return merge_layers(layers_of({**config["stated"], "variants": [*config.get("variants", ())], **tables}, path))


def differences(before: Sequence[Mapping], after: Sequence[Mapping], rtol: float) -> Iterator[tuple[str, int, float]]:
    """Yield (column, number of differing rows, largest relative difference) for columns that differ; inf for texts."""
    known = {name for row in after for name in row}
    for name in dict.fromkeys(name for row in before for name in row if name in known):
        apart = [_apart(old.get(name), new.get(name)) for old, new in zip(before, after, strict=True)]
        wrong = [difference for difference in apart if difference > rtol]
        if wrong:
            yield name, len(wrong), max(wrong)


def _apart(old: Any, new: Any) -> float:
    if not (is_number(old) and is_number(new)):
        return 0.0 if old == new or {str(old), str(new)} <= {"None", "nan"} else math.inf
    if old == new or (math.isnan(old) and math.isnan(new)):
        return 0.0
    return abs(new - old) / max(abs(old), abs(new))


def _print_differences(before: Sequence[Mapping], after: Sequence[Mapping], rtol: float) -> int:
    from mfabric_jax.report.numerals import count_phrase

    columns = list(differences(before, after, rtol))
    for name, rows, most in columns:
        much = "another value" if math.isinf(most) else f"by up to {most:.3g}"
        print(f"{name} differs in {rows} of {count_phrase(len(before), 'row')}, {much}")
    if not columns:
        print(f"equal: {count_phrase(len(before), 'row')}, every column within {rtol:g}")
    return 1 if columns else 0


def _files_then(rows: pathlib.Path, config: Mapping[str, Any]) -> Mapping[str, str]:
    """Return digests of the files that the rows were made with; for a sweep, those of all parts."""
    return SweepFolder.read(rows).sweep.get("files", {}) if rows.is_dir() else config.get("files", {})


def _check_files(cases: Cases, then: Mapping[str, str]) -> None:
    """Raise InputError if a file with which the rows were made is missing or has changed."""
    from mfabric_jax.case.grid import files_of
    from mfabric_jax.support.text_files import digest

    now = {name: digest(path) for name, path in files_of(cases).items()}
    for name in then:
        if now.get(name) != then[name]:
            why = "is missing" if name not in now else "has changed"
            raise InputError(
                f"the file of {name!r} {why} since the rows were made; run in the folder that contains it."
            )
