"""Unit conversion at the edge of the package, which computes in SI: bytes, seconds, bytes per second.

`NAME(value)` converts a number or array from that unit to SI, `to_NAME(value)` back. All units are decimal: a gigabyte
is 1e9 bytes. Bandwidths are per direction: 1 Gbps = 1e9 bit/s.
"""

from typing import TypeVar

Number = TypeVar("Number")


def bps(value: Number) -> Number:
    return value * 0.125  # type: ignore[operator]


def kbps(value: Number) -> Number:
    return value * 125.0  # type: ignore[operator]


def mbps(value: Number) -> Number:
    return value * 1.25e5  # type: ignore[operator]


def gbps(value: Number) -> Number:
    return value * 1.25e8  # type: ignore[operator]


def tbps(value: Number) -> Number:
    return value * 1.25e11  # type: ignore[operator]


def gigabytes_per_s(value: Number) -> Number:
    return value * 1e9  # type: ignore[operator]


def gigabytes(value: Number) -> Number:
    return value * 1e9  # type: ignore[operator]


def tflops(value: Number) -> Number:
    return value * 1e12  # type: ignore[operator]


def ms(value: Number) -> Number:
    return value * 1e-3  # type: ignore[operator]


def us(value: Number) -> Number:
    return value * 1e-6  # type: ignore[operator]


def ns(value: Number) -> Number:
    return value * 1e-9  # type: ignore[operator]


def ps(value: Number) -> Number:
    return value * 1e-12  # type: ignore[operator]


def to_us(value: Number) -> Number:
    return value * 1e6  # type: ignore[operator]


def to_ps(value: Number) -> Number:
    return value * 1e12  # type: ignore[operator]


def to_gbps(value: Number) -> Number:
    return value / 1.25e8  # type: ignore[operator]


def to_ms(value: Number) -> Number:
    return value * 1e3  # type: ignore[operator]


def to_gigabytes(value: Number) -> Number:
    return value / 1e9  # type: ignore[operator]
