"""One training iteration, solved and timed in one place.

A `Scenario` is one model on one fabric with its traffic and all that is assumed. Its all-to-alls are solved once for
all bandwidths: all links of a fabric are multiples of its NICs, so their times scale with one over the bandwidth.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, traffic, units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import Fabric, Form, group_numbers
from mfabric_jax.policies import check_legal, topoopt
from mfabric_jax.routing.fixed import wired
from mfabric_jax.routing.single import single_part_times, single_paths
from mfabric_jax.schedule import First, Iteration, iterate
from mfabric_jax.schedule.all_to_alls import Exchanges
from mfabric_jax.schedule.exchange import exchanges_between, exchanges_inside
from mfabric_jax.schedule.first import TradeOff, trade_off_of
from mfabric_jax.schedule.iteration import FabricRates
from mfabric_jax.study.batch import drop_programs_if_crowded
from mfabric_jax.study.config import Assumptions, Compare
from mfabric_jax.traffic import Tokens, rank_bytes, server_bytes
from mfabric_jax.traffic.predictor import DEFAULT as PREDICTOR
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

REPEATED = {"block": "iteration and micro-batch", "one": "iteration, block and micro-batch"}
AT_ONCE = 16  # iterations solved together
WIDE = 1e15  # gigabytes/s: no limit
RADIX = 16  # of the tree of 1,024 GPUs: one server under every edge switch


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One model on one fabric, at all bandwidths at which its group has the same links but for their speed."""

    settings: Assumptions
    fabric: Fabric
    workload: Workload
    tokens: Tokens
    group: Any  # an `EpGroup`
    bandwidths: tuple[float, ...]

    @property
    def weighs(self) -> bool:
        """Whether circuits depend on bandwidth and computation, not on demand alone."""
        return self.settings.first == "pays" and self.group.reconfigures

    @property
    def mean_demand(self) -> jax.Array:
        """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
        return mean_demand(self.workload, self.tokens)

    def rates(self, nic_gbps: float) -> FabricRates:
        """What the timeline needs of the fabric at a bandwidth."""
        return self.settings.rates(self.fabric, self.group, nic_gbps)

    @property
    def seconds(self) -> BlockSeconds:
        """Computation of a block."""
        return self.settings.block_seconds(self.workload)

    @property
    def between_key(self) -> Any:
        """Scenarios with the same key have the same all-to-alls between servers: fabrics that differ in name alone.

        Where flows take single paths these differ from fabric to fabric, though ports are the same.
        """
        leaves, form = jax.tree.flatten(eqx.tree_at(lambda group: group.nic_gbps, self.group, 1.0))
        numbers = tuple(np.asarray(leaf).tobytes() for leaf in leaves)
        paths = self.fabric.name if self.settings.flows == "single" else None
        return self.workload, form, numbers, paths

    @property
    def inside_key(self) -> Any:
        """Scenarios with the same key have the same all-to-alls inside servers."""
        return "inside", self.workload, self.group.handover


class Simulated(NamedTuple):
    """- `exchanges`: the all-to-alls of every iteration [I ...] (or [bandwidth I ...]), without circuits.
    - `times` [I bandwidth]: every iteration at every bandwidth.
    """

    scenario: Scenario
    exchanges: Exchanges
    times: Iteration


def scenarios(config: Compare) -> list[Scenario]:
    """What there is to simulate, in the order of the rows; the traffic is read or drawn here."""
    made = []
    for model in config.models:
        tokens = tokens_of(config, config.workload(model))
        for name in config.fabrics:
            made += scenarios_on(config, model, name, config.nic_gbps, config.nic_use, tokens)
    return made


def scenarios_on(
    settings: Assumptions, model: str, name: str, nic_gbps: Sequence[float], nic_uses: Sequence[str], tokens: Tokens
) -> list[Scenario]:
    """One model on one fabric: a scenario for every use of its NICs, and for bandwidths that change its links."""
    on = fabric.get(name)
    job = settings.workload(model, on.gpus_per_server)
    columns = [settings.groups(model, name, gbps, nic_uses) for gbps in nic_gbps]
    made: dict[Any, Scenario] = {}
    for variant in range(len(columns[0])):
        for gbps, groups in zip(nic_gbps, columns, strict=True):
            one = Scenario(settings, on, job, tokens, groups[variant], (gbps,))
            key = variant, one.between_key
            if key in made:
                made[key] = dataclasses.replace(made[key], bandwidths=(*made[key].bandwidths, gbps))
            else:
                made[key] = dataclasses.replace(one, group=_linked(one))
    return list(made.values())


def _linked(one: Scenario) -> Any:
    """The group; where its links are chosen once, they are chosen for the mean traffic of the run."""
    group = one.group
    if group.reconfigures or getattr(group, "count", group) is not None:
        return group
    region = Region(group.servers, group.nic_gbps, group.nics)
    return wired(group, topoopt(one.mean_demand, region).circuits.count)


def mean_demand(workload: Workload, tokens: Tokens) -> jax.Array:
    """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
    mean = np.asarray(tokens.count, np.float64).mean(axis=(0, 1, 2))
    return server_bytes(rank_bytes(mean, workload.dispatch_bytes_per_selection), workload.ranks_per_server)


