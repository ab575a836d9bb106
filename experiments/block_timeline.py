"""What runs when in one Mixture-of-Experts block, and how much of a reconfiguration does computation hide?

As on the measured cluster: H800 GPUs, one data-parallel replica, 400 Gbps, micro-batches of 8 sequences. Published:
experts compute for more than 100 ms, long enough to hide a switch of 25 ms. At which rate the measured GPUs computed is
not published; here they do at some parts of their peak. Source: arXiv 2501.03905, timeline of a block.

    python -m experiments.block_timeline --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from mfabric_jax.study.compare import Job, computation, inside, jobs, joined, solve, weighs
from tqdm import tqdm

from mfabric_jax import report, units
from mfabric_jax.checks import distinct, names, positive
from mfabric_jax.report import style
from mfabric_jax.schedule import FIRST, Rules, compute_of, one_block, places, running_blocks, segments, timeline
from mfabric_jax.study import Compare
from mfabric_jax.workload import NAMES, get_gpu
from mfabric_jax.workload.compute import block_flops

from .script import Rows, Script, Verdict

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "block_timeline"
GPU, NVLINK_GIGABYTES = "H800-SXM", 200.0
LANES = {"compute": "compute", "NVSwitch": "compute", "waiting": "compute", "EPS": "EPS", "OCS": "OCS"}
WHICH = ("first", "second")
OF_EXPERTS = "mixtral-8x7b"  # whose experts were measured
EXPERTS_MS, USUAL_MS = 100.0, 25.0  # at least, for micro-batches of 8 sequences; of the switch
PASSES = {"forward": "#88CCEE", "backward": "#3A87B7"}
DIRECTIONS = tuple(PASSES)
ROUNDED = 0.005
SEEN, NAMED = 0.002, 0.055  # of a panel's width: narrower bars are left out, or have no name


@dataclasses.dataclass(frozen=True)
class Config:
    """Which blocks."""

    models: tuple[str, ...] = ("mixtral-8x7b", "mixtral-8x22b")
    """Each with one data-parallel replica."""
    firsts: tuple[str, ...] = ("block", "reuse", "pays")
    """Which circuits the first all-to-all of a forward block finds; the first two are drawn."""
    rates: tuple[float, ...] = (0.5, 0.2, 0.05)
    """Achieved over peak FLOP/s of an H800; the first one is drawn."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    delay_ms: float = USUAL_MS
    """Reconfiguration delay."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, NAMES)
        names("firsts", self.firsts, [first for first in FIRST if first != "predict"])
        distinct("rates", self.rates)
        positive("rates", self.rates)
        positive("delay_ms", self.delay_ms)
        for model in self.models:
            self.setting(model, self.firsts[0], self.rates[0])

    def setting(self, model: str, first: str, rate: float) -> Compare:
        """One model on the measured cluster."""
        same: dict[str, Any] = {"models": (model,), "fabrics": ("mfabric",), "nic_gbps": (self.nic_gbps,)}
        usual = Compare(**same).workload(model)
        same |= {"gpu": GPU, "efficiency": rate, "nvswitch_gigabytes_per_s": NVLINK_GIGABYTES, "first": first}
        same |= {"delay_s": units.ms(self.delay_ms), "seed": self.seed}
        return Compare(**same, dp=1, gpus=usual.gpus // usual.dp)


def run(config: Config) -> Iterator[dict[str, Any]]:
    """Rows of two kinds for each model, rule and rate.

    - "switch", for each pass and all-to-all: how many there are and before how many the switch turns (all stages of one
      iteration), its delay, what of it is paid on average, and the part that is `hidden`.
    - "segment": what happens in one block in the middle of the iteration, forward, then backward.
    """
    cells = [(model, first, rate) for model in config.models for first in config.firsts for rate in config.rates]
    for model, first, rate in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        setting = config.setting(model, first, rate)
        (job,) = jobs(setting)
        facts = {"model": model, "first": first, "rate": rate, "experts_s": float(computation(setting, job).moe_s)}
        facts |= {"rate_for_100_ms": _rate_for(job, units.ms(EXPERTS_MS))}
        yield from ({"row": kind} | facts | row for kind, row in _rows(setting, job))


def _rate_for(job: Job, seconds: float) -> float:
    """Of the peak FLOP/s, with which experts compute so long."""
    return block_flops(job.workload).moe / (job.workload.tp * get_gpu(GPU).bf16_flops * seconds)


def _rows(config: Compare, job: Job) -> Iterator[tuple[str, dict[str, Any]]]:
    solved = joined(solve(config, job), inside(config, job))
    last = jax.tree.map(lambda x: x[0, -1] if weighs(config, job) else x[-1], solved)
    gbps = config.nic_gbps[0]
    numbers = config.rates(job.fabric, gbps), computation(config, job), config.nvswitch_Bps(job.fabric.name, gbps)
    rates, seconds, nvswitch_Bps = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), numbers)
    slots, blocks = _walked(job.workload, last, rates, seconds, nvswitch_Bps)
    slots, blocks = jax.tree.map(np.asarray, (slots, blocks))
    yield from (("switch", row) for row in _switches(job, slots, blocks, config.delay_s))
    found = segments(job.workload, slots, blocks, compute_of(job.workload, seconds, nvswitch_Bps, slots.end.dtype))
    keys = ("direction", "track", "kind", "label", "start_s", "end_s")
    yield from (("segment", {key: one[key] for key in keys}) for one in one_block(job.workload, found))


@eqx.filter_jit
def _walked(workload, solved, rates, seconds, nvswitch_Bps):
    """When every block runs, and what it is."""
    solved = solved._replace(inside_s=solved.inside_s / nvswitch_Bps)
    slots = timeline(workload, rates, solved, seconds, nvswitch_Bps, Rules())
    return slots, running_blocks(workload, rates, solved)


def _switches(job: Job, slots, blocks, delay_s: float) -> Iterator[dict[str, Any]]:
    """What reconfigurations cost, by pass and all-to-all."""
    backward, moe = places(job.workload).backward, blocks.moe & blocks.present
    alone = np.maximum(blocks.optical_s, blocks.packet_s)
    late_s = np.maximum(slots.over - slots.start - alone, 0)  # [P Q L 2]
    for direction, passes in zip(DIRECTIONS, (~backward, backward), strict=True):
        for at, which in enumerate(WHICH):
            turns = (blocks.switch[..., at] & moe & passes).astype(bool)
            count, paid = int(turns.sum()), late_s[..., at][turns]
            paid_s = float(paid.mean()) if count else None
            hidden = 1 - paid_s / delay_s if paid_s is not None and delay_s else None
            yield {
                "direction": direction,
                "which": which,
                "all_to_alls": int((moe & passes).sum()),
                "turns": count,
                "delay_s": delay_s,
                "paid_s": paid_s,
                "hidden": hidden,
            }


def table(rows: Rows) -> str:
    """Before how many all-to-alls the switch turns, where it does, and which part of its delay is hidden."""
    columns = [report.Column(key) for key in ("model", "first")]
    columns += [report.Column("rate", "H800 at", percent=True), report.Column("experts_ms", "experts [ms]")]
    columns += [report.Column("direction", "pass"), report.Column("which", "all-to-all"), report.Column("turns")]
    columns += [report.Column("all_to_alls", "of"), report.Column("hidden", percent=True)]
    lines = [{**row, "experts_ms": units.to_ms(row["experts_s"])} for row in _of(rows, "switch") if row["turns"]]
    calm = [f"{model}: the switch never turns" for model in _calm(rows)]
    return "\n\n".join([*([report.plain(lines, columns)] if lines else []), *calm])


def _calm(rows: Rows) -> list[str]:
    """Models whose circuits never change."""
    turning = {row["model"] for row in _of(rows, "switch") if row["turns"]}
    return [model for model in _models(rows) if model not in turning]


def _of(rows: Rows, kind: str) -> list:
    return [row for row in rows if row["row"] == kind]


def draw(rows: Rows, path: str | Path) -> Path:
    """One block of every model under two rules (one, if the switch never turns), and below what of the delay is hidden;
    returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself."""
    rate, calm = rows[0]["rate"], _calm(rows)
    firsts = list(dict.fromkeys(row["first"] for row in rows))
    cases = [(model, first) for model in _models(rows) for first in firsts[: 1 if model in calm else 2]]
    turning = [row for row in _of(rows, "switch") if row["turns"]]
    figure = style.blank(11.0, 1.55 * len(cases) + 1.0 + 2.4 * bool(turning))
    panels = figure.subplots(len(cases) + bool(turning), 1, height_ratios=[1.0] * len(cases) + [1.6] * bool(turning))
    panels = np.atleast_1d(panels)
    for axes, (model, first) in zip(panels, cases, strict=False):
        case = model, first, rate
        _block(axes, [row for row in _of(rows, "segment") if (row["model"], row["first"], row["rate"]) == case])
        said = "the switch never turns" if model in calm else f"{first}"
        axes.set_title(f"{model}, {said} (H800 at {rate:.0%} of its peak)", loc="left")
    panels[len(cases) - 1].set_xlabel("time [ms]")
    if turning:
        _hidden(panels[-1], turning)
    figure.legend(handles=_key(rows), loc="outside lower center", ncols=6)
    return figure


def _block(axes: Axes, rows: Sequence) -> None:
    """Lanes of computation, packet switches and circuits."""
    lanes = list(dict.fromkeys(LANES.values()))
    end = max(row["end_s"] for row in rows)
    for row in rows:
        lane, look = lanes.index(LANES[row["track"]]), style.kind(row["kind"])
        start, length = units.to_ms(row["start_s"]), units.to_ms(row["end_s"] - row["start_s"])
        if length < SEEN * units.to_ms(end):
            continue
        axes.barh(lane, length, 0.8, start, color=look.colour, edgecolor="white", linewidth=0.5)
        text = row["label"].split(" (")[0]
        if length > max(NAMED, 0.011 * len(text)) * units.to_ms(end):
            ink = style.ink_on(look.colour)
            axes.text(start + length / 2, lane, text, color=ink, ha="center", va="center", fontsize=8)
    turn = units.to_ms(min(row["start_s"] for row in rows if row["direction"] == "backward"))
    axes.axvline(turn, color=style.INK, linewidth=1.0, linestyle=(0, (3, 2)))
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.5, -0.5)
    axes.set_xlim(0, units.to_ms(end))
    axes.tick_params(axis="y", length=0)
    axes.text(1, 1.04, "forward | backward of another micro-batch", transform=axes.transAxes, ha="right", fontsize=8)


def _hidden(axes: Axes, rows: Sequence) -> None:
    """A group per model and rule, a bar per pass and rate: the part of the delay that is hidden."""
    from matplotlib.patches import Patch

    rates = sorted({row["rate"] for row in rows})
    cases = list(dict.fromkeys((row["model"], row["first"]) for row in rows))
    wide = 0.8 / (2 * len(rates))
    for row in rows:
        place, here = cases.index((row["model"], row["first"])), DIRECTIONS.index(row["direction"])
        x = place + (here * len(rates) + rates.index(row["rate"]) + 0.5) * wide - 0.4
        axes.bar(x, row["hidden"], 0.9 * wide, color=PASSES[row["direction"]])
        axes.text(x, row["hidden"] + 0.02, f"{row['rate']:.0%}", ha="center", fontsize=8)
    turns = {case: max(_turns(rows, case, rate) for rate in rates) for case in cases}
    said = {case: f"{count} turn{'s' if count != 1 else ''}" for case, count in turns.items()}
    axes.set_xticks(range(len(cases)), [f"{model}, {first}\n{said[model, first]}" for model, first in cases])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(cases) - 0.5)
    axes.set_ylim(0, 1.12)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title("Hidden part of the reconfiguration delay; over the bars: part of the H800's peak", loc="left")
    handles = [Patch(color=colour, label=one) for one, colour in PASSES.items()]
    axes.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0, ncols=2)
    axes.grid(axis="y")


def _turns(rows: Sequence, case: tuple[str, str], rate: float) -> int:
    """Reconfigurations of one iteration, all stages."""
    return sum(row["turns"] for row in rows if (row["model"], row["first"], row["rate"]) == (*case, rate))


def _key(rows: Rows) -> list:
    from matplotlib.patches import Patch

    kinds = dict.fromkeys(row["kind"] for row in _of(rows, "segment"))
    return [Patch(color=style.kind(kind).colour, label=style.kind(kind).label) for kind in kinds]


def verdicts(rows: Rows) -> list[Verdict]:
    """How long experts compute, and the hidden part of reconfigurations: published as all of it behind such experts."""
    switches, found = _of(rows, "switch"), []
    first = {model: next(row for row in switches if row["model"] == model) for model in _models(switches)}
    for model, row in first.items():
        experts_ms = units.to_ms(row["experts_s"])
        claim, said = f"{model}, H800 at {row['rate']:.0%}: experts compute", f"{experts_ms:.0f} ms forward"
        measured = model == OF_EXPERTS
        published, off = f"over {EXPERTS_MS:.0f} ms", min(experts_ms / EXPERTS_MS - 1, 0.0)
        found.append(Verdict(claim, said, published, off) if measured else Verdict(claim, said))
        claim = f"{model}: rate for experts of {EXPERTS_MS:.0f} ms"
        found.append(Verdict(claim, f"{row['rate_for_100_ms']:.1%} of an H800"))
    found += [_hiding(row) for row in switches if row["turns"]]
    return found + [Verdict(f"{model}: circuits that change", "none to hide") for model in _calm(rows)]


def _models(rows: Sequence) -> list[str]:
    return list(dict.fromkeys(row["model"] for row in rows))


def _hiding(row) -> Verdict:
    """The first all-to-all of a forward pass waits for its gate, and so for its switch: nothing can hide that."""
    claim = f"{row['model']} {row['first']} at {row['rate']:.0%}, {row['direction']} {row['which']}: hidden"
    found = f"{row['hidden']:.0%} of {units.to_ms(row['delay_s']):g} ms"
    waits = (row["direction"], row["which"]) == ("forward", "first")
    if waits or units.to_ms(row["experts_s"]) < EXPERTS_MS:
        return Verdict(claim, found)
    return Verdict(claim, found, "all of it", row["hidden"] - 1, ROUNDED)


SCRIPT = Script(
    name=NAME,
    question="Timeline of one block: rows of what is hidden of reconfigurations, and of segments.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"firsts": ("block", "reuse"), "rates": (0.5, 0.05)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
