"""What can fail, and what is left after it: a group says which kinds it lacks, and what every other kind leaves.

`KINDS` lists every part that a parts list or a server can have; a fabric answers for each. Source: arXiv 2501.03905,
section on failures. Where the source leaves a choice, `KINDS` says what is modelled.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric.tree import UP, Tree

KINDS = {
    "electrical-nic": "one NIC of a server on the electrical fabric; the server's other NICs carry its bytes",
    "electrical-nics": "all NICs of a server on the electrical fabric; a peer relays over circuits and its own NICs",
    "optical-nic": "one NIC on an optical switch, a patch panel or a direct link; circuits or paths avoid it",
    "nic-link": "the link of one NIC to its edge switch or router (two transceivers, a fibre); like electrical-nic",
    "optical-link": "the link of one NIC to its optical switch (a transceiver, a fibre); like optical-nic",
    "link": "an uplink of an edge switch or a link between servers; others carry its bytes (photonic rails: NIC fails)",
    "spine-link": "one link above the aggregation switches of three tiers; the others carry its bytes at no cost",
    "gpu": "one GPU; its work moves to a spare server (own ports: over one NIC); without a spare the job waits",
    "server": "a server; a spare takes over, on mFabric with its electrical NICs alone; without a spare the job waits",
    "optical-switch": "the optical switch of a region or rail; electrical NICs or the other rails carry its bytes",
    "controller": "the controller that reconfigures a region; its circuits stay as the last iteration left them",
    "nvswitch": "one NVSwitch of a server; the others carry its part of the bytes",
    "plane": "one of several planes that NICs are split over; the others carry its bytes",
    "plane-link": "the link of one NIC to one plane; its links to the other planes carry its bytes",
    "switch": "an edge switch or router; rails: each server loses one NIC; else servers are cut off and the job waits",
    "spine": "a switch above the edge; every edge switch loses its links to it and uses the others",
}
LIKE = {
    "nic-link": "electrical-nic",
    "optical-link": "optical-nic",
}  # a lost link counts as a failure of the NIC behind it
SAME_RATE = {  # parts without a rate fail like another kind: {kind: (other kind, factor)}
    "optical-nic": ("electrical-nic", 1.0),  # the same NIC
    "electrical-nic": ("optical-nic", 1.0),
    "nic-link": ("link", 1.0),  # the same two transceivers and fibre
    "spine-link": ("link", 1.0),
    "optical-link": ("link", 0.5),  # one transceiver
    "spine": ("switch", 1.0),  # the same switch
}


NVSWITCHES = 6  # of a server of 8 A100 (NVIDIA DGX A100 user guide)
NO_OPTICS = "it has no optical switch"
NO_PACKETS = "it has no packet switches"
CUT_OFF = "more servers are cut off than there are spares, so the job waits for the repair"
ONE_NETWORK = "its servers have no other network that could relay"
ONE_SPINE = "its only spine switch joins all edge switches, so the job waits for the repair"
PLANES, ONE_PLANE = ("plane", "plane-link"), "its NICs are on one plane"


class Failure(NamedTuple):
    """What fails: a kind of part at one `server` of a group of `servers`, and the sizes that matter.

    - `radix`: of switches; `rails`: NICs of equal rank share an edge switch; `gpu`: first GPU of the server, numbered
      over the cluster.
    - `uplinks`: uplinks in use at an edge switch; None: all uplinks of a full one. `spines`: switches that these lead
      to; None: one per uplink; infinite: no bytes cross them. `nics`: NICs of a server on the tree; None: the group's.
    - `relayed`: peers relay for a server without electrical NICs. `many_rings`: a fixed optical switch joins links of
      more than one ring.
    """

    kind: str
    server: int
    servers: int
    ranks_per_server: int = 1
    gpus_per_rank: int = 1
    radix: int = 64
    rails: bool = False
    attention_gpus: int = 1
    gpu: int = 0
    uplinks: float | None = None
    spines: float | None = None
    nics: float | None = None
    relayed: bool = True
    many_rings: bool = False

    def links_left(self, oversubscription: float = 1.0, planes: int = 1) -> float:
        """Return the fraction of an edge switch's uplinks left after one of them fails, or after a spine fails.

        With several `planes`, the uplinks of all planes count.
        """
        if self.spines == math.inf:
            return 1.0
        if self.uplinks is not None:
            share = min(self.uplinks, self.spines or self.uplinks) if self.kind == "spine" else self.uplinks
            return max(0.0, 1 - 1 / share)
        up = planes * Tree(1, self.radix * planes, oversubscription=oversubscription).edge_ports[UP]
        if up < 2:
            raise InputError(
                f"radix must be 4 or more for failure 'link', so that another link stays up, got {self.radix}."
                if oversubscription == 1
                else f"radix {self.radix} gives an edge switch one link up; failure 'link' needs another."
            )
        return (up - 1) / up


@dataclass(frozen=True)
class Degraded:
    """A group after a failure.

    - `group`: what is left, maybe with unequal servers; it has one more server if work moved to a spare. Paths or
      circuits that it lacks must be chosen again.
    - `moved`: fraction of the bytes of the server's first rank that the spare server sends and receives.
    - `relays`: the server has no electrical NICs left; peers relay for it.
    - `eps_left`: fraction of the stage's electrical bandwidth left to gradients and to sends between stages.
    - `tp_on_eps`: fraction of a server's electrical bandwidth left to one group's tensor-parallel all-reduces; 0: they
      stay on NVLink.
    - `stays`: circuits are not chosen again. `nvlink_left`: fraction of the server's NVLink bandwidth left.
    - `everywhere`: the failure hits all stages. `spare`: a spare server takes over.
    - `waits`: why the job waits for the repair; None: it continues.
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
    spare: bool = False
    waits: str | None = None

    def share_of_rank(self, ranks: int, ranks_per_server: int) -> np.ndarray:
        """Return the fraction of each rank on each server [R S]."""
        share = np.zeros((ranks, self.group.servers))
        share[np.arange(ranks), np.arange(ranks) // ranks_per_server] = 1
        if self.moved:
            first = self.server * ranks_per_server
            share[first, self.server] -= self.moved
            share[first, -1] += self.moved
        return share


def degrade(
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
    uplinks: float | None = None,
    spines: float | None = None,
    nics: float | None = None,
    relayed: bool = True,
    many_rings: bool = False,
) -> Degraded:
    """Return what is left of a group of equal servers after a part at `server` fails.

    - `servers`: of the group; None: the number that `group` has. `radix`: of edge switches, which spray over the
      remaining links.
    - `nvswitches`: of a server; `rails`: NICs of equal rank share an edge switch.
    - `gpus_per_rank`: tensor-parallel degree inside experts; above 1, a failed GPU moves only its slice.
    - `gpu`: on graphs, the first GPU of that server, numbered over the cluster.
    - `attention_gpus`: tensor-parallel degree of attention; None: as inside experts. Above 1, its all-reduces follow a
      GPU that moves.
    - `uplinks`, `spines`, `nics`, `relayed`, `many_rings`: see `Failure`.
    """
    one_of("failure", kind, KINDS)
    known: int = group.servers if servers is None else servers
    if whole("server", server, at_least=0) >= known:
        raise InputError(f"server must be below the {known} of the region, got {server}.")
    whole("gpus_per_rank", gpus_per_rank)
    if kind == "nvswitch":
        if whole("nvswitches", nvswitches) < 2:
            raise InputError("nvswitches must be at least 2 for failure 'nvswitch' (the others take over), got 1.")
        return Degraded(kind, group, server, nvlink_left=1 - 1 / nvswitches)
    if kind in PLANES and getattr(group, "planes", 1) == 1:
        raise InputError(f"failure {kind!r} needs NICs that are split over planes; this group's {ONE_PLANE[4:]}.")
    attention_gpus = gpus_per_rank if attention_gpus is None else whole("attention_gpus", attention_gpus)
    sizes = ranks_per_server, gpus_per_rank, radix, rails, attention_gpus, gpu
    hit = Failure(LIKE.get(kind, kind), server, known, *sizes, uplinks, spines, nics, relayed, many_rings)
    left = group.after_failure(hit)
    return dataclasses.replace(left, kind=kind) if kind in LIKE else left


def absent_kinds(group: Any, routing: str) -> dict[str, str]:
    """Return the kinds of failure that a group lacks, also of links to absent parts: {kind: reason}."""
    reasons = group.lacks(routing)
    reasons |= {kind: reasons[of] for kind, of in LIKE.items() if of in reasons}
    return {kind: reasons[kind] for kind in KINDS if kind in reasons}
