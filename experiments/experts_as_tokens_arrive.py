"""What is gained by experts that begin as tokens arrive, configuration by configuration of a circuit schedule?

One MoE all-to-all between 16 servers with one optical port each, in units of L / B: what the busiest line takes at the
rate of a circuit. The busiest server computes as long as `compute`; every part that it computes costs `batch` more. A
schedule's configurations are merged to so many parts; one part is the all-to-all, then computation, then the combine.
"""

import dataclasses

import jax
import numpy as np

from mfabric_jax.circuit_schedules import NAMES, CircuitSchedule, get
from mfabric_jax.circuit_schedules.families import moe
from mfabric_jax.fabric import Region
from mfabric_jax.routing.arrived import arrivals
from mfabric_jax.timing.arrivals import block_ends

from .pictures import lines
from .rows import adding, measured, of, pivot, then, told, where
from .script import Found, Script, check

NIC = 8e-9  # gigabits/s of 1 byte/s
PADDED = 64
TIMED = jax.jit(arrivals)
ALL = 10**6  # parts: as many as there are


@dataclasses.dataclass(frozen=True)
class Config:
    """What to vary, in parts of L / B."""

    servers: int = 16
    schedulers: tuple[str, ...] = ("whole-pair", "rotor")
    delays: tuple[float, ...] = (0.001, 0.01, 0.05)  # Of a turn.
    batches: tuple[float, ...] = (0.0, 0.01, 0.05, 0.2)  # Fixed cost of a part.
    parts: tuple[int, ...] = (1, 2, 4, 8, ALL)  # Configurations are merged to so many.
    compute: float = 1.0  # Of the busiest server's tokens.
    draws: int = 3  # Of the demand; their mean.

    def __post_init__(self):
        check(
            self,
            known={"schedulers": NAMES},
            positive="compute",
            not_negative="delays batches",
            whole={1: "parts draws", 2: "servers"},
        )


def run(config: Config) -> Found:
    """A row for each scheduler, delay, fixed cost and number of parts: mean time of the block over that of one part."""
    for scheduler in config.schedulers:
        for delay in config.delays:
            drawn = [_arrived(config, scheduler, delay, seed) for seed in range(config.draws)]
            for batch in config.batches:
                for parts in config.parts:
                    ends = [[_end(config, one, n, batch) for n in (parts, 1)] for one in drawn]
                    own, whole = np.transpose(ends)
                    row = {"scheduler": scheduler, "delay": delay, "batch": batch, "parts": parts}
                    shown = np.array([len(one.time) - 1 for one in drawn])  # beside what stays
                    row |= {"configurations": float(shown.mean()), "used": float(np.minimum(shown, parts).mean())}
                    yield row | {"end": float(own.mean()), "over_one": float((own / whole).mean())}


def _arrived(config: Config, scheduler: str, delay: float, seed: int):
    region = Region(config.servers, NIC, 1, 0.0, delay)
    demand = moe(config.servers, seed)
    schedule = get(scheduler)(demand, region)
    shown, seconds = np.asarray(schedule.configurations), np.asarray(schedule.seconds)
    more = -len(seconds) % PADDED  # shown for no time: schedules of other lengths are no other program
    padded = CircuitSchedule(np.pad(shown, ((0, more), (0, 0), (0, 0))), np.pad(seconds, (0, more)))
    return jax.tree.map(lambda part: np.asarray(part)[: len(seconds) + 1], TIMED(region, padded, demand))


def _end(config: Config, arrived, parts: int, batch: float) -> float:
    busiest = float(arrived.bytes.sum(0).max())
    return float(block_ends(arrived.merge_parts(parts), 1.0, batch, config.compute / busiest).combine_s)


named = adding(count=lambda row: "all" if row["parts"] == ALL else str(row["parts"]))
OVER = pivot(["scheduler", "delay", "batch", "configurations"], "{count} parts", "{over_one:.3f}")
table = told("time of the block over that of one all-to-all, then computation", then(named, OVER))
build = then(
    named,
    where(scheduler="whole-pair"),
    lines(("used", "parts"), ("over_one", "time over that of one part"), "batch {batch}", panel="delay {delay}"),
)
LABEL = "4 parts over one, {scheduler}, delay {delay}"
verdicts = then(named, where(parts=4, batch=0.01), measured(["scheduler", "delay"], LABEL, of("over_one"), "{:.3f}"))

QUICK = {"delays": (0.01,), "batches": (0.01, 0.2), "schedulers": ("whole-pair",), "draws": 1, "servers": 8}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
