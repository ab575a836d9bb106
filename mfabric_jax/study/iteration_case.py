"""One whole training iteration on a fabric as a function of numbers alone, for `evaluate` and sweeps."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax import units
from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Region
from mfabric_jax.schedule import Exchanges, First, Rates, between_servers, inside_servers, iterate, trade_off_of
from mfabric_jax.study.compare import Job, carried, fabric_of, mean_demand, predicted_counts, tokens_of, traced
from mfabric_jax.study.config import Compare
from mfabric_jax.traffic import Tokens
from mfabric_jax.workload import NAMES as NAMES_OF_MODELS
from mfabric_jax.workload import BlockSeconds, Workload, block_seconds, get_gpu

Case = Mapping[str, Any]
PAYS = "pays"
TRADED_OFF = ("nic_gbps", "goodput", "delay_s", "reactivation_s", "efficiency", "nvswitch_gigabytes_per_s")
NAMES = ("sample", "optical_degree", "electrical_nics", "link_delay_s", *TRADED_OFF)
WHOLE = ("sample", "optical_degree")  # numbers of a case that are whole


class IterationOf(eqx.Module):
    """Case -> seconds of `schedule.Iteration`, and `exposed_comm_s`.

    What is code (model, fabric, rules, a policy) is static; traffic, circuits of a fabric that is wired once and FLOP
    rates are arrays: other ones of the same shapes run in the same program.
    """

    workload: Workload = eqx.field(static=True)
    rules: tuple = eqx.field(static=True)
    routing: str = eqx.field(static=True)
    first: str = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    fabric: Any
    count: Float[Array, "I layer M R E"]
    guess: Float[Array, "I layer M R E"] | None
    keys: Array
    policy: Any
    carry: Any
    peak_s: BlockSeconds
    links: Float[Array, ""]
    one: Float[Array, ""]

    def __call__(self, case: Case) -> dict[str, Array]:
        return self.time(case, self.exchanges(case))

    def exchanges(self, case: Case) -> Exchanges:
        """The all-to-alls for NICs and an NVSwitch of 1 byte/s, without circuits. They depend on `solved_for` alone."""
        case = self._typed(case)
        fabric, at = self._fabric(case), case["sample"]
        trade_off = trade_off_of(self.workload, *self._costs(case)) if self.first == PAYS else None
        first = First(self.first, None if self.guess is None else self.guess[at], trade_off)
        rules = {"routing": self.routing, "first": first, "carry": self.carry, "key": self.keys[at]}
        given = self.workload, fabric, self.count[at]
        inside = inside_servers(*given, self.one)
        return between_servers(*given, self.policy, **rules)._replace(inside_s=inside, count=None)

    def time(self, case: Case, solved: Exchanges) -> dict[str, Array]:
        """Seconds with these all-to-alls."""
        rates, seconds, nvswitch = self._costs(self._typed(case))
        solved = solved._replace(inside_s=solved.inside_s / nvswitch)
        eps_waits, overlap_parts, dp_overlap = self.rules
        rules = {"eps_waits": eps_waits, "overlap_parts": overlap_parts, "dp_overlap": dp_overlap}
        time = iterate(self.workload, rates, solved, seconds, nvswitch, **rules)
        found = {name: value for name, value in time._asdict().items() if name.endswith("_s")}
        return found | {"exposed_comm_s": time.exposed_comm_s}

    @property
    def solved_for(self) -> tuple[str, ...]:
        """Names of a case on which the all-to-alls depend."""
        if not isinstance(self.fabric, Region):
            return ("sample",)
        return ("sample", "optical_degree", "electrical_nics", *(TRADED_OFF if self.first == PAYS else ()))

    def _costs(self, case: Case) -> tuple[Rates, BlockSeconds, Float[Array, ""]]:
        """Bandwidths and delays, computation of a block, and bytes/s of an NVSwitch."""
        at = eqx.tree_at(lambda fabric: fabric.nic_gbps, self._fabric(case), case["nic_gbps"])
        nic, eps, send = (jnp.asarray(x, self.dtype) * case["goodput"] for x in (at.nic_Bps, at.eps_Bps, at.send_Bps))
        delay_s = case["delay_s"] + case["reactivation_s"] if isinstance(at, Region) else jnp.zeros_like(nic)
        rates = Rates(nic, eps, send, delay_s, self.links * case["link_delay_s"])
        seconds = jax.tree.map(lambda x: x / case["efficiency"], self.peak_s)
        return rates, seconds, units.gigabytes_per_s(case["nvswitch_gigabytes_per_s"])

    def _fabric(self, case: Case):
        if not isinstance(self.fabric, Region):
            return self.fabric
        numbers = case["optical_degree"], case["electrical_nics"], case["delay_s"]
        return Region(self.fabric.servers, self.fabric.nic_gbps, *numbers, name=self.fabric.name)

    def _typed(self, case: Case) -> Case:
        for name in case:
            one_of("name of a case", name, NAMES)
        return {name: jnp.asarray(x, jnp.int32 if name in WHOLE else self.dtype) for name, x in case.items()}


def iteration_of(config: Compare, model: str, fabric: str = "mfabric") -> tuple[IterationOf, dict[str, Any]]:
    """A function of a case, and the case that `config` stands for, to be changed or swept.

    A case holds `nic_gbps`, `goodput`, `link_delay_s`, `nvswitch_gigabytes_per_s`, `efficiency` (achieved over peak
    FLOP/s), `sample` (which of the drawn or recorded iterations, from 0) and, where the fabric is mFabric,
    `optical_degree`, `electrical_nics`, `delay_s`, `reactivation_s`. The function is for `evaluate`: everything in a
    case is data; the model, the fabric, traffic, policy, routing and rules are those of `config`. Other names are
    refused; values are not checked, as they are traced: `Compare` and sweeps do that.

    Example: `function, case = iteration_of(Compare(), "mixtral-8x7b")`, then
    `evaluate(function, grid(**{name: [value] for name, value in case.items()} | {"delay_s": [0.001, 0.025]}))`.
    """
    one_of("model", model, NAMES_OF_MODELS)
    config = dataclasses.replace(config, models=(model,), fabrics=(fabric,), nic_gbps=config.nic_gbps[:1])
    return function_of(config, tokens_of(config, config.workload(model)))


def function_of(config: Compare, tokens: Tokens) -> tuple[IterationOf, dict[str, Any]]:
    """`iteration_of` of the only model, fabric and bandwidth of `config`, with this traffic."""
    ((workload, fabric),) = config.variants(config.models[0])
    job = Job(workload, fabric_of(fabric, workload, tokens), tokens)
    gbps, dtype = config.nic_gbps[0], config.dtype
    guess = predicted_counts(config, job)
    peak_s = block_seconds(workload, get_gpu(config.gpu), 1.0)
    function = IterationOf(
        workload=workload,
        rules=(config.eps_waits, config.overlap_parts, config.dp_overlap),
        routing=config.routing,
        first=config.first if isinstance(fabric, Region) else "block",
        dtype=dtype,
        fabric=traced(job.fabric, dtype),
        count=jnp.asarray(tokens.count, dtype),
        guess=guess,
        keys=jax.random.split(jax.random.key(config.seed), len(tokens.count)),
        policy=config.circuits_policy(jnp.asarray(mean_demand(workload, tokens), dtype)),
        carry=carried(config, job),
        peak_s=jax.tree.map(lambda x: jnp.asarray(x, dtype), peak_s),
        links=jnp.asarray(config.links(fabric), dtype),
        one=jnp.ones((), dtype),  # XLA is slow at folding constants
    )
    case = {"nic_gbps": gbps, "goodput": config.goodput, "link_delay_s": config.link_delay_s, "sample": 0}
    case["efficiency"] = config.achieved(workload.model)
    case["nvswitch_gigabytes_per_s"] = units.to_gigabytes(config.nvswitch_Bps(fabric.name, gbps))
    if isinstance(fabric, Region):
        case |= {"optical_degree": int(fabric.optical_degree), "electrical_nics": float(fabric.electrical_nics)}
        case |= {"delay_s": config.delay_s, "reactivation_s": config.reactivation_s}
    return function, case
