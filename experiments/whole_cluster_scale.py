"""How large a cluster can be solved, flow by flow, in which time and memory, and who is done when?

One iteration's expert, data and pipeline parallel flows, all from time 0 on, on the whole cluster at once. Every
configuration runs in processes of its own (`mfabric cluster`), so that peak memory is its own: a first one, which
compiles, and a second one, which finds the programs compiled. Own measurements; nothing published to compare with.

    python -m experiments.whole_cluster_scale --out results
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mfabric_jax import report
from mfabric_jax.checks import InputError, distinct, whole
from mfabric_jax.report import style
from mfabric_jax.study import WholeCluster

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "whole_cluster_scale"
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
    servers: tuple[int, ...] = (128, 1024, 4096)
    """Cluster sizes; the model's data-parallel degree grows with them."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    radix: int = 64
    """Ports of a switch."""
    resolution: float = 0.01
    """Rates are solved again at most every that part of the lower bound on the time; 0 is exact."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        for field in ("fabrics", "servers"):
            distinct(field, getattr(self, field))
        for fabric, servers in product(self.fabrics, self.servers):
            whole("servers", servers)
            self.cluster(fabric, servers)

    def cluster(self, fabric: str, servers: int) -> WholeCluster:
        """One of the configurations."""
        return WholeCluster(fabric=fabric, servers=servers, **self.same)

    @property
    def same(self) -> dict[str, Any]:
        """What all of them have in common."""
        return {field: getattr(self, field) for field in ("model", "nic_gbps", "radix", "resolution", "seed")}


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each fabric, size and kind of traffic, and one for all traffic, in order of size.

    - `end_s`: its last flow ends.   - `peak_mb`: the most memory that either process has held.
    - `build_s`: flows, fabric and routes; `solve_s`: all completion times; with programs compiled before.
    - `first_s`: both, in the process that compiles.
    """
    cells = [(fabric, servers) for servers, fabric in product(config.servers, config.fabrics)]
    bar = tqdm(cells, desc=NAME, unit="cluster", file=sys.stderr, disable=None)
    return [row for fabric, servers in bar for row in _rows(config, fabric, servers)]


def _rows(config: Config, fabric: str, servers: int) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        first, again = (_solved(config.cluster(fabric, servers), Path(folder)) for _ in range(2))
    for row, before in zip(again, first, strict=True):
        peak = max(row["peak_mb"], before["peak_mb"])
        yield row | {"peak_mb": peak, "first_s": before["build_s"] + before["solve_s"]}


def _solved(one: WholeCluster, folder: Path) -> list[dict[str, Any]]:
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
    whole_ones = [row for row in rows if row["traffic"] == "all"]
    columns = [
        report.Column(*column)
        for column in (
            ("fabric",),
            ("servers",),
            ("gpus", "GPUs"),
            ("flows",),
            ("links",),
            ("build_s", "build [s]", False, 3),
            ("solve_s", "solve [s]", False, 3),
            ("first_s", "compiling [s]", False, 3),
            ("peak_mb", "peak [MB]"),
        )
    ]
    ends = [
        {"fabric": row["fabric"], "servers": row["servers"]} | {kind: here.get(kind) for kind in _kinds(rows)}
        for row in whole_ones
        for here in [{one["traffic"]: one["end_s"] for one in rows if _cluster(one) == _cluster(row)}]
    ]
    parts = report.plain(whole_ones, columns), "end of the last flow [s]", report.plain(ends)
    return "\n\n".join(parts)


