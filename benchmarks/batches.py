"""Configurations per second: many at once through `evaluate`, and one at a time through the same compiled function.

    python benchmarks/batches.py
    python benchmarks/batches.py --device gpu
"""

import argparse
import resource
import time

import jax
import numpy as np

LOOPED = 200                               # cases of the loop: its speed does not depend on how many


def main() -> None:
    """Prints a line for each kind of case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None)
    parser.add_argument("--circuits", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10_000)
    asked = parser.parse_args()
    if asked.device:
        jax.config.update("jax_platforms", asked.device)
    head = ("count", "compile s", "run s", "per s", "one at a time per s", "peak MB")
    print(f"{'cases':40}" + "".join(f"{name:>20}" for name in head))
    _report("circuits and demand, 8 servers, unsplit", *_exchanges(asked.circuits))
    _report("iterations of mixtral-8x7b", *_iterations(asked.iterations))


def _exchanges(count: int):
    from mfabric_jax import Circuits, Region, all_to_all_time

    def seconds(case):
        region = Region(8, case["nic_gbps"])
        return {"seconds": all_to_all_time(region, Circuits(case["circuits"]), case["demand"])}

    rng = np.random.default_rng(0)
    base = np.asarray(_round_robin())
    order = rng.permuted(np.tile(np.arange(8), (count, 1)), axis=1)
    circuits = base[order[:, :, None], order[:, None, :]]
    demand = np.asarray(1e8 * rng.pareto(1.2, (count, 8, 8)), np.float32)
    return seconds, {"circuits": circuits, "demand": demand, "nic_gbps": np.full(count, 400.0, np.float32)}


def _round_robin():
    from mfabric_jax import Region
    from mfabric_jax.policies import uniform

    return uniform(None, Region(8, 400.0)).circuits.count


def _iterations(count: int):
    from mfabric_jax.study import Compare, iteration_of

    function, case = iteration_of(Compare(models=("mixtral-8x7b",)), "mixtral-8x7b")
    rng = np.random.default_rng(0)
    cases = {name: np.full(count, value) for name, value in case.items()}
    cases |= {"nic_gbps": rng.uniform(100, 800, count), "delay_s": 10 ** rng.uniform(-6, 0, count)}
    return function, cases | {"optical_degree": rng.integers(2, 9, count), "efficiency": rng.uniform(0.2, 1, count)}


def _report(name: str, function, cases) -> None:
    from mfabric_jax.study import evaluate

    found = evaluate(function, cases)
    one = jax.jit(function)
    jax.block_until_ready(one(jax.tree.map(lambda x: x[0], cases)))
    began = time.perf_counter()
    count, peak = found.estimate.cases, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    for at in range(LOOPED):
        jax.block_until_ready(one(jax.tree.map(lambda x, at=at % count: x[at], cases)))
    alone = LOOPED / (time.perf_counter() - began)
    figures = (count, found.estimate.compile_s, found.run_s, count / found.run_s, alone, peak)
    print(f"{name:40}" + "".join(f"{figure:20,.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
