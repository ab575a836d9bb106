"""Compare fabrics for training: models x fabrics x bandwidths, one row each.

For every (model, fabric) the all-to-alls of an iteration are solved once: all links of a fabric are multiples of its
NICs, so their times scale with one over the bandwidth. Fabrics that carry an all-to-all alike share the solve.
"""

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import traffic
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import SCALE_UP, Electrical, Flat, Region, cluster_cost
from mfabric_jax.policies import check_legal, topoopt
from mfabric_jax.routing import single_part_times, single_paths, wired
from mfabric_jax.schedule import (
    Exchanges,
    First,
    Iteration,
    Rates,
    TradeOff,
    between_servers,
    inside_servers,
    iterate,
    places,
    trade_off_of,
)
from mfabric_jax.study.calibration import CALIBRATED
from mfabric_jax.study.config import Compare
from mfabric_jax.study.provenance import provenance
from mfabric_jax.traffic import Tokens, rank_bytes, server_bytes
from mfabric_jax.traffic.predictor import DEFAULT as PREDICTOR
from mfabric_jax.workload import (
    BlockSeconds,
    Workload,
    block_seconds,
    get_gpu,
)

POLICY = {Electrical: "none", Flat: "topoopt"}
ROUTING = {Electrical: "spraying", Flat: "forwarding"}
REPEATED = {"block": "iteration and micro-batch", "one": "iteration, block and micro-batch"}
AT_ONCE = 16  # iterations solved together


@dataclasses.dataclass(frozen=True)
class Job:
    """One model on one fabric, all bandwidths."""

    workload: Workload
    fabric: Electrical | Region | Flat
    tokens: Tokens


def jobs(config: Compare) -> list[Job]:
    """What there is to do, in the order of the rows; the traffic is read or drawn here."""
    todo = []
    for name in config.models:
        tokens = tokens_of(config, config.workload(name))
        todo += [Job(job, fabric_of(fabric, job, tokens), tokens) for job, fabric in config.variants(name)]
    return todo


def fabric_of(fabric: Electrical | Region | Flat, workload: Workload, tokens: Tokens):
    """The fabric; one that is wired once gets its circuits, for the mean traffic of the run."""
    if not isinstance(fabric, Flat):
        return fabric
    between = mean_demand(workload, tokens)
    region = Region(fabric.servers, fabric.nic_gbps, fabric.group_nics)
    return wired(fabric, topoopt(between, region).circuits.count)


def mean_demand(workload: Workload, tokens: Tokens) -> jax.Array:
    """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
    mean = np.asarray(tokens.count, np.float64).mean(axis=(0, 1, 2))
    return server_bytes(rank_bytes(mean, workload.dispatch_bytes_per_selection), workload.ranks_per_server)


def tokens_of(config: Compare, workload: Workload) -> Tokens:
    """The traffic of one model under this configuration; where matrices repeat, one is given for all."""
    tokens = _tokens(config, workload)
    if config.matrices == "each":
        return tokens
    layers = slice(None) if config.matrices == "block" else slice(1)
    return Tokens(tokens.count[:1, layers, :1], f"{tokens.source}, the same for every {REPEATED[config.matrices]}")


def _tokens(config: Compare, workload: Workload) -> Tokens:
    if config.trace is not None:
        return traffic.recorded(config.trace, workload, config.records, config.iterations)
    drawn = {"iterations": config.iterations, "micro_batches": config.drawn, "seed": config.seed, "drift": config.drift}
    if (knobs := config.knobs()) is not None:
        return traffic.from_knobs(workload, knobs, config.iterations, config.drawn, config.seed)
    if config.traffic == "generated":
        return traffic.generated(workload, config.skew, **drawn)
    return traffic.measured(workload, **drawn)


def compare(
    config: Compare, *, workers: int = 2, progress: Callable[[Job], None] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of the comparison, in the order of `jobs`, as they are ready; `progress` is told every finished job.

    All-to-alls are solved by `workers` threads. The same configuration gives the same rows.
    """
    check_dtype(config.dtype)
    todo = jobs(config)
    started: dict[Any, Future] = {}
    with ThreadPoolExecutor(workers) as pool:

        def once(key, work, *args) -> Future:
            if key not in started:
                started[key] = pool.submit(work, *args)
            return started[key]

        for job in sorted(todo, key=_work, reverse=True):  # long ones first: the pool stays busy
            once(_alike(job), solve, config, job)
            once(_alike_inside(config, job), inside, config, job)

        def finish(job: Job) -> list[dict]:
            apart, within = started[_alike(job)].result(), started[_alike_inside(config, job)].result()
            return job_rows(config, job, joined(apart, within))

        try:
            for job in todo:
                rows = finish(job)
                if progress:
                    progress(job)
                yield from rows
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def check_dtype(dtype: str) -> None:
    """`InputError` for float64 where JAX would silently compute in float32."""
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")


