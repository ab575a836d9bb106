"""How many NICs of a server should be optical, how many electrical, if the network is to cost the same?

Every split has the price of mFabric's default, 6 optical and 2 electrical NICs at 400 Gbps. What a split saves or costs
is made up for by the bandwidth of all its NICs, with prices between listed bandwidths interpolated as everywhere; a
split that would need less than 100 or more than 800 Gbps is left out. No optical NIC: packet switches alone, the NICs
of a server pooled. Own measurements; the paper sweeps the electrical NICs of a server at its default of 6 + 2. Source
of prices and default: arXiv 2501.03905.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from mfabric_jax import report, units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.report.figures.panels import Axis, Heat, Picture
from mfabric_jax.study import Compare, evaluate, iteration_of
from mfabric_jax.workload import NAMES

from .script import Row, Rows, Script, Verdict, case, cells, check, grouped, picked, pivot

USUAL = 6, 2
STEPS = 60  # of the search for a bandwidth: halves the interval
SECONDS = ("iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


@dataclasses.dataclass(frozen=True)
class Config:
    """Which splits."""

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe")  # Whose iterations.
    optical: tuple[int, ...] = tuple(range(9))  # Optical NICs of a server.
    electrical: tuple[int, ...] = tuple(range(1, 9))  # Electrical NICs of a server.
    delays_ms: tuple[float, ...] = (25.0, 0.0)  # Reconfiguration delays.
    nic_gbps: float = 400.0  # Of the default split, whose price all have.
    routing: str = "unsplit"  # How mFabric uses its circuits: unsplit, best-path or split.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        whole, lists = {0: "optical", 1: "electrical"}, "optical electrical delays_ms"
        check(self, known={"models": NAMES}, distinct=lists, whole=whole, not_negative="delays_ms")
        if USUAL[0] not in self.optical or USUAL[1] not in self.electrical:
            given = f"{list(self.optical)} and {list(self.electrical)}"
            raise InputError(f"optical and electrical must hold the default, {USUAL[0]} and {USUAL[1]}, got {given}.")
        self.setting(self.models[0])

    def setting(self, model: str) -> Compare:
        """One model on mFabric."""
        return case(self, model, "mfabric", routing=self.routing)

    def splits(self) -> dict[tuple[int, int], float]:
        """Bandwidth of every split that has the price of the default."""
        dollars = price(*USUAL, self.nic_gbps)
        found = {split: equal_gbps(*split, dollars) for split in product(self.optical, self.electrical)}
        return {split: gbps for split, gbps in found.items() if gbps is not None}


def price(optical: int, electrical: int, nic_gbps: float) -> float:
    """Dollars of one server's network."""
    dollars = cluster_cost("mfabric", 1, nic_gbps, optical_degree=optical, electrical_nics=electrical)
    assert dollars is not None
    return dollars


def equal_gbps(optical: int, electrical: int, dollars: float) -> float | None:
    """The bandwidth at which a split costs so much; None where prices are not listed."""
    low, high = Prices().gbps[0], Prices().gbps[-1]
    if not price(optical, electrical, low) <= dollars <= price(optical, electrical, high):
        return None
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if price(optical, electrical, middle) < dollars else (low, middle)
    return high


def run(config: Config) -> Iterator[Row]:
    """A row for each model, delay and split: bandwidth, price of a server, seconds, and time over the default's."""
    splits = config.splits()
    places = [(*split, delay_ms, gbps) for delay_ms in config.delays_ms for split, gbps in splits.items()]
    for (model,) in cells(config, config.models):
        function, usual = iteration_of(config.setting(model), model)
        optical, electrical, delay_ms, gbps = (np.asarray(column) for column in zip(*places, strict=True))
        changed = {"optical_degree": optical, "electrical_nics": electrical.astype(float), "nic_gbps": gbps}
        changed |= {"delay_s": units.ms(delay_ms)}
        cases = {name: np.full(len(places), value) for name, value in usual.items()} | changed
        found = evaluate(function, cases).arrays
        rows = [
            dict(zip(("optical", "electrical", "delay_ms", "nic_gbps"), place, strict=True))
            | {name: float(found[name][rank]) for name in SECONDS}
            for rank, place in enumerate(places)
        ]
        for row in rows:
            same = {"delay_ms": row["delay_ms"], "optical": USUAL[0], "electrical": USUAL[1]}
            split: dict[str, Any] = {key: row[key] for key in ("optical", "electrical", "nic_gbps")}
            place = {"model": model, "delay_ms": row["delay_ms"]} | split | {"server_usd": price(**split)}
            over = {"over_default": row["iteration_s"] / picked(rows, **same)[0]["iteration_s"]}
            yield place | {name: row[name] for name in SECONDS} | over


def table(rows: Rows) -> str:
    """Time over the default's where a server has 8 NICs, and the best of all splits."""
    lines = [
        row | {"split": f"{row['optical']} + {row['electrical']}", "Gbps": round(row["nic_gbps"])}
        for row in rows
        if row["optical"] + row["electrical"] == sum(USUAL)
    ]
    best = [
        {"model": model, "delay [ms]": delay_ms, "best split": "{optical} + {electrical}".format(**row)}
        | {"Gbps": round(row["nic_gbps"]), "over 6 + 2": row["over_default"]}
        for (model, delay_ms), here in grouped(rows, "model", "delay_ms").items()
        for row in [_best(here)]
    ]
    title = "iteration time over that of 6 + 2 NICs at the same price: 8 NICs, then the best of all splits"
    eight = pivot(lines, ("split", "Gbps"), "{model} {delay_ms:g} ms", "{over_default:.3f}")
    return "\n\n".join([title, eight, report.plain(best)])


def _best(rows: Sequence) -> Any:
    return min(rows, key=lambda row: row["iteration_s"])


def _frames(rows: Rows) -> Row:
    return {"--": picked(rows, optical=USUAL[0], electrical=USUAL[1])[0], "-": _best(rows)}


def _shading(ratios: Sequence[float]) -> Any:
    from matplotlib.colors import TwoSlopeNorm

    return TwoSlopeNorm(1.0, 0.6, 1.8)


OPTICAL, ELECTRICAL = Axis("optical", "optical NICs of a server"), Axis("electrical", "electrical NICs")
LOOK: dict[str, Any] = {"norm": _shading, "colours": "RdBu_r", "number": "{:.2f}", "frames": _frames}
PANEL = Heat(OPTICAL, ELECTRICAL, "over_default", **LOOK, title="{model}, {delay_ms:g} ms")
SCALE = "iteration time over that of 6 + 2, same price"
LEGEND = "dashed: the default 6 + 2; framed: the fastest;\ngrey: would need a bandwidth without a price"
PICTURE = Picture((PANEL,), "delay_ms", "model", share_y=True, scale=SCALE, heading=lambda rows: LEGEND)


def verdicts(rows: Rows) -> list[Verdict]:
    """The best split of every model, beside the published default, which is not said to be the best."""
    found = []
    for (model, delay_ms), here in grouped(rows, "model", "delay_ms").items():
        best = _best(here)
        split = f"{best['optical']} + {best['electrical']} at {best['nic_gbps']:.0f}G"
        time = f"{split}: {best['over_default']:.2f} of 6 + 2"
        found.append(Verdict(f"{model}, {delay_ms:g} ms: best split, same price", time, "default 6 + 2"))
    return found


SCRIPT = Script(Config, quick={"models": ("mixtral-8x22b",)})
SCRIPT.start(__name__)
