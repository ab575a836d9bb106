"""The platform that programs are traced for: from `compiling_for`, else `jax_default_device`, else JAX's default."""

import contextlib
import contextvars
import functools
import os
import pathlib
import platform as system
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback

from mfabric_jax.checks import InputError

RECORDED = "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"  # otherwise the host reads the predicate of each loop
# Whether XLA still has its older code generator for fusions and an option for it; removed in 0.11.1 or 0.11.2.
OLDER_FUSIONS = jax.__version_info__ < (0, 11, 1)
QUICKLY_COMPILED = {"xla_backend_optimization_level": 1} | (
    {"xla_cpu_use_fusion_emitters": False} if OLDER_FUSIONS else {}
)
CPU_INFO = pathlib.Path("/proc/cpuinfo")
_named: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


def platform() -> str:
    """Return the platform, such as "cpu" or "gpu"."""
    return _named.get() or device().platform


def soundness(broken: Any, words: Sequence[str]) -> Any:
    """Return 1.0 for a program to multiply its result by, or fail if a rule is `broken` [N].

    On CPUs a broken rule is a runtime error with its `words`. On accelerators the factor is NaN, as an error would need
    the host at every call. Under `vmap` alone the error is an InputError; inside `jit` it is XLA's, and its line
    `InputError` has the words.
    """
    try:
        return _soundness(broken, tuple(words))
    except Exception as error:
        rule = next((rule for rule in words if rule in str(error)), None)
        if rule is None:
            raise
        raise InputError(f"{rule}.") from None


@functools.partial(jax.jit, static_argnames="words")
def _soundness(broken: Any, words: tuple[str, ...]) -> Any:
    def raise_first(_, result: Any, broken: Any) -> None:
        raise InputError(f"{words[int(np.argmax(np.asarray(broken)))]}.")

    def on_hosts(broken: Any) -> Any:  # one error for a whole batch
        broken = jnp.stack([eqxi.unvmap_any(flag) for flag in broken])
        stop = buffer_callback(raise_first, jax.ShapeDtypeStruct((), jnp.float32))
        return lax.cond(broken.any(), stop, lambda _: jnp.ones((), jnp.float32), broken)

    def elsewhere(broken: Any) -> Any:  # a NaN for each member
        return jnp.where(broken.any(), jnp.float32(jnp.nan), jnp.float32(1))

    return lax.platform_dependent(broken, cpu=on_hosts, default=elsewhere)


def cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def device() -> Any:
    """Return the default `jax.Device`; None inside `compiling_for`."""
    if _named.get() is not None:
        return None
    default = jax.config.values["jax_default_device"]
    if default is None or isinstance(default, str):
        kind, _, number = (default or "").partition(":")
        return jax.local_devices(backend=kind or None)[int(number or 0)]
    return default


def local_devices() -> list[Any]:
    default = device()
    return jax.local_devices(backend=default.platform if default else None)


@functools.cache
def kind_of(device: Any) -> tuple[str, str | None, str | None]:
    """Return kind, compute capability and runtime with driver of a device; a CPU is "cpu (AMD EPYC 9654)"."""
    kind = f"cpu ({_cpu_model()})" if device.platform == "cpu" else device.device_kind
    capability = getattr(device, "compute_capability", None)
    runtime = " ".join(str(getattr(device.client, "platform_version", "")).split())
    return kind, None if capability is None else str(capability), runtime or None


def _cpu_model() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(encoding="utf-8"), re.M)
    except (OSError, ValueError):
        named = None
    return named[1].strip() if named else system.processor() or system.machine()


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Trace programs inside the block for the platform `name`; programs traced before keep theirs."""
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def in_step(on_cpu: int, many: int, elsewhere: int | None = None) -> int:
    """Return how many members of a batch of `many` run at once: `on_cpu`, else `elsewhere` (None: all)."""
    most = on_cpu if platform() == "cpu" else elsewhere
    return many if most is None else min(most, many)


def map_members(function: Callable[[Any], Any], members: Any, on_cpu: int, elsewhere: int | None = None) -> Any:
    """Map `function` over the members along the first axis, `in_step` of them at once."""
    many = len(jax.tree.leaves(members)[0])
    size = in_step(on_cpu, many, elsewhere)
    if size == many:
        return jax.vmap(function)(members)
    return lax.map(function, members) if size == 1 else lax.map(function, members, batch_size=size)


def record_loops() -> None:
    """Put GPU loops into command buffers unless XLA_FLAGS decides it; call before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_enable_command_buffer" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {RECORDED}".strip()
