"""Configurations per second: `evaluate` of arrays, whole sweeps with their files of rows, and one at a time in a loop.

python benchmarks/batches.py
python benchmarks/batches.py --device gpu
"""

import argparse
import resource
import tempfile
import time
from typing import NamedTuple

import jax
import numpy as np

LOOPED = 200  # cases of the loop: its speed does not depend on how many
HEAD = ("count", "compile s", "run s", "per s", "one at a time per s", "peak MB")
IN_A_ROW = {
    "nic_gbps": {"low": 100, "high": 800},
    "delay_s": {"low": 1e-6, "high": 1, "scale": "log"},
    "efficiency": {"low": 0.2, "high": 1},
    "optical_degree": {"low": 2, "high": 8, "whole": True},
}
OTHER_DEMAND = {
    "sample": {"low": 0, "high": 63, "whole": True},
    "electrical_nics": {"low": 1, "high": 4, "whole": True},
}


class Ran(NamedTuple):
    """How many cases, seconds of compiling and of running, and the function with one of its cases for the loop."""

    count: int
    compile_s: float
    run_s: float
    function: object
    cases: object


def main() -> None:
    """Prints a line for each kind of case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None)
    parser.add_argument("--exchanges", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10_000)
    asked = parser.parse_args()
    if asked.device:
        jax.config.update("jax_platforms", asked.device)
    print(f"{'cases':48}" + "".join(f"{name:>20}" for name in HEAD))
    _line("evaluate: circuits and demand, 8 servers", _arrays(asked.exchanges))
    _line("sweep: circuits and demand drawn, 8 servers", _swept(_exchanges(asked.exchanges)))
    _line("sweep: iterations, demand and ports drawn", _swept(_iterations(asked.iterations, 64, OTHER_DEMAND)))
    _line("sweep: iterations, rates and delays drawn", _swept(_iterations(asked.iterations, 1, {})))


def _arrays(count: int) -> Ran:
    """Round-robin circuits in random order, and heavy-tailed demand."""
    from mfabric_jax import Circuits, Region, all_to_all_time
    from mfabric_jax.policies import uniform
    from mfabric_jax.study import evaluate

    def seconds(case):
        return {"seconds": all_to_all_time(Region(8, case["nic_gbps"]), Circuits(case["circuits"]), case["demand"])}

    rng = np.random.default_rng(0)
    base = np.asarray(uniform(None, Region(8, 400.0)).circuits.count)
    order = rng.permuted(np.tile(np.arange(8), (count, 1)), axis=1)
    circuits = base[order[:, :, None], order[:, None, :]]
    demand = np.asarray(1e8 * rng.pareto(1.2, (count, 8, 8)), np.float32)
    cases = {"circuits": circuits, "demand": demand, "nic_gbps": np.full(count, 400.0, np.float32)}
    found = evaluate(seconds, cases)
    return Ran(count, found.estimate.compile_s, found.run_s, seconds, cases)


def _exchanges(count: int):
    from mfabric_jax.study import Sweep

    random = {"sample": {"low": 0, "high": 10**6, "whole": True}, "demand": {"of": ["zipf", "hot", "sparse"]}}
    return Sweep("all-to-all", {"servers": 8, "policy": "random"}, random=random, draws=count)


def _iterations(count: int, samples: int, more: dict):
    from mfabric_jax.study import Sweep

    return Sweep("iteration", {"model": "mixtral-8x7b", "iterations": samples}, random=IN_A_ROW | more, draws=count)


def _swept(config) -> Ran:
    """The sweep into a folder that is thrown away; what its loop takes is one program of the whole."""
    from mfabric_jax.study import sweep

    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep(config, folder, progress=lambda now: estimates.append(now.estimate))
        took = time.perf_counter() - began
    compile_s = sum(one.compile_s for one in {id(one): one for one in estimates if one is not None}.values())
    (group,) = config.groups
    kind = config.kind(group.code, config.dtype)
    return Ran(config.count, compile_s, took - compile_s, kind.function, kind.cases(config.data(group.rows[:LOOPED])))


def _line(name: str, ran: Ran) -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    alone = _one_at_a_time(ran.function, ran.cases)
    figures = (ran.count, ran.compile_s, ran.run_s, ran.count / ran.run_s, alone, peak)
    print(f"{name:48}" + "".join(f"{figure:20,.1f}" for figure in figures), flush=True)


def _one_at_a_time(function, cases) -> float:
    """Cases a second of a loop over the compiled function."""
    one = jax.jit(lambda case: function(case))
    each = [jax.tree.map(lambda x, at=at: x[at], cases) for at in range(LOOPED)]
    jax.block_until_ready(one(each[0]))
    began = time.perf_counter()
    for case in each:
        jax.block_until_ready(one(case))
    return LOOPED / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
