"""Which design to take: the one with the cheapest tokens, and what the best of every other fabric costs beside it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax.report import style, varied
from mfabric_jax.report.charts import Bar, Chart, Panel
from mfabric_jax.report.grid import Rows, grouped
from mfabric_jax.report.numerals import millions, significant, usable
from mfabric_jax.report.ranking import FITS, TOKEN_JOULES, TOKEN_USD, TOO_LARGE, WORTH, above_peak, fits

GBPS, TIME, CHANGES, OVER = "nic_gbps", "iteration_s", "circuit_changes", "turns_over_allowed"
_COST, _KW = "cluster_cost_usd", "cluster_kw"
_NEEDED = ("model", "fabric", TIME, TOKEN_USD, _COST)
_MEANS = (TIME, TOKEN_USD, TOKEN_JOULES, _COST, _KW, WORTH, CHANGES)
_CLOSE, _SAME = 0.01, 0.001  # relative: nearly as cheap, and the same
_UNSURE = 0.1  # relative: docs/limits.md
_NAMED = 3  # designs that a sentence names
_NO = (None, "none", "unnamed", "as set")


class PricedDesign(NamedTuple):
    """Settings by name, and the means of what their rows hold, by column; NaN: not known."""

    settings: dict[str, Any]
    mean: dict[str, float]

    @property
    def place(self) -> str:
        """The fabric, and the optical switch that it is built with."""
        ocs = self.settings.get("ocs")
        return f"{self.settings['fabric']}{'' if ocs in _NO else f' with {ocs}'}"

    @property
    def choice(self) -> str:
        """What is chosen beside these."""
        rest = {k: v for k, v in self.settings.items() if k not in ("fabric", "ocs", GBPS) and v not in _NO}
        gbps = self.settings.get(GBPS)
        words = [f"{gbps:g} Gbps"] if gbps is not None else []
        named = (v if isinstance(v, str) else f"{name} {varied.shown(v)}" for name, v in rest.items())
        return ", ".join([*words, *named])

    def __str__(self):
        return f"{self.place} ({self.choice})" if self.choice else self.place


def priced_designs(rows: Rows, effective: Mapping[str, Any]) -> dict[str, list[PricedDesign]]:
    """Possible designs of every model, the cheapest tokens first, those without a price last; {} for other rows.

    Left out: what does not fit the memory of its GPUs or computes above their peak, and switches that would turn more
    often than they may.
    """
    if any(name not in rows[0] for name in _NEEDED):
        return {}
    names = [name for name in varied.shown_settings(rows, effective) if name not in ("model", *varied.COUNTERS)]
    known = [row for row in rows if usable(row[TIME]) and None not in (row["model"], row["fabric"])]
    known = [row for row in known if possible(row) and above_peak(row) is None]
    found: dict[str, list[PricedDesign]] = {}
    for (model, _), own in grouped(known, "model", "fabric").items():
        told = ["fabric", *varied.independent(own, names)]  # what differs within a fabric is chosen
        told += [GBPS] if GBPS in own[0] and GBPS not in told else []
        for key, some in grouped(own, *told).items():
            mean = {column: _mean(some, column) for column in _MEANS}
            found.setdefault(str(model), []).append(PricedDesign(dict(zip(told, key, strict=True)), mean))
    return {model: sorted(each, key=_price) for model, each in found.items()}


def possible(row: Mapping[str, Any]) -> bool:
    """Whether a row fits its GPUs and turns its switches as often as they may, as far as that is known."""
    return fits(row) and (usable(row.get(OVER)) or 0) <= 1


def _mean(rows: Rows, column: str) -> float:
    values = [value for row in rows if (value := usable(row.get(column))) is not None]
    return math.fsum(values) / len(values) if values else math.nan


def _price(design: PricedDesign) -> float:
    price = design.mean[TOKEN_USD]
    return price if price > 0 else math.inf


def recommended(rows: Rows, effective: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every model and its paragraph, then what is not counted; [] where there is no choice or no price."""
    found = priced_designs(rows, effective)
    told = [(m, " ".join(_sentences(own))) for m, own in found.items() if len(own) > 1 and _price(own[0]) < math.inf]
    told += [(name, text) for name, text in _of_set_ups(found) if told]
    none = list(left_out(rows))
    if some := sum(above_peak(row) is not None for row in rows):
        none.append(f"{some} rows that compute above the peak of the GPU that would be paid for")
    return told + [("Not counted", f"{why}.") for why in none if told]


