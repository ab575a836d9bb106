"""Unit conversions. The package computes in SI units: bytes, seconds, bytes per second.

`NAME(value)` converts a number or array from the unit to SI, `to_NAME(value)` back. All units are decimal: a gigabyte
is 1e9 bytes, 1 Gbps is 1e9 bit/s. Bandwidths are per direction.
"""

from typing import Any, TypeVar

Number = TypeVar("Number")


def _wide(value: Any) -> Any:
    """Convert half precision to float32, because its range ends at 65504."""
    dtype = getattr(value, "dtype", None)
    return value.astype("float32") if dtype is not None and dtype.kind in "fV" and dtype.itemsize < 4 else value


def bps(value: Number) -> Number:
    return _wide(value) * 0.125


def kbps(value: Number) -> Number:
    return _wide(value) * 125.0


def mbps(value: Number) -> Number:
    return _wide(value) * 1.25e5


def gbps(value: Number) -> Number:
    return _wide(value) * 1.25e8


def tbps(value: Number) -> Number:
    return _wide(value) * 1.25e11


def gigabytes_per_s(value: Number) -> Number:
    return _wide(value) * 1e9


def gigabytes(value: Number) -> Number:
    return _wide(value) * 1e9


def tflops(value: Number) -> Number:
    return _wide(value) * 1e12


def ms(value: Number) -> Number:
    return _wide(value) * 1e-3


def us(value: Number) -> Number:
    return _wide(value) * 1e-6


def ns(value: Number) -> Number:
    return _wide(value) * 1e-9


def ps(value: Number) -> Number:
    return _wide(value) * 1e-12


def to_us(value: Number) -> Number:
    return _wide(value) * 1e6


def to_ps(value: Number) -> Number:
    return _wide(value) * 1e12


def to_gbps(value: Number) -> Number:
    return _wide(value) / 1.25e8


def to_ms(value: Number) -> Number:
    return _wide(value) * 1e3


def to_gigabytes(value: Number) -> Number:
    return _wide(value) / 1e9
