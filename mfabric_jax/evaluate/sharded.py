"""Evaluate many cases with one compiled function, in chunks that fit the device, on all devices."""

import collections
import contextlib
import dataclasses
import functools
import gc
import pathlib
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from mfabric_jax.checks import InputError, positive, whole
from mfabric_jax.support import programs
from mfabric_jax.support.platforms import local_devices, platform

ON_CPU, ON_DEVICE = 256, 1 << 16  # cases of a chunk: what a CPU's caches hold, what keeps an accelerator busy
IN_FLIGHT = 2  # chunks that are computed while an earlier one is fetched
MEMORY = 4 * 2**30  # bytes for one chunk on a device of unknown memory
PART = 0.5  # fraction of a device's memory
AXIS = "cases"
MAPS = pathlib.Path("/proc/self/maps")
CROWDED = 30_000  # memory maps: compiled programs hold some, and XLA crashes at the Linux limit of 65,530
Case = Any
Function = Callable[[Case], Mapping[str, Any]]


class Estimate(NamedTuple):
    """Size of a run: number of cases in all and at once, bytes per device, devices, and seconds of compilation."""

    cases: int
    at_once: int
    device_bytes: int
    devices: int
    compile_s: float

    def __str__(self) -> str:
        each = f"{self.device_bytes / 2**20:.1f} MiB on each of {self.devices}"
        return f"{self.cases:,} cases, {self.at_once:,} at once, {each} device(s), compiled in {self.compile_s:.1f} s"


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluated:
    """Results of the evaluated `cases`: `arrays`, a tree of arrays [N ...] (by name for `rows`); `run_s` excludes
    compilation."""

    arrays: Any
    cases: Case
    estimate: Estimate
    run_s: float

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict per case: numbers of `cases` (if a dict) and scalar results."""
        named = {**(self.cases if isinstance(self.cases, Mapping) else {}), **self.arrays}
        shown = {name: np.asarray(x).tolist() for name, x in named.items() if np.ndim(x) == 1}
        return [dict(zip(shown, values, strict=True)) for values in zip(*shown.values(), strict=True)]


def drop_programs_if_crowded() -> None:
    """Drop compiled programs once they hold half of the memory maps that a process may have."""
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > CROWDED:
        programs.forget()
        jax.clear_caches()
        gc.collect()


def evaluate(
    function: Function,
    cases: Case,
    *,
    at_once: int | None = None,
    memory_bytes: float | None = None,
    devices: Sequence[Any] | None = None,
    batched: bool = False,
    before: Callable[[Estimate], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluated:
    """Compute `function` for every case, compiled once; results are on the host.

    - `function`: case -> dict of arrays, for `jax.vmap` and `jax.jit`. Arrays of a function that is a tree
      (`jax.tree_util.Partial`, an Equinox module) are arguments: others of the same shapes reuse the program.
    - `cases`: a tree of arrays with N cases along the first axis; see `grid`.
    - `at_once`: cases per chunk; None: up to 256 on a CPU and 65,536 elsewhere, fewer if they need more than
      `memory_bytes` of a device (None: half of its memory, or 4 GiB).
    - `devices`: None: all local ones of the kind of `jax_default_device`.
    - `batched`: `function` takes many cases along a first axis and returns any tree of arrays with that axis.
    - `before`: called with the estimate after compilation; `progress`: called with the number of finished cases.

    Raise InputError for cases without a common first axis, for values that are not numbers or do not fit 32 bits if JAX
    uses 32 bits, and for a function that is not hashable or does not return a dict of arrays.

    Example: `evaluate(lambda case: {"s": all_to_all_time(Region(8, case["gbps"]), plan, demand)}, grid(gbps=[100.0,
    400.0])).rows()`.
    """
    count = _count(cases)
    devices = local_devices() if devices is None else devices
    if not devices:
        raise InputError("devices must name at least one, got none.")
    most = min(usual_at_once(devices), count) if at_once is None else whole("at_once", at_once)
    limit = _memory(devices) if memory_bytes is None else positive("memory_bytes", memory_bytes)
    spread = NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))
    shared, code = eqx.partition(function, lambda x: isinstance(x, jax.Array | np.ndarray))
    shared = jax.device_put(shared, _everywhere(spread))
    typed = jax.tree_util.tree_map_with_path(_to_array, cases)
    with contextlib.nullcontext() if devices[0].platform == platform() else jax.default_device(devices[0]):
        of_chunk = chunk_results(hashable(code), spread, batched, platform())
        program, estimate = _fit_program(of_chunk, shared, typed, most, limit, spread)
        chunk_of = _cutting(typed, estimate, limit, spread)
    if before:
        before(estimate)
    began, results, running = time.perf_counter(), [], collections.deque()

    def fetch() -> None:
        results.append(jax.tree.map(np.asarray, running.popleft()))
        if progress:
            progress(min(len(results) * estimate.at_once, count))

    for start in range(0, count, estimate.at_once):
        chosen = np.minimum(np.arange(start, start + estimate.at_once, dtype=np.int32), count - 1)
        running.append(program(shared, chunk_of(chosen)))
        for result in jax.tree.leaves(running[-1]):
            result.copy_to_host_async()
        if len(running) > IN_FLIGHT:
            fetch()
    while running:
        fetch()
    arrays = jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *results)
    return Evaluated(arrays, cases, estimate, time.perf_counter() - began)


def _cutting(cases: Case, estimate: Estimate, limit: float, spread: NamedSharding) -> Callable[[np.ndarray], Case]:
    """Function that selects cases: on the device if all cases fit there beside the program, else on the host."""
    bytes_of_all = sum(x.nbytes for x in jax.tree.leaves(cases))
    if platform() == "cpu" or spread.mesh.size > 1 or bytes_of_all + estimate.device_bytes > limit:
        return lambda chosen: jax.device_put(jax.tree.map(lambda x: x[chosen], cases), spread)
    there = jax.device_put(cases, _everywhere(spread))
    some = jax.ShapeDtypeStruct((estimate.at_once,), jnp.int32, sharding=_everywhere(spread))
    cut = _cut.lower(there, some).compile()
    return lambda chosen: jax.device_put(cut(there, jax.device_put(chosen, _everywhere(spread))), spread)


@jax.jit
def _cut(cases: Case, chosen: Int[Array, "B"]) -> Case:
    return jax.tree.map(lambda x: x[chosen], cases)


def _everywhere(spread: NamedSharding) -> NamedSharding:
    return NamedSharding(spread.mesh, PartitionSpec())


def grid(**axes: Sequence[Any] | np.ndarray) -> dict[str, np.ndarray]:
    """Return every combination of the values of the axes as cases for `evaluate`; the last axis changes fastest.

    An array axis [n ...] has its values along the first dimension. Raise InputError for an axis without values.
    """
    values = {name: np.asarray(axis) for name, axis in axes.items()}
    for name, axis in values.items():
        if axis.ndim == 0 or not len(axis):
            raise InputError(f"{name} must have at least one value along its first axis, got {axis.tolist()!r}.")
    places = np.meshgrid(*(np.arange(len(axis)) for axis in values.values()), indexing="ij")
    return {name: axis[index.reshape(-1)] for (name, axis), index in zip(values.items(), places, strict=True)}


def usual_at_once(devices: Sequence[Any] | None = None) -> int:
    devices = local_devices() if devices is None else devices
    return ON_CPU if all(device.platform == "cpu" for device in devices) else ON_DEVICE


def _count(cases: Case) -> int:
    shapes = [np.shape(x) for x in jax.tree.leaves(cases)]
    if not shapes:
        raise InputError("cases must hold at least one array, got none.")
    if len({shape[:1] for shape in shapes}) > 1 or shapes[0][:1] in ((), (0,)):
        got = ", ".join(sorted(str(list(shape)) for shape in shapes))
        raise InputError(f"cases must be arrays of one length of at least 1 along the first axis, got shapes {got}.")
    return shapes[0][0]


def _to_array(path: Any, x: Any):
    if isinstance(x, jax.Array):
        return x
    array, name = np.asarray(x), f"cases{jax.tree_util.keystr(path)}"
    if array.dtype.kind not in "biufcV":  # V: bfloat16 and its like
        raise InputError(f"{name} must hold numbers, got {array.dtype}.")
    with np.errstate(over="ignore"):
        typed = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    lost = typed != array if array.dtype.kind in "iu" else np.isinf(typed) & ~np.isinf(array)
    if np.any(lost):
        raise InputError(f"{name} must fit {typed.dtype}, got {array[lost][0]}; jax_enable_x64 allows more.")
    return typed


def _memory(devices: Sequence[Any]) -> float:
    known = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    return min((PART * limit for limit in known if limit), default=MEMORY)


def _fit_program(of_chunk: Any, shared: Any, cases: Case, most: int, limit: float, spread: NamedSharding):
    """The program of a chunk, compiled for as many cases as fit, and its estimate."""
    count, devices = len(jax.tree.leaves(cases)[0]), spread.mesh.size
    fixed = sum(x.nbytes for x in jax.tree.leaves(shared))
    began, at_once = time.perf_counter(), -(-most // devices) * devices
    while True:
        program, need = _compile_chunk(of_chunk, shared, cases, at_once, spread)
        part = min(max(limit - fixed, 0) / max(need - fixed, 1), 0.5)
        fewer = max(int(at_once * part) // devices * devices, devices)
        if need <= limit or fewer >= at_once:
            return program, Estimate(count, at_once, need, devices, time.perf_counter() - began)
        at_once = fewer


def _compile_chunk(of_chunk: Any, shared: Any, cases: Case, at_once: int, spread: NamedSharding) -> tuple[Any, int]:
    """The program of a chunk, and its bytes per device; 0: unknown."""
    chunk = jax.tree.map(lambda x: jax.ShapeDtypeStruct((at_once, *x.shape[1:]), x.dtype, sharding=spread), cases)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        program = of_chunk.lower(shared, chunk).compile()
    if (took := program.memory_analysis()) is None:
        return program, 0
    fixed = sum(x.nbytes for x in jax.tree.leaves(shared))
    own = max(took.argument_size_in_bytes - fixed, 0)  # the program omits unused arguments
    each = own + took.output_size_in_bytes  # of each chunk in flight and the one fetched
    return program, took.temp_size_in_bytes + fixed + (IN_FLIGHT + 1) * each


def hashable(tree: Any) -> tuple[Any, ...]:
    """Return a tree in hashable form: leaves, their types (1, 1.0, True and -0.0 differ) and its structure."""
    leaves, structure = jax.tree.flatten(tree)
    kinds = tuple((type(x), repr(x) if isinstance(x, float | complex) else None) for x in leaves)
    try:
        hash((tuple(leaves), structure))
    except TypeError as error:
        have = "functions, frozen dataclasses and Equinox modules"
        raise InputError(f"function must be hashable, as {have} are ({error}).") from None
    return tuple(leaves), kinds, structure


@functools.lru_cache(maxsize=32)
def chunk_results(code: tuple[Any, ...], spread: NamedSharding, batched: bool, kind: str) -> Any:
    """Return a jitted function of shared arrays and a chunk; `code`: from `hashable`; `kind`: platform, a cache key."""
    leaves, _, structure = code

    def results(shared: Any, cases: Case) -> Any:
        return eqx.combine(shared, jax.tree.unflatten(structure, leaves))(cases)

    def of_one(shared: Any, case: Case) -> dict[str, Any]:
        result = results(shared, case)
        if not isinstance(result, Mapping) or not all(jax.tree_util.all_leaves([x]) for x in result.values()):
            raise InputError(f"function must give a dict of arrays, got {result!r:.200}.")
        return dict(result)

    many = results if batched else jax.vmap(of_one, in_axes=(None, 0))
    return jax.jit(many, donate_argnums=1, out_shardings=spread)
