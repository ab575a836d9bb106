"""Golden rows: what `mfabric` said of small cases when NAME.csv was written.

`commands.toml` maps a name to command lines. `python -m tests.golden.write [NAME ...]` writes their rows again, and
says what has changed; the test runs them and compares: numbers within `NEAR`, all else exactly, rows by who they are.
"""

import collections
import csv
import dataclasses
import io
import json
import math
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.report import read_rows

HERE = Path(__file__).parent
NEAR = 1e-9  # relative; all commands compute in float64
ROUNDED_US = 2e-3  # a slice of a timeline is rounded to nanoseconds at both ends

JOB = "model fabric variant policy routing circuits_for nic_use nic_gbps gpus"
PARTS = "compute_s exposed_comm_s reconfig_s bubble_s tp_comm_s ep_comm_s dp_comm_s placement_s"
ITERATION = (
    f"micro_batches first dispatch expert_load placement iteration_s {PARTS} network_cost_usd cluster_cost_usd "
    "network_kw cluster_kw usd_per_million_tokens joules_per_million_tokens tokens_per_s circuit_changes "
    "reconfigurations ep_over_balanced rank_load_over_mean memory_gb gpu_memory_gb fits"
)
COLUMNS = {  # of a command: who a row is, and what it says; columns that a command lacks are left out
    "compare": (JOB, ITERATION),
    "sweep": (f"{JOB} servers", f"{ITERATION} seconds bound_s over_bound"),
    "failures": (
        f"{JOB} failure",
        "stage server devices healthy_s failed_s slow_down spare_usd spare_network_usd spare_part_usd published "
        f"failures_per_month lost_hours_per_month lost_iterations_per_month {PARTS}",
    ),
    "cluster": ("model fabric servers gpus nic_gbps traffic", "links flows bytes end_s"),
    "replay": (
        "workload fabric nic_gbps",
        "servers ranks tasks flows bytes makespan_s compute_s exposed_comm_s idle_s held_by held_share",
    ),
    "timeline": ("stage thread slice", "slices total_us begin_us end_us"),
}


@dataclasses.dataclass(frozen=True)
class Golden:
    """The rows of one name."""

    name: str
    commands: tuple[str, ...]
    axes: tuple[str, ...] = ()
    own_process: bool = False

    @property
    def file(self) -> Path:
        """Where they are kept."""
        return HERE / f"{self.name}.csv"

    @property
    def kind(self) -> str:
        """The first word of its commands."""
        return self.commands[0].split()[0]

    @property
    def identity(self) -> tuple[str, ...]:
        """Columns that tell rows apart."""
        return tuple(dict.fromkeys(("run", *COLUMNS[self.kind][0].split(), *self.axes)))

    def kept(self) -> list[dict[str, str]]:
        """The rows as they were written."""
        with self.file.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def made(self, run: Callable[[list[str]], Any], folder: Path) -> list[dict[str, str]]:
        """The rows that the commands give now. `run` takes the words of one; `folder` is empty."""
        made_inputs(folder)
        rows = []
        for number, command in enumerate(self.commands, 1):
            out = folder / {"timeline": f"{number}.json", "sweep": f"{number}"}.get(self.kind, f"{number}.csv")
            every = [] if self.kind == "timeline" else ["--all-columns"]
            run([word.format(here=HERE, made=folder) for word in shlex.split(command)] + [*every, "--out", str(out)])
            rows += [{"run": number} | _plain(row) for row in _rows(out)]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = [name for name in (*self.identity, *COLUMNS[self.kind][1].split()) if name in names]
        return [{name: _text(row.get(name)) for name in columns} for row in rows]

    def differences(self, rows: list[dict[str, str]], near: float = NEAR) -> list[str]:
        """A sentence for each column and row that only one side has, and for each value that differs."""
        kept = self.kept()
        said = [
            f"column {name} is {where}"
            for where, names in (("gone", kept[0].keys() - rows[0].keys()), ("new", rows[0].keys() - kept[0].keys()))
            for name in sorted(names)
        ]
        shared = [name for name in kept[0] if name in rows[0]]
        before, now = (self._by_identity(some, shared) for some in (kept, rows))
        said += [f"row {_named(row)} is gone" for row in before if row not in now]
        said += [f"row {_named(row)} is new" for row in now if row not in before]
        for row in (row for row in before if row in now):
            for name in shared:
                a, b = before[row][name], now[row][name]
                if not _alike(name, a, b, near, before[row]):
                    said.append(f"{_named(row)}: {name} is {b}, was {a}{_by(a, b)}")
        return said

    def _by_identity(self, rows: list[dict[str, str]], shared: list[str]) -> dict[tuple, dict[str, str]]:
        names = [name for name in self.identity if name in shared]
        found = {tuple((name, row[name]) for name in names): row for row in rows}
        assert len(found) == len(rows), f"{self.name}: rows that {', '.join(names)} do not tell apart; name axes"
        return found


