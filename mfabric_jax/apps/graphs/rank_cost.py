"""Cost of a byte between the expert-parallel ranks of a group, for network-aware placement of experts.

The cost of a pair is the time in seconds that one byte takes on the idle fabric. A message spreads over all its
shortest paths; the link with the largest ratio of load to bandwidth decides. The first rank of each tensor-parallel
group stands for the group.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import resolve
from mfabric_jax.evaluate.whole_cluster import build_cluster, draw_tokens
from mfabric_jax.routing.transfers import wire_cluster
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.traffic.training import gpu_grid

MOST_RANKS = 1024  # the file then holds 20 MB of text


def rank_cost(case: Case) -> Float[np.ndarray, "R R"]:
    """Return the seconds per byte between the EP ranks of the first group [R R], with zeros on the diagonal.

    The circuits are those that the case's policy chooses for its traffic. Raise `InputError` if two ranks have no path.
    """
    resolved = resolve(case)
    ranks = resolved.job.ep
    if ranks > MOST_RANKS:
        raise InputError(f"rank_cost must have at most {MOST_RANKS:,} ranks (ep), got {ranks:,}.")
    wired = wire_cluster(build_cluster(resolved, draw_tokens(resolved)), "spray")
    gpu = gpu_grid(resolved.job)[0, 0, :, 0]
    src, dst = (ends.ravel() for ends in np.meshgrid(gpu, gpu, indexing="ij"))
    hops, share = wired.routes(src, dst, np.ones(len(src)))
    here = hops >= 0
    each = np.where(here, share, 0) / np.where(here, wired.network.capacity[hops], 1)
    return each.max(axis=1, initial=0.0).reshape(ranks, ranks)


def check_rank_cost(path: str | Path) -> None:
    """Raise `InputError` if the matrix cannot be written to `path`."""
    check_file("rank_cost", path, (".json",))


def write_rank_cost(cost: Float[np.ndarray, "R R"], path: str | Path, about: dict[str, Any]) -> Path:
    """Write `{"cost": [[...]]}` with the entries of `about`, and return the path. Rows and columns follow the ranks."""
    check_rank_cost(path)
    with replacing(path := Path(path)) as (part,):
        text = json.dumps({"cost": cost.tolist(), "unit": "seconds per byte"} | about)
        part.write_text(text + "\n", encoding="utf-8")
    return path
