"""Utilisation of links as colours and as words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError

if TYPE_CHECKING:
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

_STEPS = ("#CBD5DE", "#EFC75E", "#D55E00", "#6B0F1A")


class Heat:
    """How busy each link of a network is, 0 to 1."""

    def __init__(self, network: Any, utilisation: Any):
        self.network, self.value = network, np.asarray(utilisation, dtype=float)
        wanted = (len(network.tail),)
        if self.value.shape != wanted:
            raise InputError(f"utilisation must have the shape {list(wanted)}, got {list(self.value.shape)}.")
        if not np.all((self.value >= 0) & (self.value <= 1 + np.finfo(np.float32).eps)):
            raise InputError(
                f"utilisation must be between 0 and 1, got {np.min(self.value):g}..{np.max(self.value):g}."
            )
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

    across, along = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / along, width / across, 0.11 / along))
    scale = figure.colorbar(ScalarMappable(Normalize(0, 1), colours()), cax=axes, orientation="horizontal")
    scale.ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    scale.ax.tick_params(labelsize=8, length=2)
    scale.outline.set_visible(False)  # pyright: ignore
    axes.set_title("utilisation, the busier direction", fontsize=8, fontweight="normal", pad=3)
