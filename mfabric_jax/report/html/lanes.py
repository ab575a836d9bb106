"""Where the time of each design goes: lanes in one order, with one scale for all bars."""

import math
from collections.abc import Sequence

from mfabric_jax.report.grid import TIME
from mfabric_jax.report.html.contenders import Contender
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import number, percent, usable

LANES = {
    "Compute": ("compute_s",),
    "EP": ("ep_comm_s",),
    "TP + DP": ("tp_comm_s", "dp_comm_s"),
    "Reconfiguration": ("reconfig_s",),
    "Bubble": ("bubble_s",),
    "Experts that move": ("placement_s",),
}
NOTE = "Seconds that each adds to an iteration, and its share. All bars have one scale."
_NOISE = 0.000000001  # relative: sums of floats that should be zero
_ALWAYS = 5  # lanes that are shown even if they are empty


def lanes_section(own: Sequence[Contender]) -> str:
    """Return the lanes of some designs as HTML; "" if their rows have no parts of an iteration."""
    seconds = [_seconds(each) for each in own]
    if not all(map(any, seconds)):
        return ""
    shown = [index for index in range(len(LANES)) if index < _ALWAYS or any(line[index] for line in seconds)]
    longest = max(max(line) for line in seconds)
    titles = [list(LANES)[index] for index in shown]
    head = tag(
        "div", tag("span", "design"), tag("span", "iteration"), *(tag("span", name) for name in titles), class_="head"
    )
    lines = []
    for each, parts in zip(own, seconds, strict=True):
        whole = each.design.mean[TIME]
        total = tag("b", words(f"{number(whole)} s"), class_="value")
        lanes = [
            _lane(name, parts[index], parts[index] / math.fsum(parts), parts[index] / longest, each)
            for name, index in zip(titles, shown, strict=True)
        ]
        lines.append(tag("div", tag("span", each.label, class_="name"), total, *lanes, class_="line"))
    style = f"--lanes:{len(shown)}"
    return tag("p", NOTE, class_="note") + tag("div", head, *lines, class_="lanes", style=style)


def _seconds(each: Contender) -> list[float]:
    """Seconds of every lane, in the mean over the rows of a design."""
    rows = each.design.rows
    parts = [
        math.fsum(usable(row.get(name)) or 0.0 for row in rows for name in names) / len(rows)
        for names in LANES.values()
    ]
    return [seconds if seconds > _NOISE * math.fsum(parts) else 0.0 for seconds in parts]


def _lane(name: str, seconds: float, share: float, width: float, each: Contender) -> str:
    text = f"{number(seconds)} s" if seconds > 0 else "0"
    part = tag("small", words(percent(share))) if seconds > 0 else ""
    bar = tag("i", class_=each.verdict, style=f"width:{100 * width:.4g}%")
    label = tag("span", words(name), class_="label")
    return tag(
        "span", label, tag("span", words(text), " ", part, class_="text"), tag("span", bar, class_="bar"), class_="lane"
    )
