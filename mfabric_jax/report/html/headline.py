"""The head of the page: which design is best and by how much, the band, the model's error and the date of prices."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from mfabric_jax.fabric.cost import package_table
from mfabric_jax.report.grid import GPU, TIME, TOKEN_USD, WORTH, Rows, values_in
from mfabric_jax.report.html.contenders import BEST, EQUAL, VALUES, Contender, contenders
from mfabric_jax.report.html.markup import small_table, tag, words
from mfabric_jax.report.html.served_facts import pools_words, served_facts
from mfabric_jax.report.numerals import count_phrase, join_names, number, percent
from mfabric_jax.report.ranking import Ranking
from mfabric_jax.report.row_remarks import band_words, errors_words
from mfabric_jax.report.served import LOAD_USD, arrival_words, is_replica, is_served, replica_words, verdict_without
from mfabric_jax.support.bands import HIGH, LOW
from mfabric_jax.support.measured_errors import date_of_errors, ratio_errors

Fact = tuple[str, str, str]  # what, its value, and a sentence
_WINS = {LOAD_USD: "costs least", TOKEN_USD: "costs least", WORTH: "does most for a dollar of the network"}
_TIES = {LOAD_USD: "cost the same", TOKEN_USD: "cost the same", WORTH: "do the same for a dollar of the network"}
_DATE = re.compile(
    r"((January|February|March|April|May|June|July|August|September|October|November|December) )?\b20\d\d\b"
)
_MOST_NAMES = 3  # most names of equal designs in the verdict


def headline(
    rankings: Mapping[str, Ranking],
    rows: Rows,
    effective: Mapping[str, Any],
    verdict: str | None,
    sentences: Sequence[str] = (),
) -> str:
    """Return the verdict, sentences below it and its facts as HTML; "" if nothing is ranked or given."""
    ranked = {model: ranking for model, ranking in rankings.items() if ranking.shown}
    if not ranked:
        verdict = verdict or verdict_without(rows)
        return tag("section", tag("p", words(verdict), class_="verdict"), class_="headline") if verdict else ""
    every = {model: contenders(ranking) for model, ranking in ranked.items()}
    if len(ranked) == 1:
        ((model, ranking),) = ranked.items()
        own, beside = every[model], tag("p", words(ranking.conclusion), class_="conclusion")
        facts = [*served_facts(own[0]), _lead(own), _band(own[0], ranking.column)]
        written = verdict or verdict_words(ranking, own, effective)
    else:
        beside, facts = _by_model(ranked, every), []
        written = verdict or _over_models(every)
    facts = [*facts, _model_error(rows, effective) if TIME in rows[0] else None, _prices(rows, effective)]
    cards = (
        tag("div", tag("dt", words(name)), tag("dd", tag("b", words(value)), tag("small", words(sentence))))
        for name, value, sentence in filter(None, facts)
    )
    head = tag("p", words(written), class_="verdict")
    head += "".join(tag("p", words(sentence), class_="conclusion") for sentence in sentences)
    return "\n" + tag("section", head, beside, tag("dl", *cards, class_="facts"), class_="headline") + "\n"


def verdict_words(ranking: Ranking, own: Sequence[Contender], effective: Mapping[str, Any]) -> str:
    """Return the verdict on a ranking, such as "fat-tree costs least: $0.219 a million tokens"."""
    unit = VALUES[ranking.column].unit
    value = f"{values_words(_equal(own) or own[:1])} {unit}".strip()
    if is_replica(own[0].design.rows[0]):
        value += replica_words(own[0].design.rows[0])
    if ranking.column == LOAD_USD:
        value = f"{value} {arrival_words(own[0].design.rows[0], effective.get('resolved', {}))}"
    if equal := _equal(own):
        names = f"These {len(equal)}" if len(equal) > _MOST_NAMES else join_names([each.name for each in equal])
        verb = "are equal" if len(equal) > _MOST_NAMES else _TIES.get(ranking.column, "are equally fast")
        return f"{names} {verb}: {value}"
    return f"{own[0].name} {_WINS.get(ranking.column, 'is fastest')}: {value}"


def values_words(some: Sequence[Contender]) -> str:
    """Return the value that some contenders share, or the first and the last."""
    every = [each.value for each in sorted(some, key=lambda each: each.over.ratio if each.over else 1.0)]
    return every[0] if every[0] == every[-1] else f"{every[0]} to {every[-1]}"


def _equal(own: Sequence[Contender]) -> list[Contender]:
    """The contenders that are equal to the best; [] if the best leads."""
    return [each for each in own if each.verdict == EQUAL] if own[0].verdict == EQUAL else []


def _behind(own: Sequence[Contender]) -> Contender | None:
    first = BEST if own[0].verdict == BEST else EQUAL
    return next((each for each in own if each.verdict != first), None)


def _over_models(every: Mapping[str, Sequence[Contender]]) -> str:
    """The verdict on several models: which designs are the best, or equal to it, for most of them."""
    wins: dict[str, int] = {}
    for own in every.values():
        for name in dict.fromkeys(each.name for each in _equal(own) or own[:1]):
            wins[name] = wins.get(name, 0) + 1
    most = max(wins.values())
    if most == 1:
        return "The best design differs from job to job"
    names = [name for name, count in wins.items() if count == most]
    jobs = "both jobs" if most == len(every) == 2 else f"{most} of {len(every)} jobs"
    ties = any(_equal(own) for own in every.values())
    verb = f"{'are' if len(names) > 1 else 'is'} best{', or equal to the best,' if ties else ''}"
    return f"{join_names(names)} {verb} for {jobs}"


def _by_model(ranked: Mapping[str, Ranking], every: Mapping[str, Sequence[Contender]]) -> str:
    """A line for each model: its best designs, their value, and their lead."""
    links, lines = [], []
    for index, (model, own) in enumerate(every.items()):
        equal = _equal(own)
        links.append(tag("a", words(model), href=f"#job{index}"))
        names = join_names([_with_speed(each) for each in equal or own[:1]])
        lines.append(
            {"best": f"equal: {names}" if equal else names}
            | {"value": values_words(equal or own[:1])}
            | {"next outside the error": _next_outside(ranked[model], own)}
            | _size_or_time(own[0])
        )
    titles = list(dict.fromkeys(VALUES[ranking.column].title for ranking in ranked.values()))
    title = titles[0] if len(titles) == 1 else "value"
    lines = [{title if name == "value" else name: text for name, text in line.items()} for line in lines]
    return small_table(lines, {"job": links})


def _next_outside(ranking: Ranking, own: Sequence[Contender]) -> str:
    """The next design that the error does not make equal, also if it has no line."""
    if behind := _behind(own):
        return f"{_with_speed(behind)} {behind.over}"
    overs = ((design, design.over(ranking.every[0], ranking.column)) for design in ranking.every[1:])
    return next((f"{design} {over}" for design, over in overs if over.separable), "none")


def _with_speed(each: Contender) -> str:
    """The name of a design, with the bandwidth of its NICs unless rows state names: jobs may be best at others."""
    gbps = each.design.settings.get("nic_gbps")
    is_said = gbps is None or "Gbps" in each.name or each.design.stated_name
    return each.name if is_said else f"{each.name} {number(gbps)} Gbps"


def _size_or_time(best: Contender) -> dict[str, str]:
    row = best.design.rows[0]
    return {"GPUs": pools_words(row)} if is_served(row) else {"time and band of the cheapest": _band_words(best)}


# ------------------------------------------------------------------------------------------------------------- facts
def _lead(own: Sequence[Contender]) -> Fact:
    equal, behind = _equal(own), _behind(own)
    name = "Lead"
    if behind is None or behind.over is None:
        return (name, "none", "No design is outside the error.") if equal else (name, "-", "No other design.")
    over = behind.over
    low, high = (percent(end - 1, signed=True) for end in over.ends)
    leader = f"the best of the {len(equal)} equal designs" if equal else own[0].name
    error = f"; with the error {low} to {high}" if over.ends[0] < over.ends[1] else ""
    sentence = f"{behind.name} over {leader}{error}."
    return name, percent(over.ratio - 1, signed=True), sentence


def _band_words(best: Contender) -> str:
    mean = best.design.mean
    seconds, low, high = (mean.get(name, float("nan")) for name in (TIME, LOW, HIGH))
    if not seconds > 0:
        return "-"
    return f"{number(seconds)} s" + (f", {number(low)} to {number(high)}" if low < high else "")


def _band(best: Contender, column: str) -> Fact | None:
    mean = best.design.mean
    seconds, low, high = (mean.get(name, float("nan")) for name in (TIME, LOW, HIGH))
    if not low < high:
        return None
    factor, form, *_ = VALUES[column]
    ends = sorted(factor * mean[column] * (seconds / end if column == WORTH else end / seconds) for end in (low, high))
    scaled = f" and {' to '.join(form.format(number(end)) for end in ends)}" if column != TIME else ""
    return (
        "Band",
        f"{number(low)} to {number(high)} s",
        f"of {number(seconds)} s{scaled}: {band_words(best.design.rows)}.",
    )


def _model_error(rows: Rows, effective: Mapping[str, Any]) -> Fact | None:
    gpus = gpus_of(rows, effective)
    if not gpus:
        return None
    of = f" on {gpus[0]}" if len(gpus) == 1 else ""
    value = f"{percent(ratio_errors().eight_in_ten)} between designs"
    return f"The model's own error{of}", value, f"{errors_words(gpus, rows)} {date_of_errors()}."


def gpus_of(rows: Rows, effective: Mapping[str, Any]) -> list[str]:
    """Return the GPUs of rows: of their column, else of the resolved settings."""
    for name in (GPU, "gpu"):
        if name in rows[0]:
            return [str(value) for value in values_in(rows, name)]
    listed = effective.get("resolved", {}).get(GPU, [])
    return [listed] if isinstance(listed, str) else list(listed)


def _prices(rows: Rows, effective: Mapping[str, Any]) -> Fact | None:
    """The source and date of the prices in rows."""
    if "resolved" not in effective or not any(row.get(TOKEN_USD) is not None for row in rows):
        return None
    if own := effective.get("own_prices"):
        names = join_names([PurePath(file).name for file in own])
        changed = sum(map(len, own.values()))
        return (
            "Prices",
            names,
            f"{count_phrase(changed, 'price')} {'differs' if changed == 1 else 'differ'} from the usual.",
        )
    table, gpus = package_table(), gpus_of(rows, effective)
    networks = [] if is_replica(rows[0]) else [table["source"]["switch_port"]]
    sources = [f"{gpu}: {table['gpus'][gpu]['source']}" for gpu in gpus if gpu in table["gpus"]]
    dates = ", ".join([*(f"network {_date(network)}" for network in networks), *_dates_of_gpus(sources)])
    return "Prices of", dates, ". ".join([*(f"Network: {network}" for network in networks), *sources]) + "."


def _dates_of_gpus(sources: Sequence[str]) -> list[str]:
    """The date of one source, or the first and the last year of several dates, in words; [] without sources."""
    dates = list(dict.fromkeys(map(_date, sources)))
    if len(dates) < 2:
        return [f"GPU {date}" for date in dates]
    years = sorted({date.split()[-1] for date in dates})
    return [f"GPUs {' to '.join(dict.fromkeys((years[0], years[-1])))}"]


def _date(source: str) -> str:
    """The first date in the source of a price, such as "November 2026"."""
    dated = _DATE.search(source)
    return dated[0] if dated else "unknown"
