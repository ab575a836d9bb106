"""What a replay takes for granted, in words: servers, their NICs and who uses them, latency, lanes."""

from typing import Any

import numpy as np

from mfabric_jax.fabric import Cluster
from mfabric_jax.replay._replay import Replayed
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.units import to_us

NICS_ALONE = "sprayed over switches that never block, only NICs hold messages back (docs/fabrics.md)."


def replay_assumed(done: Replayed, config: Replay) -> dict[str, Any]:
    """Of one replay; rows for `report.replay_text.assumptions_text`.

    - `like`: why it ends as others do that say the same, None: for no such reason.
    """
    cluster = done.prepared.cluster
    row = {"fabric": done.prepared.fabric, "nic_gbps": done.prepared.nic_gbps, "makespan_s": done.makespan_s}
    lanes = "one task of a lane at a time, in an order set beforehand" if config.lanes == "ordered" else "lanes free"
    rest = f", {config.alpha_s:g} s a message; {lanes}" if config.alpha_s else f"; {lanes}"
    if cluster is None:
        return row | {"common": f"latency of the graph's links{rest}", "servers": "as the graph says", "like": None}
    latency = f"latency {to_us(cluster.link_delay_s):g} us a link"
    return row | {"common": latency + rest, "servers": _servers(cluster, config), "like": _why(cluster, done)}


def _servers(cluster: Cluster, config: Replay) -> str:
    """GPUs and NICs of a server, and who uses these."""
    circuits = np.bincount(cluster.circuits.src, cluster.circuits.count, minlength=1).max()
    parts = [f"{cluster.nics} on packet switches"] if cluster.nics else []
    if cluster.direct is not None:
        parts.append(f"{circuits:g} direct links")
    elif circuits:
        parts.append(f"{circuits:g} circuits")
    elif cluster.regions is not None and config.circuits_for == "all-to-all":
        parts.append("circuits for each all-to-all")
    users = "each GPU its own" if cluster.nic_use == "own" else "for all its GPUs"
    gpus = f"{cluster.gpus_per_server} GPU{'' if cluster.gpus_per_server == 1 else 's'} a server"
    inside = f"{gpus}, NVLink {cluster.nvswitch_gigabytes_per_s:g} GB/s a GPU each way"
    return f"{inside}; NICs of a server: {' and '.join(parts) or 'none in use'}, {users}"


def _why(cluster: Cluster, done: Replayed) -> str | None:
    tree = cluster.tree
    if tree is None or tree.parts > 1 or tree.oversubscription != 1 or cluster.nic_use != "own" or cluster.pxn:
        return None
    return NICS_ALONE if done.prepared.paths == "spray" else None
