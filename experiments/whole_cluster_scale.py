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
from pathlib import Path
from typing import Any

from mfabric_jax import report
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import NAMES
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Lines, Picture, Pictures

from .rows import Row, Rows, adding, listed, measured, picked, pivot, then, told, values_of, where
from .script import FLOW_BY_FLOW, Script, Sweep, cells, check, replica_gpus

KINDS = {
    "EP": "Expert parallel",
    "DP experts": "Gradients of experts",
    "DP between": "Other gradients, between servers",
    "DP inside": "Other gradients, inside",
    "PP": "Pipeline",
}
SERVER_GPUS = 8  # of an A100 server


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """Which clusters."""

    model: str = "mixtral-8x7b"
    fabrics: tuple[str, ...] = ("fat-tree", "rail-optimized", "mfabric")
    servers: tuple[int, ...] = (128, 1024, 4096)  # Cluster sizes; the model's data-parallel degree grows with them.
    radix: int = 64  # Ports of a switch.

    def __post_init__(self):
        check(self, known={"fabrics": NAMES}, distinct="servers", whole={0: "seed", 1: "servers"})
        check(self, cases="fabrics servers")

    def setting(self, fabric: str, servers: int) -> Case:
        """One of the configurations."""
        replica = replica_gpus(self.model)
        if servers * SERVER_GPUS % replica:
            got = f"got {servers} ({servers * SERVER_GPUS} GPUs)"
            raise InputError(f"servers must hold whole replicas of {self.model} ({replica} GPUs each), {got}.")
        own = {"job.parallel.gpus": servers * SERVER_GPUS, "network.radix": self.radix} | FLOW_BY_FLOW
        (one,) = self.case(self.model, fabric, own)
        return one


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
        first, again = (_solved(config.setting(fabric, servers), Path(folder)) for _ in range(2))
    for row, before in zip(again, first, strict=True):
        peak = max(row["peak_mb"], before["peak_mb"])
        yield row | {"peak_mb": peak, "first_s": before["build_s"] + before["solve_s"]}


def _solved(one: Case, folder: Path) -> list[Row]:
    """The rows of `mfabric cluster` in a process of its own, which keeps compiled programs in the folder."""
    gpus, network = one.job.parallel.gpus or 0, one.network
    words = ["--preset", "paper", "--model", one.model.name, "--fabric", network.fabric, "--gpus", str(gpus)]
    words += ["--nic-gbps", str(network.nic_gbps), "--set", f"network.radix={network.radix}"]
    words += ["--seed", str(one.run.seed)]
    words += [word for path, value in FLOW_BY_FLOW.items() for word in ("--set", f"{path}={value}")]
    keep = {"JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-m", "mfabric_jax.cli", "cluster", *words, "--out", str(folder / "rows.csv")]
    done = subprocess.run(command, env=os.environ | keep, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        where = f"{network.fabric} on {gpus // SERVER_GPUS} servers"
        raise InputError(f"{where} ended with status {done.returncode}: {said[0]}")
    return report.read_rows(folder / "rows.csv")[0]


def _ends(rows: Rows) -> list[Row]:
    """Rows of the kinds of traffic, in their order; the dots of larger clusters are larger."""
    kinds, sizes = list(dict.fromkeys((*KINDS, *values_of(rows, "traffic")))), sorted(values_of(rows, "gpus"))
    named = adding(
        kind=lambda row: str(KINDS.get(row["traffic"], row["traffic"])).replace(", ", ",\n"),
        size=lambda row: 4 + 3 * sizes.index(row["gpus"]),
        hollow=lambda row: True,
    )
    return named([row for kind in kinds if kind != "all" for row in picked(rows, traffic=kind)])


def _costs(rows: Rows) -> list[Row]:
    """Seconds of the second process, then those of the first one, which compiles."""
    again = {"seconds": lambda row: row["build_s"] + row["solve_s"], "gigabytes": lambda row: row["peak_mb"] / 1000}
    first = {"seconds": "first_s", "gigabytes": lambda row: None}
    everything = picked(rows, traffic="all")
    return [
        *adding(**again, compiles=lambda row: False)(everything),
        *adding(**first, compiles=lambda row: True)(everything),
    ]


SECONDS = ("build_s", "build [s]", False, 3), ("solve_s", "solve [s]", False, 3), ("first_s", "compiling [s]", False, 3)
COLUMNS = "fabric", "servers", ("gpus", "GPUs"), "flows", "links", *SECONDS, ("peak_mb", "peak [MB]")
ENDS = then(_ends, pivot(("fabric", "servers"), "{traffic}", "end_s"))
table = told(then(where(traffic="all"), listed(*COLUMNS)), "end of the last flow [s]", ENDS)

LOOKS: dict[str, Any] = {"by": "fabric", "looks": style.FABRICS}
GPUS = Axis("gpus", "GPUs", log=True, ticks="{:,}".format)
TIME, MEMORY = Axis("seconds", "time to build and solve [s]", low=0), Axis("gigabytes", "peak memory [GB]", low=0)
COSTS = Picture(
    (Lines(GPUS, TIME, **LOOKS, dashed=("compiles", "with compiling")), Lines(GPUS, MEMORY, **LOOKS)),
    shown=_costs,
    width=4.6,
)
END = Axis("end_s", "end of its last flow [s] (larger: more GPUs)", log=True)
ENDING: dict[str, Any] = {"hollow": "hollow", "size": "size", "title": "Who is done when"}
DONE = Picture((Dots(END, Axis("fabric"), **LOOKS, block="kind", blocks_named=True, **ENDING),), shown=_ends, width=4.2)
PICTURE = Pictures((COSTS, DONE))


def _largest(rows: Rows) -> list[Row]:
    return [
        row for row in _costs(rows) if row["servers"] == max(row["servers"] for row in rows) and not row["compiles"]
    ]


# seconds and memory of the largest cluster on every fabric; nothing is published
TOOK = measured(["fabric"], "{gpus:,} GPUs, {fabric}, built and solved", lambda here: here[0]["took"])
verdicts = then(_largest, adding(took="{seconds:.1f} s, {gigabytes:.1f} GB"), TOOK)

SCRIPT = Script(Config, quick={"servers": (128, 512)})
SCRIPT.start(__name__)
