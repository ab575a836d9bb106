"""Rank the designs of each model, cheapest tokens first, with remarks on designs that are not ranked.

A design is not ranked if it exceeds the memory of its GPUs or the rate at which its switch may reconfigure, or if its
computation exceeds the peak of the GPUs that are priced. A row of serving is not ranked if it is not in time.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax.case.paths import POLICY
from mfabric_jax.case.policies import BOUND
from mfabric_jax.report import grid, served
from mfabric_jax.report.grid import CLUSTER, COST, GPU, TIME, TOKEN_JOULES, TOKEN_USD, TOKENS, WORTH, Rows, group_rows
from mfabric_jax.report.numerals import count_phrase, join_names, millions, number, percent, usable
from mfabric_jax.report.served import IN_TIME, LOAD_USD
from mfabric_jax.support.bands import HIGH_GPUS, LOW_GPUS, LOW_PORTS, LOW_PORTS_NETWORK, QUOTED, is_of_band, ratio_band
from mfabric_jax.support.measured_errors import ratio_errors

GBPS, OVER, FITS, ACHIEVED = "nic_gbps", "reconfigurations_over_allowed", "fits", "achieved_over_peak"
FAILURE = "failure"  # a column of rows with a broken part
MOST, MOST_OF_PAGE = 5, 12  # most lines of a ranking: in a terminal, on a page
_ORDERS = {  # the first column with numbers decides; 1: the least value is best, -1: the largest
    LOAD_USD: (1, "dollars a token at this load"),
    TOKEN_USD: (1, "dollars a token"),
    WORTH: (-1, "performance per dollar of the network"),
    TIME: (1, "iteration time"),
    "seconds": (1, "seconds"),
}
PANEL_COST, PANEL_USD = "panel_network_cost_usd", "panel_usd_per_million_tokens"
DAYS, TRAINING_USD = "training_days", "training_usd"
GPU_HOUR = "usd_per_gpu_hour"
OF_TRAINING, OF_CLUSTER = ("days", "training M$"), ("cluster M$", "network M$", "$/GPU-hour")  # titles
_MEANS = (*_ORDERS, TOKEN_JOULES, TOKENS, CLUSTER, COST, GPU_HOUR, PANEL_COST, PANEL_USD, DAYS, TRAINING_USD)
_OF_FLOWS = 0.1  # relative error of all-to-all times at flow level: docs/accuracy.md, packet level
_SAME_TIME = 0.0001  # relative: two times within it count as equal and share the model's error
_SAME = 0.001  # relative
_DIGITS = 9  # of values that rank alike
EQUAL = " equal"  # a difference inside its error
SPREAD, MODEL, QUOTES = "spread", "model", "quotes"  # sources of uncertainty of a ratio
_TRY = {
    SPREAD: "measure your kernels (compute.kernels.table) or draw more traffic (--draws)",
    MODEL: "measure both designs, or run them in a packet simulator (mfabric export)",
    QUOTES: "give the prices that you are quoted (--set network.prices=FILE)",
}
_FEW_FABRICS = "of fabrics, only multi-rail over multi-plane was measured"
_NOT_POLICIES = "no ratio was of two policies, which share more of the error"
_NO = (None, "none", "unnamed", "as set")


Ends = tuple[float, float]


class Over(NamedTuple):
    """Ratio of a design's value to the best value; `by`: its lowest and highest value by source of uncertainty."""

    ratio: float
    by: dict[str, Ends]

    @property
    def ends(self) -> Ends:
        """The lowest and highest ratio under all sources, which are independent: squares of deviations add up."""
        below, above = (
            math.sqrt(sum((end - self.ratio) ** 2 for end in side)) for side in zip(*self.by.values(), strict=True)
        )
        return self.ratio - below, self.ratio + above

    @property
    def separable(self) -> bool:
        """Whether the best stays ahead under the uncertainty of all sources; tables and sentences share this rule."""
        return not _contains_one(self.ends)

    @property
    def undone_by(self) -> list[str]:
        """The sources that could each reverse the order alone."""
        return [name for name, ends in self.by.items() if _contains_one(ends)]

    @property
    def is_none(self) -> bool:
        """Whether no source can make a difference, as printed."""
        return set(map(float, _percent_texts(self.ends))) == {0.0}

    def __str__(self):
        low, high = self.ends
        return percent(self.ratio - 1, signed=True) + (
            f" ({' to '.join(_percent_texts(self.ends))})" if low < high and not self.is_none else ""
        )


