"""Estimated regions a second on an H100, from programs compiled for one that is not there. Estimates, all of them.

    python benchmarks/gpu_check/estimate.py [--sizes 8 16 32 64] [--paths star seconds-unsplit evaluate]

Seconds of a batch = launches x 3 us + predicates that the host reads x 12 us + bytes / 3.35 TB/s, where a loop counts
as often as it runs on the benchmark's regions; of a fused kernel its instructions (loop counts x disassembled lengths x
warps) over 132 processors x 4 a cycle x 1.755 GHz x 50 %. These constants were set before the kernels were changed.
Beside it one core of the C++ peer (SimGrid 4.1), measured on the same regions on 22 November 2026.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

LAUNCH_S, PREDICATE_S = 3e-6, 12e-6
MEMORY_BPS = 3.35e12
INSTRUCTIONS_PER_S = 132 * 4 * 1.755e9 * 0.5  # of warps
PEER_PER_S = {8: 18_000, 16: 740, 32: 44, 64: 2.3}  # completion simulations on one core
DISTINCT = 256  # regions that are counted in step; a larger batch repeats them
THREADS = 32


class Counts(NamedTuple):
    """How often loops run: events, and steps of filling over all events."""

    events: float
    fills: float


def counts(servers: int, lanes: int) -> Counts:
    """Of one chunk of so many regions in step, as the plain kernel runs them."""
    import jax
    import jax.numpy as jnp

    from mfabric_jax.flows import star_kernel as kernel

    size, ports = _instances(servers, min(lanes, DISTINCT))
    bits = kernel.Bits(servers)

    @jax.jit
    def run(size, ports):
        sends = size > 0
        words, left = bits.at_ports(sends), jnp.where(sends, size, kernel.BIG)
        batch = size.shape[-1]
        nothing, zero = jnp.zeros((2 * servers, batch), bool), jnp.zeros(batch, size.dtype)
        levels = kernel._refill(ports, bits, left, words, jnp.zeros((2 * servers, batch), size.dtype), nothing, zero)
        flows = sends.sum((0, 1), dtype=jnp.int32)
        first = kernel.Simulation(left, jnp.zeros_like(left), tuple(words), levels, zero, flows, jnp.int32(0))

        def event(at):
            state, fills = at
            goal = kernel.WAIT * (state.flows > 0).sum(dtype=jnp.float32)

            def fill(inner):
                levels = kernel._freeze(ports, bits, state.words, inner[0])
                return kernel._freeze(ports, bits, state.words, levels), inner[1] + 1

            def filling(inner):
                return ((inner[0].share < kernel.BIG).sum(dtype=jnp.float32) > goal) & (inner[1] < servers)

            levels, steps = jax.lax.while_loop(filling, fill, (state.levels, jnp.int32(0)))
            return kernel._end_flows(ports, bits, state._replace(levels=levels)), fills + steps

        end, fills = jax.lax.while_loop(lambda at: (at[0].flows > 0).any(), event, (first, jnp.int32(0)))
        return end.steps, fills

    with jax.numpy_rank_promotion("allow"):
        events, fills = run(size, ports)
    return Counts(int(events), int(fills))


def counts_alone(servers: int) -> Counts:
    """Of a region by itself, where flows that end together are one event: mean over as many as plain Python can do."""
    import numpy as np
    from regions_alone import events_and_fills

    size, _ = _instances(servers, {8: 64, 16: 32, 32: 8}.get(servers, 2))
    found = [events_and_fills(np.asarray(size[..., at], float)) for at in range(size.shape[-1])]
    return Counts(*np.mean(found, axis=0))


def _instances(servers: int, many: int):
    """size [S S B] and ports, scaled to about 1."""
    import jax.numpy as jnp
    import numpy as np
    from flows import electrical_part

    from mfabric_jax.flows.star_kernel import StarPorts

    drawn = np.stack([electrical_part(servers, seed, None) for seed in range(many)], axis=-1).astype(np.float32)
    return jnp.asarray(drawn / drawn.max((0, 1))), StarPorts(jnp.ones((2 * servers, many)), jnp.zeros((0, many)))


def seconds_of(loop, trips: list[float], times: float = 1.0) -> float:
    """Of a loop and those within it: `trips` of loops whose number of trips is not known, from the outermost in."""
    once = loop.launches * LAUNCH_S + loop.moved / MEMORY_BPS
    total = times * once
    for inner in loop.loops:
        known = inner.trips
        runs = times * (known or (trips[0] if trips else 1.0))
        total += seconds_of(inner, trips if known else trips[1:], runs)
        total += 0.0 if known or inner.recorded else (runs + times) * PREDICATE_S
    return total


def fused_seconds(instructions: dict[str, int], counts: Counts, warps: int, batch: int) -> float:
    """Of a kernel with a region a program: instructions of an event but for filling, and of a step of filling."""
    each = warps * (counts.events * instructions["event"] + counts.fills * instructions["fill"])
    return batch * each / INSTRUCTIONS_PER_S


def main() -> None:
    """A line for each path and size."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # before anything imports JAX: counting needs no GPU
    import compiled
    import paths

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--paths", nargs="+", default=["star", "seconds-unsplit", "evaluate"])
    parser.add_argument("--commands", action="store_true", help="loops inside command buffers")
    asked = parser.parse_args()
    print("ESTIMATES for an H100, nothing measured: path, servers, in step, regions/s, over one core of the C++ peer")
    for path in asked.paths:
        for servers in asked.sizes:
            with tempfile.TemporaryDirectory() as folder:
                words = [sys.executable, str(HERE / "compiled.py"), "H100", path, str(servers), str(paths.MANY), folder]
                words += ["--commands"] if asked.commands else []
                done = subprocess.run(words, capture_output=True, text=True, check=True)
            found = compiled.found_in(done.stdout.splitlines()[-1])
            fused = {name: kernel for name, kernel in found.kernels.items() if name.startswith("star_")}
            seconds = seconds_of(found.entry, [])
            lanes = paths.MANY
            if fused:
                (kernel,) = fused.values()
                seconds += fused_seconds(kernel, counts_alone(servers), kernel["threads"] // THREADS, paths.MANY)
            else:
                chunks = next((loop.trips for loop in found.entry.loops if loop.trips), 1)
                lanes = paths.MANY // chunks
                events, fills = counts(servers, lanes)
                seconds = seconds_of(found.entry, [events, fills / events])
            rate = paths.MANY / seconds
            how = "fused" if fused else f"{lanes} in step"
            print(f"{path:9s} {servers:3d}  {how:14s} {rate:12,.0f}  {rate / PEER_PER_S[servers]:10,.1f}", flush=True)


if __name__ == "__main__":
    main()
