"""Charts of the HTML page: SVG of each panel by matplotlib, with colours for both themes and hover texts."""

import contextlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.report import charts, style
from mfabric_jax.report.charts import Chart, Panel
from mfabric_jax.report.compared import comparison_charts
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.figures.serving import of_serving, serving_charts
from mfabric_jax.report.grid import TIME, Rows
from mfabric_jax.report.varied import design_space, mean_bars, sensitivities, token_prices

PAPER = {"light": "#ffffff", "dark": "#1b2028"}  # --paper of page.css
_THEMED = {style.INK: "var(--ink)", style.PAPER: "var(--paper)", style.FAINT: "var(--edge)", style.RULE: "var(--rule)"}
_GLYPHS = {"s": "■□", "v": "▼▽", "D": "◆◇", "^": "▲△", "P": "✚✙", "o": "●○", "X": "✖✕", "h": "⬢⬡", "<": "◀◁"}
_GLYPHS |= {
    ">": "▶▷",
    "d": "♦♢",
    "p": "⬟⬠",
    "8": "⯃⯃",
    "H": "⬣⬡",
    "x": "✕✕",
    "1": "⅄⅄",
    "2": "YY",
    "3": "≺≺",
    "4": "≻≻",
}
_BESIDE = ("token_energy", "memory", "pareto")  # folded charts of a comparison
_OPEN = 2  # after this many charts of varied numbers, others are folded
_MOST_SERIES = 12  # most series of a chart
_SEEN = 4.0  # least contrast of a mark (WCAG 2.1, 1.4.11 asks for 3)
_WIDTHS = {1: 1180, 2: 590, 3: 396}  # pixels of a panel, by columns
_RC = {"font.size": 12, "axes.titlesize": 13, "svg.fonttype": "none", "svg.hashsalt": ""}


def section(rows: Rows, effective: Mapping[str, Any]) -> str:
    """Return HTML of every chart that the rows allow, then a sentence on each chart that they do not."""
    serves = of_serving(rows[0]) and any(row["fits"] for row in rows)
    drawn, folded, why = (serving_charts(rows), [], []) if serves else _of_cases(rows, effective)
    with paper.look(**_RC, **charts.LITERAL):
        more = tag("details", tag("summary", _folded_title(folded)), *map(_markup, folded)) if folded else ""
        return "".join([*map(_markup, drawn), more, *(tag("p", words(sentence), class_="note") for sentence in why)])


def _of_cases(rows: Rows, effective: Mapping[str, Any]) -> tuple[list[Chart], list[Chart], list[str]]:
    """Charts of comparisons and varied numbers, folded charts, and sentences on charts that are not drawn."""
    drawn, folded, why, compared = [], [], [], False
    try:
        by_name, why = comparison_charts(rows, _MOST_SERIES)
        beside = [
            name for name in _BESIDE if name in by_name and not (name == "pareto" and "cluster_cost" not in by_name)
        ]
        drawn, compared = [chart for name, chart in by_name.items() if name not in beside], bool(by_name)
        folded = [by_name[name] for name in beside]
    except InputError as reason:
        if {TIME, "fabric"} <= rows[0].keys():
            why = [f"No charts of a comparison: {reason}"]
    if not compared:
        with contextlib.suppress(InputError):  # rows that form no grid are a design space
            drawn = [*filter(None, [token_prices(rows, effective)]), design_space(rows, effective)]
    varied = sensitivities(rows, effective, skip=("nic_gbps", "gpus") if compared else ())
    return [*drawn, *varied[:_OPEN]] or [mean_bars(rows)], [*folded, *varied[_OPEN:]], why


def _folded_title(folded: Sequence[Chart]) -> str:
    return words("More charts: ", "; ".join(chart.title for chart in folded))


def _markup(chart: Chart) -> str:
    bars = any(panel.bars for panel in chart.panels)
    key = tag("ul", *(entry(look, bars) for look in chart.key), class_="key") if chart.key else ""
    head = tag("h3", words(chart.title)) + tag("p", words(chart.note), class_="note")
    folded = [tag("details", tag("summary", words(name)), _panels(some)) for name, some in chart.folded.items()]
    return tag("section", head, key, _panels(chart.panels), *folded, class_="chart")


