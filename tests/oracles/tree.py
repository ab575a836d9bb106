"""Completion times in a star or a two-level tree: the fluid flows of `dense` over its ports."""

import numpy as np

from .dense import completion, matrix


def tree(size, up, down, group_up=None, group_down=None):
    """Finish time of each flow i -> j of `size[i, j]` bytes, all starting at 0; 0 where there are no bytes.

    A flow crosses up[i], down[j] and, with groups (endpoint n sits in group n // (N / G)), group_up of i's group
    and group_down of j's, also when these are the same group.
    """
    size, up, down = (np.asarray(x, float) for x in (size, up, down))
    source, sink = np.nonzero(size)
    ports, capacity = [source, len(up) + sink], [up, down]
    if group_up is not None:
        members, base = len(up) // len(group_up), len(up) + len(down)
        ports += [base + source // members, base + len(group_up) + sink // members]
        capacity += [np.asarray(group_up, float), np.asarray(group_down, float)]
    time, hops, capacity = np.zeros(size.shape), np.stack(ports, axis=1), np.concatenate(capacity)
    time[source, sink] = completion(capacity, matrix(hops, np.ones(hops.shape), len(capacity)), size[source, sink], 0.0)
    return time
