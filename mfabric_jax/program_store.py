"""Compiled programs on disk: one file for each, read only where its owner, key and checksum are right.

A file is a pickle behind a header, so the folder must be this user's and closed to others. A program is kept only if
its file, read again, computes the same bits; one that fails later is removed and compiled. No trouble with files
reaches the caller: it costs the time of compiling, and the reason is kept for `mfabric doctor`.
"""

import contextlib
import functools
import hashlib
import io
import os
import pathlib
import pickle
import secrets
import shutil
import stat
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from mfabric_jax import platforms
from mfabric_jax.atomic import STALE_S, locked, replacing
from mfabric_jax.checks import InputError
from mfabric_jax.program_key import Key, sources_changed, surroundings
from mfabric_jax.tuned_file import cache_folder

ENVIRONMENT = "MFABRIC_PROGRAMS"
OFF = "off"
MAGIC = b"mfabric program 1\n"
HEADER = struct.Struct(">IQ32s")  # bytes of the key, bytes of the program, SHA-256 of the program
MOST = 512 << 20  # bytes of all files; those loaded longest ago go first
LEAST_ROOM = 4 << 20  # bytes
WAIT_S = 60.0  # for another process that compiles the same program
POLL_S = 0.05
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
MARK = "xla_debug_buffer_assignment_show_max"  # an option that changes no program: how much is shown when debugging
UNSET = "unset field of an Equinox module"


class Unfit(Exception):
    """A file or program that cannot be used; says why."""


def folder_of(asked: str | os.PathLike[str] | None = None) -> pathlib.Path | None:
    """The folder asked for, that of MFABRIC_PROGRAMS, or the usual one; None for "off" or without a home."""
    named = os.fspath(asked) if asked is not None else os.environ.get(ENVIRONMENT)
    if named is not None and named.lower() == OFF:
        return None
    try:
        return pathlib.Path(named) if named else cache_folder() / "programs"
    except InputError:
        return None


def why_not(folder: pathlib.Path) -> str | None:
    """Why files of this folder are not to be trusted; None if they are, or if it is not there."""
    if not hasattr(os, "geteuid"):
        return "this system does not say whose a file is"
    try:
        link, found = folder.lstat(), folder.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    if {link.st_uid, found.st_uid} != {os.geteuid()}:
        return "it belongs to another user"
    if not stat.S_ISDIR(found.st_mode):
        return "it is no folder"
    return "other users can write to it" if found.st_mode & OTHERS_WRITE else None


def sizes(folder: pathlib.Path) -> list[int]:
    """Bytes of each program that is kept."""
    return [size for _, size, path in _files(folder) if path.suffix == ".program"]


def state(folder: pathlib.Path) -> str:
    """A sentence on the programs of a folder, and why it is not used."""
    if (why := why_not(folder)) is not None:
        return f"{folder}: not used, {why}"
    kept = sizes(folder)
    words = f"{folder}: {len(kept):,} programs, {sum(kept) / (1 << 20):,.0f} of at most {MOST >> 20:,} MiB"
    full = why_no_more(folder)
    return words if full is None else f"{words}; no more are kept, {full}"


