"""What a replay takes for granted, in words: servers, their NICs and who uses them, latency, lanes."""

from typing import Any

import numpy as np

from mfabric_jax.fabric import Cluster
from mfabric_jax.study._replay import Replayed
from mfabric_jax.study._replay_settings import Replay
from mfabric_jax.units import to_us

NICS_ALONE = "sprayed over switches that never block, only NICs hold messages back (docs/fabrics.md)."


def replay_assumed(done: Replayed, config: Replay) -> dict[str, Any]:
    """Of one replay; rows for `report.replay_text.assumptions_text`.

    - `like`: why it ends as others do that say the same, None: for no such reason.
    """
    cluster = done.prepared.cluster
    row = {"fabric": done.prepared.fabric, "nic_gbps": done.prepared.nic_gbps, "makespan_s": done.makespan_s}
    lanes = "one task of a lane at a time, in an order set beforehand" if config.lanes == "ordered" else "lanes free"
    rest = f"{config.alpha_s:g} s a message; {lanes}" if config.alpha_s else lanes
    if cluster is None:
        return row | {"common": f"latency of the graph's links; {rest}", "nics": "as the graph says", "like": None}
    inside = f"{cluster.gpus_per_server} GPUs a server, NVLink {cluster.nvswitch_gigabytes_per_s:g} GB/s a GPU each way"
    latency = f"latency {to_us(cluster.link_delay_s):g} us a link"
    return row | {"common": f"{inside}; {latency}; {rest}", "nics": _nics(cluster), "like": _why(cluster, config)}


def _nics(cluster: Cluster) -> str:
    """How many NICs a server has where, and who uses them."""
    circuits = np.bincount(cluster.circuits.src, cluster.circuits.count, minlength=1).max()
    parts = [f"{cluster.nics} on packet switches"] if cluster.nics else []
    optical = cluster.regions is not None and cluster.direct is None
    if circuits:
        parts.append(f"up to {circuits:g} {'circuits' if optical else 'direct links'} in use")
    elif optical:
        parts.append("circuits of each all-to-all")
    users = "each GPU its own" if cluster.nic_use == "own" else "used by all its GPUs"
    return f"{' and '.join(parts)}, {users}"


def _why(cluster: Cluster, config: Replay) -> str | None:
    tree = cluster.tree
    if tree is None or tree.parts > 1 or tree.oversubscription != 1 or cluster.nic_use != "own" or cluster.pxn:
        return None
    return NICS_ALONE if config.routing == "spray" else None