def _percent_texts(ends: Ends) -> list[str]:
    return [percent(end - 1, signed=True).removesuffix("%") for end in ends]


def _contains_one(ends: Ends) -> bool:
    """Whether the range of the ratio, as printed, contains 1."""
    low, high = map(float, _percent_texts(ends))
    return low <= 0 <= high


class Design(NamedTuple):
    """A combination of settings, the means of its rows' numbers by column (NaN: unknown), and the rows."""

    settings: dict[str, Any]
    mean: dict[str, float]
    rows: Rows = ()

    def over(self, best: "Design", column: str) -> Over:
        """Return the ratio to the best in a column, with its uncertainty by source.

        Sources: the spread of kernels, links and traffic; the model's own error, within which 8 in 10 measured ratios
        lie; and quoted prices, which have a range of their own. Each variant of a source applies to both designs, but
        quoted prices of different GPUs vary apart.
        """
        ratio = self.mean[column] / best.mean[column]
        times = self.mean[TIME] / best.mean[TIME] if best.mean[TIME] > 0 else math.nan
        error = _OF_FLOWS if math.isnan(times) else ratio_errors().eight_in_ten
        error = 0.0 if abs(times - 1) <= _SAME_TIME or self.shares_errors(best) else error
        by: dict[str, Ends] = {}
        if (band := ratio_band(self.mean, best.mean, TIME)) is not None and times > 0:
            scaled = sorted((end / times) ** _ORDERS[column][0] * ratio for end in band)
            by[SPREAD] = scaled[0], scaled[1]
        by[MODEL] = ratio * (1 - error), ratio * (1 + error)
        quotes: list[float] = []  # the ratio at other quoted prices
        if column in (TOKEN_USD, LOAD_USD):
            quotes = list(self._quoted_ratios(best, column))
        elif column == WORTH and times > 0:
            own, other = self.mean[LOW_PORTS_NETWORK], best.mean[LOW_PORTS_NETWORK]
            quotes = [other / own / times] if own > 0 and other > 0 else []
        if quotes:
            by[QUOTES] = min(ratio, *quotes), max(ratio, *quotes)
        return Over(ratio, by)

    def _quoted_ratios(self, best: "Design", column: str) -> Iterator[float]:
        """The ratios to the best at other quoted prices, which equal GPUs share; a design without one keeps its usual
        price."""
        same = self.settings.get(GPU) == best.settings.get(GPU)
        gpus = (
            ((LOW_GPUS, LOW_GPUS), (HIGH_GPUS, HIGH_GPUS)) if same else ((LOW_GPUS, HIGH_GPUS), (HIGH_GPUS, LOW_GPUS))
        )
        for each in ((LOW_PORTS, LOW_PORTS), *gpus):
            quoted = [design.mean[name] for design, name in zip((self, best), each, strict=True)]
            if any(usd > 0 for usd in quoted):
                usual = (self.mean[column], best.mean[column])
                own, other = (usd if usd > 0 else listed for usd, listed in zip(quoted, usual, strict=True))
                yield own / other

    def shares_errors(self, best: "Design") -> bool:
        """Return whether both are of serving, with equal times and pools, so that they differ in prices alone."""
        pairs = zip(self.rows[:1], best.rows[:1], strict=True)
        return any(served.is_served(row) and served.have_equal_errors(row, other) for row, other in pairs)

    def differs_in_policy(self, best: "Design") -> bool:
        """Return whether the policy and its settings are all that differs."""
        pair = *self.rows[:1], *best.rows[:1]
        names = (
            [name for name in grid.setting_columns(pair, {}) if len({row[name] for row in pair}) > 1] if pair else []
        )
        return bool(names) and all(name == "policy" or name.startswith(f"{POLICY}.") for name in names)

    @property
    def network(self) -> str:
        ocs = self.settings.get("ocs")
        return f"{self.settings.get('fabric', '')}{'' if ocs in _NO else f' with {ocs}'}"

    @property
    def kind(self) -> str:
        """The network, and the GPU if designs differ in it."""
        return ", ".join(filter(None, (self.network, self.settings.get(GPU))))

    @property
    def stated_name(self) -> str | None:
        """The name that rows state."""
        return self.rows[0].get(grid.DESIGN) if self.rows else None

    @property
    def choice(self) -> str:
        others = {k: v for k, v in self.settings.items() if k not in ("fabric", "ocs", GBPS) and v not in _NO}
        gbps = self.settings.get(GBPS)
        words = [f"{number(gbps)} Gbps"] if gbps is not None else []
        named = (v if isinstance(v, str) else f"{grid.setting_name(name)} {number(v)}" for name, v in others.items())
        return ", ".join([*words, *named])

    def __str__(self):
        return self.stated_name or ", ".join(filter(None, (self.network, self.choice)))


