"""Rounded boxes and pale colours, for pictures of networks. All lengths are inches."""

from __future__ import annotations

from typing import Any


def mixed(colour: str, white: float) -> str:
    """A colour with so much white in it."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * white):02X}" for part in parts)


def rounded(left: float, bottom: float, width: float, height: float, **line: Any) -> Any:
    """A box, to be added to axes."""
    from matplotlib.patches import FancyBboxPatch

    shape = f"round,pad=0,rounding_size={min(0.05, width / 4):.4f}"
    return FancyBboxPatch((left, bottom), width, height, boxstyle=shape, **{"linewidth": 0.8, "zorder": 3, **line})
