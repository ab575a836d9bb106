"""Every kernel of stars measured on the default device; the fastest exact one of every size is kept for "auto"."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import platforms, tuned_file
from mfabric_jax.checks import InputError, check_together, distinct, whole
from mfabric_jax.fabric import Region
from mfabric_jax.flows import star_completion
from mfabric_jax.flows.kernels import MOST_FUSED, usual
from mfabric_jax.policies import greedy
from mfabric_jax.traffic.demand_families import drawn_of, skewed

SIZES = (8, 16, 32, 64)
CHUNKS = (16, 32, 64, 128, 256, 512)  # instances in step on a CPU
WARPS = (1, 2, 4, 8)  # of a fused program
TOLERANCE = 1e-4  # of a finish time in float32: rounding over the completions of up to 64 endpoints makes 2e-5
MARGIN = 0.05  # of the time: the usual kernel stays where the fastest gains less
HOPELESS = 3  # times the quickest: a kernel whose first call takes longer is not called again
TURN_S = 0.05  # seconds that a turn takes at least
DRAWN = 64  # instances that differ; a batch repeats them
COMPARED = 8  # instances that float64 solves too
Row = dict[str, Any]


class _Stars(NamedTuple):
    """- `size` [B N N]: bytes.   - `port` [B N]: capacity up, and down [bytes/s].   - `finish` [C N N]: of the first C
    instances, solved in float64 [s]."""

    size: Float[Array, "B N N"]
    port: Float[Array, "B N"]
    finish: np.ndarray


def tune(
    sizes: Sequence[int] = SIZES,
    batch: int | None = None,
    calls: int = 5,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measure every kernel of stars on the default device, and keep the fastest of every size for "auto".

    - `sizes`: servers of a region.   - `batch`: regions of a call; None: what suits the device and the size.
    - `calls`: the best of so many counts, in turns.   - `progress`: told what is measured next.

    A row per size and kernel: `servers`, `batch`, `kernel`, `regions_per_s` (completion times; None where it was
    dropped), `compile_s` (short where JAX had kept the program), `error` (the largest relative one of a finish time,
    against float64), `usual`, `kept`, and `dropped`: why, else None. Kernels that err by more than 1e-4 or do not run
    are dropped; the usual kernel is kept where none gains 5 %. All in float32, whatever the default is.

    What is kept goes to `tuned.json` and holds for this device, JAX and package alone (`tuned_file`); programs traced
    before stay as they are. `InputError` where that file cannot be written or is broken, before anything is measured.
    """
    check_measured(sizes, batch, calls)
    device = platforms.device()
    if device is None:
        raise InputError("tune measures on a device that is there, got one that programs are only compiled for.")
    tuned_file.check_keeping()
    rows = []
    for n in sizes:
        rows += _measured(device.platform, n, batch or usual_batch(device.platform, n), calls, progress)
    kept = {row["servers"]: row["kernel"] for row in rows if row["kept"]}
    tuned_file.keep_tuned(tuned_file.key_of(device), kept, rows)
    return rows


def check_measured(sizes: Sequence[int], batch: int | None, calls: int) -> None:
    """`InputError` for arguments of `tune` that cannot be measured."""
    for n in distinct("sizes", tuple(sizes)):
        whole("sizes", n, at_least=2)
    whole("calls", calls)
    if batch is not None:
        check_together(**{"batch": whole("batch", batch), "sizes^2": max(sizes) ** 2})


def candidates(platform: str, n: int, batch: int) -> list[str]:
    """Kernels to try: the usual one first, no chunk larger than the batch."""
    if platform == "cpu":
        names = [f"xla:{lanes}" for lanes in CHUNKS if lanes <= max(batch, CHUNKS[0])]
    else:
        names = [f"fused:{warps}" for warps in WARPS if n <= MOST_FUSED] + ["xla:0"]
    return list(dict.fromkeys([str(usual(platform, n)), *names]))


