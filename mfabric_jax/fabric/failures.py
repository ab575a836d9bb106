"""What can fail, and what is left: groups report what they lack (`lacks`) and what a failure leaves (`broken`).

Source: arXiv 2501.03905, section on failures. Where it leaves a choice, `KINDS` says what is modelled.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric.tree import UP, Tree

KINDS = {
    "electrical-nic": "one NIC of a server on the electrical fabric; its others carry the load",
    "electrical-nics": "all NICs of a server on the electrical fabric; a peer relays over circuits and its own NICs",
    "optical-nic": "one NIC of a server on the optical switch, or its port there; circuits are chosen without it",
    "link": "one link from an edge switch up or between servers; others carry (to a rail's optical switch: its NIC)",
    "gpu": "one GPU; its work moves to a spare server, over the electrical fabric (own ports: over one NIC)",
    "server": "a server; a spare takes over, with its electrical NICs alone",
    "optical-switch": "that of a region, whose traffic takes electrical NICs; of a rail: other rails carry its bytes",
    "controller": "what turns the circuits of a region; they stay as the last iteration left them",
    "nvswitch": "one NVSwitch of a server; the others carry its part of the bytes",
    "plane": "one plane of NICs that are split over several; the others carry",
    "plane-link": "the link of one NIC to one plane; its links to the others carry",
    "switch": "an edge switch: of rails one NIC of every server; of trees its servers, for which spares take over",
}


NVSWITCHES = 6  # of a server of 8 A100 (NVIDIA DGX A100 user guide); of 8 H100: 4
NO_OPTICS = "it has no optical switch"
NO_PACKETS = "it has no packet switches"
PLANES, ONE_PLANE = ("plane", "plane-link"), "its NICs are on one plane"


class Hit(NamedTuple):
    """What fails: a kind, the `server` of a group of `servers`, and the shapes that matter (`radix` of switches,
    `rails`: NICs of equal rank share an edge switch; `gpu`: the first of the server, among those of the cluster)."""

    kind: str
    server: int
    servers: int
    ranks_per_server: int = 1
    gpus_per_rank: int = 1
    radix: int = 64
    rails: bool = False
    attention_gpus: int = 1
    gpu: int = 0

    def links_left(self, oversubscription: float = 1.0, planes: int = 1) -> float:
        """Fraction of an edge switch's uplinks left when one fails; of `planes` alike, of all their switches'."""
        up = planes * Tree(1, self.radix * planes, oversubscription=oversubscription).edge_ports[UP]
        if up < 2:
            raise InputError(
                f"radix must be 4 or more for failure 'link' (another link stays up), got {self.radix}."
                if oversubscription == 1
                else f"radix {self.radix} gives an edge switch one link up; failure 'link' needs another."
            )
        return (up - 1) / up


@dataclass(frozen=True)
class Degraded:
    """A group after a failure.

    - `group`: what is left, with unequal servers; one more where work moved to a spare. Unknown paths or circuits must
      be chosen again.
    - `moved`: fraction of the bytes of the server's first rank that the spare server sends and receives.
    - `relays`: the server has no connection of its own to the electrical fabric.
    - `eps_left`: fraction of the stage's electrical bandwidth left to gradients and to sends between stages.
    - `tp_on_eps`: fraction of a server's electrical bandwidth left to one group's tensor-parallel all-reduces; 0: they
      stay on NVLink.
    - `stays`: circuits are not chosen again. `nvlink_left`: fraction of the server's NVLink bandwidth left.
    - `everywhere`: all stages are hit alike.
    """

    kind: str
    group: Any
    server: int
    moved: float = 0.0
    relays: bool = False
    eps_left: float = 1.0
    tp_on_eps: float = 0.0
    stays: bool = False
    nvlink_left: float = 1.0
    everywhere: bool = False

    def share_of_rank(self, ranks: int, ranks_per_server: int) -> np.ndarray:
        """Fraction of each rank that sits on each server [R S]."""
        share = np.zeros((ranks, self.group.servers))
        share[np.arange(ranks), np.arange(ranks) // ranks_per_server] = 1
        if self.moved:
            first = self.server * ranks_per_server
            share[first, self.server] -= self.moved
            share[first, -1] += self.moved
        return share


def degraded(
    group: Any,
    kind: str,
    *,
    server: int = 0,
    servers: int | None = None,
    ranks_per_server: int = 1,
    gpus_per_rank: int = 1,
    radix: int = 64,
    nvswitches: int = NVSWITCHES,
    rails: bool = False,
    attention_gpus: int | None = None,
    gpu: int = 0,
) -> Degraded:
    """What is left of a group of equal servers when something of `server` fails.

    - `servers`: of the group, None: its own number; `radix`: of the edge switches, whose remaining links go on
      spraying.
    - `nvswitches`: of a server; `rails`: NICs of equal rank share an edge switch.
    - `gpus_per_rank`: tensor-parallel degree inside experts; above 1, a failed GPU moves only its slice.
    - `gpu`: the first of that server among all of the cluster, on graphs.
    - `attention_gpus`: that of attention, None: the same; above 1, its all-reduces follow a GPU that moves.
    """
    one_of("failure", kind, KINDS)
    known: int = group.servers if servers is None else servers
    if whole("server", server, at_least=0) >= known:
        raise InputError(f"server must be below the {known} of the region, got {server}.")
    whole("gpus_per_rank", gpus_per_rank)
    if kind == "nvswitch":
        if whole("nvswitches", nvswitches) < 2:
            raise InputError("nvswitches must be at least 2 for failure 'nvswitch' (the others carry), got 1.")
        return Degraded(kind, group, server, nvlink_left=1 - 1 / nvswitches)
    if kind in PLANES and getattr(group, "planes", 1) == 1:
        raise InputError(f"failure {kind!r} needs NICs that are split over planes; of this group {ONE_PLANE[4:]}.")
    attention_gpus = gpus_per_rank if attention_gpus is None else whole("attention_gpus", attention_gpus)
    return group.broken(Hit(kind, server, known, ranks_per_server, gpus_per_rank, radix, rails, attention_gpus, gpu))
