"""Collectives whose members begin one behind the other: with a root, along a tree."""

from collections.abc import Iterable

import numpy as np

from mfabric_jax.flows.dependencies import cycle_of
from mfabric_jax.tasks._members import Collectives
from mfabric_jax.tasks._same_patterns import SamePattern
from mfabric_jax.tasks.collectives.registry import ROOTED
from mfabric_jax.tasks.collectives.template import Template


def trees_of(found: Collectives, kinds: Iterable[tuple[SamePattern, Template]]) -> tuple[np.ndarray, np.ndarray]:
    """(mask [C], pairs [D 2] of tasks): the trees with all their members, and who waits for whom in them.

    Of a pair the second task receives from the first, or sends behind it. Letting it begin behind the end of the first
    closes no cycle that the messages do not close: its own end waits for the first anyway.
    """
    tree = np.zeros(len(found.op), bool)
    pairs = [np.zeros((0, 2), np.int64)]
    for kind, template in kinds:
        if kind.op not in ROOTED:
            continue
        sent = template.dst >= 0
        edges = np.stack([template.src[sent], template.dst[sent]], axis=1)
        edges = np.unique(np.concatenate([edges, template.whose[template.after]]), axis=0)
        edges = edges[edges[:, 0] != edges[:, 1]]
        if cycle_of(edges, len(kind.servers)):
            continue
        task = found.task[found.first[kind.collectives][:, None] + np.arange(len(kind.servers))]
        there = (task >= 0).all(axis=1)
        tree[kind.collectives[there]] = True
        pairs.append(task[there][:, edges].reshape(-1, 2))
    return tree, np.concatenate(pairs)
