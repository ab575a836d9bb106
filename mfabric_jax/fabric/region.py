"""One region of an mFabric cluster: the servers of an expert-parallel group behind one optical switch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import ArrayLike, Bool, Float, Int, Num

from mfabric_jax import units
from mfabric_jax.checks import InputError, concrete, fraction, not_negative, one_of, positive, whole
from mfabric_jax.fabric.failures import CUT_OFF, ONE_PLANE, ONE_SPINE, PLANES, Degraded, Failure
from mfabric_jax.fabric.nic_use import Handover, optical_ports
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.arrays import FloatScalar, counts
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, real_numbers, refuse
from mfabric_jax.support.platforms import soundness

NO_CIRCUITS = -1  # marks an unknown count: the demand was NaN or negative
SHOWN = 8  # most servers for which `repr` shows every circuit
ROUNDING = 1e-4  # tolerance of the rules for real-valued circuits, as a fraction of a server's degree
NO_RELAY = "no circuit leads to a server that could relay"
UNSPLIT = "relaying after this failure is modelled only for routing unsplit"


class Region(eqx.Module):
    """Servers whose NICs go partly to a regional optical circuit switch (OCS), partly to the electrical fabric (EPS).

    - `servers`: number of servers (static, since it sets all shapes).
    - `nic_gbps`: bandwidth of every NIC and circuit, per direction.
    - `optical_degree`: NICs of a server on the OCS, the most circuits it can have; one number or [S].
    - `electrical_nics`: NICs of a server on the EPS, which is non-blocking; one number or [S].
    - `delay_s`: reconfiguration delay, during which the OCS carries nothing.
    - `own_ports` (static): GPUs of a server with circuits of their own, as with co-packaged optics; 0: none.
    - `relay_efficiency`: under relay routing, a forwarded byte counts as 1 / efficiency bytes on its second circuit.

    Non-static fields may be traced; a batch of regions is one region under `jax.vmap`. A server's GPUs reach all its
    NICs through the NVSwitch (delegation). Unequal [S] ports describe servers that lost NICs. Defaults (6 + 2 NICs, 25
    ms): arXiv 2501.03905.
    """

    servers: int = eqx.field(static=True)
    nic_gbps: FloatScalar
    optical_degree: Num[Array, ""] | Num[Array, "S"] | int = 6
    electrical_nics: Num[Array, ""] | Num[Array, "S"] | float = 2
    delay_s: Float[Array, ""] | float = 0.025
    relay_efficiency: Float[Array, ""] | float = 1.0
    own_ports: int = eqx.field(static=True, default=0)

    reconfigures = has_paths = True
    pxn = forwards = phases = shares_links = over_graph = False
    oversubscription = None
    speeds = ()
    nic_use = "pooled"
    latency_s = 0.0

    def __check_init__(self):
        whole("servers", self.servers)
        whole("own_ports", self.own_ports, at_least=0)
        positive("nic_gbps", self.nic_gbps)
        not_negative("optical_degree", self.optical_degree)
        not_negative("electrical_nics", self.electrical_nics)
        for field in ("optical_degree", "electrical_nics"):
            value = getattr(self, field)
            if not isinstance(value, Tracer) and np.shape(value) not in ((), (self.servers,)):
                wanted = f"must be a number or have the shape [S] = [{self.servers}], one per server"
                raise InputError(f"{field} {wanted}, got {list(np.shape(value))}; {_vmap(field)}.")
        if concrete(self.optical_degree) and np.any(np.asarray(self.optical_degree) % 1 != 0):
            raise InputError(f"optical_degree must be whole, got {np.asarray(self.optical_degree).tolist()}.")
        not_negative("delay_s", self.delay_s)
        for field in ("nic_gbps", "delay_s", "relay_efficiency"):
            value = getattr(self, field)
            if not isinstance(value, Tracer) and np.ndim(value):
                raise InputError(f"{field} must be one number, got the shape {list(np.shape(value))}; {_vmap(field)}.")
        fraction("relay_efficiency", self.relay_efficiency)

    def with_bandwidth(self, nic_gbps: Any, gpu_tbps: Any = None) -> "Region":
        """Return the region at another bandwidth, which may be traced.

        If GPUs have their own ports, these are as many as fit `gpu_tbps`.
        """
        if not self.own_ports:
            return eqx.tree_at(lambda region: region.nic_gbps, self, nic_gbps)
        degree = optical_ports(gpu_tbps, nic_gbps) * self.own_ports
        return eqx.tree_at(lambda region: (region.nic_gbps, region.optical_degree), self, (nic_gbps, degree))

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC, and of one circuit in each direction."""
        return units.gbps(_or_nan(self.nic_gbps, lambda x: x > 0))

    @property
    def degrees(self) -> Int[Array, "S"]:
        """The most circuits that each server can have."""
        return jnp.broadcast_to(jnp.asarray(self.optical_degree).astype(jnp.int32), (self.servers,))

    @property
    def eps_Bps(self):
        """Bandwidth of each server on the electrical fabric, per direction [bytes/s], () or [S]."""
        return units._wide(_or_nan(self.electrical_nics, lambda x: x >= 0)) * self.nic_Bps

    @property
    def handover(self) -> tuple[Handover, Handover]:
        """As in `Electrical`. A circuit ends at one GPU; all GPUs gather to it and scatter from it equally."""
        return ("levelled" if self.own_ports else "spread"), "spread"

    @property
    def send_Bps(self):
        """Bandwidth from a server to its peer in the next pipeline stage [bytes/s], () or [S]."""
        return self.eps_Bps

    def lacks(self, routing: str) -> dict[str, str]:
        """Return the failures that are absent or not modelled here: {kind: reason}; `routing`: how circuits are
        used."""
        reasons = dict.fromkeys(PLANES, ONE_PLANE)
        if self._alone or routing != "unsplit":
            reasons |= {"electrical-nics": NO_RELAY if self._alone else UNSPLIT}
        return reasons

    @property
    def _alone(self) -> bool:
        """Whether no server can have a circuit."""
        return self.servers < 2 or not int(self.optical_degree)

    def after_failure(self, hit: Failure) -> Degraded:
        """Return the group after a failure; EPS and OCS back each other up.

        A spare replaces a server that has neither a NIC on the EPS nor a peer to relay for it.
        """
        kind, server, nics = hit.kind, hit.server, float(self.electrical_nics)
        if kind == "spine-link":
            return Degraded(kind, self, server)
        each = nics if hit.nics is None else hit.nics  # `nics` is less if the tree is oversubscribed
        if kind in ("link", "spine"):
            part = hit.links_left()
            if not part and kind == "spine":
                return Degraded(kind, self, server, waits=ONE_SPINE)
            kind = kind if part else "switch"  # this was the only uplink: servers below are cut off
        if kind == "switch":
            return Degraded(hit.kind, self, server, waits=CUT_OFF)
        if kind == "electrical-nic" and each < 2 and (self._alone or not hit.relayed):
            kind = "server"
        here = np.arange(self.servers) == server
        optical = np.full(self.servers, int(self.optical_degree))
        electrical = np.full(self.servers, nics)
        if kind == "electrical-nics" or (kind == "electrical-nic" and each < 2):
            if self._alone:
                raise InputError("failure 'electrical-nics' needs a peer that circuits reach; the region has none.")
            left = self._with_nics(optical, electrical * ~here)
            return Degraded("electrical-nics", left, server, relays=True, eps_left=0.5)
        if kind == "electrical-nic":
            left = min(nics, each - 1)
            return Degraded(kind, self._with_nics(optical, np.where(here, left, nics)), server, eps_left=left / nics)
        if kind in ("link", "spine"):
            left = self._with_nics(optical, electrical * part)
            return Degraded(kind, left, server, eps_left=part, everywhere=kind == "spine")
        if kind == "gpu":
            spare = nics / self.own_ports if self.own_ports else nics
            left = self._with_nics(np.append(optical, 0), np.append(electrical, spare))
            on_eps = spare / nics if hit.attention_gpus > 1 else 0.0
            return Degraded(kind, left, server, moved=1 / hit.gpus_per_rank, tp_on_eps=on_eps, spare=True)
        circuits = {
            "optical-nic": np.maximum(optical - here, 0),
            "server": optical * ~here,
            "optical-switch": 0 * optical,
            "controller": optical,
        }
        left = self._with_nics(circuits[one_of("failure", kind, circuits)], electrical)
        return Degraded(hit.kind, left, server, stays=kind == "controller", spare=kind == "server")

    def _with_nics(self, optical: np.ndarray, electrical: np.ndarray) -> "Region":
        nics = {"optical_degree": optical.astype(np.int32), "electrical_nics": electrical}
        return dataclasses.replace(self, servers=len(optical), **nics)


