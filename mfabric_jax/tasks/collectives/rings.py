"""As many rings as a server has members, each with a part of the bytes, so that all NICs work (channels of NCCL).

Every ring visits server after server; the k-th enters each server at its k-th member (modulo how many it has there) and
leaves it at the one before. Members of one server alone need one ring.
"""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Build, Builds, on_each
from mfabric_jax.tasks.collectives.ring import RING
from mfabric_jax.tasks.graph import Op


def _built(op: Op) -> Build:
    def build(server):
        there = [np.flatnonzero(np.equal(server, one)) for one in sorted(set(server))]
        rings = max(map(len, there)) if len(there) > 1 else 1
        orders = [np.concatenate([np.roll(members, -k) for members in there]) for k in range(rings)]
        return on_each(RING[op](server), np.stack(orders), 1 / rings)

    return build


RINGS: Builds = {op: _built(op) for op in (Op.ALL_REDUCE, Op.ALL_GATHER, Op.REDUCE_SCATTER)}
