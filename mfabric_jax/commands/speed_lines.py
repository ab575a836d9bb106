"""What affects the speed of this process, one line each, for `mfabric doctor`."""

import importlib.metadata
import os
import pathlib
import platform as system
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mfabric_jax.evaluate.sharded import usual_at_once
from mfabric_jax.flows.kernels import SHOWN, usual
from mfabric_jax.support import platforms, programs
from mfabric_jax.support.extras import PACKAGES
from mfabric_jax.support.origin import commit

MEBI = 1 << 20
NVIDIA_FILES = "nvidia[0-9]*"
SLOW_SETTINGS = {  # settings of JAX that make it slow
    "jax_debug_nans": "JAX waits for the results of every program and checks them",
    "jax_debug_infs": "JAX waits for the results of every program and checks them",
    "jax_disable_jit": "nothing is compiled",
    "jax_check_tracer_leaks": "JAX traces everything anew",
    "jax_disable_most_optimizations": "programs are compiled quickly and run slowly",
}


class Line(NamedTuple):
    topic: str  # such as "precision"
    says: str


def doctor() -> list[Line]:
    """Return (topic, state) lines on what affects the speed of this process. Nothing is computed or written."""
    lines = [*_versions(), *_devices(), *_precision(), *_compilation_cache(), *_kept_programs(), *_kernels()]
    lines += [Line("cases at once", f"{usual_at_once():,} per chunk of evaluate, if memory allows")]
    return [*lines, *_extras(), *_loops(), *(_slow() or [Line("slow", "no known slow setting")])]


def _versions() -> Iterator[Line]:
    import mfabric_jax

    made = commit()
    yield Line("mfabric_jax", mfabric_jax.__version__ + (f", commit {made}" if made else ""))
    yield Line("jax, jaxlib", f"{jax.__version__}, {importlib.metadata.version('jaxlib')}")
    yield Line("python", f"{system.python_version()} on {system.system()} {system.machine()}")


def _devices() -> Iterator[Line]:
    default = platforms.device()
    for device in platforms.local_devices():
        kind, capability, runtime = platforms.kind_of(device)
        words = [kind, *([f"compute capability {capability}"] if capability else [])]
        words += [runtime] if runtime and runtime != device.platform else []
        topic = f"{device.platform} {device.id}" + (", default" if device == default else "")
        yield Line(topic, ", ".join([*words, _memory(device)]))


def _memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    most, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    if not most:
        return "memory unknown"
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
        yield Line("kept programs", "none: off, or programs.keep_in() was not called")
    elif (why := programs.problem(folder)) is not None:
        yield Line("kept programs", f"{folder}: not used, {why}")
    else:
        many, size = programs.usage(folder)
        words = f"{many:,} programs; their files take {size / MEBI:,.1f} of at most {programs.MOST / MEBI:,.0f} MiB"
        yield Line("kept programs", f"{folder}: {words}")


def _keeps_programs() -> bool:
    settings = jax.config.values
    return settings["jax_compilation_cache_dir"] is not None and settings["jax_enable_compilation_cache"]


def _kernels() -> Iterator[Line]:
    for n in SHOWN:
        yield Line(f"kernel, {n} servers", str(usual(platforms.platform(), n)))


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
        yield Line("loops of a GPU", "inside command buffers, by XLA_FLAGS")
    else:
        flag = f"XLA_FLAGS={platforms.RECORDED}"
        yield Line("loops of a GPU", f"started by the host, step by step; {flag} puts them into command buffers")


def _slow() -> list[Line]:
    settings, texts = jax.config.values, []
    if settings["jax_enable_x64"]:
        texts.append("jax_enable_x64 is on: float64 takes 1.3 to 2.2 times as long, and more on many GPUs")
    if platforms.platform() == "cpu" and nvidia_files():
        texts.append("the CPU computes although there is an NVIDIA GPU: pip install 'jax[cuda12]', or --device gpu")
    if not _keeps_programs():
        texts.append("no compilation cache: call jax.config.update('jax_compilation_cache_dir', FOLDER) first")
    texts += [f"{name} is on: {why}" for name, why in SLOW_SETTINGS.items() if settings.get(name)]
    return [Line("slow", text) for text in texts]


def nvidia_files() -> list[pathlib.Path]:
    return list(pathlib.Path("/dev").glob(NVIDIA_FILES))
