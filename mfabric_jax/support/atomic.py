"""Atomic file writes: a temporary file beside the target, moved onto it when complete."""

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

NAME = 200  # bytes of a name in that of its temporary file: systems allow 255
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None
STALE_S = 3600.0  # nobody writes a temporary file for so long


def suffix(field: str, path: str | Path, allowed: tuple[str, ...]) -> str:
    """The lower-case extension of a path; `InputError` unless it is among `allowed`."""
    path = Path(path)
    if not path.suffix:
        raise InputError(f"{field} {str(path)!r} has no extension; allowed: {', '.join(allowed)}.")
    return one_of(f"{field} {str(path)!r}: extension", path.suffix.lower(), allowed)


def check_file(field: str, path: str | Path, allowed: tuple[str, ...]) -> str:
    """The extension of a file that can be written at this path. `InputError` otherwise; leaves nothing behind."""
    kind, path = suffix(field, path, allowed), Path(path)
    check_folder(path.parent)
    check_place(field, path, f"give a {' or '.join(allowed)} file")
    return kind


def check_place(field: str, path: Path, give: str) -> None:
    """`InputError` with `give`, what to do, where something stands at this path that no file can replace."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"{field} {str(path)!r} cannot be used ({error.strerror}); give another name.") from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "no plain file"
        raise InputError(f"{field} {str(path)!r} is {what}; {give}.")


@contextmanager
def replacing(path: Path, *more: Path) -> Iterator[list[Path]]:
    """Temporary paths for `path` and `more`, moved to their targets if the block succeeds and removed if it fails.

    Makes missing folders; keeps links and permissions. `InputError` for what the operating system refuses.
    """
    targets = [Path(os.path.realpath(target)) for target in (path, *more)]
    parts = [target.with_name(f".{_short(target.name)}.{secrets.token_hex(4)}.part") for target in targets]
    try:
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
            sweep_up(target)
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


def sweep_up(target: Path, older_s: float = STALE_S) -> None:
    """Remove temporary files of `target` that killed runs left, untouched for `older_s` seconds."""
    ours = re.compile(rf"\.{re.escape(_short(target.name))}\.[0-9a-f]{{8}}\.part")
    for part in target.parent.glob(f".{glob.escape(_short(target.name))}.*.part"):
        try:
            if ours.fullmatch(part.name) and time.time() - part.stat().st_mtime >= older_s:
                part.unlink()
        except OSError:
            continue  # somebody else was first


def locked(file: IO, wait: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process has it and `wait` is False. True without locks."""
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
    """Flush to disk, so that a crash leaves the old file or the new one, never an empty one."""
    opened = os.open(part, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def check_folder(folder: str | Path) -> None:
    """`InputError` if no file can be written to this folder, which is made if missing."""
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
        return  # its folder could not be entered either: that error is already on its way
