"""Events and steps of filling of one region in plain Python, as a kernel for one region at a time takes them."""

import numpy as np


def events_and_fills(size: np.ndarray) -> tuple[int, int]:
    """`size` [S S] over ports of 1: flows that end together are one event; what is above them is filled again."""
    left, ports = np.where(size > 0, size, 0.0), len(size)
    level = np.full(2 * ports, np.inf)
    floor, events, fills = 0.0, 0, 0
    while (left > 0).any():
        level, steps = _filled(left > 0, np.where(level < floor, level, np.inf))
        rate = np.minimum(np.minimum(level[:ports, None], level[None, ports:]), 1.0)
        until = np.where(left > 0, left / rate, np.inf)
        ends = until <= until.min() * (1 + 1e-6)
        left = np.where(ends, 0, np.maximum(left - until.min() * rate, 0))
        floor = rate[ends].min()
        events, fills = events + 1, fills + steps
    return events, fills


def _filled(flow: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, int]:
    """Levels of the ports, those that are finite kept; and how many steps that took."""
    steps = 0
    both = np.block([[np.zeros_like(flow), flow], [flow.T, np.zeros_like(flow)]]).astype(float)
    while True:
        held = np.isfinite(level)
        settled = np.where(held, level, 0.0)
        # A flow is settled at the lower level of its two ports; it is open where neither has one.
        other = np.where(held[:, None] & held[None], np.minimum(level[:, None], level[None]), settled[None])
        room = 1 - (both * np.where(held[None], other, 0)).sum(1)
        count = (both * ~held[None]).sum(1)
        share = np.where(~held & (count > 0), np.maximum(room, 0) / np.maximum(count, 1), np.inf)
        if not np.isfinite(share).any():
            return level, steps
        level = np.where(share <= share.min() * (1 + 1e-6), share.min(), level)
        steps += 1
