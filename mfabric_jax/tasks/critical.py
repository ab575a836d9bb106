"""What a job's end waited for: back from the last flow, each time to what was waited for last.

A flow is released by its start or by the end of the last flow it waits for; its lag follows, then it runs. The steps of
the path follow each other without a gap, so their seconds add up to the end of the job.
"""

import itertools
from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.dependencies import successors


class CriticalPath(NamedTuple):
    """K steps, the first to begin first.

    - `flow` [K].   - `released`, `begin`, `finish` [K] s: the lag is between the first two. Every flow but the first
      is released when the one before it finishes; the first by its own start.
    """

    flow: np.ndarray
    released: np.ndarray
    begin: np.ndarray
    finish: np.ndarray


def critical_path(after: np.ndarray, start: np.ndarray, begin: np.ndarray, finish: np.ndarray) -> CriticalPath:
    """The chain of flows that ends last; of equals the one with the lowest number.

    - `after` [D 2], `start` [F]: as the flows had them.   - `begin`, `finish` [F]: as they came out.
    """
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


# For how long something was going on: unions of intervals, exactly.


def covered_s(begin: np.ndarray, end: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """Seconds [owners] in which at least one of an owner's intervals [N] from `begin` to `end` was going on."""
    found = np.zeros(owners)
    order = np.lexsort((begin, owner))
    begin, end, owner = begin[order], end[order], owner[order]
    bounds = np.searchsorted(owner, np.arange(owners + 1))
    for one, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
        if high > low:
            reached = np.maximum.accumulate(end[low:high])
            before = np.concatenate([begin[low : low + 1], reached[:-1]])
            found[one] = np.maximum(end[low:high] - np.maximum(begin[low:high], before), 0).sum()
    return found