class Ranking(NamedTuple):
    """The best designs of a model as lines of a table, with a conclusion and remarks; `by`: what ranks them.

    `column`: of what ranks. `shown`: designs of the lines, best first. `every`: all designs with a value. A ranking of
    set-ups has neither.
    """

    by: str
    conclusion: str
    lines: list[dict[str, Any]]
    remarks: list[str]
    column: str
    shown: Sequence[Design] = ()
    every: Sequence[Design] = ()


def possible(row: Mapping[str, Any]) -> bool:
    """Return whether a row, as far as known, is no bound, fits, is in time and keeps to the rate of its switch."""
    fits = row.get(FITS) in (True, None) and row.get(IN_TIME) in (True, None)
    return fits and row.get("policy") != BOUND and (usable(row.get(OVER)) or 0) <= 1


def above_peak(row: Mapping[str, Any]) -> float | None:
    """Return the rate of a row's GPUs over their peak if above 1, else None."""
    achieved = usable(row.get(ACHIEVED))
    return achieved if achieved is not None and achieved > 1 else None


def designs(rows: Rows, effective: Mapping[str, Any]) -> dict[str, tuple[str, list[Design]]]:
    """Return the deciding column and the possible designs, best first, by model ("" if rows have none).

    Rows with equal settings are averaged. Rows of failures are no designs.
    """
    names = dict.fromkeys(name for row in rows for name in row)
    if FAILURE in names:
        return {}
    rows = grid.with_named_graphs([{name: row.get(name) for name in names} for row in rows])
    rows = [row for row in rows if possible(row)]
    rows = [row for row in rows if above_peak(row) is None] or rows  # if all rows exceed the peak, rank them all
    if not rows:
        return {}
    of_serving = served.is_served(rows[0])
    rows = served.candidates(rows) if of_serving else rows
    settings = served.choices(rows) if of_serving else grid.setting_columns(rows, effective)
    names = [name for name in settings if name not in ("model", *grid.COUNTERS)]
    always = [name for name in served.NAMED if of_serving and len(grid.values_of(rows, name)) > 1]
    by_model: dict[str, list[Design]] = {}
    keyed = [{"model": "", "fabric": None, **row} for row in rows]
    for (model, fabric), own in group_rows(keyed, "model", "fabric").items():
        chosen = grid.independent_columns(
            own, [name for name in names if name != "fabric"]
        )  # differing within a fabric
        chosen = [*(name for name in always if name not in chosen), *chosen]
        chosen += [GBPS] if GBPS in own[0] and GBPS not in chosen else []
        for key, some in group_rows(own, *chosen).items():
            more = [name for name in some[0] if is_of_band(name)]
            columns = {column: [usable(row.get(column)) for row in some] for column in (*_MEANS, *QUOTED, *more)}
            known = {column: [value for value in values if value is not None] for column, values in columns.items()}
            mean = {column: math.fsum(ones) / len(ones) if ones else math.nan for column, ones in known.items()}
            if len(known[PANEL_COST]) < len(some):  # the switch of some row reconfigured
                mean |= dict.fromkeys((PANEL_COST, PANEL_USD), math.nan)
            if any(mean[column] > 0 for column in _ORDERS):
                settings = ({} if fabric is None else {"fabric": fabric}) | dict(zip(chosen, key, strict=True))
                by_model.setdefault(str(model), []).append(Design(settings, mean, some))
    ordered = {}
    for model, every in by_model.items():
        column = next(column for column in _ORDERS if any(design.mean[column] > 0 for design in every))
        ordered[model] = column, sorted(every, key=lambda design, column=column: _order(design, column))
    return ordered


