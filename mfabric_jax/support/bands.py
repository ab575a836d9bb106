"""The uncertainty band of an iteration time.

Where kernels are as they were measured, it is what measured steps were of predicted ones (`holding_ends`), else the
spread of links and of other traffic (`spread_of`). A variant (slower and faster kernels or links, other traffic)
changes one thing, the same for all fabrics, so the ratio of two designs is taken within a variant (`ratio_band`). Kinds
of variants are independent: the squares of their deviations add up.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.support.columns import Column, Columns

HELD = 0.8  # of measured steps, within a band; a dozen sources cannot say more
HOW = ("slow", "fast")
OF_KERNELS = {how: f"{how}_kernels_s" for how in HOW}  # columns
OF_LINKS = {how: f"{how}_links_s" for how in HOW}
LOW, HIGH = "low_s", "high_s"
PROMPT = "prompt_s"  # the iteration without latencies except `network.link_delay_s`
DRAW = "draw_{}_s"  # column of a further draw of traffic, from 2


LOW_PORTS, LOW_GPUS, HIGH_GPUS = "low_ports_usd", "low_gpus_usd", "high_gpus_usd"  # $/Mtoken at quoted prices
LOW_PORTS_NETWORK = "low_ports_network_usd"
QUOTED: tuple[str, ...] = (LOW_PORTS, LOW_GPUS, HIGH_GPUS, LOW_PORTS_NETWORK)

Ends = tuple[float, float]
ROUNDING = 1e-9  # of a sum of weights
BAND = Columns(
    Column(LOW, "s", "Low end of the band of the predicted time."),
    Column(HIGH, "s", "High end of the band of the predicted time."),
)
VARIANTS = Columns(
    Column(OF_KERNELS["slow"], "s", "The iteration with the slowest measured kernels of computation.", only_some=True),
    Column(OF_KERNELS["fast"], "s", "The iteration with the fastest measured kernels of computation.", only_some=True),
    Column(OF_LINKS["slow"], "s", "The iteration with the slowest measured kernels of communication.", only_some=True),
    Column(OF_LINKS["fast"], "s", "The iteration with the fastest measured kernels of communication.", only_some=True),
)


def is_of_band(column: str) -> bool:
    known = (LOW, HIGH, *OF_KERNELS.values(), *OF_LINKS.values(), *QUOTED)
    return column in known or column in draw_columns([column])


def draw_columns(names: Any) -> list[str]:
    """Return the columns of further draws among `names`."""
    return [name for name in names if name.startswith("draw_") and name.endswith("_s")]


def band_columns(
    usual: Any, variants: Mapping[str, Any], draws: Sequence[Any], held: Ends | None = None
) -> dict[str, Any]:
    """Return the columns `low_s` and `high_s`, and one for each variant and draw: seconds, of equal shapes.

    - `held`: both ends over `usual`; None: the spread of variants and draws.
    """
    each = dict(variants) | {DRAW.format(number): seconds for number, seconds in enumerate(draws, 2)}
    low, high = spread_of(usual, each) if held is None else (held[0] * usual, held[1] * usual)
    return {LOW: low, HIGH: high} | each


# ------------------------------------------------------------------------------------------- what measured ratios hold
def group_weights(groups: Sequence[str]) -> np.ndarray:
    """Return weights [N] by which all groups count alike, and all members of a group; their sum is 1."""
    _, which, size = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    return 1 / (len(size) * size[which])


def holding_end(values: Any, groups: Sequence[str], held: float) -> float:
    """Return the least of some values [N] that the fraction `held` of them does not exceed, groups counting alike."""
    values, weights = np.asarray(values, float), group_weights(groups)
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, held - ROUNDING)])


def holding_ends(ratios: Any, groups: Sequence[str], held: float = HELD) -> Ends:
    """Return the ends of a band that holds the fraction `held` of some ratios [N], groups counting alike.

    Half of the others may lie below and half above, so the band follows a skew (split conformal, asymmetric).
    """
    ratios, on_a_side = np.asarray(ratios, float), (1 + held) / 2
    return -holding_end(-ratios, groups, on_a_side), holding_end(ratios, groups, on_a_side)


def holds_left_out(
    ratios: Any, groups: Sequence[str], ends_of: Callable[[Any, Sequence[str]], Any] = holding_ends
) -> np.ndarray | None:
    """Return whether each of some ratios [N] lies in the band of the other groups; None if there are no others.

    `ends_of`: both ends of a band, from ratios and their groups.
    """
    ratios, inside = np.asarray(ratios, float), np.zeros(len(groups), bool)
    if len(set(groups)) < 2:
        return None
    for group in set(groups):
        own = np.array([other == group for other in groups])
        low, high = ends_of(ratios[~own], [other for other in groups if other != group])
        inside[own] = (low <= ratios[own]) & (ratios[own] <= high)
    return inside


def spread_of(usual: Any, each: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the low and high end of the band around the value `usual`; `each`: its variants by column."""
    kinds = [[each[column] for column in kind.values() if column in each] for kind in (OF_KERNELS, OF_LINKS)]
    kinds.append([each[column] for column in draw_columns(each)])
    off = [
        (np.minimum.reduce([usual, *some]) - usual, np.maximum.reduce([usual, *some]) - usual) for some in kinds if some
    ]
    if not off:
        return usual, usual
    below, above = (np.sqrt(sum(part**2 for part in side)) for side in zip(*off, strict=True))
    return usual - below, usual + above


def ratio_band(row: Mapping[str, Any], other: Mapping[str, Any], usual: str) -> tuple[float, float] | None:
    """Return the low and high end of the ratio `row` / `other` in column `usual`; None if either has no band.

    The ratio is taken within each variant.
    """
    known = [*OF_KERNELS.values(), *OF_LINKS.values(), *draw_columns(row)]
    both = [column for column in known if _number(row.get(column)) and _number(other.get(column))]
    if not both or not _number(row.get(usual)) or not _number(other.get(usual)):
        return None
    low, high = spread_of(row[usual] / other[usual], {column: row[column] / other[column] for column in both})
    return float(low), float(high)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(value > 0)
