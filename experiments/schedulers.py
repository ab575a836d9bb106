"""How far are schedulers of circuits from the lower bound? Every one on published families of demand.

One switch, all turns paid, circuits directed; times in units of the busiest line over a circuit's rate (L / B), delays
and the rate of packet NICs (E) in the same. MoE: hot experts by Zipf's law, senders of as many tokens each. Beside own
reference values of another implementation, means of its own five draws; such a mean of Spectra on standard demand has a
standard deviation of 0.07.
"""

import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import NAMES, get, lower_bound
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.families import moe, standard

from .pictures import dots
from .rows import adding, of, pivot, summed, then, told
from .script import Found, Script, against, cells, check

FAMILIES = {
    "standard": standard,
    "MoE 0.4": lambda servers, seed: moe(servers, seed, skew=0.4, senders=0),
    "MoE 0.8": lambda servers, seed: moe(servers, seed, skew=0.8, senders=0),
}
REFERENCE = {  # family, servers, delay: bvn, spectra, whole-pair without packet NICs; solstice, eclipse with E = 0.1
    ("standard", 32, 0.001): (1.353, 1.149, 1.485, 0.933, 0.929),
    ("standard", 32, 0.01): (4.49, 1.332, 1.691, 1.077, 1.047),
    ("MoE 0.4", 16, 0.01): (3.11, 1.192, 1.210, 1.173, 1.272),
    ("MoE 0.8", 16, 0.05): (11.6, 1.752, 1.806, 1.883, 1.896),
}
COMPARED = tuple(name for name in NAMES if name != "exact")  # which is for a few servers
COLUMNS = (("bvn", 0.0), ("spectra", 0.0), ("whole-pair", 0.0), ("solstice", 0.1), ("eclipse", 0.1))


@dataclasses.dataclass(frozen=True)
class Config:
    """What to compare."""

    families: tuple[str, ...] = tuple(FAMILIES)  # Of demand.
    servers: tuple[int, ...] = (16, 32)  # Of a region.
    delays: tuple[float, ...] = (0.001, 0.01, 0.05)  # Of a turn, over L / B.
    packets: tuple[float, ...] = (0.0, 0.1)  # Rate of a server's packet NICs over a circuit's.
    schedulers: tuple[str, ...] = COMPARED  # By name.
    draws: int = 5  # Of every family.
    programmes: int = 200  # Linear programmes of joint, from each start.

    def __post_init__(self):
        known = {"families": FAMILIES, "schedulers": NAMES}
        check(self, known=known, not_negative="delays packets", whole={2: "servers", 1: "draws programmes"})


def run(config: Config) -> Found:
    """A row for each draw and scheduler: time, over the bound, configurations, milliseconds of planning."""
    axes = config.servers, config.families, config.packets, config.delays, range(config.draws)
    for servers, family, packet, delay, seed in cells(config, *axes):
        demand = FAMILIES[family](servers, seed)
        # numbers as arrays: other ones are no other program
        nic, eps, turn = map(jnp.asarray, (8e-9, packet, delay))
        region = Region(servers, nic, 1, eps, turn)
        bound = float(lower_bound(demand, region))
        get("quick")(demand, region)  # its loops are compiled once
        for name in config.schedulers:
            settings: dict[str, Any] = {"programmes": config.programmes} if name == "joint" else {}
            scheduler = get(name, **settings)
            began = time.process_time()
            schedule = scheduler(demand, region)
            planned_ms = 1000 * (time.process_time() - began)
            seconds = np.asarray(schedule.seconds)
            yield {
                "family": family,
                "servers": servers,
                "packet": packet,
                "delay": delay,
                "seed": seed,
                "scheduler": name,
                "time": schedule_end_s(region, schedule, demand),
                "planned": float(seconds.sum() + delay * len(seconds)),
                "bound": bound,
                "configurations": len(seconds),
                "planning_ms": planned_ms,
            }


over = adding(over=lambda row: row["time"] / row["bound"])
MEANS = summed(
    ["family", "servers", "packet", "delay", "scheduler"],
    over=of("over"),
    configurations=of("configurations"),
    planning_ms=of("planning_ms", np.median),
    time=of("time"),
)
DOWN = ["family", "servers", "packet", "delay"]
table = told(
    "time over the bound (configurations), mean of the draws",
    then(over, MEANS, pivot(DOWN, "{scheduler}", "{over:.3f} ({configurations:.0f})")),
    "CPU milliseconds of planning, median",
    then(over, MEANS, pivot(["servers", "packet", "delay", "family"], "{scheduler}", "{planning_ms:.3g}")),
)
build = then(over, MEANS, dots(("over", "time over the bound"), "{scheduler}", "{family}", panel="E {packet}"))


def verdicts(rows):
    """Reference values; and whether joint is at or below the best of the others in every draw."""
    found = []
    for (family, servers, delay), values in REFERENCE.items():
        for (name, packet), value in zip(COLUMNS, values, strict=True):
            wanted = {"family": family, "servers": servers, "delay": delay, "packet": packet, "scheduler": name}
            here = [row["time"] for row in rows if all(row[key] == given for key, given in wanted.items())]
            if here:
                claim = f"{name}, {family}, {servers} servers, delay {delay:g}: time over L / B"
                found.append(against(claim, [float(np.mean(here))], value, allowed=0.05, form=".3f"))
    best: dict[tuple, float] = {}
    for row in rows:
        key = tuple(row[name] for name in (*DOWN, "seed"))
        if row["scheduler"] != "joint":
            best[key] = min(best.get(key, np.inf), row["time"])
    ratios = [
        row["time"] / best[tuple(row[name] for name in (*DOWN, "seed"))]
        for row in rows
        if row["scheduler"] == "joint" and tuple(row[name] for name in (*DOWN, "seed")) in best
    ]
    if ratios:
        found.append(
            against("joint over the best of the others, every draw", ratios, None, 1.0, form=".4f", allowed=1e-5)
        )
    return found


QUICK = {"servers": (16,), "families": ("MoE 0.4",), "draws": 1}
SCRIPT = Script(Config, quick=QUICK, dtype="float64")
SCRIPT.start(__name__)
