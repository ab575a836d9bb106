"""How many NICs of a server should be optical, how many electrical, if the network is to cost the same?

Every split has the price of mFabric's default, 6 optical and 2 electrical NICs at 400 Gbps. What a split saves or costs
is made up for by the bandwidth of all its NICs, with prices between listed bandwidths interpolated as everywhere; a
split that would need less than 100 or more than 800 Gbps is left out. No optical NIC: packet switches alone, the NICs
of a server pooled. Own measurements; the paper sweeps the electrical NICs of a server at its default of 6 + 2. Source
of prices and default: arXiv 2501.03905.

    python -m experiments.optical_degree --out results
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm import tqdm

from mfabric_jax import report, units
from mfabric_jax.checks import InputError, distinct, names, not_negative, whole
from mfabric_jax.fabric import Prices, cluster_cost
from mfabric_jax.report import style
from mfabric_jax.study import Compare, evaluate, iteration_of
from mfabric_jax.workload import NAMES

from .script import Rows, Script, Verdict, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "optical_degree"
USUAL = 6, 2
STEPS = 60  # of the search for a bandwidth: halves the interval
SECONDS = ("iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


@dataclasses.dataclass(frozen=True)
class Config:
    """Which splits."""

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe")
    """Whose iterations."""
    optical: tuple[int, ...] = tuple(range(9))
    """Optical NICs of a server."""
    electrical: tuple[int, ...] = tuple(range(1, 9))
    """Electrical NICs of a server."""
    delays_ms: tuple[float, ...] = (25.0, 0.0)
    """Reconfiguration delays."""
    nic_gbps: float = 400.0
    """Of the default split, whose price all have."""
    routing: str = "unsplit"
    """How mFabric uses its circuits: unsplit, best-path or split."""
    seed: int = 0
    """Of the traffic."""

    def __post_init__(self):
        names("models", self.models, NAMES)
        for field in ("optical", "electrical", "delays_ms"):
            distinct(field, getattr(self, field))
        for count in self.optical:
            whole("optical", count, at_least=0)
        for count in self.electrical:
            whole("electrical", count)
        not_negative("delays_ms", self.delays_ms)
        if USUAL[0] not in self.optical or USUAL[1] not in self.electrical:
            given = f"{list(self.optical)} and {list(self.electrical)}"
            raise InputError(f"optical and electrical must hold the default, {USUAL[0]} and {USUAL[1]}, got {given}.")
        self.setting(self.models[0])

    def setting(self, model: str) -> Compare:
        """One model on mFabric."""
        same: dict[str, Any] = {"nic_gbps": (self.nic_gbps,), "routing": self.routing, "seed": self.seed}
        return Compare(models=(model,), fabrics=("mfabric",), **same)

    def splits(self) -> dict[tuple[int, int], float]:
        """Bandwidth of every split that has the price of the default."""
        dollars = price(*USUAL, self.nic_gbps)
        found = {split: equal_gbps(*split, dollars) for split in product(self.optical, self.electrical)}
        return {split: gbps for split, gbps in found.items() if gbps is not None}


def price(optical: int, electrical: int, gbps: float) -> float:
    """Dollars of one server's network."""
    dollars = cluster_cost("mfabric", 1, gbps, optical_degree=optical, electrical_nics=electrical)
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


def run(config: Config) -> Iterator[dict[str, Any]]:
    """A row for each model, delay and split: bandwidth, price of a server, seconds, and time over the default's."""
    splits = config.splits()
    for model in tqdm(config.models, desc=NAME, unit="model", file=sys.stderr, disable=None):
        function, usual = iteration_of(config.setting(model), model)
        cells = [(*split, delay_ms, gbps) for delay_ms in config.delays_ms for split, gbps in splits.items()]
        optical, electrical, delay_ms, gbps = (np.asarray(column) for column in zip(*cells, strict=True))
        changed = {"optical_degree": optical, "electrical_nics": electrical.astype(float), "nic_gbps": gbps}
        changed |= {"delay_s": units.ms(delay_ms)}
        cases = {name: np.full(len(cells), value) for name, value in usual.items()} | changed
        found = evaluate(function, cases).arrays
        base = {ms: float(found["iteration_s"][cells.index((*USUAL, ms, splits[USUAL]))]) for ms in config.delays_ms}
        for at, (optical, electrical, delay_ms, gbps) in enumerate(cells):
            yield {
                "model": model,
                "delay_ms": delay_ms,
                "optical": optical,
                "electrical": electrical,
                "nic_gbps": gbps,
                "server_usd": price(optical, electrical, gbps),
                **{name: float(found[name][at]) for name in SECONDS},
                "over_default": float(found["iteration_s"][at]) / base[delay_ms],
            }


