"""`mfabric setup`: the best set-ups of a model on GPUs and a fabric."""

import dataclasses
from typing import Any, Literal

from mfabric_jax.case import Case, Cases
from mfabric_jax.case.layers import SettingsLayer
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError, positive
from mfabric_jax.commands import setup_sentences as sentences
from mfabric_jax.commands import shared
from mfabric_jax.commands.case_file import write_case
from mfabric_jax.evaluate.resolving.resolve import BATCH, OPEN_DEGREES, is_open, resolve_without_jax, without_search
from mfabric_jax.workload.space import SHOWN

BELOW = [SettingsLayer("setup", {"job.search": "each"})]
OF_FABRICS = ("network.fabric", "network.graph")  # settings in which the cases may differ
GPUS, TOKENS = "job.parallel.gpus", "job.training_tokens"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Search the set-up that trains a model fastest on GPUs and a fabric. Print the ten best, what they spend, what
    limits them and what was tried. What the case states (--tp, --set job.overlap=none) stays; all else of the set-up is
    searched. Several fabrics: one search each.
    """

    objective: Literal["seconds", "dollars", "gpus"] = "seconds"
    """Minimise seconds of an iteration, dollars per million tokens, or the GPUs that train --tokens in --days."""
    days: float | None = None
    """For --objective gpus: days within which the tokens must be trained."""
    without: bool = False
    """Show what each choice of the best set-up is worth (overlap, a dispatcher, ...), by a search without it."""
    out: str | None = None
    """Write the best case, its set-up stated, to this .toml file, for other commands."""


def run(cases: Cases, options: Options) -> None:
    _check(cases, options)
    shared.start_jax(shared.dtype_of(cases), options.device)
    if options.objective == "dollars":
        _check_prices(cases)
    from mfabric_jax.report.numerals import count_phrase

    each = [_with_fewest(block.case, options) if options.objective == "gpus" else block.case for block in cases.blocks]
    by = "dollars" if options.objective == "dollars" else "seconds"
    every = []
    with shared.bar("set-ups", "search", len(each)) as searches:
        for case in each:
            searches.set_postfix_str(f"{case.model.name} on {case.network.fabric}")
            every.append(_best(case, by))
            searches.update()
    for number, best in enumerate(every):
        print("\n" * (number > 0) + sentences.heading(best))
        print(sentences.table(best, by))
        shared.print_lines(sentences.remarks(best, by))
        if options.without:
            _print_without(best)
    shared.print_lines(sentences.by_fabric(every, by))
    shared.print_lines(shared.alike_notes(cases))
    if options.out is not None:
        best = sentences.least(every, by)
        write_case(best.stated[0], {**best.resolved.why, **cases.sources}, options.out)
        print(f"{count_phrase(1, 'case')} in {options.out}: mfabric compare {options.out} simulates it.")


# --------------------------------------------------------------------------------------------------------------- checks
def _check(cases: Cases, options: Options) -> None:
    """Raise InputError for mistakes in the words, before JAX is loaded."""
    others = [path for path in cases.varied if path not in OF_FABRICS]
    if others:
        raise InputError(f"setup compares fabrics alone, got cases that differ in {others[0]}; give one value of it.")
    for block in cases.blocks:
        _check_objective(block.case, options)
    shared.check_cases(cases, misfits=options.objective != "gpus")
    for block in cases.blocks:
        if not is_open(block.case):
            raise InputError(_why_closed(block.case))
    if options.out is not None:
        from mfabric_jax.support.atomic import check_file

        check_file("out", options.out, (".toml",))


def _check_objective(case: Case, options: Options) -> None:
    values = flat(case)
    if options.objective != "gpus":
        if options.days is not None:
            raise InputError(f"days applies to objective gpus alone, got objective {options.objective}; leave it out.")
        return
    if options.days is None:
        raise InputError("objective gpus needs --days, the days within which the tokens must be trained.")
    positive("days", options.days)
    if values[TOKENS] is None:
        raise InputError(f"objective gpus needs --tokens ({TOKENS}), such as 2T or 500B.")
    for path in (GPUS, "job.parallel.dp"):
        if values[path] is not None:
            raise InputError(f"objective gpus finds {GPUS}; leave out {path}, got {values[path]}.")


def _why_closed(case: Case) -> str:
    """Return why a case leaves nothing to a search, and what to change."""
    values = flat(case)
    stated = [f"{path} {values[path]}" for path in OPEN_DEGREES if values[path] is not None]
    if len(stated) == len(OPEN_DEGREES):
        return f"nothing is open: {', '.join(stated)} are stated; leave out at least one of them."
    if values["job.search"] == "recipe":
        return "job.search must be each or one for mfabric setup, got recipe, which searches nothing."
    for path in BATCH[1:]:
        if values[path] is not None:
            return f"{path} fixes micro-batches before the search; state job.batch.global_batch, got {values[path]:g}."
    if values["job.parallel.dp"] is not None:
        return f"job.parallel.dp needs {GPUS} beside it in a search, got dp {values['job.parallel.dp']} alone."
    return "nothing is open: tp, pp and ep are in the file of the model; leave out at least one of them."


def _check_prices(cases: Cases) -> None:
    """Raise InputError if a cluster has no price."""
    from mfabric_jax.evaluate.rows.costs import bill_of, unknown_parts

    for block in cases.blocks:
        resolved = resolve_without_jax(without_search(block.case))
        bill = bill_of(resolved, resolved.job, resolved.case.network.nic_gbps)
        if bill.cluster_usd is None:
            why = next(iter(unknown_parts(resolved, bill)), "a price is unknown.")
            raise InputError(f"objective dollars needs the price of the cluster: {why}")


# -------------------------------------------------------------------------------------------------------------- answers
def _best(case: Case, by: str) -> Any:
    from mfabric_jax.apps.setups import best_set_ups

    with shared.bar("setup", "set-up", SHOWN) as evaluated:
        return best_set_ups(case, by, evaluated.update)


def _with_fewest(case: Case, options: Options) -> Case:
    """Print the numbers of GPUs that were tried, and return the case with the fewest that are in time."""
    from mfabric_jax.apps.setups import fewest_gpus

    assert options.days is not None
    with shared.bar("gpus", "search") as searches:
        tried = fewest_gpus(case, options.days, lambda words: shared.advance(searches, words))
    shared.print_lines(sentences.gpu_counts(case, tried, options.days))
    fewest = min(count.gpus for count in tried if count.within(options.days))
    return case.with_({GPUS: fewest})


def _print_without(best: Any) -> None:
    from mfabric_jax.apps.setups import choices_of, seconds_without

    case, per_server = best.resolved.original, best.resolved.server.gpus_per_server
    choices = choices_of(case, best.outcome.best, per_server)
    with shared.bar("without", "search", sum(len(choice.ways) for choice in choices)) as searches:
        runners = [seconds_without(case, choice, lambda words: shared.advance(searches, words)) for choice in choices]
    shared.print_lines(sentences.without(best, choices, runners))
