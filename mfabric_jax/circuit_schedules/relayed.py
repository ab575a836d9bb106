"""Choose configurations, durations and relay shares together: few reconfigurations reach every pair in two hops. Ours.

There are two stages as in `valiant`, but the path of each byte is chosen. The first stage shows the shifts 1 to a - 1,
the second the multiples of a. So every server reaches every other in at most two hops, one in each stage. This takes
only about 2 sqrt(S) configurations instead of S - 1. For each a, a linear programme divides every pair's bytes between
the direct path in either stage and the paths through each other server, so that the sum of both stages is shortest.
`joint` then plans each stage for the bytes that it has to carry. The result is the earliest end over all a, `joint`
without relays and `valiant`. The shifts are the two digits of Bruck's all-to-all (IEEE TPDS 8, 1997) to the base a.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.placing import busiest
from mfabric_jax.circuit_schedules.registry import checked_demand, facts_of, get
from mfabric_jax.circuit_schedules.valiant import Stage, valiant
from mfabric_jax.fabric.region import Region
from mfabric_jax.support.extras import load_extra

ROUNDING = 1e-9  # of the busiest line: fewer bytes of a pair are numerical errors of the linear programme


def relay_stages(demand: Any, region: Region, switches: int = 1, *, programmes: int = 200, **how: Any) -> list[Stage]:
    """Return stages that run one after the other, for `staged_time`; if relaying does not pay, one stage by `joint`.

    - `demand` [S S]: bytes from server i to server j, known before tracing.
    - `programmes`: limit of `joint` on linear programmes, for each stage.
    - `how`: delay_s, all_stop, directed, first_free, as for `get`.

    The stages never end later than `joint` or `valiant` (by `schedule_end_s`, in float64). If circuits carry both
    directions, `valiant` alone provides two-hop paths. Raise `InputError` as `get` does.
    """
    bytes_, options = checked_demand(demand, region), {"switches": switches, **how}
    plans = [get("joint", programmes=programmes, **options)]
    plans.append(get("joint", programmes=programmes, **{**options, "first_free": False}))
    candidates = [[Stage(plans[0](bytes_, region), bytes_)], valiant(bytes_, region, switches, **how)]
    if options.get("directed", True) and bytes_.any():
        for loads in _loads(bytes_, facts_of(region, switches), switches):
            stages = zip(plans, loads, strict=True) if loads[0].any() else [(plans[0], loads[1])]
            candidates.append([Stage(plan(load, region), load) for plan, load in stages if load.any()])
    return min(
        candidates,
        key=lambda stages: sum(schedule_end_s(region, stage.schedule, np.asarray(stage.demand)) for stage in stages),
    )


def _loads(demand: np.ndarray, facts: dict[str, Any], switches: int) -> Iterator[np.ndarray]:
    """Yield the bytes [2 S S] of both stages, for each base of the shifts."""
    servers = len(demand)
    for base in range(2, servers):
        shifts = [range(1, base), range(base, servers, base)]
        reach = np.zeros((2, servers, servers), bool)
        for stage, own in enumerate(shifts):
            for shift in own:
                reach[stage] |= np.roll(np.eye(servers, dtype=bool), shift, axis=1)
        loads = _shares(demand, reach, facts["circuit_Bps"] * facts["ports"] * switches, facts["packet_Bps"])
        if loads is not None:
            yield loads


def _shares(demand: np.ndarray, reach: np.ndarray, circuits_Bps: float, packet_Bps: float) -> np.ndarray | None:
    """Return the bytes [2 S S] of both stages if circuits reach the pairs `reach` [2 S S]; None if they miss a pair.

    Variables: bytes on each path (direct in the first or the second stage, or through a server), seconds of each
    shift, bytes on packet NICs [2 S S], and seconds of both stages, whose sum is minimised.
    """
    optimize, sparse = (load_extra("exact", "relay shares", f"scipy.{part}") for part in ("optimize", "sparse"))
    servers, unit = len(demand), busiest(demand)
    near = reach | np.eye(servers, dtype=bool) | (packet_Bps > 0)
    ways = [(i, via, j) for i, j in np.argwhere(demand) for via in np.flatnonzero(near[0, i] & near[1, :, j])]
    if {(i, j) for i, _, j in ways} != set(map(tuple, np.argwhere(demand))):
        return None
    start, via, goal = np.array(ways).T
    many, pairs, shift = len(ways), 2 * servers * servers, (np.arange(servers) - np.arange(servers)[:, None]) % servers
    seconds, packets, ends = many, many + 2 * servers, many + 2 * servers + pairs
    rows: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for stage, (sender, receiver) in enumerate(((start, via), (via, goal))):
        cell = stage * servers * servers + sender * servers + receiver
        moves = sender != receiver  # bytes that stay need nothing
        rows.append((cell[moves], np.flatnonzero(moves), np.ones(moves.sum())))
        i, j = np.nonzero(reach[stage])
        row_index = stage * servers * servers + i * servers + j
        rows.append((row_index, seconds + stage * servers + shift[i, j], np.full(len(i), -1.0)))
        below = pairs + stage * (2 * servers + 1)
        for side in range(2):
            line = np.repeat(np.arange(servers), servers) if side == 0 else np.tile(np.arange(servers), servers)
            of_stage = packets + stage * servers * servers + np.arange(servers * servers)
            rows.append((below + side * servers + line, of_stage, np.ones(servers * servers)))
        lines = below + np.arange(2 * servers)
        rows.append((lines, np.full(2 * servers, ends + stage), np.full(2 * servers, -packet_Bps / circuits_Bps)))
        clock = np.full(servers, below + 2 * servers)
        rows.append((clock, seconds + stage * servers + np.arange(servers), np.ones(servers)))
        rows.append((clock[:1], np.array([ends + stage]), np.array([-1.0])))
    rows.append((np.arange(pairs), packets + np.arange(pairs), np.full(pairs, -1.0)))
    down, across, value = (np.concatenate(part) for part in zip(*rows, strict=True))
    inequalities = pairs + 2 * (2 * servers + 1)
    left = sparse.csr_array((value, (down, across)), shape=(inequalities, ends + 2))
    cells, number = np.unique(start * servers + goal, return_inverse=True)
    whole = sparse.csr_array((np.ones(many), (number, np.arange(many))), shape=(len(cells), ends + 2))
    cost = np.zeros(ends + 2)
    cost[ends:] = 1
    done = optimize.linprog(
        cost, left, np.zeros(inequalities), whole, demand.ravel()[cells] / unit, bounds=(0, None), method="highs"
    )
    if done.status != 0:
        return None
    bytes_ = np.where(done.x[:many] > ROUNDING, done.x[:many], 0)
    bytes_ *= (demand.ravel()[cells] / np.bincount(number, bytes_))[number]
    loads = np.zeros((2, servers, servers))
    np.add.at(loads[0], (start, via), bytes_)
    np.add.at(loads[1], (via, goal), bytes_)
    return loads * (1 - np.eye(servers))
