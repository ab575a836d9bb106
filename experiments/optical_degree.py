"""How many NICs of a server should be optical, how many electrical, if the network is to cost the same?

Every split has the price of mFabric's default, 6 optical and 2 electrical NICs at 400 Gbps. What a split saves or costs
is made up for by the bandwidth of all its NICs, with prices between listed bandwidths interpolated as everywhere; a
split that would need less than 100 or more than 800 Gbps is left out. No optical NIC: packet switches alone, the NICs
of a server pooled. Own measurements; the paper sweeps the electrical NICs of a server at its default of 6 + 2. Source
of prices and default: arXiv 2501.03905.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.colors import TwoSlopeNorm

from mfabric_jax import units
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import evaluate, iteration_of
from mfabric_jax.fabric import Prices, cluster_cost

from .pictures import BELOW_ABOVE, heat
from .rows import Row, Rows, adding, group_rows, listed, pivot, then, told
from .script import Found, Script, Sweep, Verdict, cells, check

USUAL = 6, 2
STEPS = 60  # of the search for a bandwidth: halves the interval
SECONDS = ("iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """Which splits."""

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe")  # Whose iterations.
    optical: tuple[int, ...] = tuple(range(9))  # Optical NICs of a server.
    electrical: tuple[int, ...] = tuple(range(1, 9))  # Electrical NICs of a server.
    delays_ms: tuple[float, ...] = (25.0, 0.0)  # Reconfiguration delays.

    def __post_init__(self):
        check(self, whole={0: "optical", 1: "electrical"}, not_negative="delays_ms", cases="models")
        if USUAL[0] not in self.optical or USUAL[1] not in self.electrical:
            given = f"{list(self.optical)} and {list(self.electrical)}"
            raise InputError(f"optical and electrical must hold the default, {USUAL[0]} and {USUAL[1]}, got {given}.")

    def setting(self, model: str) -> Case:
        """One model on mFabric."""
        (case,) = self.case(model, "mfabric")
        return case

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


def run(config: Config) -> Found:
    """A row for each model, delay and split: bandwidth, price of a server, seconds, and time over the default's."""
    splits = config.splits()
    for (model,) in cells(config, config.models):
        timed: dict[tuple, Row] = {}
        for nics in sorted({sum(split) for split in splits}):
            some = [(delay_ms, *split) for delay_ms, split in product(config.delays_ms, splits) if sum(split) == nics]
            timed |= zip(some, _timed(config.setting(model), nics, some, splits), strict=True)
        for delay_ms, split in product(config.delays_ms, splits):
            place = {"delay_ms": delay_ms, "optical": split[0], "electrical": split[1], "nic_gbps": splits[split]}
            row = {"model": model, **place, "server_usd": price(*split, splits[split])} | timed[delay_ms, *split]
            yield row | {"over_default": row["iteration_s"] / timed[delay_ms, *USUAL]["iteration_s"]}


def _timed(case: Case, nics: int, some: Sequence[tuple], splits: Mapping[tuple, float]) -> list[Row]:
    """Seconds of delays and splits of so many NICs of a server, at the bandwidths of the splits."""
    function, usual = iteration_of(case.with_({"network.nics": nics, "network.mfabric.optical_degree": some[0][1]}))
    changed = {"circuits.delay_s": [units.ms(delay_ms) for delay_ms, *_ in some]}
    changed |= {"network.mfabric.optical_degree": [optical for _, optical, _ in some]}
    changed |= {"network.nic_gbps": [splits[optical, electrical] for _, optical, electrical in some]}
    numbers = {path: np.full(len(some), value) for path, value in usual.items()}
    found = evaluate(function, numbers | {path: np.asarray(values) for path, values in changed.items()}).arrays
    return [{name: float(found[name][rank]) for name in SECONDS} for rank in range(len(some))]


named = adding(split="{optical} + {electrical}", Gbps=lambda row: round(row["nic_gbps"]), **{"delay [ms]": "delay_ms"})


def _eight(rows: Rows) -> list[Row]:
    """Where a server has as many NICs as by default."""
    return [row for row in rows if row["optical"] + row["electrical"] == sum(USUAL)]


def _bests(rows: Rows) -> list[Any]:
    """The best of all splits of every model and delay."""
    return [min(here, key=lambda row: row["iteration_s"]) for here in group_rows(rows, "model", "delay_ms").values()]


table = told(
    "iteration time over that of 6 + 2 NICs at the same price: 8 NICs, then the best of all splits",
    then(named, _eight, pivot(("split", "Gbps"), "{model} {delay_ms:g} ms", "{over_default:.3f}")),
    then(named, _bests, listed("model", "delay [ms]", ("split", "best split"), "Gbps", ("over_default", "over 6 + 2"))),
)
build = heat(
    ("optical", "optical NICs of a server"),
    ("electrical", "electrical NICs"),
    ("over_default", "iteration time over that of 6 + 2, same price (grey: no price)"),
    TwoSlopeNorm(1.0, 0.6, 1.8),
    panel="{model}, {delay_ms:g} ms",
    colours=BELOW_ABOVE[::-1],
    number="{:.2f}",
)


def verdicts(rows: Rows) -> list[Verdict]:
    """The best split of every model, beside the published default, which is not said to be the best."""
    form = "{optical} + {electrical} at {nic_gbps:.0f}G: {over_default:.2f} of 6 + 2"
    claim = "{model}, {delay_ms:g} ms: best split, same price"
    return [Verdict(claim.format(**best), form.format(**best), "default 6 + 2") for best in _bests(rows)]


SCRIPT = Script(Config, quick={"models": ("mixtral-8x22b",)})
SCRIPT.start(__name__)
