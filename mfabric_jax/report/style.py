"""The look of all charts: colour, marker and label of each fabric; paper, fonts, file types.

The first eight fabrics have the colours of Okabe and Ito, with yellow darkened to be visible on white. Parts of an
iteration and kinds of work have Tol's muted colours. Both palettes suit colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

from mfabric_jax.fabric import registry
from mfabric_jax.report.grid import Point, Series
from mfabric_jax.support.atomic import check_file

Box = tuple[float, float, float, float]  # middle, width and height

EXTENSIONS = (".png", ".pdf", ".svg")
INK, SOFT, FAINT, RULE, PAPER = "#1d2127", "#58606b", "#6b737e", "#dfe2e6", "#ffffff"  # of page.css too
BEST, EQUAL, BEHIND = "#00558c", "#6b737e", "#b0500f"  # the best design, those equal to it, the others
FONT = 10.0
_LIGHTER, _LIGHTEST = 0.35, 0.7  # fraction of white in colours of further series of a fabric
_TOUCHING = 0.001  # boxes that overlap by less count as touching


@dataclass(frozen=True)
class Look:
    """Colour, marker and label of a series; `hollow` marks the second series of a colour."""

    label: str
    colour: str
    marker: str = "o"
    hollow: bool = False


FABRICS = {name: Look(*registry.get(name).about.look) for name in registry.NAMES}
PARTS = {
    "compute_s": Look("Compute", "#C3CAD3"),
    "tp_comm_s": Look("TP communication", "#882255"),
    "ep_comm_s": Look("EP communication", "#CC6677"),
    "dp_comm_s": Look("DP communication", "#DDCC77"),
    "reconfig_s": Look("Reconfiguration", "#332288"),
    "bubble_s": Look("Pipeline bubble", "#FFFFFF"),
}
MEMORY = {  # of a GPU, by column
    "memory_weights_gb": Look("Weights", "#332288"),
    "memory_gradients_gb": Look("Gradients", "#88CCEE"),
    "memory_optimizer_gb": Look("Optimizer", "#117733"),
    "memory_attention_gb": Look("Activations of attention", "#DDCC77"),
    "memory_inner_gb": Look("Activations of experts, FFNs", "#CC6677"),
    "memory_logits_gb": Look("Logits", "#AA4499"),
    "memory_buffers_gb": Look("Buffers", "#C3CAD3"),
}
MOVED = {"placement_s": Look("Experts that move", "#117733")}  # in rows where experts are placed again
KINDS = {
    "attention": Look("Attention", "#88CCEE"),
    "experts": Look("Experts", "#44AA99"),
    "counts": Look("Counts before a dispatch", "#EE99AA"),
    "all-to-all": Look("All-to-all", PARTS["ep_comm_s"].colour),
    "tp": Look("TP communication", PARTS["tp_comm_s"].colour),
    "reconfigure": Look("Reconfiguration", PARTS["reconfig_s"].colour),
    "dense": Look("Dense", "#999933"),
    "dp": Look("DP communication", PARTS["dp_comm_s"].colour),
    "placement": Look("Experts that move", MOVED["placement_s"].colour),
    "cp": Look("CP communication", "#AA4499"),
    "head": Look("Output head", "#117733"),
    "optimizer": Look("Optimizer", "#661100"),
    "waiting": Look("Waiting", "#B9A6E0"),
}


def fabric(name: str) -> Look:
    return FABRICS.get(name, Look(name, FAINT))


def kind(name: str) -> Look:
    return KINDS.get(name, Look(name, FAINT))


def distinct_looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name: a fabric's own, else one that no fabric here has; reused looks are hollow."""
    names = list(dict.fromkeys(names))
    free = [look for key, look in FABRICS.items() if key not in names] or list(FABRICS.values())
    others = [name for name in names if name not in FABRICS]
    spare = {
        name: replace(free[index % len(free)], label=name, hollow=index // len(free) % 2 == 1)
        for index, name in enumerate(others)
    }
    return {name: FABRICS.get(name) or spare[name] for name in names}


def series_looks(series: Sequence[Series]) -> dict[Series, Look]:
    """Return a look for each series; series of one fabric share its colour, lighter from the third on."""
    by_fabric = distinct_looks(str(own.fabric) for own in series)
    return {
        own: replace(look, label=own.label(look.label), hollow=own.rank % 2 == 1, colour=_of_rank(look, own.rank))
        for own in series
        for look in [by_fabric[str(own.fabric)]]
    }


def _of_rank(look: Look, rank: int) -> str:
    return look.colour if rank < 2 else mix_with_white(look.colour, min(_LIGHTER * (rank // 2), _LIGHTEST))


def ink_on(colour: str) -> str:
    if colour.lower() == PAPER:
        return INK
    red, green, blue = rgb(colour)
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.47 else PAPER


def rgb(colour: str) -> list[float]:
    return [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]


def mix_with_white(colour: str, white: float) -> str:
    """Return the colour mixed with the fraction `white` of white."""
    return "#" + "".join(f"{round(255 * (part + (1 - part) * white)):02x}" for part in rgb(colour))


def free_place(places: Iterable[Point], width: float, height: float, taken: list[Box]) -> Point | None:
    """Return the first place where a box of this size covers none of `taken`, and add the box to `taken`."""
    for x, y in places:
        near = ((width + w - 2 * abs(x - u), height + h - 2 * abs(y - v)) for u, v, w, h in taken)
        if all(min(over) < _TOUCHING for over in near):
            taken.append((x, y, width, height))
            return x, y
    return None


def wrap_text(text: str, inches: float) -> str:
    """Return the text in lines that fit into a width in inches."""
    return fill(text, int(inches * 72 / (0.55 * FONT)))


def check_picture(path: str | Path) -> None:
    """Raise InputError if a figure could not be written to `path`; call it before a long run."""
    check_file("figure", path, EXTENSIONS)