def rank(design: Design, column: str) -> float:
    """Return what sorts designs by a column, the least first; infinity without a value."""
    value = design.mean[column]
    return _ORDERS[column][0] * value if value > 0 else math.inf


def _order(design: Design, column: str) -> tuple[float, float]:
    """The rank; of designs of serving that cost the same, the sooner first token counts."""
    row = design.rows[0]
    return float(f"{rank(design, column):.{_DIGITS}g}"), served.first_token_s(row) if served.is_served(row) else 0.0


def rankings(rows: Rows, effective: Mapping[str, Any], most: int = MOST) -> dict[str, Ranking]:
    """Return a ranking of at most `most` lines for each model or set-up with several designs."""
    by_model, best = {}, {}
    for model, (column, every) in designs(rows, effective).items():
        known = [design for design in every if rank(design, column) < math.inf]
        best.setdefault(model.partition(":")[0], {})[model] = (column, known[0])
        if len(every) > 1 or served.is_served(every[0].rows[0]):
            shown = choose_designs(known, most)
            remarks = [*_omission_remark(every, shown, most), *_remarks(every, shown, column)]
            words = _ORDERS[column][1], _conclusion(shown, column), _lines(shown, column), remarks
            by_model[model] = Ranking(*words, column, shown, known)
    for model, own in best.items():
        if len(own) > 1 and len({column for column, _ in own.values()}) == 1:
            ((column, _), *_) = own.values()
            ranked = sorted(own, key=lambda label: rank(own[label][1], column))[:most]
            lines = _lines([own[label][1] for label in ranked], column)
            named = [
                {"set-up": label.removeprefix(model) or label} | line for label, line in zip(ranked, lines, strict=True)
            ]
            best_words = f"Best by {_ORDERS[column][1]}: {named[0]['set-up']}."
            by_model[f"{model}, of {len(own)} set-ups"] = Ranking(_ORDERS[column][1], best_words, named, [], column)
    return by_model


def choose_designs(known: Sequence[Design], most: int) -> list[Design]:
    """Return the best of each fabric and of each GPU, then of other combinations with switches, at most `most`."""
    chosen: list[Design] = []
    several = len({candidate.kind for candidate in known}) > 1
    kinds = (
        lambda candidate: candidate.settings.get("fabric"),
        lambda candidate: candidate.settings.get(GPU),
        lambda candidate: candidate.kind,
    )
    for kind in kinds if several else (str,):
        for design in known:
            if len(chosen) < most and kind(design) not in {kind(candidate) for candidate in chosen}:
                chosen.append(design)
    return [candidate for candidate in known if candidate in chosen]


def _lines(shown: Sequence[Design], column: str) -> list[dict[str, Any]]:
    behind = [design.over(shown[0], column) for design in shown[1:]]
    over = ["", *(f"{ratio}{'' if ratio.separable else EQUAL}" for ratio in behind)]
    lines = [
        {
            "design": str(design) or "all rows",
            "over best": words,
            "$/Mtok at this load": design.mean[LOAD_USD],
            "$/Mtok": design.mean[TOKEN_USD],
            "kJ/Mtok": design.mean[TOKEN_JOULES] / 1000,
            "Mtok/s": design.mean[TOKENS] / 1_000_000,
            "s": design.mean[TIME] if design.mean[TIME] > 0 else design.mean["seconds"],
            "cluster M$": millions(design.mean[CLUSTER]),
            "network M$": millions(design.mean[COST]),
            "$/GPU-hour": design.mean[GPU_HOUR],
            **dict(zip(OF_TRAINING, (design.mean[DAYS], millions(design.mean[TRAINING_USD])), strict=True)),
        }
        for design, words in zip(shown, over, strict=True)
    ]
    known = {name for line in lines for name, value in line.items() if value == value}
    return [
        {name: None if value != value else value for name, value in line.items() if name in known} for line in lines
    ]


