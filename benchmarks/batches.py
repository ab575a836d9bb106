"""Configurations per second: `evaluate` of arrays, whole sweeps with their files of rows, and one at a time in a loop.

python benchmarks/batches.py
python benchmarks/batches.py --device gpu
python benchmarks/batches.py --events          what the cost of circuits of several kinds is made of
"""

import argparse
import resource
import tempfile
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

LOOPED = 200  # cases of the loop: its speed does not depend on how many
SERVERS, DEGREE = 8, 6
KINDS = {
    "uniform": "as even as can be, servers in random order",
    "random legal": "one at a time, between two servers with free ports",
    "greedy-next": "chosen for the demand",
}
HEAD = ("count", "compile s", "run s", "per s", "per CPU s", "one at a time per s", "peak MB")
IN_A_ROW = {  # of mFabric servers with 8 NICs
    "network.nic_gbps": {"low": 100, "high": 800},
    "circuits.delay_s": {"low": 1e-6, "high": 1, "scale": "log"},
    "compute.efficiency": {"low": 0.2, "high": 1},
    "network.mfabric.optical_degree": {"low": 2, "high": 7},
}
SAMPLES = 300  # iterations with demand of their own: 1,800 to solve, one for each of these and each degree
OTHER_DEMAND = {"run.sample": {"low": 0, "high": SAMPLES - 1}}


class Ran(NamedTuple):
    """How many cases, seconds of compiling, of running and of all cores while running (NaN: not apart from compiling),
    and the function with cases for the loop."""

    count: int
    compile_s: float
    run_s: float
    cpu_s: float
    function: object
    cases: object


def main() -> None:
    """Prints a line for each kind of case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None)
    parser.add_argument("--exchanges", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--events", action="store_true")
    asked = parser.parse_args()
    if asked.device:
        jax.config.update("jax_platforms", asked.device)
    if asked.events:
        _events()
        return
    print(f"{'cases':48}" + "".join(f"{name:>20}" for name in HEAD))
    for kind in KINDS:
        _line(f"evaluate: {kind} circuits, 8 servers", _arrays(kind, asked.exchanges))
        if kind != "uniform":
            _line("    cases sorted by pairs without a circuit", _arrays(kind, asked.exchanges, in_order=True))
    _line("sweep: circuits and demand drawn, 8 servers", _swept(_exchanges(asked.exchanges)))
    _line("sweep: iterations, demand and ports drawn", _swept(_iterations(asked.iterations, SAMPLES, OTHER_DEMAND)))
    _line("sweep: iterations, rates and delays drawn", _swept(_iterations(asked.iterations, 1, {})))


def _arrays(kind: str, count: int, *, in_order: bool = False) -> Ran:
    """Circuits of a kind, and heavy-tailed demand."""
    from mfabric_jax import Circuits, Region, all_to_all_time
    from mfabric_jax.evaluate import evaluate

    def seconds(case):
        return {
            "seconds": all_to_all_time(Region(SERVERS, case["nic_gbps"]), Circuits(case["circuits"]), case["demand"])
        }

    circuits, demand = drawn(kind, count)
    if in_order:
        order = (circuits == 0).sum(axis=(1, 2)).argsort()
        circuits, demand = circuits[order], demand[order]
    cases = {"circuits": circuits, "demand": demand, "nic_gbps": np.full(count, 400.0, np.float32)}
    compile_s = evaluate(seconds, cases).estimate.compile_s
    run_s, cpu_s = np.inf, np.inf
    for _ in range(3):
        began = time.process_time()
        run_s = min(run_s, evaluate(seconds, cases).run_s)
        cpu_s = min(cpu_s, time.process_time() - began)
    return Ran(count, compile_s, run_s, cpu_s, seconds, cases)


def drawn(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Circuits [N S S] of one of the `KINDS`, and demands [N S S] in bytes."""
    from mfabric_jax import Region
    from mfabric_jax.policies import greedy_next, uniform

    region, rng = Region(SERVERS, 400.0, DEGREE), np.random.default_rng(0)
    demand = np.asarray(1e8 * rng.pareto(1.2, (count, SERVERS, SERVERS)), np.float32)
    if kind == "greedy-next":
        return np.asarray(jax.jit(jax.vmap(lambda one: greedy_next(one, region).circuits.count))(demand)), demand
    if kind == "uniform":
        base = np.asarray(uniform(None, region).circuits.count)
        order = rng.permuted(np.tile(np.arange(SERVERS), (count, 1)), axis=1)
        return base[order[:, :, None], order[:, None, :]], demand
    return _random_legal(rng, count), demand


