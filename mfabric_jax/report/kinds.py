"""Which columns the rows of each command have."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.columns import DRAW, KEY, SCHEMA, TEXT, Column, Columns
from mfabric_jax.support.lazily import ByName
from mfabric_jax.support.unread import say_unread

KINDS: Mapping[str, Columns] = ByName(
    "mfabric_jax",
    {
        "cases": "evaluate.rows.rows:CASES",
        "sweep": "apps.sweep.columns:SWEEP",
        "sweep of all-to-alls": "apps.sweep.columns:ALL_TO_ALLS",
        "sweep of replays": "apps.graphs.columns:REPLAYS",
        "failures": "apps.failures.columns:FAILURES",
        "serve": "apps.serving.columns:SERVE",
        "serve --clients": "apps.serving.columns:CLIENTS",
        "cluster": "apps.graphs.columns:CLUSTER",
        "cluster --links": "apps.graphs.columns:LINKS",
        "cluster --flows": "apps.graphs.columns:CLUSTER_FLOWS",
        "jobs": "apps.graphs.columns:JOBS",
        "jobs --links": "apps.graphs.columns:JOB_LINKS",
        "replay": "apps.graphs.columns:REPLAY",
        "replay --links": "apps.graphs.columns:REPLAY_LINKS",
        "replay --per-rank": "apps.graphs.columns:PER_RANK",
        "replay --steps": "apps.graphs.columns:STEPS",
        "policies bench": "apps.learning.columns:BENCH",
        "policies regimes": "apps.learning.columns:REGIMES",
        "evaluate": "apps.learning.columns:EVALUATE",
        "traces info": "apps.recordings.columns:STATISTICS",
        "traces study designs": "apps.recordings.columns:DESIGNS",
        "traces study predictors": "apps.recordings.columns:PREDICTORS",
        "validate packet": "apps.validation.columns:PACKET",
        "validate training": "apps.validation.columns:TRAINING",
        "validate layers": "apps.validation.columns:LAYERS",
        "validate serving": "apps.validation.columns:SERVING",
        "validate serving --rows": "apps.serving.columns:SERVED_ROWS",
        "reproduce": "report.kinds:REPRODUCE",
    },
)
"""Columns by kind of rows: a command, and the option that writes another table."""

REPRODUCE = Columns(
    Column("figure", TEXT, "Figure or table of the paper."),
    Column("claim", TEXT, "What it claims."),
    Column("found", "", "Value that the experiment gives."),
    Column("published", "", "Value that the paper prints."),
    Column("verdict", TEXT, "Whether they agree."),
    Column("off", "", "Relative difference."),
    Column("quick", TEXT, "Whether it is from a quick run."),
)

MOST_NAMED = 5  # columns in a sentence


def kinds_of(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of rows that a configuration may describe; none for an experiment, a query or another tool."""
    command = config.get("command")
    if command == "sweep" and "resolved" not in config:
        return  # such sweeps have columns of their own axes
    every = command is None and "resolved" in config  # rows of cases, whose command is not stated
    yield from (kind for kind in KINDS if every or kind == command or kind.startswith(f"{command} "))


@functools.cache
def column_named(name: str) -> Column | None:
    """Return the declaration of a column in the first kind that has it; None if no kind has it."""
    return next((KINDS[kind][name] for kind in KINDS if name in KINDS[kind]), None)


def is_number(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether commands fill this column of rows with numbers only."""
    if DRAW.fullmatch(name):
        return True
    declared = [KINDS[kind][name] for kind in kinds_of(config) if name in KINDS[kind]]
    return bool(declared) and all(column.is_number for column in declared)


def check_schema(path: Any, columns: Iterable[str], config: Mapping[str, Any]) -> None:
    """Raise `InputError` for rows of a later schema, and for rows without a schema that have unknown columns.

    - `config`: the configuration of the rows; empty for a table of unknown origin, which is read as it is.
    """
    schema = config.get(KEY)
    by = f"mfabric_jax {config['version']}" if isinstance(config.get("version"), str) else "an unknown version"
    if schema is None:
        unknown = _unknown(columns, config)
        if unknown:
            named = ", ".join(unknown[:MOST_NAMED]) + (", ..." if len(unknown) > MOST_NAMED else "")
            raise InputError(
                f"{str(path)!r} holds rows of {by} with columns that no longer mean anything ({named}); run the "
                f"command again, or delete its configuration to read it as a plain table."
            )
    elif isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise InputError(
            f"{str(path)!r} holds rows of schema {schema!r:.40}, written by {by}; this version reads schemas up to "
            f"{SCHEMA}; install a newer mfabric-jax, or write the rows again."
        )


def warn_unknown(path: Any, columns: Iterable[str], config: Mapping[str, Any]) -> None:
    """Warn about columns that no command writes, in rows of a command: they may be misspelt."""
    if unknown := _unknown(columns, config):
        named = ", ".join(unknown[:MOST_NAMED])
        say_unread(f"{str(path)!r}: no command writes the columns {named}; were they renamed?")


def _unknown(columns: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Return the columns that no kind of these rows declares, except paths of settings, which have a dot."""
    kinds = list(kinds_of(config))
    names = [name for name in columns if "." not in name and not DRAW.fullmatch(name)] if kinds else []
    return [name for name in names if not any(name in KINDS[kind] for kind in kinds)]