def _of_set_ups(found: Mapping[str, Sequence[PricedDesign]]) -> Iterator[tuple[str, str]]:
    """Of a model that has several set-ups, the best."""
    several: dict[str, dict[str, PricedDesign]] = {}
    for label, own in found.items():
        if _price(own[0]) < math.inf:
            several.setdefault(label.partition(":")[0], {})[label] = own[0]
    for model, best in several.items():
        if len(best) > 1:
            ranked = sorted(best, key=lambda label: _price(best[label]))
            first, *others = ranked
            behind = "; ".join(f"{one.removeprefix(model) or one}, {_more(best[one], best[first])}" for one in others)
            text = f"{first.removeprefix(model) or first} has the cheapest tokens, from {best[first]}; then {behind}."
            yield f"{model}, of {len(best)} set-ups", text


def left_out(rows: Rows) -> Iterator[str]:
    """Why rows are no designs to take, and how many."""
    for column, why in ((FITS, TOO_LARGE), (OVER, "turn a switch more often than it may")):
        if some := sum(not possible({column: row.get(column)}) for row in rows):
            yield f"{some} rows that {why}"


def _sentences(every: Sequence[PricedDesign]) -> Iterator[str]:
    own = [one for one in every if _price(one) < math.inf]
    best = own[0]
    yield f"the cheapest tokens come from {best}: {_figures(best)}."
    if best.mean[CHANGES] == 0:
        yield "Its circuits never change: links wired once do the same, no switch is needed."
    near = [f"{one}, {_more(one, best)}" for one in own[1:] if _price(one) <= (1 + _CLOSE) * _price(best)]
    if near:
        more = f"; and {len(near) - _NAMED} more" if len(near) > _NAMED else ""
        yield f"Nearly as cheap: {'; '.join(near[:_NAMED])}{more}."
    others = [one for one in _firsts(own, _fabric) if _fabric(one) != _fabric(best)]
    if others:
        yield f"The best of other fabrics: {'; '.join(f'{one}, {_more(one, best)}' for one in others)}."
        if _price(others[0]) < (1 + _UNSURE) * _price(best):
            yield f"A lead below {_UNSURE:.0%} is less than flow level may be wrong by: look at packets, too."
    fastest = min(own, key=_time)
    if _time(fastest) < (1 - _SAME) * _time(best):
        yield f"The fastest, {fastest}, takes {significant(_time(fastest))} s an iteration, {_more(fastest, best)}."
    frugal = max(own, key=lambda one: one.mean[WORTH])
    if frugal != best:
        yield f"By dollars of the network alone {frugal} would lead, {_more(frugal, best)}."
    unknown = [one for one in every if _price(one) == math.inf]
    if unknown:
        quickest = _firsts(sorted(unknown, key=_time), lambda one: one.place)
        told = "; ".join(f"{one}, {significant(_time(one))} s" for one in quickest)
        yield f"Without a price, the fastest of each: {told}."


def _fabric(one: PricedDesign) -> str:
    return one.settings["fabric"]


def _time(one: PricedDesign) -> float:
    return one.mean[TIME]


def _figures(one: PricedDesign) -> str:
    mean = one.mean
    told = [f"{significant(mean[TOKEN_USD], 3)} $"]
    told += [f"{significant(mean[TOKEN_JOULES] / 1000, 3)} kJ"] if mean[TOKEN_JOULES] > 0 else []
    cluster = [f"{significant(millions(mean[_COST]), 3)} M$"] + ([f"{mean[_KW]:,.0f} kW"] if mean[_KW] > 0 else [])
    words = f"{' and '.join(told)} a million tokens, {significant(_time(one))} s an iteration"
    return f"{words}; {' and '.join(cluster)} for the whole cluster"


def _more(one: PricedDesign, than: PricedDesign) -> str:
    return f"{_price(one) / _price(than) - 1:+.1%} a token"


def _firsts(own: Sequence[PricedDesign], kind: Callable[[PricedDesign], str]) -> list[PricedDesign]:
    """The first of every kind, in order."""
    found: dict[str, PricedDesign] = {}
    for one in own:
        found.setdefault(kind(one), one)
    return list(found.values())


def token_prices(rows: Rows, effective: Mapping[str, Any]) -> Chart | None:
    """Dollars of a million tokens: a bar for the best design of every fabric and switch; None where unknown."""
    panels = []
    for model, every in priced_designs(rows, effective).items():
        own = [one for one in every if _price(one) < math.inf]
        firsts = _firsts(own, lambda one: one.place)
        if len(firsts) < len(own):
            bars = [
                Bar(style.fabric(_fabric(one)), place, 0.0, _price(one), f"{one}: {_figures(one)}")
                for place, one in enumerate(firsts)
            ]
            totals = [(_price(one), f"{significant(_price(one), 3)} $: {one.choice}") for one in firsts]
            names = [one.place for one in firsts]
            panels.append(Panel(model, "dollars of a million tokens", bars=bars, names=names, totals=totals))
    note = "The best design of every fabric and optical switch; less is better."
    return Chart("What a token costs", note, [], panels) if panels else None
