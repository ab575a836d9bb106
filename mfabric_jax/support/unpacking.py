"""Limits on what a file may become in memory: a small archive can expand to more than a machine holds.

Readers call `check_size` before they expand a file; `unpack` does so for .gz and .xz. The limit is `USUAL` bytes or
`TIMES` the size of the file, whichever is more; `MFABRIC_UNPACKED_GIB` raises it.
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
STEP = 1 << 22  # bytes that are unpacked at a time
OPENED_BY = {b"\x1f\x8b": gzip.GzipFile, b"\xfd7zXZ\x00": lzma.LZMAFile}  # by the first bytes of a file


def most_bytes(packed: int) -> int:
    """Return the most bytes that a file of `packed` bytes may become.

    Raise InputError if `MFABRIC_UNPACKED_GIB` is not a positive number.
    """
    text = os.environ.get(ENVIRONMENT, "").strip()
    if not text:
        return max(USUAL, TIMES * packed)
    try:
        raised = float(text) * GIB
    except ValueError:
        raised = 0.0
    if not 0 < raised < float("inf"):
        raise InputError(f"{ENVIRONMENT} must be a number of GiB above 0, got {text!r:.40}.")
    return int(raised)


def check_size(path: str | Path, needed: float, packed: int | None = None) -> None:
    """Raise InputError if a file would need more than `most_bytes`; `packed`: the file's size (None: look it up)."""
    packed = bytes_of(path) if packed is None else packed
    if needed > (most := most_bytes(packed)):
        raise InputError(
            f"{str(path)!r} of {packed:,} bytes becomes at least {needed / GIB:,.3g} GiB in memory, above the limit of "
            f"{most / GIB:,.3g} GiB; if you trust the file, {ENVIRONMENT}={_roughly(needed)} raises it."
        )


def unpack(path: str | Path, data: bytes) -> bytes:
    """Return the content `data` of a file, decompressed if it is .gz or .xz, of at most `most_bytes`.

    The decompressors raise one of `BROKEN` for damaged content.
    """
    kind = next((opened for begin, opened in OPENED_BY.items() if data.startswith(begin)), None)
    if kind is None:
        return data
    content, most = bytearray(), most_bytes(len(data))
    with kind(fileobj=io.BytesIO(data)) if kind is gzip.GzipFile else kind(io.BytesIO(data)) as opened:
        while piece := opened.read(STEP):
            content += piece
            if len(content) > most:
                check_size(path, len(content), len(data))
    return bytes(content)


BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


def check_archive(path: str | Path, archive: zipfile.ZipFile) -> None:
    """Apply `check_size` to the announced size of a zip archive, which readers never exceed."""
    check_size(path, sum(member.file_size for member in archive.infolist()))


def bytes_of(path: str | Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _roughly(needed: float) -> int:
    return int(needed / GIB) + 1