def entry(look: style.Look, bars: bool) -> str:
    glyph = "■" if bars else _GLYPHS[look.marker][look.hollow]
    if look.colour.lower() == style.PAPER:
        glyph = "□"
    ink = "var(--edge)" if look.colour.lower() == style.PAPER else hue(look.colour)
    return tag("li", tag("span", glyph, style=f"color:{ink}", aria_hidden="true"), words(look.label))


def _panels(panels: Sequence[Panel]) -> str:
    wide = len(panels) in (2, 4) or any(panel.bars for panel in panels)
    columns = 1 if len(panels) == 1 else 2 if wide else 3
    return tag("div", *(_svg(panel, _WIDTHS[columns]) for panel in panels), class_=f"panels of{columns}")


def _svg(panel: Panel, width: int) -> str:
    height = (30 if panel.title else 12) + 44 + 29 * len(panel.names) if panel.names else 300 if width < 600 else 400
    figure = paper.blank(width / 72, height / 72)  # SVG has 72 pixels to the inch
    axes = figure.subplots()
    drawn.draw_panel(axes, panel)
    axes.patch.set_visible(False)
    figure.patch.set_visible(False)
    figure.draw_without_rendering()  # fixes the layout
    scale, tips = 72 / figure.dpi, []
    for tip, area in drawn.areas(axes, panel):
        x, y, wide, high = (scale * value for value in area)
        box = {"x": x - wide / 2, "y": height - y - high / 2, "width": wide, "height": high}
        tips.append(tag("rect", tag("title", words(tip)), class_="mark", **box))
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    inside = _apply_theme(written.getvalue())
    return tag(
        "svg", inside, *tips, viewBox=f"0 0 {width} {height}", role="img", aria_label=panel.title, class_="panel"
    )


def _apply_theme(svg: str) -> str:
    inside = svg[svg.index("</metadata>") + len("</metadata>") : svg.rindex("</svg>")]
    inside = re.sub(r"<!--.*?-->|<style.*?</style>", "", inside, flags=re.S)
    inside = re.sub(r"<[^>]*>", lambda tag: _apply_theme_to_tag(tag[0]), inside)  # texts between tags stay unchanged
    return re.sub(r">\s*\n\s*<", "><", inside)


def _apply_theme_to_tag(text: str) -> str:
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"| transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(\d\.\d\d)\d+", r"\1", text)  # a hundredth of a pixel
    text = re.sub(r"#[0-9a-f]{6}\b", lambda match: hue(match[0]), text)
    return re.sub(r"\s*\n\s*", " ", text)


# -- colours: unchanged on white, lightened on a dark page


@cache
def hue(colour: str) -> str:
    """Return a CSS colour that fits both themes."""
    colour = colour.lower()
    if colour == style.INK_ON_COLOUR:
        return f"light-dark({style.INK}, {PAPER['dark']})"
    return _THEMED.get(colour) or f"light-dark({colour}, {on_dark(colour)})"


def on_dark(colour: str) -> str:
    """Return the colour, mixed with white until it is visible on the dark page."""
    white, seen = 0.0, colour
    while contrast(seen, PAPER["dark"]) < _SEEN:
        white += 0.05
        seen = style.mix_with_white(colour, white)
    return seen


def contrast(colour: str, other: str) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.1)."""
    darker, lighter = sorted((_luminance(colour), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in style.rgb(colour)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


# -- markup
_MOST_NAMES = 12


def words(*values: Any) -> str:
    return escape("".join(map(str, values)))


def tag(name: str, *inside: str, **attributes: Any) -> str:
    """Return an HTML element. `class_` sets class, `aria_label` aria-label; None and False are omitted."""
    named = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = [
        f" {key}" if value is True else f' {key}="{escape(f"{value:.4g}" if isinstance(value, float) else str(value))}"'
        for key, value in named.items()
        if value is not None and value is not False
    ]
    return f"<{name}{''.join(written)}>{''.join(inside)}</{name}>"


def bullets(lines: Sequence[str]) -> str:
    return tag("ul", *(tag("li", words(line)) for line in lines)) if lines else ""


def join_names(names: Sequence[Any], last: str = "and") -> str:
    """Return "a, b and c"; a long list ends in "and 5 more"."""
    every = [str(name) for name in names]
    if len(every) > _MOST_NAMES:
        every = [*every[:_MOST_NAMES], f"{len(every) - _MOST_NAMES} more"]
    return f" {last} ".join(filter(None, [", ".join(every[:-1]), *every[-1:]])) or "none"
