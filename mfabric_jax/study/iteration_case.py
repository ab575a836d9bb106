"""One whole training iteration on mFabric as a function of numbers alone, for `evaluate`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Region
from mfabric_jax.schedule import BLOCK, Rates, between_servers, inside_servers, iterate
from mfabric_jax.study.compare import mean_demand, tokens_of
from mfabric_jax.study.config import Compare
from mfabric_jax.workload import block_seconds, get_gpu

Case = dict[str, Any]


def iteration_of(config: Compare, model: str) -> tuple[Callable[[Case], Case], Case]:
    """A function of a case, and the case that `config` stands for, to be changed or swept.

    A case holds `nic_gbps`, `optical_degree`, `electrical_nics`, `delay_s`, `efficiency` (achieved over peak FLOP/s)
    and `sample`: which of the drawn or recorded iterations. The function gives the seconds of `schedule.Iteration` and
    is for `evaluate`: everything in a case is data; the model, its traffic, policy, routing and rules are those of
    `config`, whose `first` must be "block".

    Example: `function, case = iteration_of(Compare(), "mixtral-8x7b")`, then
    `evaluate(function, grid(**{name: [value] for name, value in case.items()} | {"delay_s": [0.001, 0.025]}))`.
    """
    one_of("first", config.first, ("block",))
    workload, gpu = config.workload(one_of("model", model, config.models)), get_gpu(config.gpu)
    tokens = tokens_of(config, workload)
    count = jnp.asarray(tokens.count, config.dtype)
    policy = config.circuits_policy(jnp.asarray(mean_demand(workload, tokens), config.dtype))
    keys = jax.random.split(jax.random.key(config.seed), len(count))
    ((_, region),) = dataclasses.replace(config, fabrics=("mfabric",)).variants(model)
    latency_s = config.rates(region, config.nic_gbps[0]).latency_s
    nvswitch_Bps = config.nvswitch_Bps(region.name, config.nic_gbps[0])

    def function(case: Case) -> Case:
        gbps, nics, delay_s, efficiency = (
            jnp.asarray(case[name], config.dtype) for name in ("nic_gbps", "electrical_nics", "delay_s", "efficiency")
        )
        sample, degree = (jnp.asarray(case[name], jnp.int32) for name in ("sample", "optical_degree"))
        region = Region(workload.servers_per_region, gbps, degree, nics, delay_s)
        given = workload, region, count[sample]
        apart = between_servers(*given, policy, routing=config.routing, first=BLOCK, key=keys[sample])
        nvswitch = jnp.asarray(nvswitch_Bps, config.dtype)
        solved = apart._replace(inside_s=inside_servers(*given, nvswitch), count=None)
        seconds = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), block_seconds(workload, gpu, efficiency))
        nic_Bps, eps_Bps, send_Bps = (x * config.goodput for x in (region.nic_Bps, region.eps_Bps, region.send_Bps))
        waits = delay_s + config.reactivation_s, jnp.asarray(latency_s, config.dtype)
        rates = Rates(nic_Bps, eps_Bps, send_Bps, *waits)
        rules = {name: getattr(config, name) for name in ("eps_waits", "overlap_parts", "dp_overlap")}
        time = iterate(workload, rates, solved, seconds, nvswitch, **rules)._asdict()
        return {name: value for name, value in time.items() if name.endswith("_s")}

    numbers = {"nic_gbps": config.nic_gbps[0], "optical_degree": config.optical_degree, "sample": 0}
    numbers |= {"electrical_nics": float(config.electrical_nics), "delay_s": config.delay_s}
    return function, numbers | {"efficiency": config.achieved(model)}
