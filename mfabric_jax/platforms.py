"""The platform that programs are traced for; how much runs in step depends on it.

It is that of `jax_default_device` or of the default backend; `compiling_for` names another, for devices that are not
there.
"""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax

RECORDED = "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"  # else the host reads the predicate of every loop
_named: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


def platform() -> str:
    """Such as "cpu" or "gpu"."""
    return _named.get() or device().platform


def cores() -> int:
    """Cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def device() -> Any:
    """The default device (a `jax.Device`); None while programs are traced for one that is not there."""
    if _named.get() is not None:
        return None
    asked = jax.config.values["jax_default_device"]
    if asked is None or isinstance(asked, str):
        kind, _, number = (asked or "").partition(":")
        return jax.local_devices(backend=kind or None)[int(number or 0)]
    return asked


def local_devices() -> list[Any]:
    """Devices of this process, of the kind that was asked for."""
    default = device()
    return jax.local_devices(backend=default.platform if default else None)


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Programs that are traced inside are for that platform; traced ones stay as they are."""
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def in_step(on_cpu: int, many: int, elsewhere: int | None = None) -> int:
    """How many of the members of a batch run in step, on a CPU and elsewhere (None: all)."""
    most = on_cpu if platform() == "cpu" else elsewhere
    return many if most is None else min(most, many)


def mapped(function: Callable[[Any], Any], members: Any, on_cpu: int, elsewhere: int | None = None) -> Any:
    """`function` of every member, along the first axis of arrays, `in_step` at once."""
    many = len(jax.tree.leaves(members)[0])
    size = in_step(on_cpu, many, elsewhere)
    if size == many:
        return jax.vmap(function)(members)
    return lax.map(function, members) if size == 1 else lax.map(function, members, batch_size=size)


def record_loops() -> None:
    """Put loops of a GPU into command buffers, unless XLA_FLAGS say otherwise; call it before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_enable_command_buffer" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {RECORDED}".strip()
