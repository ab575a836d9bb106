"""What pictures of networks share: boxes, and how busy links are, as colours and words. Lengths are inches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

LINK = "#5F7488"
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)
_STEPS = ("#CBD5DE", "#EFC75E", "#D55E00", "#6B0F1A")


def draw_box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], fill: str, edge: str, z: float = 3):
    """A box with rounded corners, from its lower left one."""
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={min(0.05, size[0] / 4):.4f}"
    line = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.8, "zorder": z}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, **line))


def write(axes: Axes, x: float, y: float, text: str, size: float, **more: Any) -> None:
    """A text around a point."""
    axes.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "zorder": 5, **more})


def draw_segments(axes: Axes, paths: Sequence[Any], colours: Sequence[str], widths: Any, **line: Any) -> None:
    """Lines along paths."""
    from matplotlib.collections import LineCollection

    axes.add_collection(LineCollection(paths, colors=colours, linewidths=widths, **{"zorder": 2, **line}))


def bow(start: np.ndarray, bend: np.ndarray, end: np.ndarray) -> np.ndarray:
    """[25 2] a curve from start to end, drawn towards `bend`."""
    t = np.linspace(0, 1, 25)[:, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end


def places_on(path: np.ndarray) -> list[tuple[float, float]]:
    """Where on a line its number may stand: in the middle, or towards an end."""
    x, y = (np.interp(_ALONG, np.linspace(0, 1, len(path)), values) for values in path.T)
    return list(zip(x.tolist(), y.tolist(), strict=True))


class LinkHeat:
    """How busy each link of a network is, 0 to 1."""

    def __init__(self, network: Any, utilisation: Any):
        self.network, self.value = network, np.asarray(utilisation, dtype=float)
        if self.value.shape != (len(network.tail),):
            raise InputError(f"utilisation must have the shape {[len(network.tail)]}, got {list(self.value.shape)}.")
        if not np.all((self.value >= 0) & (self.value <= 1 + np.finfo(np.float32).eps)):
            reach = f"{np.min(self.value):g}..{np.max(self.value):g}"
            raise InputError(f"utilisation must be between 0 and 1, got {reach}.")
        self.colours = colours()

    def of(self, links: Any) -> str:
        """The colour of the busiest of some links."""
        from matplotlib.colors import to_hex

        return to_hex(self.colours(float(np.max(self.value[links], initial=0.0))))

    def pair(self, up: str, down: str, number: int) -> str:
        """The colour of a link of two kinds, one for each direction."""
        return self.of([self.network.run(kind).start + number for kind in (up, down)])

    def words(self, *kinds: str) -> str:
        """Mean and maximum over links of some kinds."""
        values = np.concatenate([self.value[self.network.run(kind)] for kind in kinds])
        return f"mean {values.mean():.0%}, max {values.max():.0%}"


def colours() -> Colormap:
    """From pale (idle) to dark (full)."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("utilisation", _STEPS)


def bar(figure: Figure, left: float, bottom: float, width: float) -> None:
    """The key of the colours, in inches from the lower left corner of the figure."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import PercentFormatter

    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, 0.11 / up))
    key = figure.colorbar(ScalarMappable(Normalize(0, 1), colours()), cax=axes, orientation="horizontal")
    key.ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    key.ax.tick_params(labelsize=8, length=2)
    key.outline.set_visible(False)  # pyright: ignore
    axes.set_title("utilisation, the busier direction", fontsize=8, fontweight="normal", pad=3)
