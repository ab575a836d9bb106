"""Configurations per second of whole sweeps, files of rows written, beside a loop over the same compiled function.

    python benchmarks/sweeps.py
    python benchmarks/sweeps.py --device gpu
"""

import argparse
import resource
import tempfile
import time

import jax

LOOPED = 200                               # configurations of the loop: its speed does not depend on how many


def main() -> None:
    """Prints a line for each sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None)
    parser.add_argument("--exchanges", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=10_000)
    asked = parser.parse_args()
    if asked.device:
        jax.config.update("jax_platforms", asked.device)
    head = ("count", "compile s", "run s", "per s", "one at a time per s", "peak MB")
    print(f"{'sweep':40}" + "".join(f"{name:>20}" for name in head))
    _report("circuits and demand, 8 servers", _exchanges(asked.exchanges))
    _report("iterations, demand and ports drawn", _iterations(asked.iterations, drawn=True))
    _report("iterations, rates and delays drawn", _iterations(asked.iterations, drawn=False))


def _exchanges(count: int):
    from mfabric_jax.study import Sweep

    random = {"sample": {"low": 0, "high": 10**6, "whole": True}, "demand": {"of": ["zipf", "hot", "sparse"]}}
    return Sweep("all-to-all", {"servers": 8, "policy": "random"}, random=random, draws=count)


def _iterations(count: int, drawn: bool):
    from mfabric_jax.study import Sweep

    random = {
        "nic_gbps": {"low": 100, "high": 800},
        "delay_s": {"low": 1e-6, "high": 1, "scale": "log"},
        "efficiency": {"low": 0.2, "high": 1},
        "optical_degree": {"low": 2, "high": 8, "whole": True},
    }
    if drawn:
        random["sample"] = {"low": 0, "high": 63, "whole": True}
        random["electrical_nics"] = {"low": 1, "high": 4, "whole": True}
    fixed = {"model": "mixtral-8x7b", "iterations": 64 if drawn else 1}
    return Sweep("iteration", fixed, random=random, draws=count)


def _report(name: str, config) -> None:
    from mfabric_jax.study import sweep

    compile_s: dict[int, float] = {}

    def progress(now) -> None:
        if now.estimate is not None:
            compile_s[id(now.estimate)] = now.estimate.compile_s
            kept.append(now.estimate)

    kept: list = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep(config, folder, progress=progress)
        took = time.perf_counter() - began
    compiled = sum(compile_s.values())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    run_s, alone = took - compiled, _one_at_a_time(config)
    figures = (config.count, compiled, run_s, config.count / run_s, alone, peak)
    print(f"{name:40}" + "".join(f"{figure:20,.1f}" for figure in figures), flush=True)


def _one_at_a_time(config) -> float:
    """Configurations a second of a loop over the function that the sweep runs in a batch."""
    (group,) = config.groups
    kind = config.kind(group.code, config.dtype)
    one = jax.jit(kind.function.__call__)
    cases = kind.cases(config.data(group.rows[:LOOPED]))
    each = [jax.tree.map(lambda x, at=at: x[at], cases) for at in range(LOOPED)]
    jax.block_until_ready(one(each[0]))
    began = time.perf_counter()
    for case in each:
        jax.block_until_ready(one(case))
    return LOOPED / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
