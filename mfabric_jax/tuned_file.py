"""The JSON file of `tune`: `tuned.json` in `cache_folder()`, or MFABRIC_TUNED; one entry per device and version.

A process reads it once; a missing or unreadable file has no entries.
"""

import datetime
import functools
import json
import os
import pathlib
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import msgspec

from mfabric_jax.checks import InputError
from mfabric_jax.support.atomic import check_folder, locked, replacing
from mfabric_jax.support.text_files import cached_by_files, mapping_in

ENVIRONMENT = "MFABRIC_TUNED"
CPU_INFO = pathlib.Path("/proc/cpuinfo")


class Key(NamedTuple):
    """What must match for an entry to apply."""

    device: str  # its kind; of a CPU the model, such as "cpu (AMD EPYC 9654)"
    capability: str | None  # compute capability of a GPU, such as "9.0"
    runtime: str | None  # runtime and driver, in the words of the device's client
    jax: str  # version
    package: str  # version


class Entry(msgspec.Struct, frozen=True):
    device: str
    capability: str | None
    runtime: str | None
    jax: str
    package: str
    day: str  # such as "2026-11-22"
    kernels: dict[int, str]  # by servers
    rows: list[dict[str, Any]]  # of `tune`

    @property
    def key(self) -> Key:
        return Key(self.device, self.capability, self.runtime, self.jax, self.package)


class _File(msgspec.Struct):
    entries: tuple[Entry, ...]


def cache_folder() -> pathlib.Path:
    """Folder of this package's own files: `mfabric_jax` in $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise InputError("the home folder is not known: set XDG_CACHE_HOME to a folder that can be written.")
    return pathlib.Path(home) / "mfabric_jax"


def tuned_path() -> pathlib.Path:
    return pathlib.Path(os.environ.get(ENVIRONMENT) or cache_folder() / "tuned.json")


def entries() -> tuple[Entry, ...]:
    """All entries of the file, for any device; `InputError` for a broken file."""
    try:
        path = tuned_path()
    except InputError:  # no home
        return ()
    return _entries(path)


@cached_by_files(lambda path: (path,), maxsize=8)
def _entries(path: pathlib.Path) -> tuple[Entry, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:  # not there, or not for us
        return ()
    except ValueError:
        raise broken("it is not text in UTF-8") from None
    try:
        return msgspec.convert(mapping_in(text, "what it holds", "tuned kernels"), _File, str_keys=True).entries
    except (InputError, msgspec.ValidationError) as error:
        raise broken(f"{type(error).__name__}: {error}") from None


def broken(reason: str) -> InputError:
    plain = reason.rstrip(".")
    return InputError(f"tuned file {str(tuned_path())!r} is broken ({plain}): delete it, then run mfabric tune again.")


@functools.cache
def key_of(device: Any) -> Key:
    import mfabric_jax

    kind = f"cpu ({_cpu_model()})" if device.platform == "cpu" else device.device_kind
    capability = getattr(device, "compute_capability", None)
    runtime = " ".join(str(getattr(device.client, "platform_version", "")).split())
    return Key(
        kind, None if capability is None else str(capability), runtime or None, jax.__version__, mfabric_jax.__version__
    )


def kernels_of(device: Any) -> Mapping[int, str]:
    """The kernels, by number of servers, kept for this device and these versions."""
    return next((entry.kernels for entry in entries() if entry.key == key_of(device)), {})


def differences(key: Key, here: Key) -> list[str]:
    """Reasons why an entry of `key` does not apply `here`; empty if it does."""
    if key.device != here.device:
        return [f"for {key.device}, this is {here.device}"]
    forms = {"capability": "for compute capability {}", "runtime": "with runtime {}", "jax": "with jax {}"}
    forms |= {"package": "with mfabric_jax {}"}
    pairs = ((form, getattr(key, name), getattr(here, name)) for name, form in forms.items())
    return [f"{form.format(then)}, this is {now}" for form, then, now in pairs if then != now]


def check_keeping() -> None:
    """`InputError` if the file is broken or cannot be written."""
    check_folder(tuned_path().parent)
    entries()


def keep_tuned(key: Key, kernels: Mapping[int, str], rows: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    """Add or replace a device's entries for these sizes, atomically and under a lock."""
    tuned_path().parent.mkdir(parents=True, exist_ok=True)
    with tuned_path().with_suffix(".lock").open("w") as lock:
        locked(lock, wait=True)
        others = tuple(entry for entry in entries() if entry.key != key)
        measured = {row["servers"] for row in rows}
        all_kernels, all_rows = dict(kernels), [*map(dict, rows)]
        for older in (entry for entry in entries() if entry.key == key):
            all_kernels |= {n: kernel for n, kernel in older.kernels.items() if n not in measured}
            all_rows = [row for row in older.rows if row.get("servers") not in measured] + all_rows
        today = datetime.date.today().isoformat()
        entry = Entry(*key, today, dict(sorted(all_kernels.items())), all_rows)
        with replacing(tuned_path()) as (part,):
            part.write_text(json.dumps(msgspec.to_builtins(_File((*others, entry))), indent=1) + "\n", encoding="utf-8")
    return tuned_path()


def _cpu_model() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(encoding="utf-8"), re.M)
    except (OSError, ValueError):
        named = None
    return named[1].strip() if named else platform.processor() or platform.machine()
