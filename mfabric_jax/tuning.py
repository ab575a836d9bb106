"""`tune` measures which kernel is fastest on a device; `doctor` reports what affects the speed."""

import importlib.metadata
import math
import os
import pathlib
import platform as system
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import tuned_file
from mfabric_jax.checks import InputError, check_together, distinct, whole
from mfabric_jax.evaluate.sharded import usual_at_once
from mfabric_jax.fabric import Region
from mfabric_jax.flows import star_completion
from mfabric_jax.flows.kernels import MOST_FUSED, SHOWN, kept_kernel, usual
from mfabric_jax.policies import greedy
from mfabric_jax.support import platforms, programs
from mfabric_jax.support.extras import PACKAGES
from mfabric_jax.support.origin import commit
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
MEBI = 1 << 20
NVIDIA_FILES = "nvidia[0-9]*"
SLOW_SETTINGS = {  # of JAX, when they are on
    "jax_debug_nans": "the results of every program are waited for and checked",
    "jax_debug_infs": "the results of every program are waited for and checked",
    "jax_disable_jit": "nothing is compiled",
    "jax_check_tracer_leaks": "nothing that was traced is used again",
    "jax_disable_most_optimizations": "programs are compiled quickly and run slowly",
}


class _Stars(NamedTuple):
    size: Float[Array, "B N N"]  # bytes
    port: Float[Array, "B N"]  # capacity up, and down [bytes/s]
    finish: np.ndarray  # [C N N] s, of the first C instances in float64


