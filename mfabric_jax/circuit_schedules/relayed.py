"""Choose topologies, the passes over each and the path of every byte: the all-to-all that ends first. Ours.

Few reconfigurations reach every pair if servers relay. How few pay depends on the delay and on the bytes, so there are
candidates from S - 1 configurations down to one:

- `joint` without relays, and `valiant`;
- digits of the distance as in `bruck` to every base, and balanced as in `ternary`, by a shift for each digit or by
  several hops of the smallest shift of each phase: one topology then serves all passes over it;
- the best of these with other paths: on the same topologies a linear programme (`relay_shares`) divides every pair's
  bytes so that the sum of all stages is shortest;
- two stages that show the shifts 1 to a - 1 and the multiples of a, for each a, or a stage for each of several digits:
  the same programme divides the bytes, and `joint` plans each stage for what it carries.

The result is the earliest end of all. So it is never later than `joint`, `valiant`, `bruck` or `ternary`.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from mfabric_jax.circuit_schedules.bruck import bruck_steps
from mfabric_jax.circuit_schedules.ending import least_s
from mfabric_jax.circuit_schedules.phases import run_phases
from mfabric_jax.circuit_schedules.placing import problem_of
from mfabric_jax.circuit_schedules.registry import Scheduler, checked_demand, get, network_of
from mfabric_jax.circuit_schedules.relay_shares import share_paths
from mfabric_jax.circuit_schedules.stages import Stage, stages_end_s
from mfabric_jax.circuit_schedules.ternary import balanced_steps
from mfabric_jax.circuit_schedules.valiant import valiant
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region

REFINED = 4  # candidates by digits whose paths the linear programme chooses anew


def relay_stages(
    demand: Any, region: Region, switches: int = 1, *, programmes: int = 200, step_s: float = 0.0, **how: Any
) -> list[Stage]:
    """Return stages that run one after the other, for `staged_time`; if relaying does not pay, one stage by `joint`.

    - `demand` [S S]: bytes from server i to server j, known before tracing.
    - `programmes`: limit of `joint` on linear programmes, for each stage.
    - `step_s`: latency of a stage, as in `staged_time`.
    - `how`: delay_s, all_stop, directed, first_free, as for `get`.

    The stages never end later than `joint`, `valiant`, `bruck` and `ternary` (by `stages_end_s`, in float64). Raise
    `InputError` as `get` does.
    """
    bytes_ = checked_demand(demand, region)
    search = _Relays(bytes_, region, switches, programmes, how)

    def end_s(stages: list[Stage]) -> float:
        return stages_end_s(region, stages, step_s)

    direct = search.plan([bytes_])
    if not bytes_.any():
        return direct
    by_digits = [run_phases(steps, bytes_, region, switches, **how) for steps in digit_steps(len(bytes_))]
    on_topologies = filter(_shows_topologies, sorted(by_digits, key=end_s))
    reshared = filter(None, map(search.reshare, itertools.islice(on_topologies, REFINED)))
    best = min([direct, valiant(bytes_, region, switches, **how), *by_digits, *reshared], key=end_s)
    for loads in search.loads_of_shifts():
        if search.least_s(loads) < end_s(best):
            best = min(best, search.plan(loads), key=end_s)
    return best


def digit_steps(servers: int) -> list[np.ndarray]:
    """Return the steps [P S] of all candidates by digits, without repetition.

    Hops of the smallest shift have the smallest base for each number of digits.
    """
    smallest = [min(base for base in range(2, servers + 1) if base**digits >= servers) for digits in range(1, 8)]
    every = [bruck_steps(servers, base) for base in range(2, servers + 1)]
    for base in sorted(set(smallest)):
        every.append(single_hops(bruck_steps(servers, base)))
        every.append(single_hops(balanced_steps(servers, base + 1 - base % 2)))
    return list({(len(steps), steps.tobytes()): steps for steps in every if len(steps)}.values())


def single_hops(steps: np.ndarray) -> np.ndarray:
    """Return steps along the same digits, in hops of the smallest shift of each phase."""
    passes = []
    for step in steps:
        shift = np.abs(step[step != 0]).min()
        for hop in range(shift, int(np.abs(step).max()) + 1, shift):
            passes.append(np.sign(step) * shift * (np.abs(step) >= hop))
    return np.array(passes)


def _shows_topologies(stages: list[Stage]) -> bool:
    """Return whether no switch reconfigures during a stage."""
    return all(np.bincount(np.asarray(stage.schedule.switch)).max() == 1 for stage in stages)


class _Relays:
    """The candidates for one demand whose paths linear programmes choose."""

    def __init__(self, demand: np.ndarray, region: Region, switches: int, programmes: int, how: dict[str, Any]):
        self.demand, self.region, self.how = demand, region, {**how, "switches": switches}
        self.network = network_of(region, **self.how)
        self.programmes = programmes

    def plan(self, loads: Any) -> list[Stage]:
        """Return a stage by `joint` for each of the loads [P S S]."""
        loads = [load for load in loads if load.any()] or [self.demand]
        first = [self.network["first_free"]] + [False] * (len(loads) - 1)
        return [Stage(self._joint(free)(load, self.region), load) for free, load in zip(first, loads, strict=True)]

    def least_s(self, loads: np.ndarray) -> float:
        """Return a lower bound on the end of stages with these loads [P S S]."""
        free = {**self.network, "first_free": True}
        return sum(least_s(problem_of(load, **free)) for load in loads)

    def loads_of_shifts(self) -> Iterator[np.ndarray]:
        """Yield the loads [P S S] of stages that show their shifts in turn, for each base."""
        servers, lanes = len(self.demand), self.network["ports"] * self.network["switches"]
        shifts = [[range(1, base), range(base, servers, base)] for base in range(2, servers)]
        digits = [bruck_steps(servers, base) for base in range(2, servers)] + [balanced_steps(servers, 3)]
        shifts += [list(map(np.unique, steps)) for steps in digits if len(steps) > 2]
        for stages in shifts:
            patterns = [
                [_circuits(servers, shift, self.network["directed"]) for shift in own if shift] for own in stages
            ]
            shares = self._shares([lanes * np.array(own) for own in patterns])
            if shares is not None:
                yield shares.loads

    def reshare(self, stages: list[Stage]) -> list[Stage] | None:
        """Return stages on the same topologies with the best paths; None if the programme has no answer."""
        topologies = [np.asarray(stage.schedule.configurations).sum(0) for stage in stages]
        shares = self._shares([topology[None] for topology in topologies])
        if shares is None:
            return None
        chosen, paid = [], False
        for stage, topology, load, seconds in zip(stages, topologies, *shares, strict=True):
            paid |= not stage.schedule.first_free
            if load.any():
                if not self.network["packet_Bps"]:
                    seconds = (load / np.maximum(topology, 1)).max() / self.network["circuit_Bps"]
                chosen.append(Stage(self._show(stage.schedule, seconds, not paid), load))
                paid = False
        return chosen

    def _shares(self, patterns: list[np.ndarray]):
        return share_paths(self.demand, patterns, self.network["circuit_Bps"], self.network["packet_Bps"])

    def _joint(self, first_free: bool) -> Scheduler:
        return get("joint", programmes=self.programmes, **{**self.how, "first_free": first_free})

    def _show(self, schedule: CircuitSchedule, seconds: float, first_free: bool) -> CircuitSchedule:
        shown = schedule.configurations, np.full(len(schedule.switch), seconds), schedule.switch
        return CircuitSchedule(*shown, **{**self.how, "first_free": first_free})


def _circuits(servers: int, shift: int, directed: bool) -> np.ndarray:
    """Return the part [S S] of a server's circuits for each pair of a shift, if all circuits show this shift."""
    forward = np.roll(np.eye(servers), shift, axis=1)
    return forward if directed else (forward + forward.T) / 2