def are_equal(shown: Sequence[Design], column: str) -> list[bool]:
    """Return of each design, best first, whether it is equal to the best: their difference is inside the error.

    The best itself is equal if the next one is.
    """
    equal = [not design.over(shown[0], column).separable for design in shown[1:]]
    return [*equal[:1], *equal] if equal else [False]


def _conclusion(shown: Sequence[Design], column: str) -> str:
    """The best design and its lead, or the designs whose difference from it is inside the error."""
    best, *others = shown
    what, over = _ORDERS[column][1], [design.over(best, column) for design in others]
    is_tied, *also = are_equal(shown, column)
    equal = [number for number, own in enumerate(also) if own]
    if is_tied:
        names = "; ".join([str(best), *(str(others[number]) for number in equal)])
        most = max((over[number] for number in equal), key=lambda ratio: abs(ratio.ratio - 1))
        if most.is_none:
            return f"Equal by {what}: {names}. The model gives them the same."
        if all(others[number].shares_errors(best) for number in equal):
            return f"Equal by {what}: {names}. Same speed; prices differ by {most}, less than quotes of parts do."
        return f"Equal by {what}: {names}. They differ by {'at most ' * (len(equal) > 1)}{most}, within the error."
    if others:
        alone = others[0].shares_errors(best)
        how = ": same speed, dearer by its network's price alone" if alone else ", outside the error"
        return f"Best by {what}: {best}. Next is {others[0]}, {over[0]}{how}."
    return f"Best by {what}: {best}."


def equal_times_words(shown: Sequence[Design], column: str) -> str | None:
    """Return why the ranges of designs as fast as the best lack the model's own error; None without such ranges."""
    behind = [(design, design.over(shown[0], column)) for design in shown[1:]]
    named = [str(design) for design, over in behind if len(set(over.by[MODEL])) == 1 and not over.is_none]
    if not named:
        return None
    why = "their times are equal, so the model's own error cancels, and quoted prices alone make the range"
    return f"{'; '.join(named)} and {shown[0]}: {why}."


def _doubts(shown: Sequence[Design], column: str) -> Iterator[str]:
    """The error of the difference to the next design, and what would make it smaller."""
    behind = [design.over(shown[0], column) for design in shown[1:]]
    number, over = next(((index, ratio) for index, ratio in enumerate(behind, 1) if not ratio.is_none), (0, None))
    if over is None:  # the model cannot tell them apart, whatever is measured
        return
    ratios = ratio_errors()
    error = (
        f"{percent(ratios.eight_in_ten)} more or less by the model's own error (8 in 10 of {ratios.count} measured "
        f"ratios; {_NOT_POLICIES if shown[number].differs_in_policy(shown[0]) else _FEW_FABRICS})"
        if shown[0].mean[TIME] > 0
        else f"{percent(_OF_FLOWS)} more or less, that of all-to-all times at flow level"
    )
    words = {
        SPREAD: "{} as kernels, links and traffic vary",
        QUOTES: "{} at other quoted prices",
        MODEL: error if len(set(over.by[MODEL])) > 1 else "none by the model itself, as the times are equal",
    }
    known = [name for name in words if name in over.by]
    each = [words[name].format(f"{' to '.join(_percent_texts(over.by[name]))}%") for name in known]
    if shown[number].shares_errors(shown[0]) and QUOTES not in over.by:
        each.append("the prices of these parts have one quote each")
    yield f"The error of {percent(over.ratio - 1, signed=True)}: {'; '.join(each)}."
    if not over.separable:
        largest = max(over.by, key=lambda name: over.by[name][1] - over.by[name][0])
        tries = [_TRY[name] for name in over.undone_by or [largest]]
        yield f"To tell them apart: {'; '.join(tries)}."


