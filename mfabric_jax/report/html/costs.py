"""What each design costs: the network within the cluster, tokens, energy, and the dollars of failures."""

import math
from collections.abc import Sequence

from mfabric_jax.report.charts import Bar, Panel
from mfabric_jax.report.grid import CLUSTER, COST, TIME, TOKEN_USD, Rows, group_rows
from mfabric_jax.report.html.bars import bars_figure
from mfabric_jax.report.html.contenders import COLOURS, Contender
from mfabric_jax.report.html.markup import small_table, tag
from mfabric_jax.report.numerals import millions, number, usable
from mfabric_jax.report.ranking import FAILURE, Ranking
from mfabric_jax.report.served import LOAD_USD
from mfabric_jax.report.style import BEHIND, BEST, RULE, Look

LOST, SPARE, PART = "lost_usd_per_month", "spare_usd_per_month", "spare_part_usd_per_month"
TITLES = {"kJ/Mtok": "kJ / M tokens", "Mtok/s": "M tokens / s", "s": "seconds"}
RANKED = {
    LOAD_USD: "$/Mtok at this load",
    TOKEN_USD: "$/Mtok",
    TIME: "s",
    "seconds": "s",
}  # titles of what ranks, which the ranking shows
IN_BARS = ("cluster M$", "network M$")  # titles
_OTHERS = Look("all else", RULE)
_SAME_CASE = ("model", "fabric", "nic_gbps", "gpus", "policy")


def costs_section(ranking: Ranking, own: Sequence[Contender]) -> str:
    """Return bars of the cluster's price, and a table of what a design costs and does; "" if nothing is known."""
    by_design = {id(design): line for design, line in zip(ranking.shown, ranking.lines, strict=True)}
    lines = [by_design[id(each.design)] for each in own]
    bars = _cluster(own)
    but = ("design", "over best", RANKED.get(ranking.column), *(IN_BARS if bars else ()))
    kept = [{TITLES.get(name, name): value for name, value in line.items() if name not in but} for line in lines]
    return bars + (small_table(kept, {"design": [each.label for each in own]}) if any(kept) else "")


def _cluster(own: Sequence[Contender]) -> str:
    """Bars of the cluster's price, in which the network is coloured."""
    priced = [each for each in own if each.design.mean[CLUSTER] > 0 and each.design.mean[COST] >= 0]
    bars, totals = [], []
    for row, each in enumerate(priced):
        network, whole = (millions(each.design.mean[name]) for name in (COST, CLUSTER))
        tip = f"{each.name}: network {number(network)} M$ of {number(whole)} M$"
        bars.append(Bar(Look(each.name, COLOURS[each.verdict]), row, 0.0, network, tip))
        bars.append(Bar(_OTHERS, row, network, whole, tip))
        totals.append((whole, f"{number(network)} of {number(whole)} M$"))
    names = [f"{each.number}  {each.name}" for each in priced]
    note = tag("p", "Price of the cluster; the coloured part is its network.", class_="note")
    return note + bars_figure(Panel("", "", bars=bars, names=names, totals=totals)) if priced else ""


def failures_section(rows: Rows) -> str:
    """Return the dollars of failures in a month as HTML: lost hours and spares of every case; "" if rows have none."""
    if FAILURE not in rows[0] or all(usable(row.get(LOST)) is None for row in rows):
        return ""
    names = [name for name in _SAME_CASE if name in rows[0]]
    differ = [name for name in names if len({row[name] for row in rows}) > 1] or names[:2]
    bars, totals, labels = [], [], []
    for index, own in enumerate(group_rows(rows, *names).values()):
        lost = math.fsum(usable(row.get(LOST)) or 0.0 for row in own)
        parts = math.fsum(usable(row.get(PART)) or 0.0 for row in own)
        spares = max(usable(row.get(SPARE)) or 0.0 for row in own) + parts
        label = ", ".join(number(own[0][name]) for name in differ if own[0][name] not in (None, "none"))
        bars.append(Bar(Look("lost hours", BEST), index, 0.0, lost, f"{label}: lost hours ${lost:,.0f} a month"))
        bars.append(Bar(Look("spares", BEHIND), index, lost, lost + spares, f"{label}: spares ${spares:,.0f} a month"))
        totals.append((lost + spares, f"${lost:,.0f} + ${spares:,.0f}"))
        labels.append(label)
    note = tag("p", "Dollars of lost hours, then of spares (a spare server and a part of each kind).", class_="note")
    return note + bars_figure(Panel("", "dollars a month", bars=bars, names=labels, totals=totals))
