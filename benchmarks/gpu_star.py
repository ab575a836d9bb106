"""Completion simulations per second of the fused star kernel on a GPU, beside the plain XLA path.

    python benchmarks/gpu_star.py [--sizes 16,32,64] [--batch 4096] [--warps 0] [--lanes 0]

Regions with Zipf demand: the pairs that greedily placed circuits do not join share the electrical star. Both paths
get the same float32 instances, on the device already; their answers are compared with each other and with float64.
The fused kernel's time is the best of five calls after a first, the XLA path's one call after a first; compilation is
timed apart. `memory_sims/s` is what reading and writing device memory alone would allow.

`--warps 1,2,4` tries several numbers of warps per instance (0 is the default of the kernel); `--lanes` is the number
of instances that the XLA path runs in step (0: the whole batch in one, which suits a GPU; as shipped it is LANES).
The last line is JSON. Without a GPU: one sentence and a small check in interpret mode.
"""

import argparse
import json
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from mfabric_jax.flows import star, star_completion
from mfabric_jax.flows.star_pallas import default_warps, star_completion_pallas

OPTICAL, ELECTRICAL = 6, 2  # network cards per server on either side
CARD = 50e9  # bytes/s of one card
DISTINCT = 256  # instances drawn; a larger batch repeats them


def regions(n: int, batch: int, seed: int = 0):
    """Instances of the electrical star: size [B N N] in bytes, up and down [B N] in bytes/s, float32."""
    rng = np.random.default_rng([n, seed])
    drawn = min(batch, DISTINCT)
    heat = (1 + np.arange(n)) ** -1.2
    popular = rng.permuted(np.tile(heat / heat.sum(), (drawn, 1)), axis=1)  # [B N]: receivers
    demand = popular[:, None, :] * rng.lognormal(0, 0.5, (drawn, n, n)) * 1e9
    demand *= 1 - np.eye(n)
    size = np.where(circuits(demand) > 0, 0, demand)
    size = np.resize(size, (batch, n, n)).astype(np.float32)  # repeats whole instances
    ports = np.full((batch, n), ELECTRICAL * CARD, np.float32)
    return size, ports, ports


