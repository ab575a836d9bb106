"""The published testbed: is an iteration on 3 optical NICs and 1 packet NIC comparable to one on 4 packet NICs?

Four servers of 8 A100 with 4 NICs of 100 Gbps, and models with fewer blocks: 7 of Mixtral 8x7B, 16 of LLaMA-MoE, 12 of
Qwen-MoE. Here each model keeps its tensor and expert parallelism, what GPUs are left are data-parallel replicas. The
delays are those measured on the testbed's switch: 41.4 ms on average for one pair of ports, 46.8 ms for 16; its NICs
then took 5.67 s to come back, which the paper leaves out of its training times. Source: arXiv 2501.03905, testbed.

    python -m experiments.testbed --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from tqdm import tqdm

from mfabric_jax import report, units
from mfabric_jax.checks import distinct, names, not_negative, positive, whole
from mfabric_jax.report import style
from mfabric_jax.routing import ROUTINGS
from mfabric_jax.schedule import Exchanges, Iteration, places
from mfabric_jax.study import Compare
from mfabric_jax.study.compare import Job, computation, inside, job_times, jobs, joined, solve
from mfabric_jax.workload import Workload

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "testbed"
BLOCKS = {"mixtral-8x7b": 7, "llama-moe": 16, "qwen-moe": 12}
GPUS, NICS, OPTICAL, NVLINK_GIGABYTES = 32, 4, 3, 300.0
KEEPS, TURNS = "as chosen", "every block"
COLOURS = {KEEPS: "#0072B2", TURNS: "#D55E00"}


@dataclasses.dataclass(frozen=True)
class Testbed(Compare):
    """A comparison of models with another number of blocks."""

    blocks: int = 1

    def workload(self, name: str, gpus_per_server: int = 8) -> Workload:
        """A model with these blocks."""
        job = super().workload(name, gpus_per_server)
        return dataclasses.replace(job, architecture=dataclasses.replace(job.architecture, blocks=self.blocks))


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run on the testbed."""

    models: tuple[str, ...] = tuple(BLOCKS)
    """Of those that ran on it."""
    micro_batches: tuple[int, ...] = (1,)
    """Of an iteration: not published, and hardly changes the ratio."""
    routings: tuple[str, ...] = ("unsplit", "split")
    """How mFabric uses its circuits."""
    delays_ms: tuple[float, ...] = (41.4, 42.4, 46.8)
    """Turnaround of the switch for 1, 4 and 16 pairs of ports."""
    reactivation_s: tuple[float, ...] = (0.0, 5.67)
    """NICs come back so much after the switch has turned."""
    efficiency: float = 0.5
    """Achieved over peak FLOP/s of an A100."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, BLOCKS)
        names("routings", self.routings, ROUTINGS)
        for field in ("micro_batches", "delays_ms", "reactivation_s"):
            distinct(field, getattr(self, field))
        for count in self.micro_batches:
            whole("micro_batches", count)
        positive("delays_ms", self.delays_ms)
        not_negative("reactivation_s", self.reactivation_s)
        for model in self.models:
            self.setting(model, self.micro_batches[0], self.routings[0])

    def setting(self, model: str, micro_batches: int, routing: str) -> Testbed:
        """One model on both set-ups."""
        usual = Compare().workload(model)
        degrees = {"tp": usual.tp, "ep": usual.ep, "pp": 1, "dp": GPUS // (usual.tp * usual.ep), "gpus": GPUS}
        server = {"nics": NICS, "nic_use": ("pooled",), "optical_degree": OPTICAL, "electrical_nics": NICS - OPTICAL}
        computes = {"efficiency": self.efficiency, "compute": "achieved", "nvswitch_gigabytes_per_s": NVLINK_GIGABYTES}
        given: dict[str, Any] = degrees | server | computes
        return Testbed(
            models=(model,),
            fabrics=("fat-tree", "mfabric"),
            nic_gbps=(100.0,),
            blocks=BLOCKS[model],
            routing=routing,
            micro_batches=micro_batches,
            seed=self.seed,
            **given,
        )


def run(config: Config) -> Iterator[dict[str, Any]]:
    """A row for each model, number of micro-batches, routing, and when the switch turns: seconds on both set-ups.

    "as chosen": where circuits change; "every block": before every first all-to-all, whether circuits change or not.
    """
    cells = list(product(config.models, config.micro_batches, config.routings))
    for model, micro_batches, routing in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        setting = config.setting(model, micro_batches, routing)
        tree, here = jobs(setting)
        packets, chosen = (joined(solve(setting, job), inside(setting, job)) for job in (tree, here))
        eps = _timed(setting, tree, packets)
        facts = {"model": model, "blocks": setting.blocks, "gpus": here.workload.gpus, "dp": here.workload.dp}
        facts |= {"micro_batches": micro_batches, "routing": routing, "eps_s": eps.iteration_s}
        moe = places(here.workload).layer >= 0
        changes = int(np.asarray(chosen.switch)[:, moe].sum())
        for turns, delay_ms, back_s in product((KEEPS, TURNS), config.delays_ms, config.reactivation_s):
            waits = {"delay_s": units.ms(delay_ms), "reactivation_s": back_s}
            slower = dataclasses.replace(setting, fabrics=("mfabric",), **waits)
            (job,) = jobs(slower)
            time = _timed(slower, job, chosen if turns == KEEPS else _always(chosen, moe))
            yield facts | {
                "turns": turns,
                "changes": changes,
                "delay_ms": delay_ms,
                "reactivation_s": back_s,
                "mfabric_s": time.iteration_s,
                "over_eps": float(time.iteration_s / eps.iteration_s),
                "reconfig_s": time.reconfig_s,
                "compute_s": time.compute_s,
                "ep_comm_s": time.ep_comm_s,
                "eps_ep_comm_s": eps.ep_comm_s,
                "dp_comm_s": time.dp_comm_s,
                "eps_dp_comm_s": eps.dp_comm_s,
            }


def _timed(config: Compare, job: Job, solved: Exchanges) -> Iteration:
    """The mean iteration."""
    timed = job_times(config, job, solved, computation(config, job), config.nic_gbps)
    return jax.tree.map(lambda x: float(np.asarray(x, np.float64).mean()), timed)


def _always(solved: Exchanges, moe: np.ndarray) -> Exchanges:
    """The switch turns before the first all-to-all of every block and pass."""
    first = np.stack([moe, np.zeros_like(moe)], axis=-1)
    return solved._replace(switch=jax.numpy.broadcast_to(first, solved.switch.shape))


def table(rows: Rows) -> str:
    """Time over that on packet switches, without and with the NICs' way back."""
    columns = [report.Column("case"), report.Column("turns", "switch turns"), report.Column("delay_ms", "delay [ms]")]
    columns += [report.Column("reactivation_s", "NICs back [s]"), report.Column("eps_s", "EPS [s]")]
    columns += [report.Column("mfabric_s", "mFabric [s]"), report.Column("over_eps", "ratio")]
    changing = {row["model"] for row in rows if row["changes"]}
    calm = [model for model in dict.fromkeys(row["model"] for row in rows) if model not in changing]
    said = f"Circuits never change, whatever the delay: {', '.join(calm)}." if calm else ""
    lines = [{**row, "case": _case(row)} for row in _telling(rows)]
    return f"{report.plain(lines, columns)}\n\n{said}".rstrip()


