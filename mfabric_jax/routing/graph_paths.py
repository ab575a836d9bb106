"""All-to-alls of equal groups on shared links, cut into parts without common links; equal parts are solved once.

This is exact for three reasons. Among links with the same flows, only the narrowest can limit them. Flows that share no
link, directly or through other flows, do not change each other's rates. Parts that differ only in how their links are
numbered take equal times. A part whose flows each cross one port out and one port in is a star, which a faster loop
solves.
"""

import collections
import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.flows.host.star import flow_ends, latest_ends
from mfabric_jax.flows.host_times import finish_times_now
from mfabric_jax.routing.fixed import away_from_server, by_rail
from mfabric_jax.routing.gradients import NEARLY
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.platforms import cores

if TYPE_CHECKING:
    from mfabric_jax.routing.shortest import Routes

EQUAL = 1e-12  # largest relative difference that is rounding
BITS = 2.0**40  # shares are rounded to 40 bits before they are compared


class PartStar(NamedTuple):
    """Ports out and in [F] of every flow of a part, and the capacities of all ports [2 N] in NICs."""

    up: np.ndarray
    down: np.ndarray
    port: np.ndarray


class GraphPart(eqx.Module):
    """Flows that share links.

    - `source`, `target` [F]: ranks of each flow; `group` [F]: its group, numbered within the part.
    - `hops`, `share` [F H]: on links with the capacity of one NIC.
    - `many`: number of equal parts; `links_of` [L]: numbers of the links in the network, for the first of these parts.
    """

    source: Any
    target: Any
    group: Any
    hops: Any
    share: Any
    star: PartStar | None
    links_of: Any
    groups: int = eqx.field(static=True)
    links: int = eqx.field(static=True)
    many: int = eqx.field(static=True)

    def finish_now(self, nic_Bps: float, size: Float[np.ndarray, "F"]) -> Float[np.ndarray, "F"]:
        """Return when every flow ends [s], on the host."""
        if self.star is None:
            capacity = np.full(self.links, nic_Bps)
            return finish_times_now(capacity, np.asarray(self.hops), np.asarray(self.share, float), size[None])[0]
        up, down, port = self.star
        between = np.zeros((1, port.shape[1], port.shape[1]))
        between[0, up, down] = size
        return flow_ends(between, port * nic_Bps)[0, up, down]