def _work(job: Job) -> int:
    """Roughly how long a job takes: flows squared, more behind shared uplinks."""
    ends = job.fabric.servers if isinstance(job.fabric, Region) else job.workload.ep
    shared = isinstance(job.fabric, Electrical) and job.fabric.oversubscription is not None
    return job.workload.moe_layers * ends**4 * (2 if shared else 1)


def _alike(job: Job):
    """Jobs with the same key have the same all-to-alls between servers: fabrics that differ in name alone."""
    fabric, who = job.fabric, (job.workload.model, job.workload.gpus_per_server)
    if isinstance(fabric, Electrical):
        return *who, fabric.nic_use, fabric.pxn, fabric.oversubscription
    return *who, fabric.name, fabric.optical_degree if isinstance(fabric, Region) else None


def _alike_inside(config: Compare, job: Job):
    """Jobs with the same key have the same all-to-alls inside servers."""
    fabric = job.fabric
    packets = (fabric.pxn,) if isinstance(fabric, Electrical) else ()
    scale_up = fabric.name if fabric.name in SCALE_UP else None
    return "inside", job.workload.model, fabric.nic_use, packets, scale_up


def solve(config: Compare, job: Job) -> Exchanges:
    """The all-to-alls between servers of every iteration [I ...], at unit bandwidth; [bandwidth I ...] where circuits
    depend on the bandwidth (`weighs`)."""
    keys = jax.random.split(jax.random.key(config.seed), len(job.tokens.count))
    fabric, tokens = traced(job.fabric, config.dtype), _counts(config, job.tokens.count)
    given = job.workload, fabric, tokens, predicted_counts(config, job), keys
    policy = config.circuits_policy(jnp.asarray(mean_demand(job.workload, job.tokens), config.dtype))
    same = policy, config.routing, config.first if isinstance(fabric, Region) else "block"
    carry = carried(config, job)
    if weighs(config, job):
        trade_off = [trade_off_at(config, job, gbps) for gbps in config.bandwidths(job.fabric)]
        each = [_solve_all(*given, *same, carry, one) for one in trade_off]
        solved = jax.tree.map(lambda *x: jnp.stack(x), *each)
    else:
        solved = jax.block_until_ready(_solve_all(*given, *same, carry, None))
    if config.own_policy and isinstance(fabric, Region):
        check_legal(config.policy_name, np.asarray(solved.count), int(config.optical_degree))
    return solved


def predicted_counts(config: Compare, job: Job) -> jax.Array | None:
    """Predicted selections, where circuits are chosen for them."""
    if config.first != "predict" or not isinstance(job.fabric, Region):
        return None
    return _counts(config, traffic.predicted(job.tokens, config.predictor or PREDICTOR))


def weighs(config: Compare, job: Job) -> bool:
    """Whether circuits depend on bandwidth and computation, not on demand alone."""
    return config.first == "pays" and isinstance(job.fabric, Region)


def carried(config: Compare, job: Job):
    """How all-to-alls are carried if flows take single paths."""
    fabric, who = job.fabric, job.workload
    if config.flows == "spray" or isinstance(fabric, Flat):
        return None
    if isinstance(fabric, Electrical):
        return single_paths(fabric, who.ep, who.tp, who.gpus_per_server, seed=config.seed)
    flows = who.ranks_per_server**2 * who.tp
    return single_part_times(flows, int(fabric.electrical_nics), seed=config.seed)


def trade_off_at(config: Compare, job: Job, gbps: float) -> TradeOff:
    """What a reconfiguration is weighed against at a bandwidth."""
    given = config.rates(job.fabric, gbps), computation(config, job), config.nvswitch_Bps(job.fabric.name, gbps)
    given = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), given)
    return trade_off_of(job.workload, *given)


