"""What do all-to-alls, sends between stages and gradients cost each other on the same links?

`compare` has closed forms of an iteration in which each kind of traffic has the ports of a server to itself. Here the
same iteration is a graph of messages and computations, run by the exact engine: with nothing shared, where it must take
as long, and with some or all kinds of traffic on the same ports.
"""

import dataclasses
import time
from typing import Any

import jax

from mfabric_jax.case import Case
from mfabric_jax.cluster.whole_cluster import peak_megabytes
from mfabric_jax.export import exported_iteration, timed_iteration
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks

from .rows import Rows, adding, listed, of, then
from .script import FIRST, PRESETS, Found, Script, Sweep, Verdict, cells, check

SHARED = {"EP+PP": "all-to-alls, sends", "EP+DP": "all-to-alls, gradients", "PP+DP": "sends, gradients", "all": "all"}
FABRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "fat-tree": ("fat-tree", {"network.nic_use": "pooled"}),
    "fat-tree-own": ("fat-tree", {}),
    "mfabric": ("mfabric", {}),
    "mfabric-best": ("mfabric", {"circuits.policy": "joint", "circuits.routing": "relay"} | FIRST["pays"]),
}
OVERLAP = {False: "gradients at the end", True: "gradients beside the last passes"}
LARGE = {"deepseek-v3": {"job.batch.micro_batches": 24, "job.batch.bubble": None}}  # of its 240


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """What to run."""

    models: tuple[str, ...] = (  # Of the catalogue; deepseek-v3 with 24 of its 240 micro-batches.
        *("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "qwen-moe-ep16"),
        *("deepseek-r1", "deepseek-v3"),
    )
    fabrics: tuple[str, ...] = ("fat-tree", "mfabric", "mfabric-best")  # fat-tree (NICs pooled), fat-tree-own, mfabric.
    presets: tuple[str, ...] = ("paper", "today")  # paper, today.
    overlap: tuple[bool, ...] = (False, True)  # Gradients beside the last backward passes.

    def __post_init__(self):
        known = {"fabrics": FABRICS, "presets": ("paper", "today")}
        check(self, known=known, distinct="overlap", cases="models fabrics presets overlap")

    def setting(self, model: str, fabric: str, preset: str, overlap: bool) -> Case:
        """One iteration."""
        name, given = FABRICS[fabric]
        own = {"job.overlap_gradients": overlap, "run.dtype": "float64"}
        (one,) = self.case(model, name, PRESETS[preset] | given | LARGE.get(model, {}) | own)
        return one


def run(config: Config) -> Found:
    """A row for each iteration: seconds, tasks, and what sharing adds to it, as a part of it."""
    for model, fabric, preset, overlap in cells(config, config.models, config.fabrics, config.presets, config.overlap):
        jax.clear_caches()  # a process has room for the programs of some sixty such iterations
        began = time.perf_counter()
        setting = config.setting(model, fabric, preset, overlap)
        one = exported_iteration(setting, barriers="marker", receives=False)
        built_s, found = time.perf_counter() - began, {name: timed_iteration(one, name) for name in ("none", *SHARED)}
        more = {name: solved.iteration_s / one.iteration_s - 1 for name, solved in found.items()}
        row = {"model": model, "fabric": fabric, "preset": preset, "gradients": OVERLAP[overlap]}
        row |= {"iteration_s": one.iteration_s, "tasks": one.graph.tasks, "events": found["all"].events}
        yield row | more | {"build_s": built_s, "solve_s": found["all"].solve_s, "peak_mb": peak_megabytes()}


table = then(
    adding(**{name: f"{{{name}:.2%}}" for name in SHARED}),
    listed(
        *("model", "fabric", "preset", "gradients", ("iteration_s", "iteration [s]"), "tasks", *SHARED.items()),
        *("events", "solve_s", "peak_mb"),
    ),
)
PANEL = Dots(
    Axis("more", "added to an iteration", percent=True, low=0),
    Axis("model"),
    "shared",
    looks(SHARED),
    dodge=True,
    title="{fabric}, {how}",
)
PICTURE = Picture(
    (PANEL,),
    across="fabric",
    down="how",
    shown=lambda rows: [
        row | {"shared": name, "more": row[name], "how": f"{row['preset']}, {row['gradients']}"}
        for row in rows
        for name in SHARED
    ],
)


def verdicts(rows: Rows) -> list[Verdict]:
    """How far the graph is from the closed form without sharing, and the most that sharing adds."""
    off = max(abs(row["none"]) for row in rows)
    most = of("all", max)(rows)
    return [
        Verdict("a graph that shares nothing, against compare", f"{off:.1e}", "0", off, 1e-6),
        Verdict("what sharing adds to an iteration, at most", f"{most:.2%}"),
    ]


SCRIPT = Script(Config, quick={"models": ("llama-moe", "mixtral-8x7b"), "presets": ("paper",)}, dtype="float64")
SCRIPT.start(__name__)
