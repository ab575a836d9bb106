"""Read TOML and JSON files of settings, and cache what was read until a file changes.

A file is refused with one sentence if it cannot be opened, is not UTF-8, is too large or too deeply nested, repeats a
key, or holds no mapping.
"""

import functools
import hashlib
import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from mfabric_jax.checks import InputError, one_of

P = ParamSpec("P")
R = TypeVar("R")
DEEPEST = 100  # most levels of nested tables
LARGEST = 1 << 26  # most bytes of a file of settings
HASHED = 1 << 16  # most bytes of a file whose stamp is a digest of its content


def read_mapping(path: str | Path, what: str, kind: str | None = None, largest: int = LARGEST) -> dict[str, Any]:
    """Return the mapping in a `.toml` or `.json` file of at most `largest` bytes; raise InputError if it is not usable.

    `what` names the content in messages, such as "prices". `kind` overrides the extension.
    """
    path = Path(path)
    allowed = " or ".join(PARSERS) if kind is None else kind
    kind = kind or one_of(f"{what} {str(path)!r}: extension", path.suffix.lower(), PARSERS)
    data = read_bytes(path, f"give a {allowed} file of {what}", largest)
    return mapping_in(data, repr(str(path)), what, kind)


def read_text(path: str | Path, give: str, largest: int = LARGEST) -> str:
    """Return the content of a file (see `read_bytes`) as UTF-8 text."""
    try:
        return read_bytes(path, give, largest).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{str(path)!r} is not text in UTF-8, from byte {error.start} on.") from None


def read_bytes(path: str | Path, give: str, largest: int = LARGEST) -> bytes:
    """Return the content of a file of at most `largest` bytes.

    Raise InputError if it cannot be read; `give` says what to do then.
    """
    path = Path(path)
    try:
        with path.open("rb") as opened:
            data = opened.read(largest + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise unreadable(path, error, give) from error
    if len(data) > largest:
        raise InputError(f"{str(path)!r} is too large, above {largest:,} bytes; {give}.")
    return data


def unreadable(path: str | Path, error: Exception, give: str) -> InputError:
    """Return the error for a file that cannot be opened; `give` says what to do."""
    reason = getattr(error, "strerror", None) or error
    return InputError(f"cannot read {str(path)!r} ({reason}){looked_in(path)}; {give}.")


def looked_in(path: str | Path) -> str:
    """Return the folder in which a relative path was looked for, for the end of a sentence; "" for others."""
    return "" if os.path.isabs(path) else f" in {os.getcwd()}"


def mapping_in(data: bytes | str, named: str, what: str, kind: str = ".json") -> dict[str, Any]:
    """Return the mapping in TOML or JSON text; `named`: its origin in messages."""
    value = value_in(data, named, what, kind)
    if not isinstance(value, dict):
        raise InputError(f"{named} must hold {what} by name, got {value!r:.80}.")
    return value


def value_in(data: bytes | str, named: str, what: str, kind: str = ".json") -> Any:
    try:
        text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
        value = PARSERS[kind](text)
        _check_depth(value)
    except UnicodeDecodeError as error:
        why = f"it is not text in UTF-8, from byte {error.start} on"
    except RecursionError:
        why = f"it is nested more than {DEEPEST} deep"
    except ValueError as error:
        why = str(error) + (_shorthand(text, str(error)) if kind == ".toml" else "")
    else:
        return value
    raise InputError(f"{named} is not {kind[1:].upper()} ({why}); give a file of {what}.")


def _shorthand(text: str, error: str) -> str:
    """Return what to omit where TOML text gives a value to a name and to names below it; "" for other errors."""
    match = re.match(r"Cannot overwrite a value \(at (?:line (\d+)|end)", error)
    if match is None:
        return ""
    lines = [line.partition("=")[0].strip() for line in text.splitlines()[: int(match[1] or text.count("\n") + 1)]]
    above = next((line for line in lines[:-1] if line and lines[-1].startswith(f"{line}.")), None)
    return "" if above is None else f": omit {above} = ..., as {lines[-1]} chooses it"


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON text. Raise ValueError if it is not JSON or repeats a key in an object."""
    return json.loads(text, object_pairs_hook=_reject_repeats)


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {name!r:.80} twice")
    return mapping


def _check_depth(value: Any) -> None:
    """Raise RecursionError for a value nested too deeply, ValueError for invalid text or too large a number."""
    level, depth = [value], 0
    while level:
        inside: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inside += item
                inside += item.values()
            elif isinstance(item, list):
                inside += item
            elif isinstance(item, str):
                item.encode()  # JSON can hold half a character, which has no encoding
                if "\0" in item:
                    raise ValueError("it holds a zero byte")
            elif isinstance(item, int) and abs(item) > sys.float_info.max:
                raise ValueError(f"{_path_of(item, value) or 'it'} is a whole number beyond 1e308")
        level, depth = inside, depth + 1
        if depth > DEEPEST:
            raise RecursionError


def _path_of(number: int, value: Any) -> str:
    """Return the path of a number in a value, such as "tasks.0.bytes"; "" if the number is the value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inside:
        if item is number:
            return str(name)
        if path := _path_of(number, item):
            return f"{name}.{path}"
    return ""


PARSERS: dict[str, Callable[[str], Any]] = {".toml": tomllib.loads, ".json": parse_json}


def stamp(path: str | Path) -> tuple:
    """Return a stamp that changes with a file, or with any file of a folder; () if there is no such path.

    A small file is stamped by its digest, since two versions may share size and time; others by size, times and inode.
    """
    path = os.fspath(path)
    try:
        if os.path.isdir(path):
            return tuple((file, *_times(file)) for file in _files_below(path))
        seen = _times(path)
        if seen[0] > HASHED:
            return seen
        with open(path, "rb") as opened:
            return (hashlib.blake2b(opened.read(), digest_size=16).digest(),)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return ()


def _times(path: str) -> tuple[int, ...]:
    seen = os.stat(path)
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def _files_below(folder: str) -> list[str]:
    return sorted(os.path.join(directory, name) for directory, _, names in os.walk(folder) for name in names)


def cached_by_files(
    files: Callable[..., Iterable[str | Path | None]], maxsize: int
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that caches a function of files until one of its files changes.

    `files` maps the function's arguments to the files and folders that it reads, or None for an absent one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.lru_cache(maxsize=maxsize)
        def call_cached(stamps: tuple, *args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **kwargs)

        @functools.wraps(function)
        def current(*args: P.args, **kwargs: P.kwargs) -> R:
            stamps = tuple(stamp(file) for file in files(*args, **kwargs) if file is not None)
            return call_cached(stamps, *args, **kwargs)

        current.__dict__["cache_clear"] = call_cached.cache_clear
        return current

    return decorate


@cached_by_files(lambda path: (path,), maxsize=64)
def digest(path: Path) -> str:
    """Return the digest of a file, or of all files of a folder."""
    held = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            held.update(file.relative_to(path.parent).as_posix().encode())
            with file.open("rb") as opened:
                held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]