@eqx.filter_jit
def _solve_all(workload: Workload, fabric, tokens, guess, keys, policy, routing: str, first: str, carry, trade_off):
    def one(drawn):
        tokens, guess, key = drawn
        rule = First(first, guess, trade_off)
        return between_servers(workload, fabric, tokens, policy, routing=routing, first=rule, carry=carry, key=key)

    return _each_iteration(one, (tokens, guess, keys))


def inside(config: Compare, job: Job) -> jax.Array:
    """The parts inside servers of every iteration, times the NVSwitch rate [I P Q L] bytes."""
    fabric, one = traced(job.fabric, config.dtype), jnp.ones((), config.dtype)
    return jax.block_until_ready(_inside_all(job.workload, fabric, _counts(config, job.tokens.count), one))


@eqx.filter_jit
def _inside_all(workload: Workload, fabric, tokens, nvswitch_Bps) -> jax.Array:
    return _each_iteration(lambda one: inside_servers(workload, fabric, one, nvswitch_Bps), tokens)


def _counts(config: Compare, count) -> jax.Array:
    return jnp.asarray(count, config.dtype)


def _each_iteration(work, over):
    """`work` for every iteration, some at once."""
    return jax.lax.map(work, over, batch_size=min(AT_ONCE, len(jax.tree.leaves(over)[0])))


def traced(fabric, dtype: str):
    """The fabric with its numbers as arrays, so that other values reuse the compiled program."""

    def leaf(x):
        return jnp.asarray(x, jnp.int32 if np.asarray(x).dtype.kind in "iu" else dtype)

    return jax.tree.map(leaf, fabric)


def computation(config: Compare, job: Job) -> BlockSeconds:
    """Seconds of a block."""
    return block_seconds(job.workload, get_gpu(config.gpu), config.achieved(job.workload.model))


def joined(apart: Exchanges, within: jax.Array) -> Exchanges:
    """The all-to-alls with their parts inside servers, for an NVSwitch of 1 byte/s; without circuits."""
    inside_s = jnp.broadcast_to(within, apart.load.shape[:-1])
    return apart._replace(inside_s=inside_s, count=None)


def job_rows(config: Compare, job: Job, solved: Exchanges) -> list[dict]:
    """The rows of one model on one fabric: a bandwidth each, averaged over iterations. `solved` is `joined`."""
    bandwidths = config.bandwidths(job.fabric)
    timed = job_times(config, job, solved, computation(config, job), bandwidths)
    mean = jax.tree.map(lambda x: np.asarray(x, np.float64).mean(axis=0), timed)  # [bandwidth]
    shared = _described(config, job, solved)
    each = [jax.tree.map(lambda x, i=i: float(x[i]), mean) for i in range(len(bandwidths))]
    return [_row(config, job, gbps, time) | shared for gbps, time in zip(bandwidths, each, strict=True)]


def job_times(config: Compare, job: Job, solved: Exchanges, seconds: BlockSeconds, bandwidths) -> Iteration:
    """Every iteration of one model on one fabric at every bandwidth [I bandwidth]."""
    nvswitch_Bps = jnp.asarray([config.nvswitch_Bps(job.fabric.name, gbps) for gbps in bandwidths], config.dtype)
    at = [config.rates(job.fabric, gbps) for gbps in bandwidths]
    rates = Rates(*(jnp.asarray(column, config.dtype) for column in zip(*at, strict=True)))
    seconds = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), seconds)
    rules = (config.eps_waits, config.overlap_parts, config.dp_overlap)
    given = job.workload, rates, solved, seconds, nvswitch_Bps
    if not weighs(config, job):
        return _time_all(*given, rules)
    each = [
        _time_all(job.workload, *_only(at, rates, solved), seconds, nvswitch_Bps[at : at + 1], rules)
        for at in range(len(bandwidths))
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *each)


def _only(at: int, rates: Rates, solved: Exchanges) -> tuple[Rates, Exchanges]:
    return jax.tree.map(lambda x: x[at : at + 1], rates), jax.tree.map(lambda x: x[at], solved)


