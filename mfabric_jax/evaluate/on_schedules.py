"""All-to-alls during which circuits change, for a problem's iterations and cases on the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.evaluate.links import with_acks
from mfabric_jax.evaluate.problem import Problem, own_keys
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.fabric import Region
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.timing.scheduled import plan_each, region_at, schedule_exchanges


class OnSchedules:
    """All-to-alls during which circuits change, planned for the bandwidth and delay of a case."""

    def __init__(self, problem: Problem, group: Any, costs: TradeOff):
        self._problem, self._costs = problem, costs
        self._region = jax.tree.map(np.asarray, group)
        demand, self._even = problem.between
        self._demand = with_acks(demand, problem.resolved.carried_by.acks_back)
        self._keys = own_keys(problem)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple[Any, ...] | None) -> Exchanges:
        rows, number = np.unique(np.stack([iteration, case]), axis=1, return_inverse=True)
        exchanges = [self._plan(*row) for row in rows.T]
        return jax.tree.map(lambda *x: np.stack(x)[number.reshape(-1)], *exchanges)

    def _plan(self, iteration: int, case: int) -> Exchanges:
        problem, costs = self._problem, self._costs
        delay_s, nic_Bps = (np.asarray(x)[case] for x in (costs.delay_s, costs.nic_Bps))
        there = region_at(self._region, nic_Bps, delay_s)
        planner = (
            problem.resolved.planner(there) if problem.resolved.is_scheduled else self._of_policy(there, iteration)
        )
        cold = problem.resolved.case.circuits.cold_start
        return schedule_exchanges(problem.workload, self._demand[iteration], self._even, planner, nic_Bps, cold=cold)

    def _of_policy(self, there: Region, iteration: int) -> Callable[..., Any]:
        """The planner of a user's policy whose plans hold schedules."""
        problem, dtype = self._problem, self._problem.resolved.case.run.dtype
        policy, region = problem.resolved.circuits_policy(), group_numbers(there, dtype)
        key = self._keys[iteration]

        def plan(demand: np.ndarray, known: bool) -> Any:
            keys = np.broadcast_to(key, (len(demand), *key.shape))
            schedules = in_chunks(plan_each, (demand.astype(dtype), keys), region, policy)
            return jax.tree.map(lambda x: x.astype(float) if x.dtype.kind == "f" else x, schedules)

        return plan
