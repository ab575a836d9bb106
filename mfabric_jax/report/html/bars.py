"""A panel of horizontal bars as HTML: names, bars and totals in three columns; on a phone, names stand above bars."""

from mfabric_jax.report import style
from mfabric_jax.report.charts import Panel, drawable_panel
from mfabric_jax.report.html.colours import hue
from mfabric_jax.report.html.markup import tag, words


def bars_figure(panel: Panel) -> str:
    """Return a figure of a panel with rows of bars."""
    panel = drawable_panel(panel)
    ends = [end for bar in panel.bars for end in (bar.start, bar.end)] + [x for x, _ in panel.points]
    ends += [*panel.reach, 0.0, *(end for both in panel.spread.values() for end in both)]
    low, high = min(ends), max(ends)
    share = lambda value: 100 * (value - low) / (high - low or 1)  # noqa: E731
    pieces: list[list[str]] = [[] for _ in panel.names]
    for bar in panel.bars:
        pieces[bar.row].append(_piece(bar.look, share(bar.start), share(bar.end), bar.tip))
    for row, (begin, end) in panel.spread.items():
        width = share(end) - share(begin)
        pieces[row].append(tag("i", class_="range", style=f"left:{share(begin):.4g}%;width:{width:.4g}%"))
    for curve in panel.curves:
        for x, row in curve.points:
            pieces[int(row)].append(tag("i", class_="limit", style=f"left:{share(x):.4g}%"))
    totals = [text for _, text in panel.totals] or [""] * len(panel.names)
    rows = [
        tag("div", tag("span", words(name), class_="name"), tag("span", *own, class_="track"), tag("b", words(total)))
        for name, own, total in zip(panel.names, pieces, totals, strict=True)
    ]
    title = tag("figcaption", words(panel.title)) if panel.title else ""
    return tag("figure", title, tag("div", *rows, class_="bars"), tag("div", words(panel.x), class_="of-x"))


def _piece(look: style.Look, begin: float, end: float, tip: str) -> str:
    edge = ";box-shadow:inset 0 0 0 1px var(--edge)" if look.colour.lower() == style.PAPER else ""
    style_of = f"left:{begin:.4g}%;width:{end - begin:.4g}%;background:{hue(look.colour)}{edge}"
    return tag("i", class_="mark", style=style_of, title=tip)
