"""What runs when in one Mixture-of-Experts block, and how much of a reconfiguration does computation hide?

As on the measured cluster: H800 GPUs, one data-parallel replica, 400 Gbps, micro-batches of 8 sequences. Published:
experts compute for more than 100 ms, long enough to hide a switch of 25 ms. At which rate the measured GPUs computed is
not published; here they do at some parts of their peak. Source: arXiv 2501.03905, timeline of a block.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.evaluate.rows.timeline import walk_problem
from mfabric_jax.report.figures.timelines import build_block
from mfabric_jax.timing.passes import places
from mfabric_jax.timing.trace import one_block, segments
from mfabric_jax.workload import Workload, get_gpu
from mfabric_jax.workload.compute import block_flops

from .rows import Row, Rows, adding, group_rows, listed, picked, values_of
from .script import FIRST, Found, Script, Sweep, Verdict, cells, check, only

GPU, NVLINK_GIGABYTES = "H800-SXM", 200.0
WHICH = ("first", "second")
OF_EXPERTS = "mixtral-8x7b"  # whose experts were measured
EXPERTS_MS, USUAL_MS = 100.0, 25.0  # at least, for micro-batches of 8 sequences; of the switch
DIRECTIONS = ("forward", "backward")
SEGMENT = ("direction", "track", "kind", "label", "start_s", "end_s")
ROUNDED = 0.005


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """Which blocks."""

    models: tuple[str, ...] = ("mixtral-8x7b", "mixtral-8x22b")  # Each with one data-parallel replica.
    firsts: tuple[str, ...] = ("block", "reuse", "pays")
    """Which circuits the first all-to-all of a forward block finds."""
    rates: tuple[float, ...] = (0.5, 0.2, 0.05)  # Achieved over peak FLOP/s of an H800.
    delay_ms: float = USUAL_MS  # Reconfiguration delay.

    def __post_init__(self):
        known = {"firsts": [first for first in FIRST if first != "predict"]}
        check(self, known=known, positive="rates delay_ms", cases="models firsts rates")

    def setting(self, model: str, first: str, rate: float) -> Cases:
        """One model on the measured cluster."""
        own = {"gpu.name": GPU, "gpu.nvlink_gigabytes_per_s": NVLINK_GIGABYTES, "compute.efficiency": rate}
        own |= {"job.parallel.dp": 1, "circuits.delay_s": units.ms(self.delay_ms)}
        return self.case(model, "mfabric", FIRST[first] | own)


def run(config: Config) -> Found:
    """Rows of two kinds for each model, rule and rate.

    - "switch", for each pass and all-to-all: how many there are and before how many the switch turns (all stages of one
      iteration), its delay, what of it is paid on average, and the part that is `hidden`.
    - "segment": what happens in one block in the middle of the iteration, forward, then backward.
    """
    for model, first, rate in cells(config, config.models, config.firsts, config.rates):
        problem = only(config.setting(model, first, rate)).problem
        job, walked = problem.workload, jax.tree.map(np.asarray, walk_problem(problem))
        parts = one_block(job, segments(job, walked))
        facts = {"model": model, "first": first, "rate": rate, "experts_s": float(problem.seconds.moe_s)}
        at_peak_s = block_flops(job).moe / (job.tp * get_gpu(GPU).bf16_flops)
        facts |= {"rate_for_100_ms": at_peak_s / units.ms(EXPERTS_MS)}
        switches = _switches(job, walked.slots, walked.blocks, units.ms(config.delay_ms))
        yield from ({"row": "switch"} | facts | row for row in switches)
        yield from ({"row": "segment"} | facts | {key: part[key] for key in SEGMENT} for part in parts)


def _switches(job: Workload, slots: Any, blocks: Any, delay_s: float) -> Found:
    """What reconfigurations cost, by pass and all-to-all."""
    backward, moe = places(job).backward, blocks.moe & blocks.present
    alone = np.maximum(blocks.optical_s, blocks.electronic_s)
    late_s = np.maximum(slots.over - slots.start - alone, 0)  # [P Q L 2]
    for direction, passes in zip(DIRECTIONS, (~backward, backward), strict=True):
        for rank, which in enumerate(WHICH):
            turns = (blocks.switch[..., rank] & moe & passes).astype(bool)
            count, paid = int(turns.sum()), late_s[..., rank][turns]
            paid_s = float(paid.mean()) if count else None
            hidden = 1 - paid_s / delay_s if paid_s is not None and delay_s else None
            place = {"direction": direction, "which": which, "all_to_alls": int((moe & passes).sum()), "turns": count}
            yield place | {"delay_s": delay_s, "paid_s": paid_s, "hidden": hidden}


def table(rows: Rows) -> str:
    """Before how many all-to-alls the switch turns, where it does, and which part of its delay is hidden."""
    case = "model", "first", ("rate", "H800 at", True), ("experts_ms", "experts [ms]"), ("direction", "pass")
    columns = *case, ("which", "all-to-all"), "turns", ("all_to_alls", "of"), ("hidden", None, True)
    calm = [f"{model}: the switch never turns" for model in _calm(rows)]
    return "\n\n".join(filter(None, [listed(*columns)(lines) if (lines := _turning(rows)) else "", *calm]))


def _turning(rows: Rows) -> list[Any]:
    """Rows of all-to-alls before which the switch turns."""
    turning = [row for row in picked(rows, row="switch") if row["turns"]]
    return adding(experts_ms=lambda row: units.to_ms(row["experts_s"]))(turning)


def _calm(rows: Rows) -> list[str]:
    """Models whose circuits never change."""
    turning = values_of(_turning(rows), "model")
    return [model for model in values_of(rows, "model") if model not in turning]


def build(rows: Rows) -> Figure:
    """One block of the first model whose switch turns, else of the first."""
    row = (_turning(rows) or rows)[0]
    case = {key: row[key] for key in ("model", "first", "rate")}
    title = "{model}, {first} (H800 at {rate:.0%} of its peak)".format(**case)
    return build_block(picked(rows, row="segment", **case), title)


def verdicts(rows: Rows) -> list[Verdict]:
    """How long experts compute, and the hidden part of reconfigurations: published as all of it behind such experts."""
    switches, found = picked(rows, row="switch"), []
    for (model,), here in group_rows(switches, "model").items():
        experts_ms, rate = units.to_ms(here[0]["experts_s"]), here[0]["rate"]
        claim, text = f"{model}, H800 at {rate:.0%}: experts compute", f"{experts_ms:.0f} ms forward"
        published, off = f"over {EXPERTS_MS:.0f} ms", min(experts_ms / EXPERTS_MS - 1, 0.0)
        found.append(Verdict(claim, text, published, off) if model == OF_EXPERTS else Verdict(claim, text))
        needed = f"{here[0]['rate_for_100_ms']:.1%} of an H800"
        found.append(Verdict(f"{model}: rate for experts of {EXPERTS_MS:.0f} ms", needed))
    found += [_hiding(row) for row in _turning(rows)]
    return found + [Verdict(f"{model}: circuits that change", "none to hide") for model in _calm(rows)]


def _hiding(row: Row) -> Verdict:
    """The first all-to-all of a forward pass waits for its gate, and so for its switch: nothing can hide that."""
    claim = f"{row['model']} {row['first']} at {row['rate']:.0%}, {row['direction']} {row['which']}: hidden"
    part = f"{round(row['hidden'], 2) + 0.0:.0%} of {units.to_ms(row['delay_s']):g} ms"
    waits = (row["direction"], row["which"]) == ("forward", "first")
    if waits or units.to_ms(row["experts_s"]) < EXPERTS_MS:
        return Verdict(claim, part)
    return Verdict(claim, part, "all of it", row["hidden"] - 1, ROUNDED)


SCRIPT = Script(Config, quick={"firsts": ("block", "reuse"), "rates": (0.5, 0.05)})
SCRIPT.start(__name__)
