"""Units at the edge: SI inside (bytes, seconds, bytes per second), network units outside.

The only powers of ten in the package. Every function takes a number or an array and returns the same.
Bandwidths are decimal and per direction: 1 Gbps = 1e9 bit/s.
"""

from typing import TypeVar

Number = TypeVar("Number")


def gbps(value: Number) -> Number:
    """Gigabits per second -> bytes per second."""
    return value * 1.25e8  # type: ignore[operator]


def tbps(value: Number) -> Number:
    """Terabits per second -> bytes per second."""
    return value * 1.25e11  # type: ignore[operator]


def gigabytes_per_s(value: Number) -> Number:
    """Gigabytes per second -> bytes per second."""
    return value * 1e9  # type: ignore[operator]


def gigabytes(value: Number) -> Number:
    """Gigabytes (1e9 bytes) -> bytes."""
    return value * 1e9  # type: ignore[operator]


def tflops(value: Number) -> Number:
    """TFLOP/s -> floating-point operations per second."""
    return value * 1e12  # type: ignore[operator]


def ms(value: Number) -> Number:
    """Milliseconds -> seconds."""
    return value * 1e-3  # type: ignore[operator]


def us(value: Number) -> Number:
    """Microseconds -> seconds."""
    return value * 1e-6  # type: ignore[operator]


def ns(value: Number) -> Number:
    """Nanoseconds -> seconds."""
    return value * 1e-9  # type: ignore[operator]


def ps(value: Number) -> Number:
    """Picoseconds -> seconds."""
    return value * 1e-12  # type: ignore[operator]


def to_us(value: Number) -> Number:
    """Seconds -> microseconds."""
    return value * 1e6  # type: ignore[operator]


def to_ps(value: Number) -> Number:
    """Seconds -> picoseconds."""
    return value * 1e12  # type: ignore[operator]


def to_gbps(value: Number) -> Number:
    """Bytes per second -> gigabits per second."""
    return value / 1.25e8  # type: ignore[operator]


def to_ms(value: Number) -> Number:
    """Seconds -> milliseconds."""
    return value * 1e3  # type: ignore[operator]


def to_gigabytes(value: Number) -> Number:
    """Bytes -> gigabytes (1e9 bytes)."""
    return value / 1e9  # type: ignore[operator]
