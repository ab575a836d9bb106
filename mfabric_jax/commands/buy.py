"""`mfabric buy`: rank the networks that are for sale for several jobs, as one page."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared

SAME = 0.001  # dollars within this fraction are equal
TITLE = "Which network to buy"  # of the page
TOGETHER, PRICES = "All jobs together", "Prices that would change the answer"
WORDS = {  # of parts of a bill
    **{"gpus": "GPUs", "servers": "servers", "nic": "NICs", "transceiver": "transceivers", "fibre": "fibres"},
    **{"switch_port": "switch ports", "ocs_port": "optical ports", "ocs": "optical switches"},
    **{"panel_port": "patch panels", "rack_switch_per_server": "rack switches"},
    "sharp_port": "SHARP of switch ports",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Rank networks for a purchase by dollars of a million tokens: for every job, at its best set-up on each network,
    then for all jobs together, with failures if failures.rates is given. Find the prices at which another network
    becomes the best. Values of network, circuits and gpu are what is bought; other values that vary make jobs.
    """

    page: str | None = None
    """Write the answer as an HTML page, which works offline, to this .html file."""
    out: str | None = None
    """Write the rows of all jobs and networks to this .csv or .parquet file."""


def run(cases: Cases, options: Options) -> None:
    _check(cases, options)
    shared.start_jax(shared.dtype_of(cases), options.device)
    open_cases, cases = cases, shared.settle(cases, options.device)
    from mfabric_jax.apps.purchase import jobs_and_networks, offers_of, turning_points
    from mfabric_jax.evaluate.rows.results import record_of_cases, simulate

    config, named = record_of_cases(cases), jobs_and_networks(open_cases)
    rows = simulate(cases).rows(progress=True)
    fails = any(case.failures.rates is not None for case in cases)
    failing, unrated = _price_failures(cases, config) if fails else ([], [])
    jobs, offers, others = offers_of(named, list(cases), list(map(_if_possible, rows)), failing)
    by_job = [row | {"model": job} for row, (job, _) in zip(rows, named, strict=True)]  # a ranking is of one job
    answers: dict[str, list[Any]] = {
        TOGETHER: [_together(offers, jobs), *_sentences(offers, others), *_left_out(cases, unrated)],
        PRICES: [_price_lines(turning_points(offers)), *_on_prices(offers)],
    }
    shared.print_conclusions([f"{_verdict(offers)}."])
    _print(by_job, config, answers, set_ups=[] if cases is open_cases else shared.found_lines(open_cases))
    shared.write(rows, options.out, config, options.columns("cases"))
    if options.page is not None:
        from mfabric_jax.report import html_report

        page = {"title": TITLE, "answers": answers, "verdict": _verdict(offers), "command": shared.command_line()}
        shared.tell(html_report(by_job, config, options.page, **page))


def _check(cases: Cases, options: Options) -> None:
    """Raise InputError before JAX is loaded."""
    from mfabric_jax.apps.purchase.offers import OF_NETWORKS

    if not any(path.startswith(OF_NETWORKS) for path in cases.varied):
        raise InputError("buy compares networks, got one; give several, such as --fabric fat-tree,rail-only,mfabric.")
    shared.check_cases(cases)
    shared.check_outputs(options.out)
    if options.page is not None:
        from mfabric_jax.report.html import check_page

        check_page(options.page)


def _if_possible(row: dict[str, Any]) -> dict[str, Any] | None:
    from mfabric_jax.report.ranking import above_peak, possible

    return row if possible(row) and above_peak(row) is None else None


def _price_failures(cases: Cases, config: Any) -> tuple[list[float | None], list[str]]:
    """Return the dollars of a million tokens of every case with failures and spares (None: unknown), and the kinds of
    failures without a rate, which these dollars leave out."""
    from mfabric_jax.apps.failures import failures
    from mfabric_jax.apps.failures.months import months

    every = months(shared.collect_rows("failures", None, config, functools.partial(failures, cases)))
    if len(every) != len(cases):
        known = f"{len(every)} of {len(cases)} cases"
        raise InputError(f"failures.rates must have a rate of some part of every case, got one of {known}.")
    return [month.usd_with for month in every], list(dict.fromkeys(kind for month in every for kind in month.without))


# --------------------------------------------------------------------------------------------------------------- tables
def _together(offers: Sequence[Any], jobs: Sequence[str]) -> list[dict[str, Any]]:
    """Return a line for every network: its dollars over the best, with failures, and on each job."""
    from mfabric_jax.report.numerals import percent

    best = offers[0]
    failing = [offer.over_failing for offer in offers if offer.over_failing is not None]
    lines = []
    for offer in offers:
        line: dict[str, Any] = {"network": offer.network}
        line["over best"] = percent(offer.over / best.over - 1, signed=True)
        if failing and offer.over_failing is not None:
            line["with failures"] = percent(offer.over_failing / min(failing) - 1, signed=True)
        line |= {f"$/Mtok, {job}": usd for job, usd in zip(jobs, offer.usd, strict=True)}
        line |= {"network M$": _millions(offer, "network_cost_usd"), "cluster M$": _millions(offer, "cluster_cost_usd")}
        lines.append(line)
    return lines


