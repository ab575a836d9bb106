"""Tables of a flatbuffer by the number of their slots, without a schema's generated code; everything is checked."""

import struct
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.extras import extra

BROKEN = (struct.error, IndexError, ValueError, OverflowError, TypeError, EOFError)  # what damaged bytes raise


class FlatTable(NamedTuple):
    """One table; `inner` is the one of the library. Where bytes are damaged its methods raise one of `BROKEN`."""

    inner: Any

    @property
    def slots(self) -> int:
        """How many it has, up to the last one that is not left out."""
        from flatbuffers import encode, packer

        table = self.inner.Pos - encode.Get(packer.soffset, self.inner.Bytes, self.inner.Pos)
        if table < 0:
            raise EOFError
        return (encode.Get(packer.voffset, self.inner.Bytes, table) - 4) // 2

    def number(self, slot: int, kind: str) -> Any:
        """A number of the kind int16, uint32, uint64, float32, ...; 0 where it is left out."""
        at = self._at(slot)
        if not at:
            return 0
        size = np.dtype(kind).itemsize
        return np.frombuffer(self._bytes(self.inner.Pos + at, size), np.dtype(kind).newbyteorder("<"))[0].item()

    def numbers(self, slot: int, kind: str) -> list:
        """A vector of numbers; empty where it is left out."""
        start, count = self._vector(slot)
        size = np.dtype(kind).itemsize
        return np.frombuffer(self._bytes(start, count * size), np.dtype(kind).newbyteorder("<")).tolist()

    def text(self, slot: int) -> str:
        """A string; empty where it is left out."""
        start, count = self._vector(slot)
        return bytes(self._bytes(start, count)).decode("utf-8", "replace")

    def tables(self, slot: int) -> list["FlatTable"]:
        """A vector of tables; empty where it is left out."""
        from flatbuffers.table import Table

        start, count = self._vector(slot)
        offsets = np.frombuffer(self._bytes(start, 4 * count), "<u4").tolist()
        return [FlatTable(Table(self.inner.Bytes, start + 4 * order + to)) for order, to in enumerate(offsets)]

    def _at(self, slot: int) -> int:
        return self.inner.Offset(4 + 2 * slot)

    def _vector(self, slot: int) -> tuple[int, int]:
        """Where a vector begins, and its length."""
        at = self._at(slot)
        return (self.inner.Vector(at), self.inner.VectorLen(at)) if at else (0, 0)

    def _bytes(self, start: int, size: int) -> memoryview:
        if start < 0 or start + size > len(self.inner.Bytes):
            raise EOFError
        return memoryview(self.inner.Bytes)[start : start + size]


def root(data: bytes) -> FlatTable:
    """The table that a file begins with."""
    with extra("formats", "a .fbuf"):
        from flatbuffers import encode, packer
        from flatbuffers.table import Table
    return FlatTable(Table(bytearray(data), encode.Get(packer.uoffset, data, 0)))
