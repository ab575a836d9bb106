"""Recorded routing for the experiments on it, and in its place generated traffic where no recording is given.

The generated traffic is as skewed as the SmartMoE gate trace (`mfabric traces fit`, in round numbers) and moves more:
neighbouring iterations correlate by 0.98, where that trace has 0.999 and LAER-MoE's have 0.84 to 0.93. Its layers do
not depend on one another, so it holds nothing that a transition matrix from one layer to the next could learn.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError, whole

from .script import Rows

MODEL = "qwen-moe-ep16"  # 16 ranks, 32 experts, as in the gate trace
MICRO_BATCHES, ITERATIONS = 4, 150
KNOBS = traffic.Knobs(
    popularity="log-normal",
    skew=1.9,
    layer_spread=0.6,
    distinct=2,
    sparsity=0.3,
    row_noise=0.05,
    row_shared=0.3,
    drift=0.1,
    persistence=0.98,
    jitter=0.2,
    sampled=True,
)
RECORDED, GENERATED = "recorded", "generated"


@dataclasses.dataclass(frozen=True)
class Source:
    """Where tokens come from."""

    trace: str | None = None
    """Recorded routing in a format of mfabric traces (default: generated traffic)."""
    records: tuple[int, int] | None = None
    """First and last record (default for a gate trace: 2011 to 5001)."""
    iterations: int | None = None
    """How many of the records, or of generated traffic (default: all of them, or 150)."""

    def __post_init__(self):
        if self.iterations is not None:
            whole("iterations", self.iterations)
        if self.trace is None and self.records is not None:
            raise InputError(f"records needs trace, a recording to take them from, got {list(self.records)}.")

    @property
    def traffic(self) -> str:
        """In a word, for rows."""
        return GENERATED if self.trace is None else RECORDED

    def tokens(self, seed: int) -> traffic.Tokens:
        """Selections [record, layer, micro-batch, source rank, expert]."""
        job = workload.get(MODEL)
        if self.trace is None:
            return traffic.from_knobs(job, KNOBS, self.iterations or ITERATIONS, MICRO_BATCHES, seed)
        return traffic.recorded(self.trace, job, self.records, self.iterations)


def resolved(config: Source) -> dict[str, Any]:
    """What stands behind the word."""
    if config.trace is not None:
        return {"traffic": config.traffic}
    return {"traffic": config.traffic, "knobs": KNOBS.turned, "iterations": config.iterations or ITERATIONS}


def said(rows: Rows) -> str:
    """The traffic of rows in a word."""
    return ", ".join(dict.fromkeys(row["traffic"] for row in rows))


def titled(rows: Rows) -> str:
    """The same for a figure."""
    return f"{said(rows).capitalize()} traffic"
