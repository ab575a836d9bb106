"""A picture of measured communication times and the lines fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mfabric_jax import units
from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.numerals import number

_ALONG = 100  # points of a line


class Fitted(Protocol):
    """A fit and its points: bytes over the busiest port, and seconds."""

    @property
    def name(self) -> str: ...
    @property
    def alpha_s(self) -> float: ...
    @property
    def bandwidth_bytes_per_s(self) -> float: ...
    @property
    def bytes(self) -> tuple[float, float]: ...
    @property
    def points(self) -> Sequence[Any]: ...

    def seconds(self, size: Any) -> Any: ...


def draw_measured_times(fits: Sequence[Fitted], path: str | Path) -> Path:
    """Draw all measured times, and each fit over its range of sizes; return the path."""
    return paper.save(lambda: build_measured_times(fits), path)


def build_measured_times(fits: Sequence[Fitted]) -> Figure:
    figure, (axes, *_) = paper.panels(1, height=4.2)
    looks = style.distinct_looks(fit.name for fit in fits)
    handles = []
    for fit, look in zip(fits, looks.values(), strict=True):
        size = np.array([point.bytes for point in fit.points])
        took = units.to_us(np.array([point.seconds for point in fit.points]))
        face = style.PAPER if look.hollow else look.colour
        axes.scatter(size, took, s=18, marker=look.marker, color=look.colour, facecolor=face, alpha=0.7, zorder=3)
        along = np.geomspace(*fit.bytes, _ALONG)
        axes.plot(along, units.to_us(fit.seconds(along)), color=look.colour, linewidth=1.2)
        rate = units.to_gigabytes(fit.bandwidth_bytes_per_s)
        label = f"{look.label}: {number(units.to_us(fit.alpha_s))} us + bytes / {number(rate)} GB/s"
        form: dict[str, Any] = {"marker": look.marker, "markerfacecolor": face}
        handles.append(Line2D([], [], color=look.colour, label=label, **form))
    axes.set(xscale="log", yscale="log", xlabel="bytes over the busiest port", ylabel="time [us]")
    axes.grid(True)
    figure.legend(handles=handles, loc="outside lower center", ncols=1)
    return figure
