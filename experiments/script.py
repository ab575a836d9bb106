"""What every experiment's `main` does: options, rows, file, figure, table; a mistake is one sentence and status 2."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import tyro

from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.study.provenance import provenance

Rows = Sequence[Mapping[str, Any]]


def run_script(
    argv: Sequence[str] | None,
    *,
    name: str,
    options: type,
    config: type,
    run: Callable[[Any], Iterable[dict[str, Any]]],
    table: Callable[[Rows], str],
    draw: Callable[[Rows, Path], Path],
    dtype: str = "float32",
) -> int:
    """Run an experiment from the shell; returns the exit status.

    - `options`: `config` and the folder `out`, which gets `name`.csv and `name`.png.
    - `run`: its rows; where it yields them, those that there are stay if it is stopped.
    """
    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    options.__post_init__ = lambda self: None          # checked as `config`: tyro would frame the sentence
    try:
        asked = tyro.cli(options, args=argv, prog=name)
        chosen = config(**{field.name: getattr(asked, field.name) for field in dataclasses.fields(config)})
        folder = Path(asked.out)
        report.check_folder(folder)
        rows: list[dict[str, Any]] = []
        effective = dataclasses.asdict(chosen) | provenance(dtype)
        try:
            rows.extend(run(chosen))
        finally:
            if rows:
                report.write_rows(rows, folder / f"{name}.csv", effective)
        draw(rows, folder / f"{name}.png")
    except InputError as mistake:
        print(f"{name}: {mistake}", file=sys.stderr)
        return 2
    print(table(rows))
    return 0