def table() -> dict[str, Golden]:
    """All of `commands.toml`, by name."""
    read = tomllib.loads((HERE / "commands.toml").read_text(encoding="utf-8"))
    return {
        name: Golden(name, tuple(one["commands"]), tuple(one.get("axes", ())), one.get("own_process", False))
        for name, one in read.items()
    }


def made_inputs(folder: Path) -> None:
    """Recorded routing, the same each time: counts [iteration, layer, micro-batch, source, expert]."""
    i, layer, m, source, expert = np.indices((2, 4, 4, 8, 8))
    np.save(folder / "routing.npy", 50 + (37 * i + 11 * layer + 5 * m + 29 * source + 17 * expert * (layer + 1)) % 101)


def written(rows: list[dict[str, str]]) -> str:
    """The text of a NAME.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """With the last word of dotted names, too, and rules of greedy under its name: as 0.1 called its settings."""
    row = row | {"policy": "greedy"} if row.get("policy") == "greedy-released" else row
    return {name.rpartition(".")[2]: value for name, value in row.items() if "." in name} | row


def _rows(out: Path) -> list[dict[str, Any]]:
    """Rows of a file, of all files of a sweep, or of the slices of a timeline."""
    if out.suffix == ".json":
        return _slices(json.loads(out.read_text())["traceEvents"])
    files = sorted(out.glob("rows-*.parquet")) if out.is_dir() else [out]
    return [row for file in files for row in read_rows(file)[0]]


def _slices(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for all slices of a stage and thread that have one name (passes: without their number)."""
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = collections.defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            name = one["name"].rstrip("0123456789 ")
            spans[one["pid"], threads[one["pid"], one["tid"]], name].append((one["ts"], one["dur"]))
    return [
        {
            "stage": stage,
            "thread": thread,
            "slice": name,
            "slices": len(some),
            "total_us": math.fsum(d for _, d in some),
        }
        | {"begin_us": min(t for t, _ in some), "end_us": max(t + d for t, d in some)}
        for (stage, thread, name), some in spans.items()
    ]


def _text(value: Any) -> str:
    """As it is kept; 400 and 400.0 are one number, whatever column they come from."""
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return repr(value) if isinstance(value, float) else str(value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _alike(name: str, before: str, now: str, near: float, row: dict[str, str]) -> bool:
    a, b = _number(before), _number(now)
    if a is None or b is None:
        return before == now
    rounded = ROUNDED_US * float(row["slices"]) if name.endswith("_us") else 0.0
    return math.isclose(a, b, rel_tol=near, abs_tol=rounded)


def _by(before: str, now: str) -> str:
    a, b = _number(before), _number(now)
    return f" ({100 * (b / a - 1):+.3g} %)" if a and b else ""


def _named(row: tuple) -> str:
    return " ".join(value for _, value in row)
