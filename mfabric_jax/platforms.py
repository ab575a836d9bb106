"""The platform that programs are traced for: that of `jax_default_device`, the default backend, or `compiling_for`."""

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

RECORDED = "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"  # else the host reads the predicate of every loop
# Whether XLA still has the older generator of code for fusions, and an option that chooses it: not since 0.11.1 or .2.
OLDER_FUSIONS = jax.__version_info__ < (0, 11, 1)
_named: contextvars.ContextVar[str | None] = contextvars.ContextVar("platform", default=None)


def platform() -> str:
    """Such as "cpu" or "gpu"."""
    return _named.get() or device().platform


def raising_on_hosts(value: Any, broken: Any, words: Sequence[str]) -> Any:
    """`value`; where one of `broken` [N] is true, a runtime error with its words on CPUs. Accelerators would ask the
    host at every call: there callers make the result no number."""
    import equinox as eqx

    def raising(value: Any, broken: Any) -> Any:
        return eqx.branched_error_if(value, broken.any(), jnp.argmax(broken), words)

    return lax.platform_dependent(value, broken, cpu=raising, default=lambda value, broken: value)


def cores() -> int:
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def device() -> Any:
    """The default `jax.Device`; None inside `compiling_for`."""
    if _named.get() is not None:
        return None
    asked = jax.config.values["jax_default_device"]
    if asked is None or isinstance(asked, str):
        kind, _, number = (asked or "").partition(":")
        return jax.local_devices(backend=kind or None)[int(number or 0)]
    return asked


def local_devices() -> list[Any]:
    default = device()
    return jax.local_devices(backend=default.platform if default else None)


@contextlib.contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Programs traced inside are for that platform; programs traced before keep theirs."""
    token = _named.set(name)
    try:
        yield
    finally:
        _named.reset(token)


def in_step(on_cpu: int, many: int, elsewhere: int | None = None) -> int:
    """How many members of a batch of `many` run at once: `on_cpu`, or `elsewhere` (None: all)."""
    most = on_cpu if platform() == "cpu" else elsewhere
    return many if most is None else min(most, many)


def mapped(function: Callable[[Any], Any], members: Any, on_cpu: int, elsewhere: int | None = None) -> Any:
    """`function` of every member along the first axis, `in_step` at once."""
    many = len(jax.tree.leaves(members)[0])
    size = in_step(on_cpu, many, elsewhere)
    if size == many:
        return jax.vmap(function)(members)
    return lax.map(function, members) if size == 1 else lax.map(function, members, batch_size=size)


def record_loops() -> None:
    """Put GPU loops into command buffers unless XLA_FLAGS say otherwise; call before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_enable_command_buffer" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {RECORDED}".strip()
