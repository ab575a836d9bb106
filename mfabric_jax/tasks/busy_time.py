"""For how long something was going on: unions of intervals, exactly."""

import itertools

import numpy as np


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