class GraphPaths(eqx.Module):
    """The parts of the all-to-alls of `groups` groups. Each flow carries 1 / `slices` of the bytes between its ranks.

    - `group`, `column` [E]: pairs of a group and a column that holds one of its ends. Columns are the groups of all
      parts, in order; a group ends with the latest of its columns.
    - `per_rail`: ranks of a server whose bytes leave by the NIC of the destination's rank; 0: by their own NICs.
    """

    parts: tuple[GraphPart, ...]
    group: Any
    column: Any
    slices: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)
    per_rail: int = eqx.field(static=True, default=0)

    def at_nics(self, demand: Float[Array, "... R R"]) -> Float[Array, "... R R"]:
        """Return the bytes between NICs for the bytes between ranks."""
        if not self.per_rail:
            return demand
        return by_rail(away_from_server(demand, self.per_rail), self.per_rail)

    def time(self, fabric: Any, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Return the exact fluid completion time of one all-to-all between ranks [s]: the mean over groups."""
        if not self.parts:
            return jnp.zeros((), demand.dtype)
        demand, ends = self.at_nics(demand), []
        for part in self.parts:
            size = demand[part.source, part.target] / self.slices
            capacity = jnp.full(part.links, 1.0, size.dtype) * jnp.asarray(fabric.nic_Bps, size.dtype)
            problem = FlowProblem(capacity, jnp.asarray(part.hops), jnp.asarray(part.share, size.dtype))
            finish = completion_times(problem, size).finish
            ends.append(jnp.zeros(part.groups, size.dtype).at[part.group].max(finish))
        every = jnp.concatenate(ends)[self.column]
        return jnp.zeros(self.groups, every.dtype).at[self.group].max(every).mean()

    def times_now(self, fabric: Any, demand: Float[np.ndarray, "B R R"]) -> Float[np.ndarray, "B"]:
        """Return `time` for many all-to-alls, by compiled loops on the host in float64."""
        if not self.parts:
            return np.zeros(len(demand))
        nic_Bps, demand = float(fabric.nic_Bps), self.at_nics(demand)
        ends = [
            _side_by_side(lambda size, part=part: _ends(part, nic_Bps, size), demand[:, part.source, part.target])
            for part in self.parts
        ]
        every = np.concatenate(ends, axis=1)[:, self.column] / self.slices
        last = np.zeros((len(demand), self.groups))
        np.maximum.at(last.T, self.group, every.T)
        return last.mean(axis=1)


def _ends(part: GraphPart, nic_Bps: float, size: np.ndarray) -> np.ndarray:
    """Return when every group of a part ends [B G] s."""
    if part.star is not None:
        up, down, port = part.star
        between = np.zeros((len(size), port.shape[1], port.shape[1]))
        between[:, up, down] = size
        return latest_ends(between, port * nic_Bps)[:, None]
    finish = finish_times_now(np.full(part.links, nic_Bps), part.hops, part.share, size)
    last = np.zeros((len(size), part.groups))
    np.maximum.at(last.T, part.group, finish.T)
    return last


def _side_by_side(solve: Callable[[np.ndarray], np.ndarray], size: np.ndarray) -> np.ndarray:
    """Return `solve` of sizes [B F], in parallel on all cores."""
    workers = min(cores(), len(size))
    if workers < 2:
        return solve(size)
    with ThreadPoolExecutor(workers) as pool:
        return np.concatenate(list(pool.map(solve, np.array_split(size, workers))))


# ---------------------------------------------------------------------------------------------- division into parts
class _Hops(NamedTuple):
    """Hops in order of flows: `flow`, `link` [N]; `share` [N]: fraction of the flow's rate per NIC of the link."""

    flow: np.ndarray
    link: np.ndarray
    share: np.ndarray

    def some(self, which: np.ndarray) -> "_Hops":
        return _Hops(*(column[which] for column in self))


def graph_paths_of(
    ends: tuple[np.ndarray, np.ndarray],
    routes: "Routes",
    capacity: np.ndarray,
    slices: int,
    ranks: int,
    per_rail: int = 0,
) -> GraphPaths:
    """Return the paths of the slowest groups, for flows between GPUs `ends` ([F] each) on links of `capacity` [L] NICs.

    The slowest groups are the one whose busiest link carries most in an even all-to-all, and all groups that share
    links with it, directly or through others.
    """
    groups, group = np.unique(ends[0] // (slices * ranks), return_inverse=True)
    hops = narrowest(_hops_of(routes, capacity))
    part = flow_components(hops, len(group), len(capacity))
    flows = np.flatnonzero(_slowest(hops, part, group.ravel(), len(groups))[group.ravel()])
    flows = flows[np.argsort(part[flows], kind="stable")]
    source, target = (gpu // slices % ranks for gpu in ends)
    held, own = np.unique(group.ravel()[flows], return_inverse=True)
    first = np.searchsorted(hops.flow, np.arange(len(part) + 1))
    known: dict[Any, int] = {}
    counts: collections.Counter[int] = collections.Counter()
    parts: list[GraphPart] = []
    start, of, columns = [0], [], []
    for some in np.split(np.arange(len(flows)), np.flatnonzero(np.diff(part[flows])) + 1) if len(flows) else []:
        mine = flows[some]
        its, nth = np.unique(own.ravel()[some], return_inverse=True)
        index = np.concatenate([np.arange(int(first[flow]), int(first[flow + 1])) for flow in mine])
        form = _form(source[mine], target[mine], nth.ravel(), mine, hops.some(index))
        key = tuple(column.tobytes() for column in form)
        if key not in known:
            known[key] = len(parts)
            parts.append(_part(form, _in_order(hops.some(index).link)))
            start.append(start[-1] + parts[-1].groups)
        counts[known[key]] += 1
        of.append(its)
        columns.append(start[known[key]] + np.arange(len(its)))
    nothing = [np.zeros(0, np.int64)]
    groups_of, column = (np.concatenate(nothing + some) for some in (of, columns))
    every = tuple(dataclasses.replace(distinct, many=counts[index]) for index, distinct in enumerate(parts))
    return GraphPaths(every, groups_of, column, slices, max(1, len(held)), per_rail)


def _hops_of(routes: "Routes", capacity: np.ndarray) -> _Hops:
    flow, column = np.nonzero(routes.hops >= 0)
    link = routes.hops[flow, column].astype(np.int64)
    share = routes.share[flow, column] / capacity[link]
    return _Hops(flow, link, share).some(share > 0)  # infinite links limit no flow


def _slowest(hops: _Hops, part: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """Return the mask [G] of groups that share links with the slowest one, if all flows carry the same bytes."""
    load = np.bincount(hops.link, hops.share)
    worst = np.zeros(groups)
    np.maximum.at(worst, group[hops.flow], load[hops.link])
    together = flow_components(_Hops(group, part, np.zeros(0)), groups, len(part))
    slowest = np.flatnonzero(worst >= worst.max(initial=0) * (1 - NEARLY))
    return together == together[slowest[:1]] if groups else np.zeros(0, bool)


def narrowest(hops: _Hops) -> _Hops:
    """Drop hops on links that never limit: another link has the same flows and is narrower for all of them."""
    by_link = np.lexsort((hops.flow, hops.link))
    flow, link, share = hops.some(by_link)
    if not len(flow):
        return hops
    start = np.flatnonzero(np.diff(link, prepend=-1))
    count = np.diff(np.append(start, len(link)))
    drawn = np.random.default_rng(0).integers(0, 1 << 64, int(flow.max()) + 1, np.uint64)
    marks = np.stack([np.add.reduceat(drawn[flow], start), count.astype(np.uint64)])
    _, alike = np.unique(marks, axis=1, return_inverse=True)
    alike = alike.ravel()  # links with the same flows
    nth = np.arange(len(link)) - np.repeat(start, count)
    offset = np.concatenate([[0], np.cumsum(np.bincount(alike, count, len(alike)))]).astype(np.int64)
    slot = offset[np.repeat(alike, count)] + nth
    same = np.full(int(offset[-1]) + 1, -1)
    same[slot] = flow
    if (same[slot] != flow).any():  # two different sets of flows happen to have the same marks
        return hops
    widest = np.zeros(len(same))
    np.maximum.at(widest, slot, share)
    holds = np.logical_and.reduceat(share >= widest[slot] * (1 - EQUAL), start)
    first = np.full(len(alike), len(start))
    np.minimum.at(first, alike[holds], np.flatnonzero(holds))
    kept = (first[alike] == np.arange(len(start))) | (first[alike] == len(start))
    left = np.zeros(int(link.max()) + 1, bool)
    left[link[start[kept]]] = True
    return hops.some(left[hops.link])


def flow_components(hops: _Hops, flows: int, links: int) -> np.ndarray:
    """Return, for each flow, the lowest number [F] of a flow with which it shares links, directly or through others."""
    least = np.arange(flows)
    while True:
        of_link = np.full(links, flows)
        np.minimum.at(of_link, hops.link, least[hops.flow])
        then = least.copy()
        np.minimum.at(then, hops.flow, of_link[hops.link])
        then = then[then]
        if (then == least).all():
            return least
        least = then


def _form(
    source: np.ndarray, target: np.ndarray, group: np.ndarray, flows: np.ndarray, hops: _Hops
) -> tuple[np.ndarray, ...]:
    """Return a part with its links numbered in the order of first use: equal parts have equal forms."""
    order = _in_order(hops.link)
    position = np.argsort(order)
    number = position[np.searchsorted(order, hops.link, sorter=position)]
    flow = np.searchsorted(flows, hops.flow)
    mantissa, exponent = np.frexp(hops.share)
    share = np.ldexp(np.rint(mantissa * BITS) / BITS, exponent)
    return tuple(np.ascontiguousarray(x) for x in (source, target, group, flow, number, share))


def _in_order(link: np.ndarray) -> np.ndarray:
    """Return the links [L] in the order in which they first appear."""
    seen, first = np.unique(link, return_index=True)
    return seen[np.argsort(first, kind="stable")]


def _part(form: tuple[np.ndarray, ...], links_of: np.ndarray) -> GraphPart:
    source, target, group, flow, link, share = form
    count = np.bincount(flow, minlength=len(source))
    column = np.arange(len(flow)) - (np.cumsum(count) - count)[flow]
    shape = len(source), max(1, int(count.max(initial=0)))
    hops, shares = np.full(shape, -1), np.ones(shape)
    hops[flow, column], shares[flow, column] = link, share
    star = _star(hops, shares) if shape[1] == 2 and not group.any() else None
    sizes = {"groups": int(group.max(initial=0)) + 1, "links": int(hops.max(initial=-1)) + 1}
    return GraphPart(source, target, group, hops, shares, star, links_of, many=1, **sizes)


def _star(hops: np.ndarray, share: np.ndarray) -> PartStar | None:
    """Return the star of flows with two links each; None if links do not divide into ports out and ports in, or if two
    flows use the same ports."""
    if (hops < 0).any():
        return None
    links = int(hops.max()) + 1
    least, most = np.full(links, np.inf), np.zeros(links)
    np.minimum.at(least, hops, share)
    np.maximum.at(most, hops, share)
    side = _sides(hops, links)
    if side is None or (most > least * (1 + EQUAL)).any():
        return None
    number = np.zeros(links, np.int64)
    for half in (0, 1):
        number[side == half] = np.arange((side == half).sum())
    reversed_ = side[hops[:, 0]] == 1
    up, down = (number[np.where(reversed_, hops[:, 1 - column], hops[:, column])] for column in (0, 1))
    port = np.ones((2, max(np.bincount(side, minlength=2))))
    port[side, number] = 1 / most
    twice = len(np.unique(up * port.shape[1] + down)) < len(up)
    return None if twice else PartStar(up, down, port)


def _sides(hops: np.ndarray, links: int) -> np.ndarray | None:
    """Return the side, 0 or 1, of each link: every flow crosses one link of each side; None if that is impossible."""
    side = np.full(links, -1)
    side[0] = 0
    while (side < 0).any():
        for column in (0, 1):
            known, other = side[hops[:, column]], hops[:, 1 - column]
            fresh = (known >= 0) & (side[other] < 0)
            side[other[fresh]] = 1 - known[fresh]
    return side if (side[hops[:, 0]] != side[hops[:, 1]]).all() else None
