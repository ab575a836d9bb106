"""How large a cluster can be solved, flow by flow, in which time and memory, and who is done when?

One iteration's expert, data and pipeline parallel flows, all from time 0 on, on the whole cluster at once. Every
configuration runs in processes of its own (`mfabric cluster`), so that peak memory is its own: a first one, which
compiles, and a second one, which finds the programs compiled. Own measurements; nothing published to compare with.
"""

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Lines, Picture, Pictures
from mfabric_jax.study import WholeCluster

from .script import Row, Rows, Script, Verdict, cells, check, listed, measured, picked, pivot, values_of

KINDS = {
    "EP": "Expert parallel",
    "DP experts": "Gradients of experts",
    "DP between": "Other gradients, between servers",
    "DP inside": "Other gradients, inside",
    "PP": "Pipeline",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Which clusters."""

    model: str = "mixtral-8x7b"
    fabrics: tuple[str, ...] = ("fat-tree", "rail-optimized", "mfabric")
    servers: tuple[int, ...] = (128, 1024, 4096)  # Cluster sizes; the model's data-parallel degree grows with them.
    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    radix: int = 64  # Ports of a switch.
    resolution: float = 0.01
    """Rates are solved again at most every that part of the lower bound on the time; 0 is exact."""
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        check(self, distinct="fabrics servers", whole={1: "servers"})
        for fabric, servers in product(self.fabrics, self.servers):
            self.cluster(fabric, servers)

    def cluster(self, fabric: str, servers: int) -> WholeCluster:
        """One of the configurations."""
        return WholeCluster(fabric=fabric, servers=servers, **self.same)

    @property
    def same(self) -> dict[str, Any]:
        """What all of them have in common."""
        return {field: getattr(self, field) for field in ("model", "nic_gbps", "radix", "resolution", "seed")}


def run(config: Config) -> list[Row]:
    """A row for each fabric, size and kind of traffic, and one for all traffic, in order of size.

    - `end_s`: its last flow ends.   - `peak_mb`: the most memory that either process has held.
    - `build_s`: flows, fabric and routes; `solve_s`: all completion times; with programs compiled before.
    - `first_s`: both, in the process that compiles.
    """
    each = cells(config, config.servers, config.fabrics)
    return [row for servers, fabric in each for row in _rows(config, fabric, servers)]


def _rows(config: Config, fabric: str, servers: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        first, again = (_solved(config.cluster(fabric, servers), Path(folder)) for _ in range(2))
    for row, before in zip(again, first, strict=True):
        peak = max(row["peak_mb"], before["peak_mb"])
        yield row | {"peak_mb": peak, "first_s": before["build_s"] + before["solve_s"]}


def _solved(one: WholeCluster, folder: Path) -> list[Row]:
    """The rows of `mfabric cluster` in a process of its own, which keeps compiled programs in the folder."""
    options = ("model", "fabric", "servers", "nic_gbps", "radix", "resolution", "seed")
    words = [word for name in options for word in ("--" + name.replace("_", "-"), str(getattr(one, name)))]
    keep = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-m", "mfabric_jax.cli", "cluster", *words, "--out", str(folder / "rows.csv")]
    done = subprocess.run(command, env=os.environ | keep, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise InputError(f"{one.fabric} on {one.servers} servers ended with status {done.returncode}: {said[0]}")
    return report.read_rows(folder / "rows.csv")[0]


def table(rows: Rows) -> str:
    """Seconds and memory by cluster, then when each kind of traffic ends."""
    titles = {"build_s": "build [s]", "solve_s": "solve [s]", "first_s": "compiling [s]"}
    seconds = [(key, title, False, 3) for key, title in titles.items()]
    columns = "fabric", "servers", ("gpus", "GPUs"), "flows", "links", *seconds, ("peak_mb", "peak [MB]")
    ends = pivot(_ends(rows), ("fabric", "servers"), "{traffic}", lambda row: row["end_s"])
    return "\n\n".join([listed(picked(rows, traffic="all"), *columns), "end of the last flow [s]", ends])


def _ends(rows: Rows) -> list[Row]:
    """Rows of the kinds of traffic, in their order; the dots of larger clusters are larger."""
    order = [*KINDS, *(kind for kind in values_of(rows, "traffic") if kind not in KINDS)]
    sizes = sorted(values_of(rows, "gpus"))
    return [
        row | {"kind": _named(kind), "size": 4 + 3 * sizes.index(row["gpus"]), "hollow": True}
        for kind in order
        if kind != "all"
        for row in picked(rows, traffic=kind)
    ]


def _named(kind: str) -> str:
    return KINDS.get(kind, kind).replace(", ", ",\n")


def _costs(rows: Rows) -> Iterator[Row]:
    """Seconds of the second process, then those of the first one, which compiles."""
    for row in picked(rows, traffic="all"):
        yield row | {"seconds": row["build_s"] + row["solve_s"], "gigabytes": row["peak_mb"] / 1000, "compiles": False}
        yield row | {"seconds": row["first_s"], "gigabytes": None, "compiles": True}


LOOKS: dict[str, Any] = {"by": "fabric", "looks": style.FABRICS}
GPUS = Axis("gpus", "GPUs", log=True, ticks="{:,}".format)
SECONDS, MEMORY = Axis("seconds", "time to build and solve [s]", low=0), Axis("gigabytes", "peak memory [GB]", low=0)
COSTS = Picture(
    (Lines(GPUS, SECONDS, **LOOKS, dashed=("compiles", "with compiling")), Lines(GPUS, MEMORY, **LOOKS)),
    shown=_costs,
    width=4.6,
)
END = Axis("end_s", "end of its last flow [s] (larger: more GPUs)", log=True)
ENDING: dict[str, Any] = {"hollow": "hollow", "size": "size", "title": "Who is done when"}
DONE = Picture((Dots(END, Axis("fabric"), **LOOKS, block="kind", blocks_named=True, **ENDING),), shown=_ends, width=4.2)
PICTURE = Pictures((COSTS, DONE))


def verdicts(rows: Rows) -> list[Verdict]:
    """Seconds and memory of the largest cluster on every fabric; nothing is published."""
    most = max(row["servers"] for row in rows)
    largest = picked(rows, traffic="all", servers=most)
    took = lambda here: f"{here[0]['build_s'] + here[0]['solve_s']:.1f} s, {here[0]['peak_mb'] / 1000:.1f} GB"  # noqa: E731
    return measured(largest, ["fabric"], "{gpus:,} GPUs, {fabric}, built and solved", "{}", took)


SCRIPT = Script(Config, quick={"servers": (128, 512)})
SCRIPT.start(__name__)
