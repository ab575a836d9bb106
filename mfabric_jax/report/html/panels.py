"""Charts of any rows on the page: a title, a note, a key and panels."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart
from mfabric_jax.report.compared import comparison_charts
from mfabric_jax.report.grid import CLUSTER, TIME, Rows
from mfabric_jax.report.html.bars import bars_figure
from mfabric_jax.report.html.curves import curves_figure, sign
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import usable
from mfabric_jax.report.ranking import FAILURE
from mfabric_jax.report.serving import of_serving, serving_charts
from mfabric_jax.report.varied import design_space, mean_bars, sensitivities

_OPEN = 2  # after this many charts, others are folded
_MOST_SERIES = 12  # most series of a chart


def charts_of(rows: Rows, effective: Mapping[str, Any], ranked: bool) -> tuple[list[Chart], list[Chart], list[str]]:
    """Return charts, folded charts, and sentences on charts that are left out.

    `ranked`: rankings, lanes, costs and sensitivities are on the page, so no chart repeats them.
    """
    if of_serving(rows[0]) and any(row["fits"] for row in rows):
        return serving_charts(rows), [], []
    if ranked:
        return [], *_beside_ranking(rows, effective)
    if FAILURE in rows[0]:
        return [mean_bars(rows)], [], []
    drawn = sensitivities(rows, effective)
    with contextlib.suppress(InputError):
        drawn = [design_space(rows, effective), *drawn]
    drawn = drawn or [mean_bars(rows)]
    return drawn[:_OPEN], drawn[_OPEN:], []


def _beside_ranking(rows: Rows, effective: Mapping[str, Any]) -> tuple[list[Chart], list[str]]:
    try:
        by_name, why = comparison_charts(rows, _MOST_SERIES)
    except InputError:  # rows that form no grid are a design space
        with contextlib.suppress(InputError):
            return [design_space(rows, effective)], []
        return [], []
    cost = "cluster_cost" if any(usable(row.get(CLUSTER)) is not None for row in rows) else "pareto"
    return [by_name[name] for name in (cost, "memory") if name in by_name], why if TIME in rows[0] else []


def charts_markup(drawn: Sequence[Chart], folded: Sequence[Chart], why: Sequence[str]) -> str:
    """Return charts as HTML; sentences on charts that are left out follow, inside what is folded if all is."""
    shown, hidden = "".join(map(_markup, drawn)), "".join(map(_markup, folded))
    sentences = "".join(tag("p", words(sentence), class_="note") for sentence in why)
    if not folded:
        return shown + sentences
    summary = tag("summary", _folded_title(folded))
    if not drawn:
        return tag("details", summary, hidden, sentences)
    return shown + tag("details", summary, hidden) + sentences


def _folded_title(folded: Sequence[Chart]) -> str:
    return words("More charts: ", "; ".join(chart.title for chart in folded))


def _markup(chart: Chart) -> str:
    bars = any(panel.bars for panel in chart.panels)
    key = tag("ul", *(entry(look, bars) for look in chart.key), class_="key") if chart.key else ""
    head = tag("h3", words(chart.title)) + (tag("p", words(chart.note), class_="note") if chart.note else "")
    figures = [bars_figure(panel) if panel.names else curves_figure(panel) for panel in chart.panels]
    wide = "wide" if bars or len(figures) == 1 else ""
    return tag("section", head, key, tag("div", *figures, class_=f"panels {wide}".strip()), class_="chart")


def entry(look: style.Look, bars: bool) -> str:
    """Return an entry of a key: the marker of a look and its label."""
    shown = style.Look(look.label, look.colour, "s") if bars else look
    if look.colour.lower() == style.PAPER:
        shown = style.Look(look.label, style.FAINT, "s", hollow=True)
    return tag("li", sign(shown), words(look.label))
