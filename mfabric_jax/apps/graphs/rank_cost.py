"""What a byte costs between the expert-parallel ranks of a group, for placements of experts that know the network.

The cost of a pair is the seconds that a byte of one message takes on the empty fabric: one over the least bandwidth on
the message's way, of a message that spreads over all its shortest paths. A tensor-parallel rank stands for its group.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import resolve
from mfabric_jax.evaluate.whole_cluster import build_cluster, drawn_tokens
from mfabric_jax.routing.transfers import wired_cluster
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.traffic.training import gpu_grid

MOST_RANKS = 1024  # of a file: its text is 20 MB then


def rank_cost(case: Case) -> Float[np.ndarray, "R R"]:
    """Seconds per byte from each EP rank of the first group to each, 0 on the diagonal. Circuits are those for the
    traffic of the case. `InputError` where two ranks have no path."""
    resolved = resolve(case)
    ranks = resolved.job.ep
    if ranks > MOST_RANKS:
        raise InputError(f"rank_cost must be of at most {MOST_RANKS:,} ranks (ep), got {ranks:,}.")
    wired = wired_cluster(build_cluster(resolved, drawn_tokens(resolved)), "spray")
    gpu = gpu_grid(resolved.job)[0, 0, :, 0]
    src, dst = (ends.ravel() for ends in np.meshgrid(gpu, gpu, indexing="ij"))
    hops, share = wired.routes(src, dst, np.ones(len(src)))
    here = hops >= 0
    each = np.where(here, share, 0) / np.where(here, wired.network.capacity[hops], 1)
    return each.max(axis=1, initial=0.0).reshape(ranks, ranks)


def check_rank_cost(path: str | Path) -> None:
    """`InputError` where a matrix could not be written."""
    check_file("rank_cost", path, (".json",))


def write_rank_cost(cost: Float[np.ndarray, "R R"], path: str | Path, about: dict[str, Any]) -> Path:
    """Write `{"cost": [[...]]}`, rows and columns in the order of ranks, and what it is about; returns the path."""
    check_rank_cost(path)
    with replacing(path := Path(path)) as (part,):
        text = json.dumps({"cost": cost.tolist(), "unit": "seconds per byte"} | about)
        part.write_text(text + "\n", encoding="utf-8")
    return path