def tune(
    sizes: Sequence[int] = SIZES,
    batch: int | None = None,
    calls: int = 5,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """Measure every star kernel on the default device and keep the fastest of every size for "auto".

    - `sizes`: servers of a region. `batch`: regions per call; None: chosen for device and size.
    - `calls`: number of measurements, of which the best counts. `progress`: called with what is measured next.

    Returns a row per size and kernel; docs/formats.md lists the columns. A kernel is dropped if it does not run or a
    finish time is off by more than 1e-4 from float64. The usual kernel is kept unless another is 5 % faster. Kernels
    are kept in `tuned_file`; already traced programs do not change. `InputError` before measuring if that file is
    broken or cannot be written.
    """
    check_measured(sizes, batch, calls)
    device = platforms.device()
    if device is None:
        raise InputError("tune measures on a device that is there, got one that programs are only compiled for.")
    tuned_file.check_keeping()
    rows = []
    for n in sizes:
        rows += measured(device.platform, n, batch or usual_batch(device.platform, n), calls, progress)
    kept = {row["servers"]: row["kernel"] for row in rows if row["kept"]}
    tuned_file.keep_tuned(tuned_file.key_of(device), kept, rows)
    return rows


def check_measured(sizes: Sequence[int], batch: int | None, calls: int) -> None:
    for n in distinct("sizes", tuple(sizes)):
        whole("sizes", n, at_least=2)
    whole("calls", calls)
    if batch is not None:
        check_together(**{"batch": whole("batch", batch), "sizes^2": max(sizes) ** 2})


def candidates(platform: str, n: int, batch: int) -> list[str]:
    """Kernels to measure, the usual one first; no chunk is larger than the batch."""
    if platform == "cpu":
        names = [f"xla:{lanes}" for lanes in CHUNKS if lanes <= max(batch, CHUNKS[0])]
    else:
        names = [f"fused:{warps}" for warps in WARPS if n <= MOST_FUSED] + ["xla:0"]
    return list(dict.fromkeys([str(usual(platform, n)), *names]))


def usual_batch(platform: str, n: int) -> int:
    """Regions per call, so that a call takes seconds at most: cost grows with the fourth power of servers."""
    bits, least, most = (28, 64, 1 << 12) if platform == "cpu" else (34, 1 << 10, 1 << 16)
    return max(least, min(most, (1 << bits) // n**4))


def measured(platform: str, n: int, batch: int, calls: int, progress: Callable[[str], None] | None) -> list[Row]:
    """The rows of one size. Kernels are timed in turns, so that other load affects all alike."""
    stars, programs, rows = _stars(n, batch), {}, []
    for kernel in candidates(platform, n, batch):
        if progress:
            progress(f"{n} servers, {kernel}")
        program, compiled = _compiled(kernel, stars)
        row = {"servers": n, "batch": batch, "kernel": kernel, "regions_per_s": None} | compiled
        rows.append(row | {"usual": kernel == str(usual(platform, n)), "kept": False})
        if program:
            programs[kernel] = program
    seconds = _best_seconds(programs, stars, calls)
    for row in rows:
        if row["kernel"] in seconds:
            row["regions_per_s"] = batch / seconds[row["kernel"]]
    for row in fastest(rows):
        row["kept"] = True
    return rows


def fastest(rows: list[Row]) -> list[Row]:
    """The row of the fastest kernel, or of the usual one if that is hardly slower; [] if all were dropped."""
    running = [row for row in rows if row["dropped"] is None]
    enough = (1 - MARGIN) * max((row["regions_per_s"] for row in running), default=0.0)
    ordered = sorted(running, key=lambda row: (row["usual"] and row["regions_per_s"] >= enough, row["regions_per_s"]))
    return ordered[-1:]


def _compiled(kernel: str, stars: _Stars) -> tuple[Callable | None, Row]:
    found: Row = {"compile_s": None, "error": None, "dropped": None}
    try:
        began = time.perf_counter()
        program = _program(kernel).lower(stars.size, stars.port).compile()
        found["compile_s"] = time.perf_counter() - began
        found["error"] = largest_error(np.asarray(program(stars.size, stars.port)[: len(stars.finish)]), stars.finish)
    except Exception as error:  # whatever a compiler or a device refuses: the others are tried
        first_line = (str(error).splitlines() or [""])[0]
        return None, found | {"dropped": f"does not run here ({type(error).__name__}: {first_line:.100})"}
    if found["error"] is None:
        return None, found | {"dropped": "finish times are missing or not finite"}
    if found["error"] > TOLERANCE:
        return None, found | {"dropped": f"finish times are off by {found['error']:.1g}, more than {TOLERANCE:g}"}
    return program, found


def _best_seconds(programs: dict[str, Callable], stars: _Stars, calls: int) -> dict[str, float]:
    """Best seconds per call of each program over all turns; short calls are repeated, hopeless programs called once."""

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
    """Compilable: size [B N N], port [B N] -> finish times [B N N]."""
    return jax.jit(jax.vmap(lambda size, port: star_completion(size, port, port, kernel=kernel)))


def largest_error(finish: np.ndarray, exact: np.ndarray) -> float | None:
    """Largest relative error; None if a finish time is missing or not finite."""
    flows = exact > 0
    if not np.array_equal(flows, finish > 0) or not np.isfinite(finish[flows]).all():
        return None
    return float(np.max(np.abs(finish[flows] / exact[flows] - 1), initial=0))


def _stars(n: int, batch: int) -> _Stars:
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
    demand = drawn_of(keys, skewed, region.servers)
    count = jax.vmap(lambda demand: greedy(demand, region).circuits.count)(demand)
    return jnp.where(count > 0, 0, demand).astype(jnp.float32)


# ------------------------------------------------------------------------------------------------------- doctor
class Line(NamedTuple):
    topic: str  # such as "tuned file"
    says: str


def doctor() -> list[Line]:
    """Lines of (topic, state) on what affects the speed of this process; computes and writes nothing."""
    lines = [*_versions(), *_devices(), *_precision(), *_compilation_cache(), *_kept_programs()]
    try:
        lines += [*_tuned_file(), *_kernels()]
    except InputError as mistake:  # of the file: a call would warn with this sentence
        lines.append(Line("tuned file", str(mistake)))
    lines += [Line("cases at once", f"{usual_at_once():,} in a chunk of evaluate, where memory allows")]
    return [*lines, *_extras(), *_loops(), *(_slow() or [Line("slow", "nothing that is known to be")])]


def _versions() -> Iterator[Line]:
    import mfabric_jax

    made = commit()
    yield Line("mfabric_jax", mfabric_jax.__version__ + (f", commit {made}" if made else ""))
    yield Line("jax, jaxlib", f"{jax.__version__}, {importlib.metadata.version('jaxlib')}")
    yield Line("python", f"{system.python_version()} on {system.system()} {system.machine()}")


def _devices() -> Iterator[Line]:
    default = platforms.device()
    for device in platforms.local_devices():
        key = tuned_file.key_of(device)
        words = [key.device, *([f"compute capability {key.capability}"] if key.capability else [])]
        words += [key.runtime] if key.runtime and key.runtime != device.platform else []
        topic = f"{device.platform} {device.id}" + (", default" if device == default else "")
        yield Line(topic, ", ".join([*words, _memory(device)]))


def _memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    most, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    if not most:
        return "memory not said"
    return f"{(most - used) / MEBI:,.0f} of {most / MEBI:,.0f} MiB free"


def _precision() -> Iterator[Line]:
    state = "on" if jax.config.values["jax_enable_x64"] else "off"
    yield Line("precision", f"{jnp.result_type(float)} by default (jax_enable_x64 is {state})")


def _compilation_cache() -> Iterator[Line]:
    folder = jax.config.values["jax_compilation_cache_dir"]
    if not _keeps_programs():
        yield Line("compilation cache", "none: every process compiles anew")
    elif "://" in folder:
        yield Line("compilation cache", folder)
    else:
        files = [path for path in pathlib.Path(folder).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        yield Line("compilation cache", f"{folder}: {len(files):,} files, {size / MEBI:,.0f} MiB")


def _kept_programs() -> Iterator[Line]:
    if (folder := programs.kept_in) is None:
        yield Line("kept programs", "none: off, or no programs.keep_in() yet")
    elif (why := programs.problem(folder)) is not None:
        yield Line("kept programs", f"{folder}: not used, {why}")
    else:
        many, size = programs.kept(folder)
        words = f"{many:,} programs, with executables {size / MEBI:,.1f} of at most {programs.MOST / MEBI:,.0f} MiB"
        yield Line("kept programs", f"{folder}: {words}")


def _keeps_programs() -> bool:
    settings = jax.config.values
    return settings["jax_compilation_cache_dir"] is not None and settings["jax_enable_compilation_cache"]


def _tuned_file() -> Iterator[Line]:
    entries, device = tuned_file.entries(), platforms.device()
    yield Line("tuned file", f"{tuned_file.tuned_path()}" + ("" if entries else ": not there; mfabric tune makes it"))
    for entry in entries:
        why = tuned_file.differences(entry.key, tuned_file.key_of(device)) if device else ["for a device that is here"]
        kernels = ", ".join(f"{n} {kernel}" for n, kernel in entry.kernels.items())
        applies = f"applies: {kernels or 'no kernel was kept'} ({entry.day})"
        yield Line("tuned", f"tuned {'; '.join(why)}: does not apply" if why else applies)


def _kernels() -> Iterator[Line]:
    where = platforms.platform()
    for n in SHOWN:
        here, other = kept_kernel(where, n), usual(where, n)
        why = "usual" if here is None else "tuned" if here == other else f"tuned; usual is {other}"
        yield Line(f"kernel, {n} servers", f"{here or other} ({why})")


def _extras() -> Iterator[Line]:
    for name, packages in PACKAGES.items():
        known = [(package, _version(package)) for package in packages]
        missing = ", ".join(package for package, version in known if version is None)
        there = ", ".join(f"{package} {version}" for package, version in known if version)
        install = f"without {missing}: pip install 'mfabric-jax[{name}]'"
        yield Line(f"extra {name}", install if missing else there)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _loops() -> Iterator[Line]:
    if platforms.platform() != "gpu":
        yield Line("loops of a GPU", "no GPU is in use")
    elif re.search(r"command_buffer=(\S*[+,])?while", os.environ.get("XLA_FLAGS", ""), re.IGNORECASE):
        yield Line("loops of a GPU", "inside command buffers, as XLA_FLAGS say")
    else:
        flag = f"XLA_FLAGS={platforms.RECORDED}"
        yield Line("loops of a GPU", f"started by the host, step by step; {flag} puts them into command buffers")


def _slow() -> list[Line]:
    settings, found = jax.config.values, []
    if settings["jax_enable_x64"]:
        found.append("jax_enable_x64 is on: what is float64 takes 1.3 to 2.2 times as long, on many GPUs more")
    if platforms.platform() == "cpu" and nvidia_files():
        found.append("the CPU computes, but there is an NVIDIA GPU: pip install 'jax[cuda12]', or --device gpu")
    if not _keeps_programs():
        found.append("no compilation cache: jax.config.update('jax_compilation_cache_dir', FOLDER) first of all")
    found += [f"{name} is on: {why}" for name, why in SLOW_SETTINGS.items() if settings.get(name)]
    return [Line("slow", text) for text in found]


def nvidia_files() -> list[pathlib.Path]:
    return list(pathlib.Path("/dev").glob(NVIDIA_FILES))