def circuits(demand):
    """Circuits [B N N] for demand [B N N]: one at a time to the pair with most bytes per circuit it would then have."""
    batch, n, _ = demand.shape
    lane = np.arange(batch)
    both = np.triu(demand + demand.swapaxes(1, 2), 1)
    count, free = np.zeros(demand.shape), np.full((batch, n), OPTICAL)
    for _ in range(n * OPTICAL // 2):
        open_pair = (free[:, :, None] > 0) & (free[:, None, :] > 0)
        score = np.where(open_pair, both / (1 + count), 0).reshape(batch, -1)
        pair = score.argmax(1)
        placed = score[lane, pair] > 0
        a, b = np.divmod(pair, n)
        for i, j in ((a, b), (b, a)):
            count[lane, i, j] += placed
            free[lane, i] -= placed
    return count


def ready(function, *args):
    """Compile for these arguments: the compiled function and the seconds that took."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    return compiled, time.perf_counter() - start


def best_of(calls: int, function, *args) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return min(times)


def worst_error(got, expected) -> float:
    """Largest relative difference; infinity where one of the two is not finite or 0 and the other is."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    same = got == expected
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.where(same, 0, np.abs(got - expected) / np.abs(expected))
    return float(np.nan_to_num(error, nan=np.inf).max())


def plain(lanes: int):
    """The XLA path, `lanes` instances in step."""

    def run(size, up, down):
        before, star.LANES = star.LANES, lanes
        try:
            return jax.vmap(star_completion)(size, up, down)
        finally:
            star.LANES = before

    return run


def exact(stars, count: int):
    """The first few instances in float64."""
    with jax.enable_x64(True):
        few = [jnp.asarray(np.asarray(x[:count]), jnp.float64) for x in stars]
        return np.asarray(jax.jit(plain(count))(*few))


def copying_speed() -> float:
    """Bytes/s that a plain pass over device memory reads and writes."""
    many = jnp.ones(1 << 28, jnp.float32)
    add, _ = ready(lambda x: x + 1, many)
    best_of(2, add, many)
    return 2 * many.nbytes / best_of(5, add, many)


def measure(n: int, batch: int, warps: list[int], lanes: int, bandwidth: float) -> list[dict]:
    """One row per number of warps."""
    stars = [jax.device_put(x) for x in regions(n, batch)]
    moved = sum(x.nbytes for x in stars) + stars[0].nbytes
    few = min(batch, 8)
    truth = exact(stars, few)
    peer, peer_compile = ready(plain(lanes or batch), *stars)
    answer = np.asarray(peer(*stars))
    peer_error = worst_error(answer[:few], truth)
    peer_seconds = best_of(1, peer, *stars)
    rows = []
    for each in warps:
        fused, compile_seconds = ready(lambda *x, each=each: star_completion_pallas(*x, warps=each or None), *stars)
        got = np.asarray(fused(*stars))
        apart = worst_error(got, answer)
        if not apart < 1e-3:
            print(f"N={n}: the two paths differ by {apart:.1e}; the timings below are of wrong answers.")
        seconds = best_of(5, fused, *stars)
        row = {
            "endpoints": n,
            "batch": batch,
            "flows": float((stars[0] > 0).sum() / batch),
            "warps": each or default_warps(1 << (n - 1).bit_length()),
            "compile_s": compile_seconds,
            "per_s": batch / seconds,
            "xla_lanes": lanes or batch,
            "xla_compile_s": peer_compile,
            "xla_per_s": batch / peer_seconds,
            "times_xla": peer_seconds / seconds,
            "error_between": apart,
            "error_float64": worst_error(got[:few], truth),
            "xla_error_float64": peer_error,
            "memory_bound_per_s": batch * bandwidth / moved,
        }
        rows.append(row)
        print(line(row.values()), flush=True)
    return rows


HEADER = (
    "N batch flows warps compile_s sims/s XLA_lanes XLA_compile_s XLA_sims/s ratio difference error64 XLA_error64 "
    "memory_sims/s"
)


def line(values) -> str:
    return " ".join(f"{x:>13.4g}" if isinstance(x, float) else f"{x:>13}" for x in values)


def check() -> dict:
    """Both paths on a few small instances, the kernel interpreted."""
    errors = {}
    for n in (8, 12):
        stars = regions(n, 3)
        errors[n] = worst_error(star_completion_pallas(*stars, interpret=True), plain(3)(*stars))
    worst = max(errors.values())
    print(f"No GPU here, so nothing is timed; interpreted on small instances the paths differ by {worst:.1e}.")
    return {"device": jax.devices()[0].device_kind, "interpreted_error": errors}


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=numbers, default=[16, 32, 64], help="endpoints per instance")
    parser.add_argument("--batch", type=int, default=4096, help="instances per call")
    parser.add_argument("--warps", type=numbers, default=[0], help="warps per instance to try, 0: the default")
    parser.add_argument("--lanes", type=int, default=0, help="instances in step on the XLA path, 0: all")
    asked = parser.parse_args()
    if jax.default_backend() != "gpu":
        print(json.dumps(check()))
        return
    bandwidth = copying_speed()
    device = jax.devices()[0].device_kind
    print(f"{device}, jax {jax.__version__}, float32; a copy moves {bandwidth / 1e9:.0f} GB/s.")
    print(line(HEADER.split()))
    rows = [row for n in asked.sizes for row in measure(n, asked.batch, asked.warps, asked.lanes, bandwidth)]
    print(json.dumps({"device": device, "jax": jax.__version__, "copy_bytes_per_s": bandwidth, "rows": rows}))


if __name__ == "__main__":
    main()