def table(rows: Rows) -> str:
    """Time over the default's where a server has 8 NICs, and the best of all splits."""
    lines: dict[tuple, dict[str, Any]] = {}
    for row in (row for row in rows if row["optical"] + row["electrical"] == sum(USUAL)):
        key = row["optical"], row["electrical"]
        line = lines.setdefault(key, {"split": "{} + {}".format(*key), "Gbps": round(row["nic_gbps"])})
        line[f"{row['model']} {row['delay_ms']:g} ms"] = f"{row['over_default']:.3f}"
    best = [
        {"model": model, "delay [ms]": delay_ms, "best split": "{optical} + {electrical}".format(**row)}
        | {"Gbps": round(row["nic_gbps"]), "over 6 + 2": row["over_default"]}
        for (model, delay_ms), here in grouped(rows, "model", "delay_ms").items()
        for row in [_best(here)]
    ]
    said = "iteration time over that of 6 + 2 NICs at the same price: 8 NICs, then the best of all splits"
    return "\n\n".join([said, report.plain(list(lines.values())), report.plain(best)])


def _best(rows: Sequence) -> Any:
    return min(rows, key=lambda row: row["iteration_s"])


def draw(rows: Rows, path: str | Path) -> Path:
    """Time over the default's by optical and electrical NICs; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a column per model, a line per delay; white is the default's time, blue faster, red slower."""
    from matplotlib.colors import TwoSlopeNorm

    models, delays = (list(dict.fromkeys(row[key] for row in rows)) for key in ("model", "delay_ms"))
    figure = style.blank(1.2 + 3.5 * len(models), 1.0 + 3.6 * len(delays))
    panels = figure.subplots(len(delays), len(models), sharex=True, sharey=True, squeeze=False)
    scale, image = TwoSlopeNorm(1.0, 0.6, 1.8), None
    for (model, delay_ms), here in grouped(rows, "model", "delay_ms").items():
        axes = panels[delays.index(delay_ms), models.index(model)]
        image = _split_panel(axes, here, scale)
        axes.set_title(f"{model}, {delay_ms:g} ms", loc="left")
    for axes in panels[-1]:
        axes.set_xlabel("optical NICs of a server")
    for axes in panels[:, 0]:
        axes.set_ylabel("electrical NICs")
    assert image is not None
    bar = figure.colorbar(image, ax=list(panels.ravel()), shrink=0.6, aspect=30, pad=0.01, extend="both")
    bar.set_label("iteration time over that of 6 + 2, same price")
    said = "dashed: the default 6 + 2; framed: the fastest; grey: would need a bandwidth without a price"
    figure.suptitle(textwrap.fill(said, round(11 * figure.get_figwidth())), fontsize=style.FONT)
    return figure


def _split_panel(axes: Axes, rows: Sequence, scale: Any) -> Any:
    """Cells with their numbers; the default has a dashed frame, the best a full one."""
    from matplotlib.patches import Rectangle

    optical, electrical = (max(row[key] for row in rows) for key in ("optical", "electrical"))
    picture = np.full((electrical + 1, optical + 1), np.nan)
    for row in rows:
        picture[row["electrical"], row["optical"]] = row["over_default"]
        inactive = not 0.75 < row["over_default"] < 1.45
        axes.text(
            row["optical"],
            row["electrical"],
            f"{row['over_default']:.2f}",
            ha="center",
            va="center",
            fontsize=7,
            color="white" if inactive else style.INK,
        )
    image = axes.imshow(picture, cmap="RdBu_r", norm=scale, origin="lower", aspect="auto")
    axes.set_facecolor("#eeeeee")
    best = _best(rows)
    for (x, y), dashes in ((USUAL, "--"), ((best["optical"], best["electrical"]), "-")):
        frame = {"fill": False, "edgecolor": style.INK, "linestyle": dashes, "linewidth": 1.6}
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **frame))
    axes.set_ylim(0.5, electrical + 0.5)
    axes.set_xticks(range(optical + 1))
    axes.set_yticks(range(1, electrical + 1))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def verdicts(rows: Rows) -> list[Verdict]:
    """The best split of every model, beside the published default, which is not said to be the best."""
    found = []
    for (model, delay_ms), here in grouped(rows, "model", "delay_ms").items():
        best = _best(here)
        split = f"{best['optical']} + {best['electrical']} at {best['nic_gbps']:.0f}G"
        said = f"{split}: {best['over_default']:.2f} of 6 + 2"
        found.append(Verdict(f"{model}, {delay_ms:g} ms: best split, same price", said, "default 6 + 2"))
    return found


SCRIPT = Script(
    name=NAME,
    question="Optical and electrical NICs at one price: a row per model, delay and split.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"models": ("mixtral-8x22b",)},
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
