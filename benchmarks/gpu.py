"""What hot paths take on the device that JAX finds, best a GPU: the table of docs/performance.md, GPUs.

    python benchmarks/gpu.py [--batch 65536] [--sizes 8 16 32 64] [--only star policies] [--calls 5]

Stars (completion times of what greedy circuits leave to the packet switches), all-to-alls, `evaluate`, policies, a
training step, `sweep`. Best of several calls after a first, compiling apart. Beside stars one core of the C++ peer
(SimGrid 4.1) on the same regions, measured on 22 November 2026 on a CPU; `mfabric tune` chooses among kernels before.
"""

import argparse
import functools
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "gpu_check"), str(HERE.parent)]

DISTINCT = 256  # regions drawn; a larger batch repeats them
SAMPLES = 64  # of sample-average
POLICIES: dict[str, tuple[int, dict[str, Any]]] = {  # part of the batch, settings
    "greedy": (1, {}),
    "learned": (16, {"share_steps": 0}),
    "joint": (64, {}),
    "sample-average": (1024, {"share_steps": 0}),
}


class Timed(NamedTuple):
    """How many in one call, seconds of compiling, and of the fastest call."""

    many: int
    compile_s: float
    run_s: float


def main() -> None:
    """A line for each path and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1 << 16, help="regions in a call; of slow policies a part")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32, 64], help="servers of a region")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--calls", type=int, default=5)
    asked = parser.parse_args()
    import jax
    from estimate import PEER_PER_S

    from mfabric_jax.platforms import record_loops

    record_loops()  # as the command line runs programs

    device = jax.devices()[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}, float32, batches of {asked.batch}")
    print("| path | servers | in a call | compile s | ms a call | per s | over one core of the C++ peer |")
    print("|---|---|---|---|---|---|---|")
    for part in asked.only:
        for servers in asked.sizes:
            for name, found in _survived(part, PARTS[part](servers, asked.batch, asked.calls), servers):
                rate = found.many / found.run_s
                over = f"{rate / PEER_PER_S[servers]:,.1f}" if part == "star" and servers in PEER_PER_S else ""
                cells = name, servers, found.many, f"{found.compile_s:.1f}", f"{1e3 * found.run_s:.3g}", f"{rate:,.0f}"
                print("| " + " | ".join(map(str, (*cells, over))) + " |", flush=True)


def _survived(part: str, rows: Iterator[tuple[str, Timed]], servers: int) -> Iterator[tuple[str, Timed]]:
    """The rows up to the first that fails, for want of memory say, and why that did; others go on."""
    try:
        yield from rows
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        print(f"| {part} | {servers} | failed: {reason[:200]} | | | | |", flush=True)


def _regions(servers: int, batch: int):
    """Demand [B S S], circuits [B S S] and bandwidth [B] of drawn regions."""
    import jax.numpy as jnp
    import numpy as np
    from flows import zipf_demand

    from mfabric_jax import Region, greedy

    drawn = [zipf_demand(servers, seed) for seed in range(min(batch, DISTINCT))]
    count = [np.asarray(greedy(jnp.asarray(one), Region(servers, 100.0), rule="next").circuits.count) for one in drawn]
    demand = np.resize(np.stack(drawn), (batch, servers, servers)).astype(np.float32)
    return demand, np.resize(np.stack(count), demand.shape), np.full(batch, 100.0, np.float32)


def _timed(function: Callable[..., Any], many: int, calls: int, *given: Any) -> Timed:
    import jax
    from flows import best_of, compiled

    given = jax.device_put(given)
    program, compile_s = compiled(function, *given)
    return Timed(many, compile_s, best_of(program, *given, repeat=calls)[1])


def _star(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    import jax
    import numpy as np

    from mfabric_jax import star_completion

    demand, count, _ = _regions(servers, batch)
    ports = np.full((batch, servers), 25e9, np.float32)
    size = np.where(count > 0, 0, demand)
    yield "stars", _timed(jax.vmap(star_completion), batch, calls, size, ports, ports)


def _all_to_all(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    import jax

    from mfabric_jax import Circuits, Region, all_to_all_time

    def seconds(demand, count, gbps, routing):
        return all_to_all_time(Region(servers, gbps), Circuits(count), demand, routing=routing)

    for routing in ("unsplit", "split"):
        one = functools.partial(seconds, routing=routing)
        yield f"all-to-alls, {routing}", _timed(jax.vmap(one), batch, calls, *_regions(servers, batch))


def _evaluate(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    from mfabric_jax import Circuits, Region, all_to_all_time
    from mfabric_jax.simulation import evaluate

    def seconds(case):
        region = Region(servers, case["gbps"])
        return {"seconds": all_to_all_time(region, Circuits(case["count"]), case["demand"])}

    cases = dict(zip(("demand", "count", "gbps"), _regions(servers, 4 * batch), strict=True))
    found = [evaluate(seconds, cases) for _ in range(calls)]
    yield "evaluate", Timed(4 * batch, found[0].estimate.compile_s, min(one.run_s for one in found))


def _policies(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    import jax
    import numpy as np

    from mfabric_jax import Region, policies

    for name, (part, settings) in POLICIES.items():
        many, policy = max(batch // part, 1), policies.get(name, **settings)
        demand, _, gbps = _regions(servers, many)
        if name == "sample-average":
            noise = np.random.default_rng(0).lognormal(0, 0.6, (many, SAMPLES, servers, servers))
            demand = (demand[:, None] * noise).astype(np.float32)

        def count(demand, gbps, policy=policy):
            return policy(demand, Region(servers, gbps)).circuits.count

        yield f"policy {name}", _timed(jax.vmap(count), many, calls, demand, gbps)


def _training(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    import jax
    from paths import training_step

    from mfabric_jax.learning.training import Training, lessons

    config = Training(sizes=(servers,), batch=max(batch // 64, 1))
    pool = jax.numpy.asarray(_regions(servers, 64)[0] / 1e9)
    lesson, (arrays, step) = lessons(jax.random.key(0), pool, config, servers), training_step(config)
    yield "training step, demands", _timed(step, config.batch, calls, arrays, lesson, jax.numpy.int32(0))


def _sweep(servers: int, batch: int, calls: int) -> Iterator[tuple[str, Timed]]:
    from mfabric_jax.sweep import Sweep, sweep

    random = {"sample": {"low": 0, "high": 10**6, "whole": True}}
    config = Sweep("all-to-all", {"servers": servers, "policy": "random"}, random=random, draws=batch)
    estimates = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        sweep(config, folder, progress=lambda now: estimates.append(now.estimate))
        took = time.perf_counter() - began
    compile_s = max((one.compile_s for one in estimates if one is not None), default=0.0)
    yield "sweep, rows to files", Timed(batch, compile_s, took - compile_s)


PARTS: dict[str, Callable[[int, int, int], Iterator[tuple[str, Timed]]]] = {
    "star": _star,
    "all-to-all": _all_to_all,
    "evaluate": _evaluate,
    "policies": _policies,
    "training": _training,
    "sweep": _sweep,
}


if __name__ == "__main__":
    main()
