"""`mfabric buy`: rank the networks that are for sale for several jobs, as one page."""

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.support.lazily import LazyModule

sentences = LazyModule("mfabric_jax.commands.buy_sentences")

TITLE = "Which network to buy"  # of the page
TOGETHER, PRICES = "All jobs together", "Prices that would change the answer"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Rank networks for a purchase by dollars of a million tokens: for every job, at its best set-up on each network,
    then for all jobs together, with failures if failures.rates is given. Find the prices at which another network
    becomes the best. Values of network, circuits (such as --policy greedy,uniform) and gpu are what is bought; other
    values that vary make jobs.
    """

    page: str | None = None
    """Write the answer as an HTML page, which works offline, to this .html file."""
    out: str | None = None
    """Write the rows of all jobs and networks to this .csv or .parquet file, and the set-ups found to a folder of case
    files beside it."""


def run(cases: Cases, options: Options) -> None:
    _check(cases, options)
    shared.start_jax(shared.dtype_of(cases), options.device)
    _check_failures(cases)
    open_cases, cases = cases, shared.settle(cases, options.device)
    from mfabric_jax.apps.purchase import gpu_quotes, jobs_and_networks, offers_of, turning_points
    from mfabric_jax.evaluate.rows.results import record_of_cases, simulate
    from mfabric_jax.report.grid import DESIGN
    from mfabric_jax.report.html.headline import gpus_of
    from mfabric_jax.report.ranking import MOST_OF_PAGE, equal_times_words, rankings

    config, named = record_of_cases(cases) | {"rates": _rates(cases)}, jobs_and_networks(open_cases)
    rows = simulate(cases).rows(progress=True)
    shared.write(rows, options.out, config, options.columns("cases"))
    months, unknown = _months(cases, named) if _has_rates(cases) else ([], {})
    rank, failing = functools.partial(offers_of, named), [month and month.usd_with for month in months]
    jobs, offers, others = rank(list(cases), list(map(_if_possible, rows)), failing)
    larger = _with_larger_switches(cases, rank, offers)
    by_job = [  # a ranking is of one job
        row | {"model": job, DESIGN: network} for row, (job, network) in zip(rows, named, strict=True)
    ]
    unrated = list(dict.fromkeys(kind for month in months if month for kind in month.without))
    of_networks, is_found = _by_network(named, months), cases is not open_cases
    quotes = gpu_quotes(cases)
    gpus = gpus_of(rows, config)
    ranked = rankings(by_job, config, MOST_OF_PAGE)
    alike = (equal_times_words(ranking.shown, ranking.column) for ranking in ranked.values())
    remarks = (
        sentences.sentences(offers, others, unknown, of_networks, is_found, gpus),
        dict.fromkeys(filter(None, alike)),
        sentences.left_out(cases, unrated, larger),
        _on_spare_ports(cases, months),
        sentences.on_circuits(cases),
    )
    on_gpus = sentences.on_gpu_prices(quotes)
    together = sentences.together(offers, jobs, of_networks)
    gpu, makers = _of_network(offers[0].network, named, open_cases)
    facts, bought = sentences.facts(offers[0], jobs, makers), sentences.purchase(offers[0], gpu)
    beside = [*larger, bought, *sentences.trainings(offers[0], jobs, of_networks)]
    answers: dict[str, list[Any]] = {
        TOGETHER: [*facts, together, *(words for some in remarks for words in some)],
        PRICES: [sentences.price_lines(turning_points(offers), quotes), *sentences.on_prices(offers), *on_gpus],
    }
    verdict = sentences.verdict(offers)
    shared.print_conclusions([f"{verdict}.", *beside])
    set_ups = []
    if is_found:
        kept = _keep_set_ups(cases, named, options.out, open_cases.varied)
        set_ups = shared.found_lines(open_cases, kept)
    _print(ranked, answers, set_ups)
    if options.page is not None:
        if is_found:
            answers[shared.FOUND] = shared.found_parts(open_cases)
        _write_page(options.page, by_job, config, answers, verdict=verdict, beside=beside)


def _write_page(path: str, rows: Sequence[Any], config: Any, answers: dict[str, list[Any]], **head: Any) -> None:
    from mfabric_jax.report import html_report

    shared.tell(html_report(rows, config, path, title=TITLE, answers=answers, command=shared.command_line(), **head))


# --------------------------------------------------------------------------------------------------------------- checks
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


def _check_failures(cases: Cases) -> None:
    """Raise InputError for settings that failures refuse on some network, before searches that take minutes."""
    from mfabric_jax.apps.failures.iterations import check_before_search
    from mfabric_jax.apps.purchase import jobs_and_networks

    if not _has_rates(cases):
        return
    for (_, network), case in zip(jobs_and_networks(cases), cases, strict=True):
        try:
            check_before_search(case)
        except InputError as error:
            raise type(error)(f"{str(error).removesuffix('.')} (network: {network}).") from error


def _has_rates(cases: Cases) -> bool:
    return any(block.case.failures.rates is not None for block in cases.blocks)


def _rates(cases: Cases) -> dict[str, dict[str, float]]:
    """Return failures of a part in a million hours, by file and kind."""
    from mfabric_jax.apps.failures.failure_rows import MILLION, read_rates

    files = [path for block in cases.blocks if (path := block.case.failures.rates) is not None]
    return {path: {kind: MILLION * rate.per_hour for kind, rate in read_rates(path).items()} for path in files}


def _if_possible(row: dict[str, Any]) -> dict[str, Any] | None:
    from mfabric_jax.report.ranking import above_peak, possible

    return row if possible(row) and above_peak(row) is None else None


# -------------------------------------------------------------------------------------------------------------- answers
def _months(cases: Cases, named: Sequence[tuple[str, str]]) -> tuple[list[Any], dict[str, str]]:
    """Return a month of every case with failures and spares (None: unknown), and by network why it is unknown."""
    from mfabric_jax.apps.failures import failures
    from mfabric_jax.apps.failures.months import months

    every, unknown = [], {}
    with shared.bar("failures", "case", len(cases)) as shown:
        for (_, network), case in zip(named, cases, strict=True):
            try:
                month = next(iter(months(failures(case, shown.set_postfix_str))), None)
                why = "failures.rates has no rate of its parts." if month is None else "no hours of a month remain."
            except InputError as error:
                month, why = None, str(error)
            if month is None or month.usd_with is None:
                unknown.setdefault(network, why)
            every.append(month)
            shown.update()
    return every, unknown


def _on_spare_ports(cases: Cases, months: Sequence[Any]) -> list[str]:
    from mfabric_jax.apps.failures.spare_ports import spare_port_lines

    return spare_port_lines(cases, (row for month in months if month for row in month.rows))


def _by_network(named: Sequence[tuple[str, str]], months: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the months of networks on which that of every job is known."""
    every: dict[str, list[Any]] = {}
    for (_, network), month in zip(named, months, strict=bool(months)):
        every.setdefault(network, []).append(month)
    return {network: own for network, own in every.items() if None not in own}


