"""The critical path of a job: from the last flow back, at each step to the predecessor that ended last.

A flow is released at its start or when the last flow that it waits for ends; then its lag passes, then it runs. Steps
have no gaps between them, so their seconds add up to the end of the job.
"""

import itertools
from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.dependencies import successors


class CriticalPath(NamedTuple):
    """K steps in order of time: `flow` [K]; `released`, `begin`, `finish` [K] s.

    Each flow is released when the previous flow finishes, the first one at its own start. Its lag lies between
    `released` and `begin`.
    """

    flow: np.ndarray
    released: np.ndarray
    begin: np.ndarray
    finish: np.ndarray


def critical_path(after: np.ndarray, start: np.ndarray, begin: np.ndarray, finish: np.ndarray) -> CriticalPath:
    """Return the chain of flows that ends last; ties go to the lowest number. `after` [D 2]: waits, as in `Flows`."""
    flows = len(finish)
    if not flows:
        return CriticalPath(np.zeros(0, np.int64), *np.zeros((3, 0)))
    first, waited, _ = successors(after[:, ::-1], flows)
    path = [int(np.argmax(finish))]
    while True:
        before = waited[first[path[-1]] : first[path[-1] + 1]]
        if not len(before) or finish[before].max() < start[path[-1]]:
            break
        path.append(int(before[finish[before] == finish[before].max()].min()))
    flow = np.array(path[::-1], np.int64)
    released = np.concatenate([start[flow[:1]], finish[flow[:-1]]])
    return CriticalPath(flow, released, begin[flow], finish[flow])


def union_s(begin: np.ndarray, end: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """Return the seconds [owners] that the union of each owner's intervals covers, from `begin` to `end` [N]."""
    seconds = np.zeros(owners)
    order = np.lexsort((begin, owner))
    begin, end, owner = begin[order], end[order], owner[order]
    bounds = np.searchsorted(owner, np.arange(owners + 1))
    for index, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
        if high > low:
            reached = np.maximum.accumulate(end[low:high])
            before = np.concatenate([begin[low : low + 1], reached[:-1]])
            seconds[index] = np.maximum(end[low:high] - np.maximum(begin[low:high], before), 0).sum()
    return seconds
