"""Atomic file writes: to a temporary file beside the target, which replaces the target when complete."""

import glob
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mfabric_jax.checks import InputError, one_of

NAME = 200  # bytes of a name that its temporary file keeps: systems allow 255
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
STALE_S = 3600.0  # no process writes a temporary file for longer


def suffix(field: str, path: str | Path, allowed: tuple[str, ...]) -> str:
    """Return the lower-case extension of a path; raise InputError unless it is in `allowed`."""
    path = Path(path)
    if not path.suffix:
        raise InputError(f"{field} {str(path)!r} has no extension; allowed: {', '.join(allowed)}.")
    return one_of(f"{field} {str(path)!r}: extension", path.suffix.lower(), allowed)


def check_file(field: str, path: str | Path, allowed: tuple[str, ...]) -> str:
    """Return the extension of a path; raise InputError if no such file can be written there. Leave no file."""
    kind, path = suffix(field, path, allowed), Path(path)
    check_folder(path.parent)
    check_place(field, path, f"give a {' or '.join(allowed)} file")
    return kind


def check_place(field: str, path: Path, give: str) -> None:
    """Raise InputError if the path holds something that a file cannot replace; `give` says what to do."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{field} {str(path)!r} cannot be used ({error.strerror}); give another name.") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise InputError(f"{field} {str(path)!r} is {what}; {give}.")


@contextmanager
def replacing(path: Path, *more: Path) -> Iterator[list[Path]]:
    """Yield temporary paths for `path` and `more`; they replace their targets if the block succeeds, else are removed.

    Make missing folders; keep links and permissions. Raise InputError if the operating system refuses.
    """
    targets = [Path(os.path.realpath(target)) for target in (path, *more)]
    parts = [target.with_name(f".{_short(target.name)}.{secrets.token_hex(4)}.part") for target in targets]
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            remove_stale(target)
        yield parts
        for part, target in zip(parts, targets, strict=True):
            _keep_mode(part, target)
            _to_disk(part)
            os.replace(part, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write {str(path)!r} ({reason}); give a file in a folder that can be written and has room."
        ) from error
    finally:
        for part in parts:
            _remove(part)


def _short(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:NAME])


def _keep_mode(part: Path, target: Path) -> None:
    with suppress(FileNotFoundError):
        part.chmod(stat.S_IMODE(target.stat().st_mode))


def remove_stale(target: Path, older_s: float = STALE_S) -> None:
    """Remove temporary files of `target` that killed runs left and that did not change for `older_s` seconds."""
    ours = re.compile(rf"\.{re.escape(_short(target.name))}\.[0-9a-f]{{8}}\.part")
    for part in target.parent.glob(f".{glob.escape(_short(target.name))}.*.part"):
        try:
            if ours.fullmatch(part.name) and time.time() - part.stat().st_mtime >= older_s:
                part.unlink()
        except OSError:
            continue  # another process removed it


def lock_file(file: IO, wait: bool = False) -> bool:
    """Lock an open file until it is closed, and return whether that worked.

    If another process holds the lock, return False, or wait if `wait`. Return True on systems without locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _to_disk(part: Path) -> None:
    """Flush to disk, so that a crash leaves the old or the new file, never an empty one."""
    opened = os.open(part, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def check_folder(folder: str | Path) -> None:
    """Make the folder if it is missing; raise InputError if no file can be written to it."""
    folder = Path(folder)
    probe = folder / f".{secrets.token_hex(4)}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"there is room")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write into {str(folder)!r} ({reason}); give another folder.") from error
    finally:
        _remove(probe)


def _remove(part: Path) -> None:
    try:
        part.unlink(missing_ok=True)
    except OSError:
        return  # the folder is inaccessible, and that error is already raised
