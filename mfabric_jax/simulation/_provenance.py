"""Where a result comes from: version, commit, device, dtype, kernels."""

import functools
import importlib.metadata
import pathlib
import subprocess
from typing import Any

import jax
import jax.numpy as jnp

from mfabric_jax.flows.kernels import SHOWN, chosen_kernel, tuned, tuned_sizes


def provenance(dtype: str) -> dict[str, Any]:
    """What every result carries beside its configuration.

    `kernel`: what "auto" is for stars of so many endpoints; `tuned`: whether `mfabric tune` chose any of them.
    """
    import mfabric_jax

    device = next(iter(jnp.zeros(()).devices()))
    sizes = sorted({*SHOWN, *tuned_sizes(device)})
    return {
        "version": mfabric_jax.__version__,
        "commit": commit(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "device": f"{device.platform}: {device.device_kind}",
        "dtype": dtype,
        "kernel": {str(n): str(chosen_kernel(device.platform, n)) for n in sizes},
        "tuned": any(tuned(device.platform, n) is not None for n in sizes),
    }


@functools.cache
def commit() -> str | None:
    """The commit of a source checkout, "+changes" behind it if files differ; None for an installed package."""
    root = pathlib.Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