def _or_nan(value, holds):
    """The value; NaN if it is traced and `holds` is false, since `__check_init__` cannot see traced values."""
    return value if concrete(value) else jnp.where(holds(value), value, jnp.nan)


def _vmap(field: str) -> str:
    return f"a batch is one region under vmap: jax.vmap(lambda value: ... Region(..., {field}=value) ...)(values)"


# ------------------------------------------------------------------------------------------------------------ circuits
class Circuits(eqx.Module):
    """The number of circuits between each pair of servers in one region.

    - `count` [S S]: symmetric, zero diagonal, row sums at most the region's degree (a circuit takes one NIC at each
      end, for both directions). Integer when legal; real during a relaxation. In a traced program, a policy marks pairs
      whose demand is NaN or negative with -1, which is illegal.
    """

    count: Int[Array, "S S"] | Float[Array, "S S"]

    def __init__(self, count: ArrayLike | Sequence[Any]):
        self.count = counts("count", count)
        if self.count.ndim != 2 or self.count.shape[0] != self.count.shape[1]:
            raise InputError(f"circuits join servers to servers: count must be [S S], got {list(self.count.shape)}.")

    def __repr__(self) -> str:
        shape = getattr(self.count, "shape", None)
        if not concrete(self.count) or shape is None or len(shape) != 2:
            return f"<Circuits {shape}>"
        count = np.asarray(self.count)
        pairs = np.triu(count + count.T) / 2  # a circuit joins two servers, both ways
        rows = f": {count.tolist()}" if len(count) <= SHOWN else ""
        return f"<Circuits: {pairs.sum():g} between {(pairs > 0).sum()} pairs of {len(count)} servers{rows}>"

    def check_legal(self, degree: ArrayLike) -> "Circuits":
        """Return self if the circuits are legal for `degree` () or [S], the optical NICs per server.

        Otherwise raise `InputError` with a broken rule and a server. Traced values raise a runtime error with the rule,
        on CPUs only; on accelerators see `is_legal`.
        """
        if concrete(self.count) and concrete(degree):
            count, most = np.asarray(self.count), np.asarray(real_numbers("degree", degree))
            refuse("degree", most, NOT_NEGATIVE)
            for rule, wrong in _violations(count, most).items():
                if wrong.any():
                    server = int(np.argmax(wrong))
                    here = f"server {server} has {count[server].tolist()}, its optical degree"
                    raise InputError(f"circuits: {rule}; {here} is {np.broadcast_to(most, len(count))[server]}.")
            return self
        return Circuits(jnp.where(legality(self, degree) > 0, self.count, NO_CIRCUITS))

    def is_legal(self, degree: ArrayLike) -> Bool[Array, ""]:
        """Return whether the circuits are legal for `degree`; values may be traced."""
        return ~self._rule_violations(degree)[1].any()

    def _rule_violations(self, degree: ArrayLike) -> tuple[list[str], Bool[Array, "N"]]:
        degree = counts("degree", degree)
        rules = _violations(self.count, jnp.where(degree >= 0, degree, -1).astype(self.count.dtype))
        return [f"circuits: {rule}" for rule in rules], jnp.stack([wrong.any() for wrong in rules.values()])