def _cluster(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["fabric"], row["servers"]


def _kinds(rows: Rows) -> list[str]:
    """Kinds of traffic, those of the model."""
    here = dict.fromkeys(row["traffic"] for row in rows)
    return [kind for kind in dict.fromkeys([*KINDS, *here]) if kind in here and kind != "all"]


def draw(rows: Rows, path: str | Path) -> Path:
    """Seconds and memory against GPUs, and the end of every kind of traffic; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    figure = style.blank(12.4, 6.6)
    axes = figure.subplot_mosaic([["seconds", "ends"], ["memory", "ends"]], width_ratios=[1, 1.15])
    whole_ones = [row for row in rows if row["traffic"] == "all"]
    axes["memory"].sharex(axes["seconds"])
    _against_gpus(axes["seconds"], whole_ones, {"-": lambda row: row["build_s"] + row["solve_s"], ":": _first})
    _against_gpus(axes["memory"], whole_ones, {"-": lambda row: row["peak_mb"] / 1000})
    axes["seconds"].set_title("Time to build and solve [s]", loc="left")
    axes["memory"].set_title("Peak memory [GB]", loc="left")
    axes["memory"].set_xlabel("GPUs")
    _ends(axes["ends"], rows)
    figure.legend(handles=_key(whole_ones), loc="outside lower center", ncols=5)
    return figure


def _first(row: Mapping[str, Any]) -> float:
    return row["first_s"]


def _against_gpus(axes: Axes, rows: Rows, lines: Mapping[str, Any]) -> None:
    """A line per fabric and value, from zero."""
    from matplotlib.ticker import NullLocator

    for fabric, (dashes, value) in product(dict.fromkeys(row["fabric"] for row in rows), lines.items()):
        look = style.fabric(fabric)
        line = sorted((row["gpus"], value(row)) for row in rows if row["fabric"] == fabric)
        axes.plot(
            *zip(*line, strict=True),
            dashes,
            color=look.colour,
            marker=look.marker,
            markersize=5,
            markerfacecolor=look.colour if dashes == "-" else "white",
        )
    gpus = sorted({row["gpus"] for row in rows})
    axes.set_xscale("log")
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(bottom=0)
    axes.grid()


def _ends(axes: Axes, rows: Rows) -> None:
    """A block per kind of traffic, a line per fabric in it, a dot per size: the larger, the more GPUs."""
    fabrics, sizes = ([*dict.fromkeys(row[key] for row in rows)] for key in ("fabric", "gpus"))
    kinds, block = _kinds(rows), len(fabrics) + 1
    for row in (row for row in rows if row["traffic"] != "all"):
        look, place = style.fabric(row["fabric"]), kinds.index(row["traffic"]) * block + fabrics.index(row["fabric"])
        size = {"markersize": 4 + 3 * sizes.index(row["gpus"]), "markerfacecolor": "none", "markeredgewidth": 1.3}
        axes.plot(row["end_s"], place, look.marker, color=look.colour, **size)
    for edge in range(1, len(kinds)):
        axes.axhline(edge * block - 1, color=style.FAINT, linewidth=0.5)
    axes.set_yticks(
        [(len(fabrics) - 1) / 2 + block * place for place in range(len(kinds))],
        [KINDS.get(kind, kind).replace(", ", ",\n") for kind in kinds],
    )
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(kinds) * block - 1, -1)
    axes.set_xscale("log")
    axes.set_xlabel("end of its last flow [s]")
    axes.set_title("Who is done when", loc="left")
    axes.grid(axis="x")


def _key(rows: Rows) -> list:
    """Handles of the legend."""
    from matplotlib.lines import Line2D

    looks = [style.fabric(fabric) for fabric in dict.fromkeys(row["fabric"] for row in rows)]
    handles = [Line2D([], [], color=look.colour, marker=look.marker, label=look.label) for look in looks]
    said = "with compiling", "larger marks on the right: more GPUs"
    dotted = {"color": style.FAINT, "linestyle": ":", "marker": "o", "markerfacecolor": "white"}
    return [*handles, Line2D([], [], label=said[0], **dotted), Line2D([], [], linestyle="", label=said[1])]


def verdicts(rows: Rows) -> list[Verdict]:
    """Seconds and memory of the largest cluster on every fabric; nothing is published."""
    most = max(row["servers"] for row in rows)
    return [
        Verdict(
            f"{row['gpus']:,} GPUs, {row['fabric']}, built and solved",
            f"{row['build_s'] + row['solve_s']:.1f} s, {row['peak_mb'] / 1000:.1f} GB",
        )
        for row in rows
        if row["traffic"] == "all" and row["servers"] == most
    ]


SCRIPT = Script(
    name=NAME,
    question="Whole clusters by size: a row per fabric, size and kind of traffic.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"servers": (128, 512)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
