"""Fit time = alpha + bytes / bandwidth to measured times.

Each tier, program, kind, number of ranks and ranks per server has a fit of its own, since latency depends on them. A
fit is least squares of relative errors, so that small messages count as much as large ones. Both terms are at least 0.
Outliers have less weight (Huber 1964, beyond 1.345 deviations; a deviation is 1.4826 times the median absolute error).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax.apps.recordings.measurements.placed import TIERS, Point
from mfabric_jax.checks import InputError

HUBER, TO_DEVIATION, ROUNDS = 1.345, 1.4826, 50
SAME = 10 * np.finfo(float).eps  # relative change below which rounds end
LEAST_OFF = 1e-6  # smaller relative errors are rounding in the file
ONE_SIZE = 1.05  # largest over smallest size; below this ratio, latency and bandwidth cannot be separated


class LineFit(NamedTuple):
    """One line through the times of a tier, program, kind and number of ranks.

    - `bytes`: smallest and largest measured size.
    - `off`: relative error (fitted / measured - 1) of each of `points`.
    """

    tier: str
    kind: str
    alpha_s: float
    bandwidth_bytes_per_s: float
    bytes: tuple[float, float]
    ranks: int | None
    points: tuple[Point, ...]
    off: tuple[float, ...]
    program: str = ""
    per_server: int | None = None

    @property
    def name(self) -> str:
        """The fit in words, with what distinguishes it from others of its tier and kind."""
        ranks = [] if self.ranks is None else [f"{self.ranks} ranks"]
        each = [] if self.per_server is None else [f"{self.per_server} in a server"]
        return f"{self.kind} {self.tier} ({', '.join([*filter(None, [self.program]), *ranks, *each])})"

    @property
    def resolves_latency(self) -> bool:
        """Whether sizes differ enough to separate latency from bandwidth; if not, alpha is 0."""
        return self.bytes[1] > ONE_SIZE * self.bytes[0]

    def seconds(self, size: Any) -> Any:
        """Return the fitted time [s] of `size` bytes over the busiest port."""
        return self.alpha_s + size / self.bandwidth_bytes_per_s

    def row(self) -> dict[str, Any]:
        """Return the fit as plain values, for tables and files."""
        off = np.abs(self.off)
        return {
            "tier": self.tier,
            "kind": self.kind,
            "program": self.program,
            "ranks": self.ranks,
            "ranks_per_server": self.per_server,
            "alpha_s": self.alpha_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "bytes": list(self.bytes),
            "points": len(self.points),
            "error_median": float(np.median(off)),
            "error_worst": float(off.max()),
        }


def fit_points(points: Sequence[Point]) -> list[LineFit]:
    """Return a fit of each tier, program, kind and number of ranks, narrowest tier first.

    Raise `InputError` if times do not grow with bytes.
    """
    groups: dict[Point, list[Point]] = {}
    for point in points:
        groups.setdefault(point._replace(bytes=0.0, seconds=0.0), []).append(point)
    order = [*TIERS]
    return [_fit(groups[key]) for key in sorted(groups, key=lambda key: order.index(key.tier))]


def _fit(points: list[Point]) -> LineFit:
    tier, kind, ranks, _, _, program, per_server = points[0]
    size, seconds = (np.array([getattr(point, field) for point in points]) for field in ("bytes", "seconds"))
    if size.max() > ONE_SIZE * size.min():
        alpha, per_byte = line_through(size, seconds)
    else:
        alpha, per_byte = 0.0, float(np.median(seconds / size))
    if per_byte <= 0:
        raise InputError(
            f"times of {kind} {TIERS[tier]} must grow with bytes, but those of {program or 'it'} with "
            f"{'some' if ranks is None else ranks} ranks do not up to {size.max():,.0f} bytes; measure larger messages."
        )
    off = (alpha + size * per_byte) / seconds - 1
    ends = float(size.min()), float(size.max())
    return LineFit(
        *(tier, kind, alpha, 1 / per_byte, ends, ranks),
        *(tuple(points), tuple(off.tolist()), program, per_server),
    )


def line_through(size: Float[np.ndarray, "N"], seconds: Float[np.ndarray, "N"]) -> tuple[float, float]:
    """Return the latency [s] and the seconds per byte, both at least 0."""
    terms = np.stack([1 / seconds, size / seconds], axis=1)  # a perfect line makes 1 of each row
    weight = np.ones(len(size))
    line = np.zeros(2)
    for _ in range(ROUNDS):
        before, line = line, _not_negative(terms, weight)
        off = np.abs(terms @ line - 1)
        allowed = HUBER * max(TO_DEVIATION * float(np.median(off)), LEAST_OFF)
        weight = np.minimum(1, allowed / np.maximum(off, allowed))
        if np.allclose(before, line, rtol=SAME, atol=0):
            break
    return float(line[0]), float(line[1])


def _not_negative(terms: Float[np.ndarray, "N 2"], weight: Float[np.ndarray, "N"]) -> Float[np.ndarray, "2"]:
    """Fit terms to 1 by weighted least squares, without negative coefficients."""
    root = np.sqrt(weight)
    scale = np.sqrt((terms**2).mean(axis=0))
    both, *_ = np.linalg.lstsq(terms / scale * root[:, None], root, rcond=None)
    if (both >= 0).all():
        return both / scale
    alone = (terms * weight[:, None]).sum(axis=0) / (terms**2 * weight[:, None]).sum(axis=0)
    off = [float((weight * (term * factor - 1) ** 2).sum()) for term, factor in zip(terms.T, alone, strict=True)]
    best = int(np.argmin(off))
    return np.where(np.arange(2) == best, alone, 0.0)