def usual_batch(platform: str, n: int) -> int:
    """Regions of a call, so that it takes seconds at most: their cost grows with the fourth power of the servers."""
    bits, least, most = (28, 64, 1 << 12) if platform == "cpu" else (34, 1 << 10, 1 << 16)
    return max(least, min(most, (1 << bits) // n**4))


def _measured(platform: str, n: int, batch: int, calls: int, progress: Callable[[str], None] | None) -> list[Row]:
    """The rows of one size: all programs are compiled and checked, then they take turns, so that load falls on all."""
    stars, programs, rows = _stars(n, batch), {}, []
    for kernel in candidates(platform, n, batch):
        if progress:
            progress(f"{n} servers, {kernel}")
        program, found = _compiled(kernel, stars)
        is_usual = kernel == str(usual(platform, n))
        rows.append({"servers": n, "batch": batch, "kernel": kernel, "regions_per_s": None} | found)
        rows[-1] |= {"usual": is_usual, "kept": False}
        if program:
            programs[kernel] = program
    seconds = _best_seconds(programs, stars, calls)
    for row in rows:
        if row["kernel"] in seconds:
            row["regions_per_s"] = batch / seconds[row["kernel"]]
    for row in _fastest(rows):
        row["kept"] = True
    return rows


def _fastest(rows: list[Row]) -> list[Row]:
    """That with the most regions a second, or the usual one where it is hardly slower; none if all were dropped."""
    running = [row for row in rows if row["dropped"] is None]
    enough = (1 - MARGIN) * max((row["regions_per_s"] for row in running), default=0.0)
    ordered = sorted(running, key=lambda row: (row["usual"] and row["regions_per_s"] >= enough, row["regions_per_s"]))
    return ordered[-1:]


def _compiled(kernel: str, stars: _Stars) -> tuple[Callable | None, Row]:
    """The program, if it runs and is exact; seconds of compiling, the error, and why the kernel was dropped."""
    found: Row = {"compile_s": None, "error": None, "dropped": None}
    try:
        began = time.perf_counter()
        program = _program(kernel).lower(stars.size, stars.port).compile()
        found["compile_s"] = time.perf_counter() - began
        found["error"] = _error(np.asarray(program(stars.size, stars.port)[: len(stars.finish)]), stars.finish)
    except Exception as error:  # whatever a compiler or a device refuses: the others are tried
        first_line = (str(error).splitlines() or [""])[0]
        return None, found | {"dropped": f"does not run here ({type(error).__name__}: {first_line:.100})"}
    if found["error"] is None:
        return None, found | {"dropped": "finish times are missing or not finite"}
    if found["error"] > TOLERANCE:
        return None, found | {"dropped": f"finish times are off by {found['error']:.1g}, more than {TOLERANCE:g}"}
    return program, found


def _best_seconds(programs: dict[str, Callable], stars: _Stars, calls: int) -> dict[str, float]:
    """Of a call of each, the best of so many turns; short ones are called often, hopeless ones once."""

    def seconds(kernel: str, repeat: int) -> float:
        began = time.perf_counter()
        for _ in range(repeat):
            finish = programs[kernel](stars.size, stars.port)
        jax.block_until_ready(finish)
        return (time.perf_counter() - began) / repeat

    best = {kernel: seconds(kernel, 1) for kernel in programs}
    quickest = min(best.values(), default=0)
    turns = {kernel: math.ceil(TURN_S / once) for kernel, once in best.items() if once <= HOPELESS * quickest}
    for _ in range(calls):
        best |= {kernel: min(best[kernel], seconds(kernel, repeat)) for kernel, repeat in turns.items()}
    return best


def _program(kernel: str) -> Any:
    """size [B N N], port [B N] -> finish times [B N N], to be compiled."""
    return jax.jit(jax.vmap(lambda size, port: star_completion(size, port, port, kernel=kernel)))


def _error(finish: np.ndarray, exact: np.ndarray) -> float | None:
    """The largest relative error [C N N]; None where a finish time is not finite or a flow is missing."""
    flows = exact > 0
    if not np.array_equal(flows, finish > 0) or not np.isfinite(finish[flows]).all():
        return None
    return float(np.max(np.abs(finish[flows] / exact[flows] - 1), initial=0))


def _stars(n: int, batch: int) -> _Stars:
    """Popular destinations by a Zipf law, less the pairs to which greedy gives circuits: what is left to the star."""
    region = Region(n, 100.0)
    some = np.asarray(_left_by_circuits(region, jax.random.split(jax.random.key(n), DRAWN)))
    size = some[np.arange(batch) % DRAWN]
    port = np.full((batch, n), float(region.electrical_nics) * region.nic_Bps, size.dtype)
    with jax.enable_x64(True):
        exact = _program("xla:0")(*(jnp.asarray(x[:COMPARED], np.float64) for x in (size, port)))
        finish = np.asarray(exact)
    return _Stars(jnp.asarray(size), jnp.asarray(port), finish)


@jax.jit
def _left_by_circuits(region: Region, keys) -> Float[Array, "B N N"]:
    """Bytes of the pairs without a circuit."""
    demand = drawn_of(keys, skewed, region.servers)
    count = jax.vmap(lambda demand: greedy(demand, region).circuits.count)(demand)
    return jnp.where(count > 0, 0, demand).astype(jnp.float32)
