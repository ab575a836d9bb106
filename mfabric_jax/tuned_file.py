"""What `tune` keeps: a JSON file beside the compiled programs, an entry for every device and version.

The file is `tuned.json` in `cache_folder()`, or what the environment variable MFABRIC_TUNED names. A process reads it
at most once (`entries`); a file that is not there or may not be read is as one without entries.
"""

import dataclasses
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

from mfabric_jax.atomic import check_folder, locked, replacing
from mfabric_jax.checks import InputError
from mfabric_jax.text_files import mapping_in

ENVIRONMENT = "MFABRIC_TUNED"
CPU_INFO = pathlib.Path("/proc/cpuinfo")


class Key(NamedTuple):
    """What has to be the same for an entry to apply.

    - `device`: its kind; of a CPU the model, such as "cpu (AMD EPYC 9654)".
    - `capability`: compute capability of a GPU, such as "9.0"; None for others.
    - `runtime`: what the device's client says of its runtime and driver.   - `jax`, `package`: versions.
    """

    device: str
    capability: str | None
    runtime: str | None
    jax: str
    package: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was kept for one key.

    - `kernels`: servers -> name of a kernel.   - `day`: when, such as "2026-11-22".
    - `rows`: what was measured, as `tune` returned it.
    """

    key: Key
    kernels: Mapping[int, str]
    day: str
    rows: Sequence[Mapping[str, Any]]


def cache_folder() -> pathlib.Path:
    """Where this package keeps files of its own: `mfabric_jax` in $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise InputError("the home folder is not known: set XDG_CACHE_HOME to a folder that can be written.")
    return pathlib.Path(home) / "mfabric_jax"


def tuned_path() -> pathlib.Path:
    """The file, there or not."""
    return pathlib.Path(os.environ.get(ENVIRONMENT) or cache_folder() / "tuned.json")


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All entries of the file, for whichever device; `InputError` for a broken file."""
    try:
        text = tuned_path().read_text(encoding="utf-8")
    except (OSError, InputError):  # not there, not for us, or no home
        return ()
    except ValueError:
        raise broken("it is not text in UTF-8") from None
    try:
        return tuple(map(_entry, mapping_in(text, "what it holds", "tuned kernels")["entries"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken(f"{type(error).__name__}: {error}") from None


def forget() -> None:
    """The file is read again when it is asked for next; programs that were traced before stay as they are."""
    entries.cache_clear()


def broken(reason: str) -> InputError:
    """The sentence about a file that cannot be used."""
    plain = reason.rstrip(".")
    return InputError(f"tuned file {str(tuned_path())!r} is broken ({plain}): delete it, then run mfabric tune again.")


@functools.cache
def key_of(device: Any) -> Key:
    """The key of a device of this process."""
    import mfabric_jax

    kind = f"cpu ({_cpu_model()})" if device.platform == "cpu" else device.device_kind
    capability = getattr(device, "compute_capability", None)
    runtime = " ".join(str(getattr(device.client, "platform_version", "")).split())
    return Key(
        kind, None if capability is None else str(capability), runtime or None, jax.__version__, mfabric_jax.__version__
    )


def kernels_of(device: Any) -> Mapping[int, str]:
    """Servers -> name of the kernel that was kept for this device under these versions; empty if none was."""
    return next((entry.kernels for entry in entries() if entry.key == key_of(device)), {})


def differences(key: Key, here: Key) -> list[str]:
    """Why an entry of `key` does not apply `here`; empty if it does."""
    if key.device != here.device:
        return [f"for {key.device}, this is {here.device}"]
    forms = {"capability": "for compute capability {}", "runtime": "with runtime {}", "jax": "with jax {}"}
    forms |= {"package": "with mfabric_jax {}"}
    pairs = ((form, getattr(key, name), getattr(here, name)) for name, form in forms.items())
    return [f"{form.format(then)}, this is {now}" for form, then, now in pairs if then != now]


def check_keeping() -> None:
    """`InputError` if an entry could not be kept: a folder that cannot be written, a broken file."""
    check_folder(tuned_path().parent)
    forget()
    entries()


def keep_tuned(key: Key, kernels: Mapping[int, str], rows: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    """Add or replace what is kept for those sizes of that device; the file is replaced whole or not at all, and by one
    process at a time."""
    tuned_path().parent.mkdir(parents=True, exist_ok=True)
    with tuned_path().with_suffix(".lock").open("w") as lock:
        locked(lock, wait=True)
        return _keep(key, kernels, rows)


def _keep(key: Key, kernels: Mapping[int, str], rows: Sequence[Mapping[str, Any]]) -> pathlib.Path:
    forget()
    older = next((entry for entry in entries() if entry.key == key), None)
    if older:
        measured = {row["servers"] for row in rows}
        kernels = {n: kernel for n, kernel in older.kernels.items() if n not in measured} | dict(kernels)
        rows = [row for row in older.rows if row.get("servers") not in measured] + list(rows)
    entry = Entry(key, dict(sorted(kernels.items())), datetime.date.today().isoformat(), rows)
    all_of_them = [other for other in entries() if other.key != key] + [entry]
    with replacing(tuned_path()) as (part,):
        part.write_text(json.dumps({"entries": list(map(_plain, all_of_them))}, indent=1) + "\n", encoding="utf-8")
    forget()
    return tuned_path()


def _plain(entry: Entry) -> dict[str, Any]:
    rest = {"day": entry.day, "kernels": dict(entry.kernels), "rows": list(entry.rows)}
    return entry.key._asdict() | rest


def _entry(plain: dict[str, Any]) -> Entry:
    key = Key(*(plain[name] for name in Key._fields))
    kernels = {int(n): kernel for n, kernel in plain["kernels"].items()}
    texts = [word for word in (*key, *kernels.values()) if word is not None]
    if not all(isinstance(word, str) for word in texts):
        raise TypeError("device, versions and kernels must be text")
    rows = plain.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError("rows must be objects")
    return Entry(key, kernels, str(plain.get("day", "")), rows)


def _cpu_model() -> str:
    """As the system names it, or the architecture."""
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text(encoding="utf-8"), re.M)
    except (OSError, ValueError):
        named = None
    return named[1].strip() if named else platform.processor() or platform.machine()
