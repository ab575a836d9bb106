"""All-to-alls during which circuits change, for a problem's iterations and cases on the host."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.evaluate.links import acknowledged
from mfabric_jax.evaluate.problem import Problem, own_keys
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.fabric import Region
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.timing.scheduled import plan_each, region_at, scheduled


class OnSchedules:
    """All-to-alls during which circuits change, planned for the bandwidth and delay of a case."""

    def __init__(self, one: Problem, group: Any, costs: TradeOff):
        self._one, self._costs = one, costs
        self._region = jax.tree.map(np.asarray, group)
        demand, self._even = one.between
        self._demand = acknowledged(demand, one.resolved.carried_by.acks_back)
        self._keys = own_keys(one)

    def loads(self, iteration: np.ndarray, case: np.ndarray, shown: tuple | None) -> Exchanges:
        rows, number = np.unique(np.stack([iteration, case]), axis=1, return_inverse=True)
        found = [self._planned(*row) for row in rows.T]
        return jax.tree.map(lambda *x: np.stack(x)[number.reshape(-1)], *found)

    def _planned(self, iteration: int, case: int) -> Exchanges:
        one, costs = self._one, self._costs
        delay_s, nic_Bps = (np.asarray(x)[case] for x in (costs.delay_s, costs.nic_Bps))
        there = region_at(self._region, nic_Bps, delay_s)
        planner = one.resolved.planner(there) if one.resolved.scheduled else self._of_policy(there, iteration)
        cold = one.resolved.case.circuits.cold_start
        return scheduled(one.workload, self._demand[iteration], self._even, planner, nic_Bps, cold=cold)

    def _of_policy(self, there: Region, iteration: int) -> Callable:
        """The planner of a user's policy whose plans hold schedules."""
        one, dtype = self._one, self._one.resolved.case.run.dtype
        policy, region = one.resolved.circuits_policy(), group_numbers(there, dtype)
        key = self._keys[iteration]

        def planned(demand: np.ndarray, known: bool) -> Any:
            keys = np.broadcast_to(key, (len(demand), *key.shape))
            found = in_chunks(plan_each, (demand.astype(dtype), keys), region, policy)
            return jax.tree.map(lambda x: x.astype(float) if x.dtype.kind == "f" else x, found)

        return planned
