"""What would change the order: small charts of designs over prices and over every number that varies in rows."""

import math
from collections.abc import Iterator, Mapping, Sequence

from mfabric_jax.report.charts import Curve, Panel
from mfabric_jax.report.grid import TOKEN_USD, setting_name
from mfabric_jax.report.html.contenders import VALUES, Contender
from mfabric_jax.report.html.curves import curves_figure, sign
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import number, usable
from mfabric_jax.report.ranking import Design, Ranking, rank
from mfabric_jax.support.bands import HIGH_GPUS, LOW_GPUS, LOW_PORTS

PRICES = {TOKEN_USD: "today", LOW_PORTS: "ports low", LOW_GPUS: "GPUs low", HIGH_GPUS: "GPUs high"}
NAMES = {"nic_gbps": "NIC bandwidth [Gbps]", "gpus": "GPUs"}
_UNITS = ("s", "ms", "us", "usd", "gb")
_MOST_VALUES, _MOST_CHARTS = 40, 8
_SAME = 0.000000001  # relative


def multiples_section(ranking: Ranking, own: Sequence[Contender]) -> str:
    """Return small charts as HTML, with a key of numbers; "" if nothing varies."""
    panels = [*_of_prices(ranking, own), *_of_settings(ranking, own)][:_MOST_CHARTS]
    if not panels:
        return ""
    labels = {each.look: str(each.number) for each in own}
    key = tag("p", *(tag("span", each.badge, sign(each.look), words(each.name)) for each in own), class_="numbers")
    note = "Numbers and marks of lines are those of the key. Each point has the best of all other settings in the rows."
    figures = (curves_figure(panel, labels) for panel in panels)
    return tag("p", note, class_="note") + key + tag("div", *figures, class_="panels")


def _of_prices(ranking: Ranking, own: Sequence[Contender]) -> Iterator[Panel]:
    """The distance from the cheapest design, at today's prices and at each quote."""
    if ranking.column != TOKEN_USD:
        return
    usd = {name: [each.design.mean.get(name, math.nan) for each in own] for name in PRICES}
    known = [name for name, values in usd.items() if all(value > 0 for value in values)]
    moved = [name for name in known if name == TOKEN_USD or _differs(usd[name], usd[TOKEN_USD])]
    if len(moved) < 2 or len(own) < 2:
        return
    curves = []
    for index, each in enumerate(own):
        over = [100 * (usd[name][index] / min(usd[name]) - 1) for name in moved]
        points = [(float(column), value) for column, value in enumerate(over)]
        tips = [f"{each.look.label}, {PRICES[name]}: ${number(usd[name][index])}" for name in moved]
        curves.append(Curve(each.look, points, tips))
    yield Panel("Quoted prices", "", "% over the cheapest", curves, columns=[PRICES[name] for name in moved])


def _differs(values: Sequence[float], usual: Sequence[float]) -> bool:
    return any(abs(value - other) > _SAME * other for value, other in zip(values, usual, strict=True))


def _of_settings(ranking: Ranking, own: Sequence[Contender]) -> Iterator[Panel]:
    """What ranks, over each number that varies."""
    value = VALUES[ranking.column]
    several = len({each.design.kind for each in own}) > 1
    shown = own if several else own[:1]
    for name in dict.fromkeys(name for design in ranking.every for name in design.settings):
        title = NAMES.get(name) or _title(setting_name(name))
        short = title.partition(" [")[0]
        curves = []
        for each in shown:
            best = sorted(_best_values(ranking, name, each.design.kind).items(), key=lambda pair: pair[0])
            points = [(x, value.factor * design.mean[ranking.column]) for x, design in best]
            tips = [f"{each.look.label}, {short} {number(x)}: {value.form.format(number(y))}" for x, y in points]
            curves += [Curve(each.look, points, tips)] if points else []
        if max((len(curve.points) for curve in curves), default=0) > 1:
            yield Panel(short, title, value.title, curves)


def _title(name: str) -> str:
    """The name of a setting, with its unit if it ends in one."""
    stem, _, unit = name.rpartition("_")
    return f"{stem} [{unit}]".replace("_", " ") if stem and unit in _UNITS else name.replace("_", " ")


def _best_values(ranking: Ranking, name: str, kind: str) -> Mapping[float, Design]:
    """The best design of a kind at every value of a setting."""
    best: dict[float, Design] = {}
    for design in ranking.every:
        value = usable(design.settings.get(name))
        if design.kind != kind or value is None or isinstance(design.settings[name], bool):
            continue
        if value not in best or rank(design, ranking.column) < rank(best[value], ranking.column):
            best[value] = design
    return best if len(best) <= _MOST_VALUES else {}
