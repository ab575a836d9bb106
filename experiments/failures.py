"""How much slower is an iteration of mFabric when a NIC, a GPU or a server has failed?

400 Gbps, 1,024 GPUs; one failure hits one region, circuits are chosen again without what failed. Published: a NIC
+3.3 % and a server +6.5 % (DeepSeek-R1), one GPU +5.1 % (Mixtral 8x22B). With the switch's usual delay, and without:
where reconfigurations are paid, they hide a part of what a failure costs. Source: arXiv 2501.03905, failures.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from mfabric_jax import study, units
from mfabric_jax.fabric.failures import KINDS
from mfabric_jax.report import figures
from mfabric_jax.study import Failures

from .script import Row, Rows, Script, Verdict, against, case, cells, check, picked, pivot

ROUNDED = 0.0005  # published with one decimal of a per cent


@dataclasses.dataclass(frozen=True)
class Config:
    """What fails."""

    models: tuple[str, ...] = ("deepseek-r1", "mixtral-8x22b")  # Whose iterations.
    kinds: tuple[str, ...] = tuple(KINDS)  # Failures.
    delays_ms: tuple[float, ...] = (25.0, 0.0)  # Reconfiguration delays; the first one is drawn.
    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    iterations: int = 1  # Averaged.
    seed: int = 0  # Of the traffic.

    def __post_init__(self):
        check(self, known={"kinds": KINDS}, distinct="delays_ms", not_negative="delays_ms")
        for model in self.models:
            self.setting(model, self.delays_ms[0])

    def setting(self, model: str, delay_ms: float) -> Failures:
        """All failures of one model."""
        healthy = case(self, model, "mfabric", iterations=self.iterations, delay_s=units.ms(delay_ms))
        return Failures(healthy, kinds=self.kinds)


def run(config: Config) -> Iterator[Row]:
    """A row for each model, delay and failure, as `study.failures` gives it."""
    for model, delay_ms in cells(config, config.models, config.delays_ms):
        yield from ({"delay_ms": delay_ms} | row for row in study.failures(config.setting(model, delay_ms)))


def table(rows: Rows) -> str:
    """A line per model and failure, a column per delay."""
    lines = [row | {"published": _percent(row["published"])} for row in rows]
    slow = pivot(lines, ("model", "failure", "published"), "at {delay_ms:g} ms", lambda row: _percent(row["slow_down"]))
    return f"iteration time over that of the healthy cluster\n\n{slow}"


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{value:+.1%}"


def draw(rows: Rows, path: str | Path) -> Path:
    """The slow-downs with the first delay; returns the path written."""
    return figures.failures(picked(rows, delay_ms=rows[0]["delay_ms"]), path)


def verdicts(rows: Rows) -> list[Verdict]:
    """Every published slow-down, with every delay."""
    return [
        against(
            f"{row['model']}: {row['failure']}, delay {row['delay_ms']:g} ms",
            row["slow_down"],
            row["published"],
            form="+.1%",
            allowed=ROUNDED / row["published"],
        )
        for row in rows
        if row["published"] is not None
    ]


SCRIPT = Script(Config, quick={"models": ("mixtral-8x22b",), "kinds": ("gpu", "server")})
SCRIPT.start(__name__)
