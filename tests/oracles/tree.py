"""Completion times in a star or a two-level tree, in float64 NumPy: fast enough for tens of endpoints."""

import numpy as np


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
    time = np.zeros(size.shape)
    time[source, sink] = _drain(np.concatenate(capacity), np.stack(ports, axis=1), size[source, sink])
    return time


def _drain(capacity, ports, left):
    """Finish times of flows over `ports[f]`: rates hold until the next flow ends."""
    finish, now = np.full(len(left), np.inf), 0.0
    while (active := np.flatnonzero(left > 0)).size:
        rate = _fill(capacity, ports[active])
        needs = np.divide(left[active], rate, out=np.full(len(rate), np.inf), where=rate > 0)
        if np.isinf(needs.min()):
            break
        now += needs.min()
        left[active] = np.where(needs == needs.min(), 0, np.maximum(left[active] - rate * needs.min(), 0))
        finish[active[left[active] == 0]] = now
    return finish


def _fill(capacity, ports):
    """Max-min rates of equal flows: the port with the smallest equal share freezes its flows, one port at a time."""
    rate, rising = np.zeros(len(ports)), np.ones(len(ports), bool)
    while rising.any():
        number = np.bincount(ports[rising].ravel(), minlength=len(capacity))
        used = np.bincount(ports.ravel(), np.repeat(rate, ports.shape[1]), minlength=len(capacity))
        fair = np.where(number > 0, np.maximum(capacity - used, 0) / np.maximum(number, 1), np.inf)
        frozen = rising & (ports == fair.argmin()).any(axis=1)
        rate[frozen] = fair.min()
        rising &= ~frozen
    return rate
