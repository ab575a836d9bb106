"""Recorded routing for the experiments on it (generated traffic where no recording is given), and regions.

The recording is the gate trace of SmartMoE, USENIX ATC'23 (github.com/thu-pacman/SmartMoE-AE repacked): every tenth
iteration of 16 ranks with two experts each; two ranks a server make 8 servers.
The generated traffic is as skewed as the SmartMoE gate trace (`mfabric traces fit`, in round numbers) and moves more:
neighbouring iterations correlate by 0.98, where that trace has 0.999 and LAER-MoE's have 0.84 to 0.93. Its layers do
not depend on one another, so it holds nothing that a transition matrix from one layer to the next could learn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import RULES
from mfabric_jax.routing import all_to_all_time, degree_bound, fluid_lower_bound

from .rows import Rows, values_of
from .script import check

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
PLACE = ("record", "layer", "micro_batch")


@dataclasses.dataclass(frozen=True)
class Source:
    """Where tokens come from."""

    trace: str | None = None  # Recorded routing in a format of mfabric traces (default: generated traffic).
    records: tuple[int, int] | None = None  # First and last record (default for a gate trace: 2011 to 5001).
    iterations: int | None = None  # How many of the records, or of generated traffic (default: all of them, or 150).

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
        return traffic.recorded(job, self.trace, self.records, self.iterations)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ports:
    """The NICs of a region's servers."""

    nic_gbps: float = 400.0  # Bandwidth of every NIC.
    optical_degree: int = 6  # NICs of a server on the optical switch.
    electrical_nics: int = 2  # NICs of a server on the electrical fabric.

    def region(self, servers: int, **more: Any) -> Region:
        """So many servers."""
        numbers = {"nic_gbps": self.nic_gbps, "electrical_nics": self.electrical_nics} | more
        numbers = {name: jnp.asarray(number, jnp.result_type(float)) for name, number in numbers.items()}
        return Region(servers, optical_degree=jnp.asarray(self.optical_degree), **numbers)


@eqx.filter_jit
def paced_and_max_min(where: Region, plan: Any, demand: Any, routing: str) -> tuple[jax.Array, ...]:
    """When an all-to-all ends [s]: if its flows are paced to end together, and if they share links max-min fairly."""
    return tuple(time(where, plan, demand, routing=routing) for time in (fluid_lower_bound, all_to_all_time))


@dataclasses.dataclass(frozen=True)
class OnRegion(Ports, Source):
    """Recorded all-to-alls between the servers of a region."""

    samples: int = 60  # All-to-alls drawn: a record, a layer, a micro-batch each.
    servers: tuple[int, ...] = (8, 16)  # Over how many servers the ranks are spread.
    rule: str = "printed"  # greedy's rule: printed, released, next.
    seed: int = 0  # Of the draw, and of generated traffic.

    def __post_init__(self):
        super().__post_init__()
        whole = {2: "servers", 1: "samples", 0: "optical_degree electrical_nics seed"}
        check(self, distinct="servers", known={"rule": RULES}, positive="nic_gbps", whole=whole)
        divides_ranks(*self.servers)

    @cached_property
    def count(self) -> Any:
        """Selections [record, layer, micro-batch, source rank, expert]."""
        return self.tokens(self.seed).count

    def drawn(self, shape: tuple[int, ...], first: tuple[int, ...] = (0, 0, 0)) -> np.ndarray:
        """The all-to-alls [samples 3] (record, layer, micro-batch), none twice, in order, from `first` on."""
        left = tuple(np.array(shape) - first)
        total = int(np.prod(left))
        chosen = np.random.default_rng(self.seed).choice(total, min(self.samples, total), replace=False)
        return np.stack(np.unravel_index(np.sort(chosen), left), axis=1) + np.array(first)

    def all_to_alls(self, servers: int) -> Iterator[tuple[dict[str, Any], jax.Array, float]]:
        """Where each drawn all-to-all with bytes between servers is, these bytes [S S], and the degree bound [s]."""
        for place in self.drawn(self.count.shape[:3]).tolist():
            demand = between_servers(jnp.asarray(self.count[tuple(place)]), servers)
            facts = {"traffic": self.traffic, "servers": servers} | dict(zip(PLACE, place, strict=True))
            if (bound := float(degree_bound(self.region(servers), demand))) > 0:
                yield facts, demand, bound


def divides_ranks(*servers: int) -> None:
    """Check that ranks can be spread evenly over so many servers."""
    ranks = workload.get(MODEL).ep
    for many in servers:
        if ranks % many:
            raise InputError(f"servers must divide the {ranks} ranks of the recording, got {many}.")


def between_servers(tokens: jax.Array, servers: int) -> jax.Array:
    """Selections [R E] as bytes of a dispatch between servers [S S]."""
    ranks = traffic.rank_bytes(tokens, workload.get(MODEL).dispatch_bytes_per_selection)
    return traffic.server_bytes(ranks, len(tokens) // servers)


def resolved(config: Source) -> dict[str, Any]:
    """What stands behind the word."""
    more = {"knobs": KNOBS.turned, "iterations": config.iterations or ITERATIONS} if config.trace is None else {}
    return {"traffic": config.traffic} | more


def traffic_of(rows: Rows) -> str:
    """The traffic of rows in a word."""
    return ", ".join(values_of(rows, "traffic"))


def titled(rows: Rows) -> str:
    """The same for a figure."""
    return f"{traffic_of(rows).capitalize()} traffic" if rows else ""
