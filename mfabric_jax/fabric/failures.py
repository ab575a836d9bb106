"""What fails in a region, and what is left of it. EPS and OCS back each other up.

Source: arXiv 2501.03905, section on failures. Where it leaves a choice, `KINDS` says what is modelled.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric.design import NVSWITCHES
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.tree import UP, Tree

KINDS = {
    "electrical-nic": "one NIC of a server on the electrical fabric; its others carry the load",
    "electrical-nics": "all NICs of a server on the electrical fabric; a peer relays over circuits and its own NICs",
    "optical-nic": "one NIC of a server on the optical switch, or its port there; circuits are chosen without it",
    "link": "one link from an edge switch up; its other links carry the load",
    "gpu": "one GPU; its work moves to a spare server, over the electrical fabric (own ports: over one NIC)",
    "server": "a server; a spare takes over, with its electrical NICs alone",
    "optical-switch": "the optical switch of a region; all of its traffic falls back to the electrical NICs",
    "controller": "what turns the circuits of a region; they stay as the last iteration left them",
    "nvswitch": "one NVSwitch of a server; the others carry its part of the bytes",
    "switch": "an edge switch: of rails one NIC of every server; of trees its servers, for which spares take over",
}


@dataclass(frozen=True)
class Degraded:
    """A region after a failure.

    - `region`: what is left, unequal servers and all; a server more where work has moved to a spare one.
    - `moved`: part of the bytes of the server's first rank that the spare server sends and receives.
    - `relays`: the server has no way of its own to the electrical fabric.
    - `eps_left`: part of the stage's electrical bandwidth that is left to gradients and to sends between stages.
    - `tp_on_eps`: part of a server's electrical bandwidth that the tensor-parallel all-reduces of one group are left
      with; 0: they stay on the NVLink.
    - `stays`: circuits are not chosen again.   - `nvlink_left`: part of the server's NVLink bandwidth that is left.
    """

    kind: str
    region: Region
    server: int
    moved: float = 0.0
    relays: bool = False
    eps_left: float = 1.0
    tp_on_eps: float = 0.0
    stays: bool = False
    nvlink_left: float = 1.0

    def share_of_rank(self, ranks: int, ranks_per_server: int) -> np.ndarray:
        """Part of each rank that sits on each server [R S]."""
        share = np.zeros((ranks, self.region.servers))
        share[np.arange(ranks), np.arange(ranks) // ranks_per_server] = 1
        if self.moved:
            first = self.server * ranks_per_server
            share[first, self.server] -= self.moved
            share[first, -1] += self.moved
        return share


def degraded(
    region: Region, kind: str, *, server: int = 0, gpus_per_rank: int = 1, radix: int = 64, nvswitches: int = NVSWITCHES
) -> Degraded:
    """What is left of a region of equal servers when something of `server` fails.

    - `gpus_per_rank`: the tensor-parallel degree; of more than one, a failed GPU moves its slice.
    - `radix`: of the edge switches; spraying goes on over the links that are left.
    - `nvswitches`: of a server.
    """
    one_of("failure", kind, (name for name in KINDS if name != "switch"))
    if whole("server", server, at_least=0) >= region.servers:
        raise InputError(f"server must be below the {region.servers} of the region, got {server}.")
    whole("gpus_per_rank", gpus_per_rank)
    here = np.arange(region.servers) == server
    optical = np.full(region.servers, int(region.optical_degree))
    electrical = np.full(region.servers, float(region.electrical_nics))
    nics = float(region.electrical_nics)
    if kind == "electrical-nic":
        if nics < 2:
            return degraded(region, "electrical-nics", server=server)
        left = _left(region, optical, electrical - here)
        return Degraded(kind, left, server, eps_left=(nics - 1) / nics)
    if kind == "electrical-nics":
        if region.servers < 2 or not int(region.optical_degree):
            raise InputError("failure 'electrical-nics' needs a peer that circuits reach; the region has none.")
        return Degraded(kind, _left(region, optical, electrical * ~here), server, relays=True, eps_left=0.5)
    if kind == "optical-nic":
        return Degraded(kind, _left(region, np.maximum(optical - here, 0), electrical), server)
    if kind == "link":
        up = Tree(1, radix).edge_ports[UP]
        if up < 2:
            raise InputError(f"radix must be 4 or more for failure 'link' (another link stays up), got {radix}.")
        return Degraded(kind, _left(region, optical, electrical * (up - 1) / up), server, eps_left=(up - 1) / up)
    if kind == "server":
        return Degraded(kind, _left(region, optical * ~here, electrical), server)
    if kind == "optical-switch":
        return Degraded(kind, _left(region, 0 * optical, electrical), server)
    if kind == "controller":
        return Degraded(kind, _left(region, optical, electrical), server, stays=True)
    if kind == "nvswitch":
        if whole("nvswitches", nvswitches) < 2:
            raise InputError("nvswitches must be at least 2 for failure 'nvswitch' (the others carry), got 1.")
        return Degraded(kind, _left(region, optical, electrical), server, nvlink_left=1 - 1 / nvswitches)
    nics_there = 1.0 if region.own_ports else nics
    spare = _left(region, np.append(optical, 0), np.append(electrical, nics_there))
    tp_on_eps = nics_there / nics if gpus_per_rank > 1 else 0.0
    return Degraded(kind, spare, server, moved=1 / gpus_per_rank, tp_on_eps=tp_on_eps)


def _left(region: Region, optical: np.ndarray, electrical: np.ndarray) -> Region:
    return dataclasses.replace(
        region, servers=len(optical), optical_degree=optical.astype(np.int32), electrical_nics=electrical
    )