def _millions(offer: Any, column: str) -> str:
    """Return a cost in millions of dollars; a range if jobs differ in it."""
    from mfabric_jax.report.numerals import millions, number

    ends = {number(millions(end(row[column] for row in offer.rows))) for end in (min, max)}
    return " to ".join(sorted(ends, key=float))


def _price_lines(turnings: Sequence[Any]) -> list[dict[str, Any]]:
    from mfabric_jax.report.numerals import number, percent

    lines = []
    for turning in turnings:
        if not (turning.share or turning.below or turning.above):
            continue
        line: dict[str, Any] = {"price of": WORDS.get(turning.part, turning.part), "share": percent(turning.share)}
        for name, point in (("cheaper", turning.below), ("dearer", turning.above)):
            line[name] = "no other" if point is None else f"from {number(point[0])} x: {point[1].network}"
        lines.append(line)
    return lines


# ------------------------------------------------------------------------------------------------------------ sentences
def _sentences(offers: Sequence[Any], others: Sequence[str]) -> Iterator[str]:
    from mfabric_jax.report.numerals import percent
    from mfabric_jax.report.row_remarks import HELD
    from mfabric_jax.support.measured_errors import ratio_errors

    best = offers[0]
    yield f"{_verdict(offers)}."
    error = percent(ratio_errors().eight_in_ten)
    yield f"The model's own error is {error}: 8 in 10 measured ratios of two steps are within."
    low, high = _band(best)
    yield f"All dollars may be {percent(1 - low)} less to {percent(high - 1)} more ({HELD})."
    if others:
        lacks = "some job lacks memory, a price or a switch that is fast enough"
        yield f"Not ranked, because {lacks}: {', '.join(others)}."
    if best.over_failing is None:
        yield "Nothing fails here; --set failures.rates=FILE adds the dollars of failures and spares."
    else:
        failing = min((offer for offer in offers if offer.over_failing is not None), key=lambda own: own.over_failing)
        worth = percent(best.over_failing / best.over - 1)
        tied = best.over_failing <= (1 + SAME) * failing.over_failing
        same = "it stays the best" if tied else f"{failing.network} costs least then"
        yield f"Failures and spares add {worth} to {best.network}; {same}."
    yield "Every job counts alike: its dollars over those of its cheapest network, averaged over jobs."


def _left_out(cases: Cases, unrated: Sequence[str]) -> Iterator[str]:
    """Yield what the dollars of failures leave out, and the switches that trees are made of."""
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
    from mfabric_jax.evaluate.resolving.set_up import switch_words

    if unrated:
        yield f"No rate is given for {', '.join(unrated)}; dollars with failures leave them out."
    if words := switch_words([resolve_without_jax(block.case) for block in cases.blocks]):
        yield words


def _band(offer: Any) -> tuple[float, float]:
    """Return the widest band of an offer's seconds, over the predicted ones."""
    ends = [(row["low_s"] / row["iteration_s"], row["high_s"] / row["iteration_s"]) for row in offer.rows]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _on_prices(offers: Sequence[Any]) -> Iterator[str]:
    yield (
        f"Share: part of the dollars of {offers[0].network}. Cheaper, dearer: the multiple of today's price from which "
        "another network costs least, other prices unchanged and without failures."
    )


def _verdict(offers: Sequence[Any]) -> str:
    """Return the headline of the page: the best network and its lead, or the networks inside the error of the best."""
    from mfabric_jax.report.numerals import percent
    from mfabric_jax.support.measured_errors import ratio_errors

    best, *others = offers
    error = ratio_errors().eight_in_ten
    near = [offer for offer in others if offer.over <= best.over * (1 + error)]
    behind = others[len(near) :]
    leads = f"{best.network} costs least"
    if near:
        names = ", ".join(offer.network for offer in (best, *near[:-1]))
        apart = percent(near[-1].over / best.over - 1)
        leads = f"{names} and {near[-1].network} are equal inside the error (they differ by {apart})"
    return leads + (f"; {behind[0].network} costs {percent(behind[0].over / best.over - 1)} more" if behind else "")


def _print(by_job: Sequence[Any], config: Any, answers: dict[str, list[Any]], set_ups: Sequence[str]) -> None:
    from mfabric_jax import report
    from mfabric_jax.report.ranking import MOST_OF_PAGE, rankings
    from mfabric_jax.report.tables import wrap

    for job, ranking in rankings(by_job, config, MOST_OF_PAGE).items():
        print(f"{job}\n{wrap(ranking.conclusion)}\n\n{report.plain(ranking.lines)}\n")
    for heading, parts in answers.items():
        print(heading)
        for part in parts:
            print(wrap(part) if isinstance(part, str) else report.plain(part))
        print()
    shared.print_lines(set_ups)