@eqx.filter_jit
def _time_all(
    workload: Workload, rates: Rates, solved: Exchanges, seconds: BlockSeconds, nvswitch_Bps, rules: tuple
) -> Iteration:
    """Every iteration at every bandwidth [I bandwidth]; `inside_s` of `solved` is for 1 byte/s. One program per model:
    fabrics are data here."""
    eps_waits, overlap_parts, dp_overlap = rules

    def one(solved, rates, nvswitch_Bps):
        solved = solved._replace(inside_s=solved.inside_s / nvswitch_Bps)
        settings = {"eps_waits": eps_waits, "overlap_parts": overlap_parts, "dp_overlap": dp_overlap}
        return iterate(workload, rates, solved, seconds, nvswitch_Bps, **settings)

    return jax.vmap(jax.vmap(one, (None, 0, 0)), (0, None, None))(solved, rates, nvswitch_Bps)


def _row(config: Compare, job: Job, gbps: float, time: Iteration) -> dict[str, Any]:
    cost = network_cost(config, job.workload, job.fabric, gbps)
    return {
        "model": job.workload.model,
        "fabric": job.fabric.name,
        "policy": POLICY.get(type(job.fabric), config.policy_name),
        "routing": ROUTING.get(type(job.fabric), config.routing),
        "nic_use": job.fabric.nic_use,
        "nic_gbps": gbps,
        "gpus": job.workload.gpus,
        "iteration_s": time.iteration_s,
        "compute_s": time.compute_s,
        "exposed_comm_s": time.exposed_comm_s,
        "reconfig_s": time.reconfig_s,
        "bubble_s": time.bubble_s,
        "tp_comm_s": time.tp_comm_s,
        "ep_comm_s": time.ep_comm_s,
        "dp_comm_s": time.dp_comm_s,
        "ep_share": time.ep_comm_s / time.iteration_s,
        "network_cost_usd": cost,
        "perf_per_dollar": None if cost is None else 1 / (time.iteration_s * cost),
    }


def network_cost(
    config: Compare, workload: Workload, fabric: Electrical | Region | Flat, gbps: Any, **ports: Any
) -> Any:
    """Dollars of the whole network, a number or [N] as the bandwidth is; None where no price is known. `ports`: other
    ones of mFabric than those of `config`."""
    wiring: dict[str, Any] = {"nics": workload.gpus_per_server, "tiers": config.tiers}
    if isinstance(fabric, Electrical):
        wiring |= {"nics": fabric.nics, "oversubscription": fabric.oversubscription}
    elif isinstance(fabric, Flat):
        wiring["nics"] = fabric.nics
    elif fabric.name == "mfabric":
        wiring |= {"optical_degree": config.optical_degree, "electrical_nics": config.electrical_nics} | ports
    gpus = workload.gpus_per_server
    return cluster_cost(fabric.name, workload.servers, gbps, config.price_list(), gpus=gpus, **wiring)


def _described(config: Compare, job: Job, solved: Exchanges) -> dict[str, Any]:
    moe = places(job.workload).layer >= 0
    load, balanced = (np.asarray(x, np.float64) for x in (solved.load, solved.balanced))
    load, balanced = load[..., moe, :], balanced[..., None, None]
    over = np.divide(load, balanced, out=np.ones_like(load), where=balanced > 0)  # one server: no all-to-all
    return {
        "ep_over_balanced": float(np.median(over)),
        "rank_load_over_mean": float(np.median(job.tokens.rank_load_over_mean(job.workload.ep))),
        "micro_batches": job.workload.micro_batches,
        "first": config.first if isinstance(job.fabric, Region) else "none",
        "compute_source": compute_source(config, job.workload.model),
        "traffic": job.tokens.source,
        "iterations": len(job.tokens.count),
        "dtype": config.dtype,
    }


def compute_source(config: Compare, model: str) -> str:
    """Where the computation time of a model comes from, in words."""
    rate = f"{config.gpu} at {config.achieved(model):.0%} of peak"
    if config.compute == "calibrated" and model in CALIBRATED:
        return f"{rate}, calibrated to published fat-tree times (arXiv 2501.03905)"
    return f"{rate}, not calibrated"


def effective(config: Compare) -> dict[str, Any]:
    """The configuration with every value resolved, and where the result comes from."""
    resolved = {name: dataclasses.asdict(config.workload(name)) for name in config.models}
    rates = {name: config.achieved(name) for name in config.models}
    said = {"policy": config.policy_name, "achieved_over_peak": rates, "workloads": resolved}
    return dataclasses.asdict(config) | said | provenance(config.dtype)
