"""`mfabric compare`: simulate cases and compare them."""

import dataclasses
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import mfabric_jax.support.interrupts as interrupts
from mfabric_jax.case import Cases
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """Simulate every case and print a table of iteration time, cost and performance per dollar."""


def run(cases: Cases, options: Options) -> int | None:
    """Return the exit status; None for success."""
    shared.check_cases(cases)
    shared.check_outputs(options.out, figures=options.figures)
    as_stated, cases = cases, shared.settle(cases, options.device)
    set_up_lines = [] if cases is as_stated else shared.found_lines(as_stated)
    if options.figures is None:
        rows, stopped = _compare(cases, options, set_up_lines)
        return 130 if stopped else None
    from mfabric_jax.report.drawing_process import call_by_name, drawing

    with drawing() as drawings:
        rows, stopped = _compare(cases, options, set_up_lines)
        if stopped:
            return 130
        from mfabric_jax.evaluate.rows.timeline import examples

        drawings.draw(call_by_name, "mfabric_jax.report.figures:save_comparisons", rows, options.figures)
        drawings.draw(call_by_name, "mfabric_jax.report.figures:save_examples", options.figures, *examples(cases))
        for path in itertools.chain(*drawings.results()):
            shared.tell(path)


def _compare(cases: Cases, options: Options, set_up_lines: Sequence[str]) -> tuple[list[dict], bool]:
    """Compute and print the rows. Return them, and whether the run was interrupted."""
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax import report
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
    from mfabric_jax.evaluate.resolving.set_up import search_words
    from mfabric_jax.evaluate.rows.results import describe_cases, record_of_cases, simulate

    results, config = simulate(cases), describe_cases(cases) if options.out is None else record_of_cases(cases)
    rows, stopped = _rows(results, config, options)
    resolved = [resolve_without_jax(block.case) for block in cases.blocks]
    print(report.comparison(rows, options.out) if rows else "no rows")
    shared.print_lines(line for line in dict.fromkeys(map(search_words, resolved)) if line is not None)
    shared.print_lines(set_up_lines)
    notes = *shared.case_notes(cases, set_ups=False), *config["not_known"], *_without_failures(rows, cases)
    shared.print_lines((*report.remarks(rows, config), *notes))
    for source in dict.fromkeys(row["traffic"] for row in rows if str(row.get("traffic")).startswith("recorded")):
        print(f"traffic: {source}")
    if stopped:
        more = "" if options.out is None else "; the same command resumes"
        print(f"compare: interrupted; rows of the other cases are missing{more}.", file=sys.stderr)
    return rows, stopped


def _without_failures(rows: list[dict], cases: Cases) -> Iterator[str]:
    """Yield a note that dollars ignore failures, if dollars rank several fabrics or failure rates are given."""
    rates = any(case.failures.rates is not None for case in cases)
    priced = {row["fabric"] for row in rows if row.get("usd_per_million_tokens") is not None}
    if rates or len(priced) > 1:
        yield (
            "Dollars assume that nothing fails. Hours lost to failures can change the order of fabrics: mfabric "
            "failures with the same arguments and --set failures.rates=FILE also prices a million tokens with failures."
        )


def _rows(results: Any, config: dict[str, Any], options: Options) -> tuple[list[dict], bool]:
    """Compute the rows, which are saved even after an interrupt. Return them, and whether there was one."""
    from mfabric_jax.report.numerals import count_phrase
    from mfabric_jax.report.rows import Kept, keeping

    kept, stopped = Kept(None), False
    try:
        keep = keeping(options.out, config, options.columns("cases"))
        with keep as kept, shared.bar("compare", "run", len(results.groups), kept.earlier) as bar:
            for number, rows in results.each(done=set(kept.done)):
                kept.add(rows, number)
                bar.set_postfix_str(f"{rows[0]['model']} on {rows[0]['fabric']}")
                bar.update()
    except KeyboardInterrupt:
        interrupts.take()
        stopped = True
    if options.out is not None and kept.rows:
        print(f"{count_phrase(len(kept.rows), 'row')} in {options.out}", file=sys.stderr)
    return kept.rows, stopped
