"""What decides how fast this process is: device, versions, precision, caches, kernels, and what is known to be slow."""

import importlib.metadata
import os
import pathlib
import platform as system
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mfabric_jax import platforms, tuned_file
from mfabric_jax.checks import InputError
from mfabric_jax.extras import PACKAGES
from mfabric_jax.flows.kernels import SHOWN, kept_kernel, usual
from mfabric_jax.simulation.batch import usual_at_once
from mfabric_jax.simulation.results import commit

MEBI = 1 << 20
NVIDIA_FILES = "/dev/nvidia[0-9]*"
COMMAND_BUFFER = re.compile(r"--xla_gpu_enable_command_buffer=(\S*)")
SLOW_SETTINGS = {  # of JAX, when they are on
    "jax_debug_nans": "the results of every program are waited for and checked",
    "jax_debug_infs": "the results of every program are waited for and checked",
    "jax_disable_jit": "nothing is compiled",
    "jax_check_tracer_leaks": "nothing that was traced is used again",
    "jax_disable_most_optimizations": "programs are compiled quickly and run slowly",
}


class Line(NamedTuple):
    """- `topic`: such as "tuned file".   - `says`: what is so here, with the reason where there is one."""

    topic: str
    says: str


def doctor() -> list[Line]:
    """What decides the speed of this process, in lines of (topic, what is so here); nothing is computed or written.

    Versions, devices and their memory, precision, the compilation cache, which entries of the tuned file apply and why
    others do not, what "auto" chooses for stars of 8 to 128 servers, cases of a chunk of `evaluate`, extras, loops of
    a GPU, and whatever is in use that is known to be slow.
    """
    lines = [*_versions(), *_devices(), *_precision(), *_compilation_cache()]
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


def _keeps_programs() -> bool:
    settings = jax.config.values
    return settings["jax_compilation_cache_dir"] is not None and settings["jax_enable_compilation_cache"]


def _tuned_file() -> Iterator[Line]:
    """The file and each of its entries: what it brings, or why it does not apply."""
    found, device = tuned_file.entries(), platforms.device()
    yield Line("tuned file", f"{tuned_file.tuned_path()}" + ("" if found else ": not there; mfabric tune makes it"))
    for entry in found:
        why = tuned_file.differences(entry.key, tuned_file.key_of(device)) if device else ["for a device that is here"]
        kernels = ", ".join(f"{n} {kernel}" for n, kernel in entry.kernels.items())
        applies = f"applies: {kernels or 'no kernel was kept'} ({entry.day})"
        yield Line("tuned", f"tuned {'; '.join(why)}: does not apply" if why else applies)


def _kernels() -> Iterator[Line]:
    """Of stars, by their servers."""
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


def _in_command_buffers(flags: str) -> bool:
    """Whether these XLA_FLAGS let a GPU run `while` loops on its own, which by default it does not; the last counts."""
    named = COMMAND_BUFFER.findall(flags)
    words = named[-1].upper().split(",") if named else []
    return bool({"WHILE", "+WHILE"} & set(words))


def _loops() -> Iterator[Line]:
    if platforms.platform() != "gpu":
        yield Line("loops of a GPU", "no GPU is in use")
    elif _in_command_buffers(os.environ.get("XLA_FLAGS", "")):
        yield Line("loops of a GPU", "inside command buffers, as XLA_FLAGS say")
    else:
        flag = f"XLA_FLAGS={platforms.RECORDED}"
        yield Line("loops of a GPU", f"started by the host, step by step; {flag} puts them into command buffers")


def _slow() -> list[Line]:
    """Whatever is in use that is known to be slow."""
    settings, found = jax.config.values, []
    if settings["jax_enable_x64"]:
        found.append("jax_enable_x64 is on: what is float64 takes 1.3 to 2.2 times as long, on many GPUs more")
    if platforms.platform() == "cpu" and _nvidia_files():
        found.append("the CPU computes, but there is an NVIDIA GPU: pip install 'jax[cuda12]', or --device gpu")
    if not _keeps_programs():
        found.append("no compilation cache: jax.config.update('jax_compilation_cache_dir', FOLDER) first of all")
    found += [f"{name} is on: {why}" for name, why in SLOW_SETTINGS.items() if settings.get(name)]
    return [Line("slow", text) for text in found]


def _nvidia_files() -> list[pathlib.Path]:
    """Files of NVIDIA devices."""
    return list(pathlib.Path("/").glob(NVIDIA_FILES.lstrip("/")))
