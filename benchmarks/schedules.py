"""Schedules of many demands on one core: CPU milliseconds a demand to plan and to time, and how good they are.

    python benchmarks/schedules.py
    python benchmarks/schedules.py --servers 16 --demands 100

`quick` plans all in one call. Beside it a loop of the published algorithms by SciPy's assignment: Spectra alone, and
the three of which `quick` is the best. Half of the demands are MoE, half standard; a turn takes 0.01 of L / B.
"over the bound": mean time over `lower_bound`. Times: under
`vmap`, 50 at once, compilation apart, beside a loop of calls.
"""

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

DELAY = 0.01
LOOPED = 20  # demands that loops are measured on
HEAD = ("servers", "E / B", "quick", "Spectra", "three", "Spectra/quick", "three/quick")
QUALITY = ("over the bound: quick", "Spectra", "three", "timed batched", "in a loop")


def main() -> None:
    """Prints a line for each number of servers and rate of packet NICs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--packet", type=float, nargs="+", default=[0.0, 0.1])
    parser.add_argument("--demands", type=int, default=1000)
    asked = parser.parse_args()
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(" | ".join((*HEAD, *QUALITY)), flush=True)
    for servers in asked.servers:
        for packet in asked.packet:
            print(" | ".join(f"{cell:.4g}" for cell in measured(servers, packet, asked.demands)), flush=True)


def measured(servers: int, packet: float, many: int) -> tuple[float, ...]:
    """A line of the table."""
    import jax
    import numpy as np

    from mfabric_jax import Region
    from mfabric_jax.circuit_schedules import get, lower_bound, schedule_time, schedules
    from mfabric_jax.circuit_schedules.families import moe, standard

    region = Region(servers, 8e-9, 1, packet, DELAY)  # circuits of 1 byte/s
    demands = np.array([(moe, standard)[seed % 2](servers, seed) for seed in range(many)], np.float32)
    schedules(demands[:2], region)
    batch, quick = timed(lambda: schedules(demands, region))
    loops = {}
    for name in ("spectra", "whole-pair", "solstice"):
        plan = get(name)
        plan(demands[0], region)
        loops[name] = timed(lambda plan=plan: [plan(demand, region) for demand in demands[:LOOPED]])

    bounds = np.asarray(jax.vmap(lambda demand: lower_bound(demand, region))(demands[:LOOPED]))
    each = jax.jit(lambda one, demand: schedule_time(region, one, demand))
    over = {
        name: np.array([each(one, demand) for one, demand in zip(found, demands[:LOOPED], strict=True)]) / bounds
        for name, (found, _) in loops.items()
    }
    whole = jax.jit(lambda many: jax.lax.map(lambda pair: schedule_time(region, *pair), many, batch_size=50))
    jax.block_until_ready(whole((batch, demands)))
    times, spent = timed(lambda: np.asarray(whole((batch, demands))))
    first = jax.tree.map(lambda leaf: leaf[0], batch)
    each(first, demands[0])
    _, called = timed(lambda: [float(each(first, demand)) for demand in demands[:LOOPED]])
    spectra, three = (
        1000 / LOOPED * seconds for seconds in (loops["spectra"][1], sum(one[1] for one in loops.values()))
    )
    planned = 1000 * quick / many
    speed = planned, spectra, three, spectra / planned, three / planned
    quality = np.mean(times[:LOOPED] / bounds), np.mean(over["spectra"]), np.mean(np.min(list(over.values()), axis=0))
    return servers, packet, *speed, *map(float, quality), 1000 * spent / many, 1000 * called / LOOPED


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and CPU seconds of this process."""
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


if __name__ == "__main__":
    main()