def _random_legal(rng: np.random.Generator, count: int) -> np.ndarray:
    """Circuits set up one at a time, each between two servers drawn of all pairs with a free port at both."""
    one, other = np.triu_indices(SERVERS, 1)
    circuits, each = np.zeros((count, SERVERS, SERVERS), np.int32), np.arange(count)
    for _ in range(SERVERS * DEGREE // 2):
        free = circuits.sum(axis=2) < DEGREE
        open_pairs = free[:, one] & free[:, other]
        pair = np.where(open_pairs, rng.random(open_pairs.shape), -1).argmax(axis=1)
        added = open_pairs.any(axis=1)
        circuits[each, one[pair], other[pair]] += added
        circuits[each, other[pair], one[pair]] += added
    return circuits


def _events(chunks: int = 8) -> None:
    """What a case needs, and what its chunk of 256 does: completions, and freezes of ports while rates are filled."""
    print(f"{'circuits':16}{'pairs without':>16}{'of any case':>16}{'events':>16}{'freezes':>16}{'freezes needed':>16}")
    for kind in KINDS:
        circuits, demand = drawn(kind, chunks * 256)
        left = np.where((circuits == 0) & ~np.eye(SERVERS, dtype=bool), demand, 0)
        flows = (left > 0).sum(axis=(1, 2))
        left = np.moveaxis(left / np.maximum(left.max(axis=(1, 2), keepdims=True), 1), 0, -1)
        events, freezes, needed = np.mean([_rounds(one) for one in np.split(left, chunks, axis=-1)], axis=0)
        print(f"{kind:16}{flows.mean():16.1f}{flows.max():16d}{events:16.0f}{freezes:16.0f}{needed:16.0f}")


@jax.jit
def _rounds(size):
    """Events and freezes of a chunk [S S B], and freezes its mean case needs: `star_kernel.finish_times`, counted."""
    from mfabric_jax.flows import star_kernel as star

    lanes = size.shape[-1]
    ports = star.StarPorts(jnp.ones((2 * SERVERS, lanes), size.dtype), jnp.zeros((0, lanes), size.dtype))
    bits, sends, zero = star.Bits(SERVERS), size > 0, jnp.zeros(lanes, size.dtype)
    words, left = bits.at_ports(sends), jnp.where(sends, size, star.BIG)
    levels = star._refill(ports, bits, left, words, 0 * ports.leaf, ports.leaf < 0, zero)
    first = star.Simulation(
        left, 0 * left, tuple(words), levels, zero, sends.sum((0, 1), dtype=jnp.int32), jnp.zeros((), jnp.int32)
    )

    def still_open(levels):
        return (levels.share < star.BIG).sum(dtype=jnp.float32)

    def event(counted):
        state, freezes, needed = counted
        goal = star.WAIT * (state.flows > 0).sum(dtype=jnp.float32)

        def freeze_twice(filled):
            levels, rounds, needed = filled
            half = star._freeze(ports, bits, state.words, levels)
            return (
                star._freeze(ports, bits, state.words, half),
                rounds + 1,
                needed + still_open(levels) + still_open(half),
            )

        def filling(filled):
            return (still_open(filled[0]) > goal) & (filled[1] < SERVERS)

        levels, rounds, needed = jax.lax.while_loop(
            filling, freeze_twice, (state.levels, jnp.zeros((), jnp.int32), needed)
        )
        return star._end_flows(ports, bits, state._replace(levels=levels)), freezes + 2 * rounds, needed

    def running(counted):
        return (counted[0].flows > 0).any()

    state, freezes, needed = jax.lax.while_loop(running, event, (first, jnp.zeros((), jnp.int32), jnp.zeros(())))
    return state.steps, freezes, needed / lanes


def _exchanges(count: int):
    from mfabric_jax.apps.sweep import Sweep

    random = {"sample": {"low": 0, "high": 10**6, "whole": True}, "demand": {"of": ["zipf", "hot", "sparse"]}}
    return Sweep("all-to-all", {"servers": 8, "policy": "random"}, random=random, draws=count)


def _iterations(count: int, samples: int, more: dict):
    from mfabric_jax.apps.sweep.case_space import CaseSpace
    from mfabric_jax.case import cases, load
    from mfabric_jax.case.grid import draw_cases

    one = cases(load(preset="paper"), [{"model.name": "mixtral-8x7b", "run.iterations": samples}])
    return CaseSpace(draw_cases(one, IN_A_ROW | more, {"draws": count}))


def _swept(space) -> Ran:
    """The sweep into a folder that is thrown away; what its loop takes is one program of the whole."""
    from mfabric_jax.apps.sweep import sweep

    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep(space, folder, progress=lambda now: estimates.append(now.estimate))
        took = time.perf_counter() - began
    compile_s = sum(one.compile_s for one in {id(one): one for one in estimates if one is not None}.values())
    return Ran(space.count, compile_s, took - compile_s, np.nan, *_looped(space))


def _looped(space) -> tuple[object, dict[str, np.ndarray]]:
    """The function of a sweep that is one program, and its first cases."""
    from mfabric_jax.apps.sweep import Sweep
    from mfabric_jax.evaluate.composed import iteration_of
    from mfabric_jax.evaluate.rows.points import SAMPLE, EvaluatedBlock

    if isinstance(space, Sweep):
        (group,) = space.groups
        program = space.program(group)
        return program.function, program.cases(space.data(group.rows[:LOOPED]))
    (block,) = space.cases.blocks
    cases = {path: values[:LOOPED] for path, values in EvaluatedBlock(block).cases().items()}
    function, _ = iteration_of(block.case)
    return function, {path: np.maximum(values, 0) if path == SAMPLE else values for path, values in cases.items()}


def _line(name: str, ran: Ran) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    alone = _one_at_a_time(ran.function, ran.cases)
    figures = (ran.count, ran.compile_s, ran.run_s, ran.count / ran.run_s, ran.count / ran.cpu_s, alone, peak)
    print(f"{name:48}" + "".join(f"{figure:20,.1f}" for figure in figures), flush=True)


def _one_at_a_time(function, cases) -> float:
    """Cases a second of a loop over the compiled function."""
    one = jax.jit(lambda case: function(case))
    each = [jax.tree.map(lambda x, at=at: x[at], cases) for at in range(min(LOOPED, len(jax.tree.leaves(cases)[0])))]
    jax.block_until_ready(one(each[0]))
    began = time.perf_counter()
    for case in each:
        jax.block_until_ready(one(case))
    return len(each) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
