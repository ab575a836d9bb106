"""The published testbed: is an iteration on 3 optical NICs and 1 packet NIC comparable to one on 4 packet NICs?

Four servers of 8 A100 with 4 NICs of 100 Gbps, and models with fewer blocks: 7 of Mixtral 8x7B, 16 of LLaMA-MoE, 12 of
Qwen-MoE. Here each model keeps its tensor and expert parallelism, what GPUs are left are data-parallel replicas. The
delays are those measured on the testbed's switch: 41.4 ms on average for one pair of ports, 46.8 ms for 16; its NICs
then took 5.67 s to come back, which the paper leaves out of its training times. Source: arXiv 2501.03905, testbed.
"""

import dataclasses
from itertools import product

import jax
import numpy as np

from mfabric_jax import units
from mfabric_jax.case import Case, Cases
from mfabric_jax.evaluate import resolve
from mfabric_jax.timing.passes import Exchanges, places

from .pictures import dots
from .rows import Row, Rows, adding, listed, then, told, values_of
from .script import Found, Script, Verdict, cells, check, grid, only, paper

BLOCKS = {"mixtral-8x7b": 7, "llama-moe": 16, "qwen-moe": 12}
MICRO_BATCHES = 1  # of an iteration: not published, and hardly changes the ratio
TESTBED = {
    "job.batch.micro_batches": MICRO_BATCHES,
    "gpu.nvlink_gigabytes_per_s": 300.0,
    "network.fabric": ("fat-tree", "mfabric"),
    "network.nic_gbps": 100.0,
    "network.nics": 4,
    "network.nic_use": "pooled",
    "network.mfabric.optical_degree": 3,
}
KEEPS, TURNS = "as chosen", "every block"
PARTS = ("iteration_s", "reconfig_s", "compute_s", "ep_comm_s", "dp_comm_s")


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run on the testbed."""

    models: tuple[str, ...] = tuple(BLOCKS)  # Of those that ran on it.
    routings: tuple[str, ...] = ("unsplit", "split")  # How mFabric uses its circuits.
    delays_ms: tuple[float, ...] = (41.4, 42.4, 46.8)  # Turnaround of the switch for 1, 4 and 16 pairs of ports.
    reactivation_s: tuple[float, ...] = (0.0, 5.67)  # NICs come back so much after the switch has turned.
    efficiency: float = 0.5  # Achieved over peak FLOP/s of an A100.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        known = {"models": BLOCKS}
        check(self, known=known, positive="delays_ms", not_negative="reactivation_s", cases="models routings")

    def setting(self, model: str, routing: str) -> Cases:
        """One model on the fat-tree and on mFabric."""
        usual = resolve(paper().with_({"model.name": model})).job
        degrees = {"tp": usual.tp, "ep": usual.ep, "pp": 1, "gpus": 32}
        changes = {"model.name": model, "model.blocks": BLOCKS[model], "compute.efficiency": self.efficiency}
        changes |= {f"job.parallel.{name}": degree for name, degree in degrees.items()}
        return grid(changes | TESTBED | {"circuits.routing": routing, "run.seed": self.seed})


def run(config: Config) -> Found:
    """A row for each model, routing, and when the switch turns: seconds on both set-ups.

    "as chosen": where circuits change; "every block": before every first all-to-all, whether circuits change or not.
    """
    for model, routing in cells(config, config.models, config.routings):
        tree, mfabric = config.setting(model, routing)
        eps, chosen = _timed(tree), only(mfabric).exchanges
        job = resolve(mfabric).job
        moe = places(job).layer >= 0
        facts = {"model": model, "blocks": job.architecture.blocks, "gpus": job.gpus, "dp": job.dp}
        facts |= {"micro_batches": MICRO_BATCHES, "routing": routing, "eps_s": eps["iteration_s"]}
        changes = int(np.asarray(chosen.switch)[:, moe].sum())
        for turns, delay_ms, back_s in product((KEEPS, TURNS), config.delays_ms, config.reactivation_s):
            waits = {"circuits.delay_s": units.ms(delay_ms), "circuits.reactivation_s": back_s}
            time = _timed(mfabric.with_(waits), chosen if turns == KEEPS else _always(chosen, moe))
            row = facts | {"turns": turns, "changes": changes, "delay_ms": delay_ms, "reactivation_s": back_s}
            row |= {"mfabric_s": time["iteration_s"], "over_eps": time["iteration_s"] / eps["iteration_s"]}
            row |= {part: time[part] for part in PARTS[1:]}
            yield row | {f"eps_{part}": eps[part] for part in PARTS[3:]}


def _timed(setting: Case, solved: Exchanges | None = None) -> dict[str, float]:
    """Mean seconds of an iteration and its parts, of the only case, with these all-to-alls if there are any."""
    simulated = only(setting, solved)
    return {part: float(np.asarray(getattr(simulated.times, part), np.float64).mean()) for part in PARTS}


def _always(solved: Exchanges, moe: np.ndarray) -> Exchanges:
    """The switch turns before the first all-to-all of every block and pass."""
    first = np.stack([moe, np.zeros_like(moe)], axis=-1)
    return solved._replace(switch=jax.numpy.broadcast_to(first, solved.switch.shape))


def _telling(rows: Rows) -> list[Row]:
    """Rows with the name of their case; once where no delay changes anything."""
    slowest, back = max(row["delay_ms"] for row in rows), min(row["reactivation_s"] for row in rows)
    kept = [
        row
        for row in rows
        if row["turns"] == TURNS or row["changes"] or (row["delay_ms"], row["reactivation_s"]) == (slowest, back)
    ]
    return adding(case="{model}, {routing}, {delay_ms:g} ms, NICs back in {reactivation_s:g} s")(kept)


def _calm(rows: Rows) -> str:
    """Whose circuits never change."""
    changing = {row["model"] for row in rows if row["changes"]}
    calm = [model for model in values_of(rows, "model") if model not in changing]
    return f"Circuits never change, whatever the delay: {', '.join(calm)}." if calm else ""


TIMES = ("turns", "switch turns"), ("eps_s", "EPS [s]"), ("mfabric_s", "mFabric [s]"), ("over_eps", "ratio")
table = told(then(_telling, listed("case", *TIMES)), _calm)
RATIO = "over_eps", "iteration time of mFabric (3 + 1 NICs) over 4 packet NICs"
build = then(_telling, dots(RATIO, "{case}", "switch turns: {turns}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """Ratios beside "comparable", for which there is no number; with the slowest turnaround."""
    found, slowest = [], max(row["delay_ms"] for row in rows)
    for row in (row for row in _telling(rows) if row["delay_ms"] == slowest):
        back = f", {row['reactivation_s']:g} s" if row["reactivation_s"] else ""
        claim = f"{row['model']}, {row['routing']}, turns {row['turns']}{back}"
        found.append(Verdict(claim, f"{row['over_eps']:.2f} times EPS", None if back else "comparable"))
    return found


SCRIPT = Script(Config, quick={"models": ("mixtral-8x7b",)})
SCRIPT.start(__name__)
