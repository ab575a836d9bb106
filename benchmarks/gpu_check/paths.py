"""The hot paths: what is compiled, for how many servers, in which batch."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfabric_jax import load, policies, resolve
from mfabric_jax.evaluate import sharded as batches
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import completion_times, max_min_rates, star_completion, star_rates
from mfabric_jax.flows.star import as_problem
from mfabric_jax.learning.training import Training, first_network, lessons, network_step
from mfabric_jax.routing import Plan, all_to_all_time, relay_shares
from mfabric_jax.timing.iteration import FabricRates, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload.compute import BlockSeconds

MANY = 65_536
SAMPLES = 64
SHARE_STEPS = 100


class Case(NamedTuple):
    """One program: a path at a size; servers of the clock are its pipeline stages."""

    path: str
    servers: int
    batch: int

    def __str__(self) -> str:
        return f"{self.path}, {self.servers} servers, batch {self.batch}"


CASES = (
    *(Case("star", servers, MANY) for servers in (8, 16, 32, 64)),
    Case("rates", 16, MANY),
    Case("unsplit", 16, MANY),
    Case("evaluate", 16, MANY),
    Case("gradient", 8, 1024),
    Case("split", 16, 4096),
    Case("relay", 16, 4096),
    Case("general", 8, 1024),
    Case("max-min", 8, 4096),
    Case("greedy", 16, 4096),
    Case("learned", 16, 4096),
    Case("joint", 8, 64),
    Case("sample-average", 8, 4),
    Case("training", 8, 64),
    Case("clock", 4, 1024),
)


def lowered(case: Case, device: Any) -> Any:
    """The program of a case, for a device."""
    return PATHS[case.path](case, _Shapes(device))


class _Shapes:
    """Arrays that are not there."""

    def __init__(self, device):
        self.device, self.sharding = device, jax.sharding.SingleDeviceSharding(device)

    def of(self, dtype, *shape: int):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.sharding)

    def floats(self, *shape: int):
        return self.of(jnp.float32, *shape)

    def like(self, tree):
        return jax.tree.map(lambda x: self.of(x.dtype, *x.shape) if eqx.is_array(x) or hasattr(x, "shape") else x, tree)


def _vmapped(function: Callable, *args) -> Any:
    return jax.jit(jax.vmap(function)).lower(*args)


def _star(case: Case, shapes: _Shapes, function=star_completion):
    batch, servers = case.batch, case.servers
    return _vmapped(
        function, shapes.floats(batch, servers, servers), shapes.floats(batch, servers), shapes.floats(batch, servers)
    )


def _region_args(case: Case, shapes: _Shapes):
    square = (case.batch, case.servers, case.servers)
    return shapes.floats(*square), shapes.of(jnp.int32, *square), shapes.floats(case.batch)


def _all_to_all(case: Case, shapes: _Shapes, routing: str):
    def time(demand, count, gbps):
        region, circuits = Region(case.servers, gbps), Circuits(count)
        if routing != "relay":
            return all_to_all_time(region, circuits, demand, routing=routing)
        shares = relay_shares(region, circuits, demand, steps=SHARE_STEPS)
        return all_to_all_time(region, Plan(circuits, shares), demand, routing="relay")

    return _vmapped(time, *_region_args(case, shapes))


def _evaluate(case: Case, shapes: _Shapes):
    """The program of one chunk, as `evaluate` would compile it for the device."""
    servers = case.servers

    def results(given):
        region = Region(servers, given["gbps"])
        return {"seconds": all_to_all_time(region, Circuits(given["count"]), given["demand"])}

    spread = NamedSharding(Mesh([shapes.device], (batches.AXIS,)), PartitionSpec(batches.AXIS))
    of_chunk = batches.chunk_results(batches.hashable(results), spread, False, "gpu")
    square = (case.batch, servers, servers)
    kinds = {"demand": (square, jnp.float32), "count": (square, jnp.int32), "gbps": ((case.batch,), jnp.float32)}
    chunk = {name: jax.ShapeDtypeStruct(*kind, sharding=spread) for name, kind in kinds.items()}
    return of_chunk.lower(None, chunk)


def _gradient(case: Case, shapes: _Shapes):
    def slope(demand, count, gbps):
        return jax.grad(lambda gbps: all_to_all_time(Region(case.servers, gbps), Circuits(count), demand))(gbps)

    return _vmapped(slope, *_region_args(case, shapes))


def _general(case: Case, shapes: _Shapes):
    def finish(size, leaf):
        return completion_times(as_problem(leaf, jnp.zeros((2, 0))), size.reshape(-1)).finish

    return _vmapped(
        finish, shapes.floats(case.batch, case.servers, case.servers), shapes.floats(case.batch, 2, case.servers)
    )


def _max_min(case: Case, shapes: _Shapes):
    def rate(leaf):
        return max_min_rates(as_problem(leaf, jnp.zeros((2, 0)))).rate

    return _vmapped(rate, shapes.floats(case.batch, 2, case.servers))


def _policy(case: Case, shapes: _Shapes, name: str, **settings):
    policy = policies.get(name, **settings)

    def count(demand, gbps):
        return policy(demand, Region(case.servers, gbps)).circuits.count

    samples = (SAMPLES,) if name == "sample-average" else ()
    demand = shapes.floats(case.batch, *samples, case.servers, case.servers)
    return _vmapped(count, demand, shapes.floats(case.batch))


def _training(case: Case, shapes: _Shapes):
    config = Training(sizes=(case.servers,), batch=case.batch)
    pool = jnp.ones((2, case.servers, case.servers), jnp.float32)
    batch = jax.eval_shape(functools.partial(lessons, config=config, servers=case.servers), jax.random.key(0), pool)
    arrays, step = training_step(config)
    return jax.jit(step).lower(shapes.like(arrays), shapes.like(batch), shapes.of(jnp.int32))


def training_step(config: Training) -> tuple[Any, Callable]:
    """The arrays of a network before any step, and the step: (arrays, lessons, place) -> arrays and metrics."""
    arrays, rest = eqx.partition(first_network(config), eqx.is_array)

    def step(arrays, batch, at):
        found, metrics = network_step(eqx.combine(arrays, rest), batch, at, config)
        return eqx.filter(found, eqx.is_array), metrics

    return arrays, step


def _clock(case: Case, shapes: _Shapes):
    """Iterations of one job side by side, from all-to-alls to the busiest stage."""
    changes = {"model.name": "mixtral-8x7b", "network.fabric": "mfabric", "job.parallel.pp": case.servers}
    asked: Any = load(preset="paper", changes=changes)
    job = resolve(asked).job
    places_of = (case.batch, *places(job).present.shape)
    both, some = shapes.floats(*places_of, 2), shapes.floats(*places_of)
    switch, ahead = shapes.of(bool, *places_of, 2), shapes.of(bool, *places_of)
    each = shapes.floats(case.batch)
    loads = Exchanges(both, both, some, switch, ahead, None, each, anew=both)
    rates = FabricRates(*(each for _ in FabricRates._fields[:-1]))
    seconds = BlockSeconds(each, each, each)

    def iterations(rates, loads, seconds):
        return iterations_of(walk(job, rates, loads, seconds, every=False))

    return jax.jit(iterations).lower(rates, loads, seconds)


PATHS: dict[str, Callable[[Case, _Shapes], Any]] = {
    "star": _star,
    "rates": functools.partial(_star, function=star_rates),
    "unsplit": functools.partial(_all_to_all, routing="unsplit"),
    "split": functools.partial(_all_to_all, routing="split"),
    "relay": functools.partial(_all_to_all, routing="relay"),
    "evaluate": _evaluate,
    "gradient": _gradient,
    "general": _general,
    "max-min": _max_min,
    "greedy": functools.partial(_policy, name="greedy"),
    "learned": functools.partial(_policy, name="learned", share_steps=0),
    "joint": functools.partial(_policy, name="joint"),
    "sample-average": functools.partial(_policy, name="sample-average"),
    "training": _training,
    "clock": _clock,
}