def _remarks(every: Sequence[Design], shown: Sequence[Design], column: str) -> Iterator[str]:
    best = shown[0]
    if len(shown) > 1:
        yield from _doubts(shown, column)
    tied = [each for each in every[1:] if each not in shown and served.are_tied(each.mean[column], best.mean[column])]
    if tied and served.is_served(best.rows[0]):
        verb = "costs" if len(tied) == 1 else "cost"
        yield f"{'; '.join(map(str, tied))} {verb} the same as {best}."
    yield from served.remarks([design.rows[0] for design in shown if design.rows])
    timed = [design for design in every if design.mean[TIME] > 0]
    fastest = min(timed, key=lambda design: design.mean[TIME], default=best)
    if fastest.mean[TIME] < (1 - _SAME) * best.mean[TIME]:
        yield f"Fastest is {fastest}: {number(fastest.mean[TIME])} s an iteration."
    worth = [design for design in every if design.mean[WORTH] > 0]
    frugal = max(worth, key=lambda design: design.mean[WORTH], default=best)
    if column == TOKEN_USD and frugal != best:
        yield f"By performance per dollar of the network, {frugal} leads."
    for design in shown[:MOST]:
        cost, usual, token = (design.mean[name] for name in (PANEL_COST, COST, PANEL_USD))
        if 0 < cost < usual:
            tokens = f"; a million tokens would cost ${number(token)}" if token > 0 else ""
            yield (
                f"The switch of {design} never reconfigures: a patch panel would cut the network from "
                f"{number(millions(usual))} to {number(millions(cost))} M${tokens}."
            )
    without = dict.fromkeys(design.network for design in every if rank(design, column) == math.inf)
    if without := [network for network in without if network not in {design.network for design in shown}]:
        yield f"Not ranked for lack of {_ORDERS[column][1]}: {', '.join(without)}."


def _omission_remark(every: Sequence[Design], shown: Sequence[Design], most: int) -> Iterator[str]:
    """A sentence on the designs without a line, and the settings in which they differ."""
    hidden = [design for design in every if design not in shown]
    if not hidden:
        return
    kinds = {design.kind for design in shown}
    inside = [design for design in every if design.kind in kinds]
    names = dict.fromkeys(name for design in inside for name in design.settings if name not in ("fabric", "ocs"))
    by_kind = group_rows([{"kind": design.kind} | design.settings for design in inside], "kind").values()
    varied = [name for name in names if any(len({str(design.get(name)) for design in own}) > 1 for own in by_kind)]
    differ = f" that differ in {', '.join(map(grid.setting_name, varied))}" if varied else ""
    gpus = ", optical switch and GPU" if any(GPU in design.settings for design in shown) else " and optical switch"
    verb = "is" if len(hidden) == 1 else "are"
    best = f"the best of each fabric{gpus}" if len(kinds) > 1 else "the best"
    more = count_phrase(len(hidden), "more combination")
    yield f"Lines show {best}, at most {most}; {more}{differ} {verb} in the rows below."


def not_ranked(rows: Rows) -> list[str]:
    """Return a sentence for each reason not to rank rows, with the number of these rows, and whose they are."""
    above = [row for row in rows if above_peak(row) is not None]
    reasons = {
        "lack of GPU memory": [row for row in rows if row.get(FITS) not in (True, None)],
        "reconfiguring a switch more often than it allows": [row for row in rows if (usable(row.get(OVER)) or 0) > 1],
        "being a bound that circuits may not reach": [row for row in rows if row.get("policy") == BOUND],
        "computing above the peak of the GPU that is priced": above if len(above) < len(rows) else [],
    }
    late = list(filter(served.is_late, rows))
    dear = sum(not served.has_load(row) for row in late) if any(map(served.has_load, rows)) else 0
    slow = len(late) - dear
    are_late = f"Not ranked: {count_phrase(slow, 'row')} {'is' if slow == 1 else 'are'} not in time."
    are_dear = f"Not simulated, because another size provably costs less: {count_phrase(dear, 'row')}."
    served_rows = [row for row in rows if possible(row) and served.is_served(row) and not served.is_replica(row)]
    return [
        *(f"Not ranked for {why}: {_whose(some, rows)}." for why, some in reasons.items() if some),
        *served.unjoined_words(served_rows),
        *(sentence for sentence, count in ((are_late, slow), (are_dear, dear)) if count),
    ]


def _whose(some: Rows, rows: Rows) -> str:
    """The number of some rows, and their models if other rows have others."""
    own, every = (grid.values_of(each, "model") for each in (some, rows))
    return count_phrase(len(some), "row") + (f" of {join_names(own)}" if len(own) < len(every) else "")
