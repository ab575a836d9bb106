"""How much slower is an iteration of mFabric when a NIC, a GPU or a server has failed?

400 Gbps, 1,024 GPUs; one failure hits one region, circuits are chosen again without what failed. Published: a NIC
+3.3 % and a server +6.5 % (DeepSeek-R1), one GPU +5.1 % (Mixtral 8x22B). With the switch's usual delay, and without:
where reconfigurations are paid, they hide a part of what a failure costs. Source: arXiv 2501.03905, failures.
"""

import dataclasses
from pathlib import Path

from mfabric_jax import units
from mfabric_jax.apps.failures import failures
from mfabric_jax.case import Case
from mfabric_jax.fabric.failures import KINDS
from mfabric_jax.report import figures

from .rows import Rows, adding, picked, pivot, then, told
from .script import Found, Script, Sweep, Verdict, against, cells, check

ROUNDED = 0.0005  # published with one decimal of a per cent


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """What fails."""

    models: tuple[str, ...] = ("deepseek-r1", "mixtral-8x22b")  # Whose iterations.
    kinds: tuple[str, ...] = tuple(KINDS)  # Failures.
    delays_ms: tuple[float, ...] = (25.0, 0.0)  # Reconfiguration delays; the first one is drawn.

    def __post_init__(self):
        check(self, known={"kinds": KINDS}, not_negative="delays_ms", cases="models delays_ms")

    def setting(self, model: str, delay_ms: float) -> Case:
        """All failures of one model."""
        (case,) = self.case(model, "mfabric", {"circuits.delay_s": units.ms(delay_ms)})
        return case.with_({"failures.kinds": self.kinds})


def run(config: Config) -> Found:
    """A row for each model, delay and failure, as `failures` gives it."""
    for model, delay_ms in cells(config, config.models, config.delays_ms):
        yield from ({"delay_ms": delay_ms} | row for row in failures(config.setting(model, delay_ms)))


SLOW_DOWNS = pivot(("model", "failure", "published"), "at {delay_ms:g} ms", "{slow_down:+.1%}")
table = told("iteration time over that of the healthy cluster", then(adding(published="{published:+.1%}"), SLOW_DOWNS))


def draw(rows: Rows, path: str | Path) -> Path:
    """The slow-downs with the first delay; returns the path written."""
    return figures.failures(picked(rows, delay_ms=rows[0]["delay_ms"]), path)


def verdicts(rows: Rows) -> list[Verdict]:
    """Every published slow-down, with every delay."""
    found = []
    for row in (row for row in rows if row["published"] is not None):
        claim, low = f"{row['model']}: {row['failure']}, delay {row['delay_ms']:g} ms", row["published"]
        found.append(against(claim, row["slow_down"], low, form="+.1%", allowed=ROUNDED / low))
    return found


SCRIPT = Script(Config, quick={"models": ("mixtral-8x22b",), "kinds": ("gpu", "server")})
SCRIPT.start(__name__)