def tokens_of(settings: Assumptions, workload: Workload) -> Tokens:
    """The traffic of one model; where matrices repeat, one is given for all."""
    tokens = _tokens(settings, workload)
    if settings.matrices == "each":
        return tokens
    layers = slice(None) if settings.matrices == "block" else slice(1)
    return Tokens(tokens.count[:1, layers, :1], f"{tokens.source}, the same for every {REPEATED[settings.matrices]}")


def _tokens(settings: Assumptions, workload: Workload) -> Tokens:
    if settings.trace is not None:
        return traffic.recorded(settings.trace, workload, settings.records, settings.iterations)
    if (knobs := settings.knobs()) is not None:
        return traffic.from_knobs(workload, knobs, settings.iterations, settings.drawn, settings.seed)
    drawn: dict[str, Any] = {"iterations": settings.iterations, "micro_batches": settings.drawn}
    drawn |= {"seed": settings.seed, "drift": settings.drift}
    if settings.traffic == "generated":
        return traffic.generated(workload, settings.skew, **drawn)
    return traffic.measured(workload, **drawn)


def check_dtype(dtype: str) -> None:
    """`InputError` for float64 where JAX would silently compute in float32."""
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")


# ------------------------------------------------------------------------------------------------------------- solving
class Program(eqx.Module):
    """What solves all-to-alls: code and what does not differ between the iterations of a scenario."""

    workload: Workload = eqx.field(static=True)
    routing: str = eqx.field(static=True)
    first: str = eqx.field(static=True)
    cold: bool = eqx.field(static=True)
    policy: Any
    carry: Any

    def between(self, group, tokens, guess, key, trade_off: TradeOff | None) -> Exchanges:
        """The all-to-alls between servers of one iteration."""
        first = First(self.first, guess, trade_off, self.cold)
        rest = {"routing": self.routing, "first": first, "carry": self.carry, "key": key}
        return exchanges_between(self.workload, group, tokens, self.policy, **rest)


def program_of(one: Scenario) -> Program:
    """The program that solves the all-to-alls of a scenario."""
    settings = one.settings
    first = settings.first if one.group.reconfigures else "block"
    policy = settings.circuits_policy(jnp.asarray(one.mean_demand, settings.dtype))
    return Program(one.workload, settings.routing, first, settings.cold_start, policy, _carried(one))


def _carried(one: Scenario) -> Any:
    """How all-to-alls are carried if flows take single paths."""
    settings, group, job = one.settings, one.group, one.workload
    if settings.flows == "spray" or not one.fabric.single_paths:
        return None
    if group.reconfigures:
        return single_part_times(job.ranks_per_server**2 * job.tp, int(group.electrical_nics), seed=settings.seed)
    if group.nics != job.gpus_per_server:
        raise InputError(f"single paths are drawn for one NIC a GPU ({job.gpus_per_server}), got {group.nics} nics.")
    servers = max(2, -(-job.ep * job.tp // job.gpus_per_server))
    form = Form(radix=RADIX, pxn=group.pxn, nic_use=group.nic_use, gpus_per_server=job.gpus_per_server)
    alone = one.fabric.cluster(servers, units.to_gbps(1.0), form, {"nvswitch_gigabytes_per_s": WIDE})
    return single_paths(alone, job.ep, job.tp, seed=settings.seed)


def guessed(one: Scenario) -> jax.Array | None:
    """Predicted selections, where circuits are chosen for them."""
    if one.settings.first != "predict" or not one.group.reconfigures:
        return None
    predicted = traffic.predicted(one.tokens, one.settings.predictor or PREDICTOR)
    return jnp.asarray(predicted, one.settings.dtype)


def trade_off_at(one: Scenario, nic_gbps: float) -> TradeOff:
    """What a reconfiguration is weighed against at a bandwidth."""
    return trade_off_of(one.workload, *_arrays((one.rates(nic_gbps), one.seconds), one.settings.dtype))


def _arrays(numbers: Any, dtype: str) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), numbers)