def _telling(rows: Rows) -> Iterator[Any]:
    """Once where no delay changes anything."""
    slowest, back = max(row["delay_ms"] for row in rows), min(row["reactivation_s"] for row in rows)
    for row in rows:
        if row["turns"] == TURNS or row["changes"] or (row["delay_ms"], row["reactivation_s"]) == (slowest, back):
            yield row


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over that on packet switches, a dot per case; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: filled without, hollow with the time in which NICs come back."""
    from matplotlib.lines import Line2D

    cases = list(dict.fromkeys(_case(row) for row in rows))
    figure = style.blank(8.8, 1.6 + 0.62 * len(cases))
    axes = figure.subplots()
    slowest = max(row["delay_ms"] for row in rows)
    for row in _telling(rows):
        turning = row["turns"] == TURNS
        place = cases.index(_case(row)) + (0.18 if turning else -0.18)
        fill = "white" if row["reactivation_s"] else COLOURS[row["turns"]]
        axes.plot(row["over_eps"], place, "o", color=COLOURS[row["turns"]], markerfacecolor=fill, markersize=6)
        if row["delay_ms"] == slowest:
            axes.annotate(
                f"{row['over_eps']:.2f}",
                (row["over_eps"], place),
                (9, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.axvline(1, color=style.INK, linewidth=0.8)
    axes.set_yticks(range(len(cases)), cases)
    axes.set_ylim(len(cases) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xscale("log")
    ticks = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 100, 200) if tick <= 2 * max(row["over_eps"] for row in rows)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(0.8, ticks[-1])
    axes.set_xlabel("iteration time of mFabric (3 + 1 NICs) over 4 packet NICs")
    axes.grid(axis="x")
    dot = {"linestyle": "", "marker": "o"}
    handles = [Line2D([], [], color=colour, label=f"switch turns: {turns}", **dot) for turns, colour in COLOURS.items()]  # pyright: ignore
    back = max(row["reactivation_s"] for row in rows)
    hollow = {"color": COLOURS[TURNS], "markerfacecolor": "white"}
    handles.append(Line2D([], [], label=f"NICs back after {back:g} s", **dot | hollow))  # pyright: ignore
    figure.legend(handles=handles, loc="outside upper center", ncols=3)
    return figure


def _case(row) -> str:
    several = f" x {row['micro_batches']}" if row["micro_batches"] > 1 else ""
    return f"{row['model']}{several}, {row['routing']}"


def verdicts(rows: Rows) -> list[Verdict]:
    """Ratios beside "comparable", for which there is no number; with the slowest turnaround."""
    slowest, found = max(row["delay_ms"] for row in rows), []
    for row in (row for row in _telling(rows) if row["delay_ms"] == slowest):
        claim = f"{_case(row)}, turns {row['turns']}"
        claim += f", {row['reactivation_s']:g} s" if row["reactivation_s"] else ""
        published = None if row["reactivation_s"] else "comparable"
        found.append(Verdict(claim, f"{row['over_eps']:.2f} times EPS", published))
    return found


SCRIPT = Script(
    name=NAME,
    question="Iterations on the published testbed: a row per model, routing and turnaround.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x7b",)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
