"""Which all-to-all that relays ends first, by delay, bytes and circuits: Bruck's, the ternary one, Valiant's or ours?

The NICs of a server, 400 Gbps each, are on one optical switch; there are none on packet switches. Each stage of an
all-to-all adds a latency. Beside the relayed ones stand direct circuits: the better of `joint` and of
all shifts in turn. Bruck's has its best base.
"""

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import Stage, bruck, get, relay_stages, ternary, valiant
from mfabric_jax.circuit_schedules.families import moe
from mfabric_jax.circuit_schedules.stages import stages_end_s
from mfabric_jax.units import gigabytes

from .pictures import Row, Rows, heat
from .rows import adding, duration, pivot, then, told
from .script import Found, Script, Verdict, against, cells, check

NIC_GBPS = 400.0
PROGRAMMES = 30  # of joint, from each start
FAMILIES = {
    "equal blocks": lambda servers: (1 - np.eye(servers)) / (servers - 1),
    "MoE 0.8": lambda servers: moe(servers, 0, skew=0.8),
}
NETWORKS = {  # servers, ports of each, whether a circuit carries one direction
    "16 servers, 1 port": (16, 1, True),
    "16 servers, 4 ports": (16, 4, True),
    "9 servers, 2 ports both ways": (9, 2, False),
}


@dataclasses.dataclass(frozen=True)
class Config:
    """What to map."""

    families: tuple[str, ...] = tuple(FAMILIES)  # Of demand.
    networks: tuple[str, ...] = tuple(NETWORKS)  # Servers and their ports.
    gigabytes: tuple[float, ...] = (4e-6, 4e-4, 0.04, 4.0)  # Of the busiest server in one all-to-all.
    delays_s: tuple[float, ...] = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)  # Of a reconfiguration.
    step_s: float = 2e-6  # Latency of a stage.

    def __post_init__(self):
        check(
            self,
            known={"families": FAMILIES, "networks": NETWORKS},
            positive="gigabytes",
            not_negative="delays_s step_s",
        )


def run(config: Config) -> Found:
    """A row for each point: seconds of every all-to-all, the best of the others, and reconfigurations of ours."""
    for cell in cells(config, config.networks, config.families, config.gigabytes, config.delays_s):
        network, family, size, delay_s = cell
        servers, ports, directed = NETWORKS[network]
        nic, degree, packets, delay = map(jnp.asarray, (NIC_GBPS, ports, 0.0, delay_s))
        region = Region(servers, nic, degree, packets, delay)
        demand = gigabytes(size) * FAMILIES[family](servers)
        times = {
            name: min(stages_end_s(region, stages, config.step_s) for stages in every)
            for name, every in others(demand, region, directed)
        }
        ours = relay_stages(demand, region, programmes=PROGRAMMES, step_s=config.step_s, directed=directed)
        ours_s = stages_end_s(region, ours, config.step_s)
        best = min(times, key=lambda name: times[name])
        yield {
            "family": family,
            "network": network,
            "gigabytes": size,
            "delay_s": delay_s,
            **{f"{name.lower()}_s": seconds for name, seconds in times.items()},
            "ours_s": ours_s,
            "best": best,
            "over": times[best] / ours_s,
            "stages": len(ours),
            "reconfigurations": sum(len(stage.schedule.seconds) - stage.schedule.first_free for stage in ours),
        }


def others(demand: np.ndarray, region: Region, directed: bool) -> Iterator[tuple[str, list[list[Stage]]]]:
    """Yield the name and the candidates of each all-to-all that is not ours."""
    direct = get("joint", programmes=PROGRAMMES, directed=directed)(demand, region)
    yield "direct", [[Stage(direct, demand)], bruck(demand, region, base=len(demand), directed=directed)]
    yield "Valiant", [valiant(demand, region, directed=directed)]
    yield "Bruck", [bruck(demand, region, base=base, directed=directed) for base in range(2, len(demand))]
    yield "ternary", [ternary(demand, region, directed=directed)]


def size_of(row: Row) -> str:
    """4 kB, 40 MB, 4 GB."""
    unit, factor = next(pair for pair in (("GB", 1.0), ("MB", 1e3), ("kB", 1e6)) if row["gigabytes"] * pair[1] >= 1)
    return f"{row['gigabytes'] * factor:g} {unit}"


named = adding(delay=lambda row: duration(row["delay_s"]) if row["delay_s"] else "0", size=size_of)
DOWN = ["network", "family", "size"]
table = told(
    "the best of the others, and how many times as long as ours it takes",
    then(named, pivot(DOWN, "{delay}", "{best} {over:.2f}")),
    "ours: stages, reconfigurations",
    then(named, pivot(DOWN, "{delay}", "{stages}, {reconfigurations}")),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """Whether ours is at or below the best of the others in every cell."""
    ratios = [1 / row["over"] for row in rows]
    return [against("ours over the best of the others, every cell", ratios, None, 1.0, form=".4f", allowed=1e-9)]


def build(rows: Rows):
    """The map: how many times as long as ours the best of the others takes."""
    draw = heat(
        ("delay", "delay of a reconfiguration"),
        ("size", "bytes of the busiest server"),
        ("over", "best of the others / ours"),
        panel="{network}, {family}",
        number="{best}\n{0:.2f}",
        title="The best of the other all-to-alls that relay, and its time over ours",
    )
    return draw(named(rows))


QUICK = {"families": ("MoE 0.8",), "networks": ("9 servers, 2 ports both ways",)}
SCRIPT = Script(Config, quick=QUICK, dtype="float64")
SCRIPT.start(__name__)
