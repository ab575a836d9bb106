"""The all-to-alls of an iteration as messages: between servers, ranks or GPUs, on circuits or packet switches."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mfabric_jax.fabric import Circuits
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.ways import Ways, ways_of
from mfabric_jax.schedule._site import Sent
from mfabric_jax.schedule.all_to_alls import Exchanges, places
from mfabric_jax.schedule.exchange import at_unit_bandwidth, rank_demand
from mfabric_jax.schedule.switching import RELAY_STEPS
from mfabric_jax.simulation.scenario import Scenario
from mfabric_jax.workload import Workload

AT_ONCE = 256  # all-to-alls


class SentAllToAlls:
    """Those of one iteration of one replica, solved (`found`, with circuits), at NICs of `nic_Bps`."""

    def __init__(self, one: Scenario, found: Exchanges, nic_Bps: float, ends: str, per_server: int):
        job, where = one.workload, places(one.workload)
        tokens = jnp.asarray(one.sent[-1], one.settings.dtype)
        demand = between_ends(job, one.group, np.asarray(rank_demand(job, tokens), np.float64), ends)
        layer, micro_batch = where.pick(*tokens.shape[:2])
        self.demand, self.number = demand.reshape(-1, *demand.shape[2:]), layer * tokens.shape[1] + micro_batch
        self.backward, self.ratio = where.backward, job.combine_bytes / job.dispatch_bytes
        self.nic_Bps, self.per_server, self.slices = nic_Bps, per_server, job.tp if ends == "gpu" else 1
        self.count = None if found.count is None else np.asarray(found.count)
        self.ways: tuple[np.ndarray, ...] | None = None
        if self.count is not None and ends == "server":
            moe = np.broadcast_to((where.layer >= 0)[..., None], self.count.shape[:4])
            self.which, self.ways = self._ways(one, moe)

    def sent(self, at: tuple[int, int, int], which: int) -> Sent:
        """One of the two of a block, as dispatch sends it; combine moves elements of its own size."""
        combine = bool(self.backward[at]) != bool(which)
        scale = self.ratio if combine else 1.0
        if self.ways is None:
            return self._direct(at, which, scale)
        optical, optical_rate, electrical, rest = (part[self.which[(*at, which)]] for part in self.ways)
        parts = []
        for size, rate, private in ((optical, optical_rate, True), (electrical, rest, False)):
            src, dst = np.nonzero(size)
            rates = rate[src, dst] * self.nic_Bps
            parts.append(Sent(src, dst, size[src, dst] * scale, rates, np.full(len(src), private)))
        return Sent(*(np.concatenate(both) for both in zip(*parts, strict=True)))

    def _direct(self, at: tuple[int, int, int], which: int, scale: float) -> Sent:
        """A message for each pair of ends, on circuits where their servers have some."""
        demand = self.demand[self.number[at]] * scale
        src, dst = np.nonzero(demand)
        server = src // self.per_server, dst // self.per_server
        circuits = np.zeros(len(src)) if self.count is None else self.count[(*at, which)][server]
        cap = np.where(circuits > 0, circuits * self.nic_Bps / self.slices, np.inf)
        return Sent(src, dst, demand[src, dst], cap, circuits > 0)

    def _ways(self, one: Scenario, moe: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Which of the different all-to-alls each slot has [P Q L 2], and the `Ways` of all of these [N S S]."""
        assert self.count is not None
        number = np.broadcast_to(self.number[..., None], moe.shape)[moe]
        asked = np.concatenate([number[:, None], self.count[moe].reshape(len(number), -1)], axis=1)
        every, index = np.unique(asked, axis=0, return_inverse=True)
        which = np.full(moe.shape, -1)
        which[moe] = index.ravel()
        dtype, servers = one.settings.dtype, self.count.shape[-1]
        unit = at_unit_bandwidth(jax.tree.map(jnp.asarray, one.group), dtype)
        count = jnp.asarray(every[:, 1:].reshape(-1, servers, servers))
        found = _every_way(unit, count, jnp.asarray(self.demand[every[:, 0]], dtype), one.settings.routing)
        return which, tuple(np.asarray(part, np.float64) for part in found)


@eqx.filter_jit
def _every_way(region: Any, count, demand, routing: str) -> Ways:
    def one(given):
        circuits, demand = Circuits(given[0]), given[1]
        shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS) if routing == "relay" else None
        return ways_of(region, Plan(circuits, shares), demand, routing=routing)

    return lax.map(one, (count, demand), batch_size=min(AT_ONCE, len(demand)))


def between_ends(job: Workload, group: Any, demand: np.ndarray, ends: str) -> np.ndarray:
    """Bytes between ends of different servers [... N N] of demands between ranks [... R R]."""
    server = np.arange(job.ep) // job.ranks_per_server
    away = np.where(server[:, None] == server, 0, demand)
    axes, servers, per = away.shape[:-2], job.ep // job.ranks_per_server, job.ranks_per_server
    blocks = away.reshape(*axes, servers, per, servers, per)
    if ends == "server":
        return blocks.sum((-3, -1))
    if getattr(group, "pxn", False):  # what a server has for rank g elsewhere leaves by its own rank g
        away = np.einsum("...satg,hg->...shtg", blocks, np.eye(per)).reshape(away.shape)
    return away if ends == "rank" else np.kron(away, np.eye(job.tp)) / job.tp
