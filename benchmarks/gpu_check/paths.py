"""The hot paths: what is compiled, for how many servers, in which batch.

An evaluation is three programs over as many cases as memory holds: policy, seconds and clock. `iteration` is the one
program that they are composed into for gradients.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mfabric_jax import load, policies, resolve
from mfabric_jax.apps.learning.training import TrainingSettings, first_network, lessons, network_step
from mfabric_jax.evaluate import asking
from mfabric_jax.evaluate import sharded as batches
from mfabric_jax.evaluate.composed import iteration_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import completion_times, max_min_rates, star_completion, star_rates
from mfabric_jax.flows.star import as_problem
from mfabric_jax.routing import all_to_all_time
from mfabric_jax.timing.iteration import FabricRates, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload.compute import BlockSeconds

MANY = 65_536
SAMPLES = 64
MIXTRAL = {"model.name": "mixtral-8x7b", "network.fabric": "mfabric"}


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
    Case("evaluate", 16, MANY),
    Case("gradient", 8, 1024),
    Case("general", 8, 1024),
    Case("max-min", 8, 4096),
    Case("policy-greedy", 16, 4096),
    Case("policy-learned", 16, 4096),
    Case("policy-joint", 8, 64),
    Case("policy-sample-average", 8, 4),
    Case("seconds-unsplit", 16, MANY),
    Case("seconds-split", 16, 4096),
    Case("seconds-relay", 16, 4096),
    Case("seconds-in-parts", 16, 4096),
    Case("clock", 4, 1024),
    Case("iteration", 4, 256),
    Case("training", 8, 64),
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


def _region(case: Case, shapes: _Shapes):
    return shapes.like(jax.eval_shape(lambda: Region(case.servers, 1.0)))


def _policy(case: Case, shapes: _Shapes, name: str, **settings):
    """Circuits for many demands in one region, as the evaluator asks for them."""
    policy, square, region = policies.get(name, **settings), (case.servers, case.servers), _region(case, shapes)
    if name == "joint":  # reads the circuits in place
        demand, before = shapes.floats(case.batch, *square), shapes.of(jnp.int32, case.batch, *square)

        def after(demand, before, region):
            return asking.circuits_after(demand, before, None, None, None, region, policy)

        return jax.jit(after).lower(demand, before, region)
    samples = (SAMPLES,) if name == "sample-average" else ()
    demand = shapes.floats(case.batch, *samples, *square)
    return jax.jit(lambda demand, region: asking.circuits_of(demand, region, policy)).lower(demand, region)


def _seconds(case: Case, shapes: _Shapes, routing: str, parts: bool = False):
    """Seconds of many all-to-alls in one region, as the evaluator asks for them; `parts`: while circuits turn."""
    (demand, count, _), region = _region_args(case, shapes), _region(case, shapes)
    if not parts:
        return jax.jit(lambda *given: asking.seconds_of(*given, routing)).lower(count, demand, region)
    reconfiguring = shapes.of(bool, *demand.shape)
    return jax.jit(lambda *given: asking.waiting_of(*given, routing)).lower(count, demand, reconfiguring, region)


def _training(case: Case, shapes: _Shapes):
    config = TrainingSettings(sizes=(case.servers,), batch=case.batch)
    pool = jnp.ones((2, case.servers, case.servers), jnp.float32)
    batch = jax.eval_shape(functools.partial(lessons, config=config, servers=case.servers), jax.random.key(0), pool)
    arrays, step = training_step(config)
    return jax.jit(step).lower(shapes.like(arrays), shapes.like(batch), shapes.of(jnp.int32))


def training_step(config: TrainingSettings) -> tuple[Any, Callable]:
    """The arrays of a network before any step, and the step: (arrays, lessons, place) -> arrays and metrics."""
    arrays, rest = eqx.partition(first_network(config), eqx.is_array)

    def step(arrays, batch, at):
        found, metrics = network_step(eqx.combine(arrays, rest), batch, at, config)
        return eqx.filter(found, eqx.is_array), metrics

    return arrays, step


def _case_of(stages: int) -> Any:
    return load(preset="paper", changes=MIXTRAL | {"job.parallel.pp": stages})


def _clock(case: Case, shapes: _Shapes):
    """Iterations of one job side by side, from all-to-alls to the busiest stage."""
    job = resolve(_case_of(case.servers)).job
    places_of = (case.batch, *places(job).present.shape)
    both, some = shapes.floats(*places_of, 2), shapes.floats(*places_of)
    switch, ahead = shapes.of(bool, *places_of, 2), shapes.of(bool, *places_of)
    each = shapes.floats(case.batch)
    loads = Exchanges(both, both, some, switch, ahead, None, each, new_circuits=both)
    rates = FabricRates(*(each for _ in FabricRates._fields[:-1]))
    seconds = BlockSeconds(each, each, each)

    def iterations(rates, loads, seconds):
        return iterations_of(walk(job, rates, loads, seconds, every=False))

    return jax.jit(iterations).lower(rates, loads, seconds)


def _iteration(case: Case, shapes: _Shapes):
    """Policy, seconds and clock of many cases that differ in numbers, in one program."""
    function, numbers = iteration_of(_case_of(case.servers))
    arrays, rest = eqx.partition(function, eqx.is_array)
    cases = {path: shapes.of(jnp.asarray(x).dtype, case.batch) for path, x in numbers.items()}

    def iterations(arrays, cases):
        return jax.vmap(eqx.combine(arrays, rest))(cases)

    return jax.jit(iterations).lower(shapes.like(arrays), cases)


PATHS: dict[str, Callable[[Case, _Shapes], Any]] = {
    "star": _star,
    "rates": functools.partial(_star, function=star_rates),
    "evaluate": _evaluate,
    "gradient": _gradient,
    "general": _general,
    "max-min": _max_min,
    "policy-greedy": functools.partial(_policy, name="greedy"),
    "policy-learned": functools.partial(_policy, name="learned", share_steps=0),
    "policy-joint": functools.partial(_policy, name="joint"),
    "policy-sample-average": functools.partial(_policy, name="sample-average"),
    "seconds-unsplit": functools.partial(_seconds, routing="unsplit"),
    "seconds-split": functools.partial(_seconds, routing="split"),
    "seconds-relay": functools.partial(_seconds, routing="relay"),
    "seconds-in-parts": functools.partial(_seconds, routing="unsplit", parts=True),
    "clock": _clock,
    "iteration": _iteration,
    "training": _training,
}