def _of_network(network: str, named: Sequence[tuple[str, str]], open_cases: Cases) -> tuple[str, dict[str, float]]:
    """Return the GPUs of a network, and by job the seconds with the maker's set-up over those with the one found."""
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax

    own = {job: resolve_without_jax(case) for (job, on), case in zip(named, open_cases, strict=True) if on == network}
    searches = {job: resolved.searched for job, resolved in own.items() if resolved.searched is not None}
    makers = {job: each.recipe_s / each.seconds for job, each in searches.items() if each.recipe_s is not None}
    return next(iter(own.values())).server.name, makers


def _with_larger_switches(cases: Cases, rank: Any, usual: Sequence[Any]) -> list[str]:
    """Return the answer with switches of twice the ports; empty if it cannot differ, or if the ports are stated.

    `usual`: the offers without them.
    """
    from mfabric_jax.apps.purchase import with_larger_switches
    from mfabric_jax.evaluate.rows.results import simulate

    larger = with_larger_switches(cases)
    if larger is None:
        return []
    ports, priced = larger
    _, offers, _ = rank(list(priced), list(map(_if_possible, simulate(priced).rows(progress=True))))
    return [sentences.on_larger_switches(ports, offers, usual)]


def _keep_set_ups(cases: Cases, named: Sequence[tuple[str, str]], out: str | None, varied: Sequence[str]) -> list[str]:
    """Write every case with the set-up found to a file beside the rows. Return how to use them in other commands.

    `varied`: settings in which the cases of the purchase differ, which every file states.
    """
    if out is None:
        return ["For other commands, such as mfabric failures, --out rows.csv also writes case files."]
    from mfabric_jax.commands.case_file import write_case

    folder = Path(out).with_suffix(".setups")
    folder.mkdir(exist_ok=True)
    names = [re.sub(r"[^a-z0-9.]+", "-", f"{job} {network}".lower()).strip("-") for job, network in named]
    for name, case in zip(names, cases, strict=True):
        write_case(case, cases.sources, folder / f"{name}.toml", varied)
    first = folder / f"{names[0]}.toml"
    return [f"Each is a case file in {folder} for other commands, such as:", f"mfabric failures {first}"]


def _print(ranked: Mapping[str, Any], answers: dict[str, list[Any]], set_ups: Sequence[str]) -> None:
    from mfabric_jax import report
    from mfabric_jax.report.row_remarks import precision_words
    from mfabric_jax.report.tables import wrap

    for job, ranking in ranked.items():
        formats = ", ".join(precision_words([row for design in ranking.every for row in design.rows]))
        print(
            f"{': '.join(filter(None, [job, formats]))}\n{wrap(ranking.conclusion)}\n\n{report.plain(ranking.lines)}\n"
        )
    for heading, parts in answers.items():
        print(heading)
        for part in parts:
            print(wrap(part) if isinstance(part, str) else report.plain(part))
        print()
    shared.print_lines(set_ups)
