"""Hop tables: which links every flow crosses, and with which part of its rate."""

from typing import NamedTuple

import numpy as np


class Routes(NamedTuple):
    """- `hops` [F H]: link of a network, -1 pads.   - `share` [F H]: part of the flow's rate that crosses it."""

    hops: np.ndarray
    share: np.ndarray


def compact(hops: np.ndarray, share: np.ndarray) -> Routes:
    """Every link once a row, its shares added; shares of 0 dropped; links in falling order, padding last."""
    hops = np.where(share > 0, hops, -1)
    order = np.argsort(-hops, axis=1, kind="stable")
    hops, share = np.take_along_axis(hops, order, 1), np.take_along_axis(share, order, 1)
    first = np.ones(hops.shape, bool)
    first[:, 1:] = hops[:, 1:] != hops[:, :-1]
    slot = np.cumsum(first, axis=1) - 1  # equal links share a slot
    width = max(1, int(np.where(hops >= 0, slot + 1, 0).max(initial=0)))
    row, column = np.nonzero(hops >= 0)
    at = row, slot[row, column]
    merged, total = np.full((len(hops), width), -1, np.int32), np.zeros((len(hops), width))
    merged[at] = hops[row, column]
    np.add.at(total, at, share[row, column])
    return Routes(merged, total)


def stacked(parts: list[tuple[np.ndarray, Routes]], flows: int) -> Routes:
    """Routes of some flows each (their numbers, their rows) as one table; flows that are in none have no hops."""
    width = max([1, *(routes.hops.shape[1] for _, routes in parts)])
    hops, share = np.full((flows, width), -1, np.int32), np.zeros((flows, width))
    for flow, routes in parts:
        hops[flow, : routes.hops.shape[1]] = routes.hops
        share[flow, : routes.share.shape[1]] = routes.share
    return Routes(hops, share)
