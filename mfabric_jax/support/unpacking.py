"""What a file may become in memory: a small archive, or a few lines, can stand for more than a machine holds.

A reader asks `check_size` before it makes more of a file than its bytes; `unpacked` reads .gz and .xz by it. The limit
is `USUAL` bytes or `TIMES` those of the file, whichever is more; `MFABRIC_UNPACKED_GIB` raises it.
"""

import gzip
import io
import lzma
import os
import zipfile
import zlib
from pathlib import Path

from mfabric_jax.checks import InputError

ENVIRONMENT = "MFABRIC_UNPACKED_GIB"
GIB = 1 << 30
USUAL = GIB
TIMES = 20
VALUE = 8  # bytes of a number
STEP = 1 << 22  # bytes that are unpacked at once
OPENED_BY = {b"\x1f\x8b": gzip.GzipFile, b"\xfd7zXZ\x00": lzma.LZMAFile}  # by how their files begin


def most_bytes(packed: int) -> int:
    """What a file of `packed` bytes may become. `InputError` if the environment's limit is no number."""
    said = os.environ.get(ENVIRONMENT, "").strip()
    if not said:
        return max(USUAL, TIMES * packed)
    try:
        raised = float(said) * GIB
    except ValueError:
        raised = 0.0
    if not 0 < raised < float("inf"):
        raise InputError(f"{ENVIRONMENT} must be a number of GiB above 0, got {said!r:.40}.")
    return int(raised)


def check_size(path: str | Path, needed: float, packed: int | None = None) -> None:
    """`InputError` if what a file becomes needs more bytes than it may; `packed`: its own bytes, None: look."""
    packed = bytes_of(path) if packed is None else packed
    if needed > (most := most_bytes(packed)):
        raise InputError(
            f"{str(path)!r} of {packed:,} bytes becomes at least {needed / GIB:,.3g} GiB in memory, above the limit of "
            f"{most / GIB:,.3g} GiB; if you trust the file, {ENVIRONMENT}={_roughly(needed)} raises it."
        )


def unpacked(path: str | Path, data: bytes) -> bytes:
    """The content `data` of a file, decompressed if its first bytes say .gz or .xz, within `most_bytes`.

    Raises what the decompressors raise for content that is damaged: `BROKEN`.
    """
    kind = next((opened for begin, opened in OPENED_BY.items() if data.startswith(begin)), None)
    if kind is None:
        return data
    found, most = bytearray(), most_bytes(len(data))
    with kind(fileobj=io.BytesIO(data)) if kind is gzip.GzipFile else kind(io.BytesIO(data)) as opened:
        while piece := opened.read(STEP):
            found += piece
            if len(found) > most:
                check_size(path, len(found), len(data))
    return bytes(found)


BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def check_archive(path: str | Path, archive: zipfile.ZipFile) -> None:
    """`check_size` of everything in a zip archive; its readers give no more than it announces."""
    check_size(path, sum(member.file_size for member in archive.infolist()))


def bytes_of(path: str | Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _roughly(needed: float) -> int:
    return int(needed / GIB) + 1
