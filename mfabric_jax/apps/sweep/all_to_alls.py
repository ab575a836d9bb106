"""Sweeps of single all-to-alls: choose circuits for a demand, and time the all-to-all on them."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import policies, units
from mfabric_jax.case.grid import Setting
from mfabric_jax.case.policies import ROUTINGS
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.evaluate.links import RELAY_STEPS
from mfabric_jax.evaluate.problem import check_dtype
from mfabric_jax.evaluate.sharded import Estimate, evaluate, usual_at_once
from mfabric_jax.fabric import Region
from mfabric_jax.policies import Plan
from mfabric_jax.routing import degree_bound, relay_shares
from mfabric_jax.routing.region import part_times
from mfabric_jax.traffic.demand_families import (
    FAMILIES,
    check_folds,
    draw_demand,
    fold_to_servers,
    gate_trace,
    noisy_forecast,
)

RECORDED = "recorded"
DEMANDS = (*FAMILIES, RECORDED)
ALONE = ("static", "previous", "exact")  # policies that need more than a demand, or that JAX cannot compile
TRIED_DEGREE = 6
MOST_SERVERS = 2**12  # the demand has an entry for every pair
GIGABYTES = units.gigabytes_per_s(1.0)


class AllToAllOf(eqx.Module):
    """Maps a case to the seconds of one all-to-all, the lower bound over all circuits, and their ratio."""

    servers: int = eqx.field(static=True)
    routing: str = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    policy: Any
    pool: Float[Array, "N S S"]

    def __call__(self, case: Mapping[str, Any]) -> dict[str, Array]:
        whole_ones = ("sample", "seed", "demand", "optical_degree")
        case = {name: jnp.asarray(x, jnp.int32 if name in whole_ones else self.dtype) for name, x in case.items()}
        keys = jax.random.split(jax.random.fold_in(jax.random.key(case["seed"]), case["sample"]), 3)
        numbers = case["nic_gbps"], case["optical_degree"], case["electrical_nics"]
        region = Region(self.servers, *numbers, relay_efficiency=case["relay_efficiency"])
        demand = self._demand(case, keys[0])
        seen = noisy_forecast(keys[1], demand, case["sigma"])
        plan = self.policy(seen, region, previous=None, key=keys[2])
        if self.routing == "relay":
            plan = Plan(plan.circuits, relay_shares(region, plan.circuits, demand, steps=RELAY_STEPS))
        seconds = jnp.maximum(*part_times(region, plan, demand, routing=self.routing))
        bound = degree_bound(region, demand)
        return {"seconds": seconds, "bound_s": bound, "over_bound": seconds / jnp.where(bound > 0, bound, 1)}

    def _demand(self, case: Mapping[str, Array], key: Array) -> Float[Array, "S S"]:
        made = draw_demand(key, jnp.minimum(case["demand"], len(FAMILIES) - 1), self.servers).astype(self.dtype)
        read = self.pool[case["sample"] % len(self.pool)]
        demand = jnp.where(case["demand"] == len(FAMILIES), read, made)
        total = demand.sum()
        return demand * (case["gigabytes"] * GIGABYTES * self.servers / jnp.where(total > 0, total, 1))


class AllToAlls:
    """The configurations that one `AllToAllOf` program runs."""

    SETTINGS: ClassVar = {
        "servers": Setting(8, int),
        "policy": Setting("greedy", str),
        "rule": Setting("printed", str),
        "routing": Setting("unsplit", str),
        "trace": Setting(None, str | None),
        "records": Setting(None, tuple | None),
        "demand": Setting("zipf", str, True),
        "sample": Setting(0, int, True),
        "seed": Setting(0, int, True),
        "gigabytes": Setting(1.0, float, True),
        "sigma": Setting(0.0, float, True),
        "nic_gbps": Setting(400.0, float, True),
        "optical_degree": Setting(6, int, True),
        "electrical_nics": Setting(2, int, True),
        "relay_efficiency": Setting(1.0, float, True),
    }
    ROWS_PER_SHARD = 8192

    def __init__(self, code: Mapping[str, Any], data: Mapping[str, Any], dtype: str):
        self.code, self.data, self.dtype = {**code}, {**data}, dtype
        if whole("servers", code["servers"], at_least=2) > MOST_SERVERS:
            raise InputError(f"servers of one region must be at most {MOST_SERVERS:,}, got {code['servers']:,}.")
        one_of("routing", code["routing"], ROUTINGS)
        one_of("rule", code["rule"], policies.RULES)
        if code["policy"] in ALONE:
            raise InputError(
                f"policy {code['policy']!r} cannot be swept on all-to-alls; allowed: any except {', '.join(ALONE)}."
            )
        self.policy = self._make_policy(TRIED_DEGREE)
        if code["trace"] is not None:
            check_folds("servers", (code["servers"],))
            policies.check_unseen((code["policy"],), code["trace"], code["records"])
        elif code["records"] is not None:
            raise InputError("records selects records of a trace; state trace as well.")

    def _make_policy(self, degree: int) -> policies.Policy:
        sizes, settings = (self.code["servers"],), {name: self.code[name] for name in ("rule", "routing")}
        return policies.get_checked(self.code["policy"], sizes, degree, **settings)

    def check(self, data: Mapping[str, np.ndarray]) -> None:
        """Raise InputError for a number that the region or the demand cannot have."""
        for name in set(data["demand"].tolist()):
            one_of("demand", name, DEMANDS)
            if name == RECORDED and self.code["trace"] is None:
                raise InputError("demand 'recorded' needs trace, the file of the recording.")
        for name in ("sample", "seed"):
            whole(name, int(data[name].min()), at_least=0)
        positive("gigabytes", data["gigabytes"])
        not_negative("sigma", data["sigma"])
        of_region = ("nic_gbps", "optical_degree", "electrical_nics", "relay_efficiency")
        for end in (np.min, np.max):
            Region(self.code["servers"], **{name: end(data[name]).item() for name in of_region})
        if int((data["optical_degree"] + data["electrical_nics"]).min()) == 0:
            raise InputError("optical_degree and electrical_nics must not both be 0.")
        for degree in set(data["optical_degree"].tolist()):
            self._make_policy(int(degree))

    def effective(self) -> dict[str, Any]:
        return {**self.code, **self.data, "dtype": self.dtype}

    def constant_columns(self) -> dict[str, Any]:
        """Return the settings that are columns even if they do not vary."""
        return {name: self.code[name] for name in ("servers", "policy", "routing")}

    @functools.cached_property
    def function(self) -> AllToAllOf:
        check_dtype(self.dtype)
        servers, trace = self.code["servers"], self.code["trace"]
        pool = np.zeros((1, servers, servers))
        if trace is not None:
            pool = fold_to_servers(gate_trace(trace, self.code["records"]).count, servers)
        return AllToAllOf(servers, self.code["routing"], self.dtype, self.policy, jnp.asarray(pool, self.dtype))

    def cases(self, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the input of the function, with demands as numbers."""
        return {**data, "demand": np.array([DEMANDS.index(name) for name in data["demand"].tolist()])}

    def rows(
        self, data: Mapping[str, np.ndarray], most: int, before: Callable[[Estimate], None] | None = None
    ) -> dict[str, Any]:
        """Return the columns of results [N]. `most`: largest number of rows in one call."""
        results = evaluate(self.function, self.cases(data), at_once=min(most, usual_at_once()), before=before)
        return {name: results.arrays[name].astype(np.float64) for name in ("seconds", "bound_s", "over_bound")}