def new_circuits(before, after):
    """Return the number of circuits [..] that are in `after` but not in `before` [.. S S], of NumPy or JAX."""
    return array_module(before, after).maximum(after - before, 0).sum((-2, -1)) / 2


def legality(circuits: Circuits, degree: ArrayLike) -> Float[Array, ""]:
    """Return 1.0 if circuits are legal for `degree`.

    Otherwise raise an error, or return NaN in a traced program on an accelerator.
    """
    if concrete(circuits.count) and concrete(degree):
        circuits.check_legal(degree)
        return jnp.ones((), jnp.float32)
    words, broken = circuits._rule_violations(degree)
    return soundness(broken, words)


def _violations(count, degree) -> dict:
    """Servers [S] that break each rule, beyond rounding for real-valued circuits. NaN breaks the first."""
    rounding = degree * ROUNDING if np.issubdtype(count.dtype, np.floating) else 0 * degree
    used, server = count.sum(axis=1, dtype=count.dtype), np.arange(len(count))
    return {
        "a count that is negative or NaN, as of demand that is negative or NaN": ~(count >= 0).all(axis=1),
        "not symmetric": ~(abs(count - count.T) <= rounding.max()).all(axis=1),
        "a server joined to itself": count[server, server] != 0,
        "more circuits at a server than its optical degree": ~(used <= degree + rounding),
    }


def round_robin(servers: int) -> np.ndarray:
    """Return the matchings of a round-robin tournament [rounds S S] (circle method).

    Every pair of servers meets exactly once: in S - 1 rounds for even S; in S rounds, each with one server idle, for
    odd S.
    """
    seats = servers + servers % 2
    rounds = np.zeros((max(seats - 1, 0), servers, servers), np.int32)
    for index in range(len(rounds)):
        ring = [seats - 1, *((index + k) % (seats - 1) for k in range(seats - 1))]
        for a, b in zip(ring[: seats // 2], reversed(ring[seats // 2 :]), strict=True):
            if a < servers and b < servers:
                rounds[index, a, b] = rounds[index, b, a] = 1
    return rounds
