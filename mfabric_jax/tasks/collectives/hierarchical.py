"""Inside servers directly (their GPUs share a switch), between servers on a ring or directly, rail by rail.

The i-th members of all servers are a rail. All-reduce: reduce-scatter inside, a ring between, all-gather inside.
All-to-all: what is for the i-th members is collected by the i-th member of the own server, which sends it to the others
of its rail. Members of one server alone, or one in each server, are left with the one part that they need.
"""

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.tasks.collectives.direct import DIRECT
from mfabric_jax.tasks.collectives.pattern import Build, Builds, Pattern, in_turn, on_each
from mfabric_jax.tasks.collectives.ring import RING
from mfabric_jax.tasks.graph import Op


def _rows(server: tuple[int, ...]) -> np.ndarray:
    """[S m]: the places in each server, in the order of the group."""
    _, row, count = np.unique(server, return_inverse=True, return_counts=True)
    if len(set(count)) > 1:
        raise InputError(
            f"a hierarchical collective needs as many members in each server, got {count.min()} to {count.max()}."
        )
    return np.argsort(row, kind="stable").reshape(len(count), -1)


def _built(*phases) -> Build:
    """`phases`: (inside, builds, op) in turn. Inside, a member's bytes are those of the collective; between, of a
    rail."""

    def build(server) -> Pattern:
        rows = _rows(server)
        members = len(rows[0])
        parts = [
            on_each(builds[op](rows[0] if inside else rows[:, 0]), rows if inside else rows.T, part(members))
            for inside, builds, op, part in phases
        ]
        return in_turn(len(server), *parts)

    return build


def _all(members: int) -> float:
    return 1


def _rail(members: int) -> float:
    return 1 / members


HIERARCHICAL: Builds = {
    Op.ALL_REDUCE: _built(
        (True, DIRECT, Op.REDUCE_SCATTER, _all),
        (False, RING, Op.ALL_REDUCE, _rail),
        (True, DIRECT, Op.ALL_GATHER, _all),
    ),
    Op.REDUCE_SCATTER: _built((True, DIRECT, Op.REDUCE_SCATTER, _all), (False, RING, Op.REDUCE_SCATTER, _rail)),
    Op.ALL_GATHER: _built((False, RING, Op.ALL_GATHER, _rail), (True, DIRECT, Op.ALL_GATHER, _all)),
    Op.ALL_TO_ALL: _built((True, DIRECT, Op.ALL_TO_ALL, _all), (False, DIRECT, Op.ALL_TO_ALL, _all)),
}