def solve_between(one: Scenario) -> Exchanges:
    """The all-to-alls between servers of every iteration [I ...]; [bandwidth I ...] where a scenario `weighs`."""
    settings = one.settings
    keys = jax.random.split(jax.random.key(settings.seed), len(one.tokens.count))
    group, tokens = group_numbers(one.group, settings.dtype), jnp.asarray(one.tokens.count, settings.dtype)
    given = program_of(one), group, tokens, guessed(one), keys
    if one.weighs:
        each = [_solve_all(*given, trade_off_at(one, gbps)) for gbps in one.bandwidths]
        solved = jax.tree.map(lambda *x: jnp.stack(x), *each)
    else:
        solved = jax.block_until_ready(_solve_all(*given, None))
    if settings.own_policy and one.group.reconfigures:
        check_legal(settings.policy_name, np.asarray(solved.count), int(one.group.optical_degree))
    return solved


@eqx.filter_jit
def _solve_all(program: Program, group, tokens, guess, keys, trade_off) -> Exchanges:
    return _each_iteration(lambda one: program.between(group, one[0], one[1], one[2], trade_off), (tokens, guess, keys))


def solve_inside(one: Scenario) -> jax.Array:
    """The parts inside servers of every iteration [I P Q L], seconds times the NVLink bandwidth [bytes]."""
    group = group_numbers(one.group, one.settings.dtype)
    tokens = jnp.asarray(one.tokens.count, one.settings.dtype)
    return jax.block_until_ready(_inside_all(one.workload, group, tokens))


@eqx.filter_jit
def _inside_all(workload: Workload, group, tokens) -> jax.Array:
    return _each_iteration(lambda one: exchanges_inside(workload, group, one), tokens)


def _each_iteration(work, over):
    """`work` for every iteration, some at once."""
    return jax.lax.map(work, over, batch_size=min(AT_ONCE, len(jax.tree.leaves(over)[0])))


def solve(one: Scenario) -> Exchanges:
    """All all-to-alls of a scenario, without circuits."""
    return _together(solve_between(one), solve_inside(one))


def _together(between: Exchanges, inside: jax.Array) -> Exchanges:
    inside = jnp.broadcast_to(inside, between.load.shape[:-1])
    return between._replace(inside=inside, count=None)


# -------------------------------------------------------------------------------------------------------------- timing
def times_of(one: Scenario, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    """Every iteration at every bandwidth [I bandwidth], from what `solve` found; `seconds`: another computation."""
    settings = one.settings
    seconds, rules = settings.block_seconds(one.workload) if seconds is None else seconds, settings.rules
    at = [settings.rates(one.fabric, one.group, gbps) for gbps in one.bandwidths]
    rates = FabricRates(*(jnp.asarray(column, settings.dtype) for column in zip(*at, strict=True)))
    axes = (0, 0) if one.weighs else (0, None)
    return _time_all(one.workload, rates, solved, _arrays(seconds, settings.dtype), rules, axes)


@eqx.filter_jit
def _time_all(workload: Workload, rates: FabricRates, solved: Exchanges, seconds, rules, axes) -> Iteration:
    """One program per model: fabrics are data here."""

    def one(rates, solved):
        return iterate(workload, rates, solved, seconds, rules=rules)

    iterations = jax.vmap(one, (None, 0))
    timed = jax.vmap(iterations, axes)(rates, solved)  # [bandwidth I]
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), timed)


def simulate(one: Scenario, exchanges: Exchanges | None = None) -> Simulated:
    """Solve and time every iteration of a scenario.

    - `exchanges`: those of a scenario that differs in computation, delays or replicas alone; they are not solved again.
    """
    check_dtype(one.settings.dtype)
    solved = solve(one) if exchanges is None else exchanges
    return Simulated(one, solved, times_of(one, solved))


def simulate_all(
    every: list[Scenario], *, workers: int = 2, progress: Callable[[Scenario], None] | None = None
) -> Iterator[Simulated]:
    """`simulate` for each, in order, as they are ready; scenarios that carry an all-to-all alike share the solve.

    All-to-alls are solved by `workers` threads; `progress` is told every finished scenario.
    """
    drop_programs_if_crowded()
    started: dict[Any, Future] = {}
    with ThreadPoolExecutor(workers) as pool:
        for one in sorted(every, key=_work, reverse=True):  # long ones first: the pool stays busy
            for key, work in ((one.between_key, solve_between), (one.inside_key, solve_inside)):
                if key not in started:
                    started[key] = pool.submit(work, one)
        try:
            for one in every:
                solved = _together(started[one.between_key].result(), started[one.inside_key].result())
                timed = times_of(one, solved)
                if progress:
                    progress(one)
                yield Simulated(one, solved, timed)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(one: Scenario) -> int:
    """Roughly how long a scenario takes: flows squared, more behind shared uplinks."""
    ends = getattr(one.group, "servers", one.workload.ep)
    shared = getattr(one.group, "oversubscription", None) is not None
    return one.workload.moe_layers * ends**4 * (2 if shared else 1)