def why_no_more(folder: pathlib.Path) -> str | None:
    """Why no further program can be kept in a folder; None where one can."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return "it cannot be written"
    return "its disk is full" if shutil.disk_usage(place).free < LEAST_ROOM else None


def clear(folder: pathlib.Path) -> int:
    """Remove all programs, with what killed processes left; how many there were. `InputError` if one stays."""
    if (why := why_not(folder)) is not None:
        raise InputError(f"programs in {str(folder)!r} cannot be removed: {why}.")
    programs = 0
    for _, _, path in _files(folder):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be removed ({error.strerror or error}).") from error
        programs += path.suffix == ".program"
    return programs


def compiled_afresh(lowered: Any, options: dict[str, Any] | None) -> Any:
    """Compiled by XLA itself, whatever JAX keeps in memory or on disk.

    A program that came out of JAX's own cache cannot be serialized again: it fails when its results
    are read. That cache is set up once in a process and cannot be passed by, so an option makes each program new to it.
    """
    with _unknown_to_cache():
        return lowered.compile({**(options or {}), MARK: str(secrets.randbelow(1 << 31))})


class Store:
    """Programs in one folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.troubles: list[str] = []
        self._unfit: set[str] = set()
        with self._trouble("folder"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (why := why_not(folder)) is not None:
            self.troubles.append(f"folder: {why}")
        self.used = why is None

    @property
    def takes_more(self) -> bool:
        """Whether further programs can be kept here: else JAX's own cache may keep them."""
        with contextlib.suppress(OSError):
            return self.used and why_no_more(self.folder) is None
        return False

    def words(self, key: Key) -> str | None:
        """All that decides a program; None for one that is not kept."""
        if not self.used or key.apart or (device := platforms.device()) is None:
            return None
        with self._trouble("sources"):
            _unchanged()
            return f"{surroundings(device)}\n{key.words}"
        return None

    def load(self, words: str) -> Callable[..., Any] | None:
        """The program of these words, without tracing or compiling; None if it is not kept."""
        path = self._path(words)
        if path.name in self._unfit:
            return None
        try:
            program = loaded(payload_of(path, words))
        except FileNotFoundError:
            return None
        except Exception as error:  # whatever a damaged file does
            self.drop(words, error)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return program

    def drop(self, words: str, why: Exception) -> None:
        """Remove a program that failed, and load it no more in this process."""
        path = self._path(words)
        self._unfit.add(path.name)
        self._note("load", why)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def writing(self, words: str) -> Iterator[None]:
        """Nobody else compiles this program meanwhile; without a lock, after `WAIT_S`, somebody might."""
        path, lock = self._path(words).with_suffix(".lock"), None
        with self._trouble("lock"):
            lock = _lock(path)
        try:
            yield
        finally:
            if lock is not None:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                lock.close()

    def content(self, words: str, program: Any) -> bytes | None:
        """The file of a program that was compiled afresh and has not run: after it ran, sorting is not serialized.

        None for a program that cannot be kept.
        """
        with self._trouble("keep"):
            _unchanged()
            return _content(words, program)
        return None

    def keep(self, words: str, content: bytes, works: Callable[[Callable[..., Any]], bool]) -> None:
        """Write the file of a program, if the program read from it `works`."""
        with self._trouble("keep"):
            with replacing(self._path(words)) as (part,):
                _write(part, content)
                if not works(loaded(payload_of(part, words))):
                    raise Unfit("read again, it computes something else")
            evict(self.folder)

    @contextlib.contextmanager
    def _trouble(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of a system, a compiler or a pickle: the program that was compiled is there
            self._note(doing, error)

    def _note(self, doing: str, error: Exception) -> None:
        said = (str(error).splitlines() or [""])[0]
        trouble = (
            f"{doing}: {said if isinstance(error, Unfit | InputError) else f'{type(error).__name__}: {said:.200}'}"
        )
        if trouble not in self.troubles:
            self.troubles.append(trouble)

    def _path(self, words: str) -> pathlib.Path:
        return self.folder / f"{hashlib.sha256(words.encode()).hexdigest()}.program"


def loaded(payload: bytes) -> Callable[..., Any]:
    """The program that a checked payload holds, on the default device."""
    from jax.experimental.serialize_executable import deserialize_and_load

    device = platforms.device()
    parts = _Unpickler(io.BytesIO(payload)).load()
    return deserialize_and_load(*parts, backend=device.client, execution_devices=[device])


def payload_of(path: pathlib.Path, words: str) -> bytes:
    """What is behind the header of a file. `Unfit` if the file is another's, damaged, or of another program."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(opened, "rb") as file:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & OTHERS_WRITE:
            raise Unfit("a file was not this user's alone")
        content = file.read()
    key, start = words.encode(), len(MAGIC) + HEADER.size
    if len(content) < start or not content.startswith(MAGIC):
        raise Unfit("a file was no program")
    in_key, in_payload, digest = HEADER.unpack(content[len(MAGIC) : start])
    payload = content[start + in_key :]
    if content[start : start + in_key] != key or len(payload) != in_payload:
        raise Unfit("a file was of another program or cut")
    if hashlib.sha256(payload).digest() != digest:
        raise Unfit("a file was damaged")
    return payload


def evict(folder: pathlib.Path, most: int | None = None) -> None:
    """Remove what killed processes left, and then what was loaded longest ago until `most` bytes are left."""
    files = []
    for when, size, path in _files(folder):
        if path.suffix == ".program":
            files.append((when, size, path))
        elif time.time() - when >= STALE_S:
            path.unlink(missing_ok=True)
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= (MOST if most is None else most):
            return
        path.unlink(missing_ok=True)
        total -= size


def _files(folder: pathlib.Path) -> list[tuple[float, int, pathlib.Path]]:
    """When each of our files was last used, its bytes and its path."""
    found = []
    for path in folder.glob("*") if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            if path.suffix in (".program", ".lock", ".part"):
                about = path.lstat()
                found.append((about.st_mtime, about.st_size, path))
    return found


class _Pickler(pickle.Pickler):
    """Of trees of Equinox too: what stands for a field that is not set is compared by identity."""

    def persistent_id(self, obj: Any) -> str | None:
        kind = type(obj)
        return UNSET if kind.__name__ == "_Missing" and kind.__module__.startswith("equinox.") else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        if pid != UNSET:
            raise Unfit("a file names what is not known")
        return unset_of_equinox()


@functools.cache
def unset_of_equinox() -> Any:
    import equinox
    import jax

    class Empty(equinox.Module):
        pass

    return jax.tree.structure(Empty()).node_data()[1][0]


def _unchanged() -> None:
    if sources_changed():
        raise Unfit("files of the package changed after this process began")


def _content(words: str, program: Any) -> bytes:
    from jax.experimental.serialize_executable import serialize

    _Pickler(file := io.BytesIO()).dump(serialize(program))
    payload = file.getvalue()
    return packed(words, payload)


def packed(words: str, payload: bytes) -> bytes:
    """The content of a file: `payload_of` reads it."""
    key = words.encode()
    return MAGIC + HEADER.pack(len(key), len(payload), hashlib.sha256(payload).digest()) + key + payload


def _write(path: pathlib.Path, content: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)


def _lock(path: pathlib.Path) -> Any:
    """An open, locked file; None where another process has had it for `WAIT_S`."""
    until = time.monotonic() + WAIT_S
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        file = os.fdopen(opened, "rb+")
        if locked(file) and _is_at(opened, path):
            return file
        file.close()
        if time.monotonic() >= until:
            return None
        time.sleep(POLL_S)


def _is_at(opened: int, path: pathlib.Path) -> bool:
    """Whether the file is still the one at this path: who had the lock removed it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened), path.stat())
    return False


def _unknown_to_cache() -> contextlib.AbstractContextManager:
    """JAX's cache, which is no use for a program with a mark of its own, does not write it; other threads do."""
    try:
        from jax._src.config import persistent_cache_min_compile_time_secs

        return persistent_cache_min_compile_time_secs(float("inf"))
    except (ImportError, AttributeError, TypeError):  # this JAX has it elsewhere: a file more
        return contextlib.nullcontext()
