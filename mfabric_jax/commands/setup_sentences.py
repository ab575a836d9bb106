"""Tables and sentences of `mfabric setup`."""

from collections.abc import Iterator, Sequence
from typing import Any

from mfabric_jax.case import Case
from mfabric_jax.evaluate.resolving.resolve import model_of
from mfabric_jax.report.numerals import count_phrase, number, percent
from mfabric_jax.report.row_remarks import HELD
from mfabric_jax.report.tables import TableColumn, plain, wrap
from mfabric_jax.support.bands import HIGH, LOW
from mfabric_jax.support.measured_errors import ratio_errors
from mfabric_jax.workload.space import SHOWN

SHORT = "set-up (pp: stages x chunks of each; last number: micro-batches x sequences)"
NEAR = 0.02  # runner-ups within this fraction of the best are named
COLUMNS = {"seconds": "iteration_s", "dollars": "usd_per_million_tokens"}
SHARES = {
    **{"compute": ("compute_s",), "EP": ("ep_comm_s",), "TP+DP": ("tp_comm_s", "dp_comm_s")},
    **{"reconf": ("reconfig_s",), "bubble": ("bubble_s",)},
}


def heading(best: Any) -> str:
    job, case = best.resolved.job, best.resolved.case
    batch, gpu = case.job.batch, best.resolved.server.name
    return wrap(
        f"{job.model} on {where(best)}: {job.gpus:,} GPUs ({gpu}), {batch.global_batch:,} sequences of "
        f"{batch.sequence:,} tokens an iteration; {job_of(best)}"
    )


def job_of(best: Any) -> str:
    precision = best.resolved.case.job.precision.compute
    frameworks = best.resolved.case.job.frameworks
    runs = "any set-up that can be simulated" if frameworks == "any" else f"what {frameworks} runs"
    return f"computed in {precision}; searched: {runs}"


def where(best: Any) -> str:
    network = best.resolved.case.network
    return f"{network.fabric}, {number(network.nic_gbps)} Gbps"


# --------------------------------------------------------------------------------------------------------------- tables
def table(best: Any, by: str) -> str:
    """Return two tables: what each set-up takes and spends, and the set-ups."""
    column, lines = COLUMNS[by], []
    first = best.rows[0][column]
    for index, (row, set_up) in enumerate(zip(best.rows, best.set_ups, strict=True), 1):
        total = row["iteration_s"]
        line = {"no.": str(index), "s": total, "usd": row["usd_per_million_tokens"], "GB": row["memory_gb"]}
        line["over"] = None if not first or row[column] is None else percent(row[column] / first - 1, signed=True)
        line |= {name: sum(row[part] for part in parts) / total for name, parts in SHARES.items()}
        lines.append(line | {"MFU": row["mfu"], "limit": row["limit"], "set-up": short_words(set_up)})
    reconfigures = any(line["reconf"] for line in lines)
    shares = [TableColumn(name, percent=True) for name in SHARES if name != "reconf" or reconfigures]
    dollars = [TableColumn("usd", "$/Mtok")] if by == "dollars" else []
    numbers = ["no.", "s", *dollars, TableColumn("over", "over best"), "GB", TableColumn("MFU", percent=True)]
    parts = plain(lines, [*numbers, *shares, TableColumn("limit", "limited by")])
    return f"{parts}\n\n{plain(lines, ['no.', TableColumn('set-up', SHORT)])}"


def short_words(set_up: Any) -> str:
    """Return a set-up in one line of a table, described by `SHORT`; layouts that are written out are left out."""
    own = set_up
    degrees = [f"tp {own.tp}", *([f"etp {own.etp}"] if own.etp != own.tp else []), f"ep {own.ep}"]
    degrees += [f"cp {own.cp}"] if own.cp > 1 else []
    chunks = f" x {own.chunks}" if own.schedule == "interleaved" else ""
    degrees += [f"pp {own.pp}{chunks}", f"dp {own.dp}", f"{own.micro_batches} x {own.micro_batch}"]
    layout = own.layout if own.layout in ("even", "ends") else "own layout"
    more = [own.schedule] if own.schedule not in ("1f1b", "interleaved") else []
    more += ["overlap"] if own.overlap == "passes" else []
    more += [layout] if own.pp > 1 and layout != "even" else []
    more += [own.dispatcher]
    more += [f"ZeRO {own.sharding}"] if own.sharding != "optimizer" else []
    more += [f"recompute {own.recompute}"] if own.recompute != "none" else []
    return ", ".join([*degrees, *more])


# ------------------------------------------------------------------------------------------------------------ sentences
def remarks(best: Any, by: str) -> Iterator[str]:
    yield wrap(f"The best: {best.set_ups[0].words}.")
    yield from map(wrap, _near(best, by))
    yield wrap(_counts(best.outcome))
    yield from map(wrap, _beside(best))


def _near(best: Any, by: str) -> Iterator[str]:
    """Yield sentences on runner-ups that are as good, or may be."""
    column, first = COLUMNS[by], best.rows[0]
    others = best.rows[1:]
    if len(others) + 1 < SHOWN:
        yield "Fewer than ten are listed, because the coarse clock rules out all others as the best."
    if not others:
        return
    close = [row for row in others if (row[column] or 0.0) <= (1 + NEAR) * (first[column] or 0.0)]
    near = count_phrase(len(close), "runner-up", "runner-ups") if close else "No runner-up"
    yield f"{near} {'is' if len(close) < 2 else 'are'} within {NEAR:.0%} of the best."
    low, high = first.get(LOW), first.get(HIGH)
    if low and high and high > low and best.resolved.step_band is not None:
        within = sum(row["iteration_s"] <= high for row in others)
        yield (
            f"By the model's error the best takes {number(low)} to {number(high)} s ({HELD}), and {within or 'no'} "
            f"listed {'runner-up lies' if within == 1 else 'runner-ups lie'} within. 8 in 10 measured ratios of two "
            f"steps are within {percent(ratio_errors().eight_in_ten)} of the predicted one."
        )


def _counts(outcome: Any) -> str:
    counts = outcome.counts
    skipped = [f"{counts['too_large']:,} did not fit"] if counts["too_large"] else []
    skipped += [f"{counts['not_run']:,} no framework runs"] if counts["not_run"] else []
    beside = f" (of those looked at, {' and '.join(skipped)})" if skipped else ""
    return (
        f"Tried: {counts['bounded']:,} bounded{beside}, {counts['estimated']:,} estimated, {counts['coarse']:,} by the "
        f"coarse clock, {counts['timed']:,} timed. No set-up of the space takes less than {number(outcome.bound_s)} s "
        "(computation alone)."
    )


def _beside(best: Any) -> Iterator[str]:
    """Yield sentences on the set-up of the recipe, and on the best one of a fabric without shared links."""
    outcome = best.outcome
    if outcome.recipe_s is not None:
        source = best.resolved.recipe.partition(",")[0]
        yield f"The set-up of the recipe ({source}): {_against(outcome.recipe_s, outcome)}."
    elif best.resolved.recipe != "none":
        yield "The set-up of the recipe was not timed: it suits other GPUs or another batch, or does not fit."
    if outcome.one_s is not None and best.resolved.original.job.search != "one":
        yield f"The best set-up of a non-blocking fat-tree, on this fabric: {_against(outcome.one_s, outcome)}."


def _against(seconds: float, outcome: Any) -> str:
    return f"{number(seconds)} s, {percent(seconds / outcome.seconds - 1, signed=True)}"


def without(best: Any, choices: Sequence[Any], runners: Sequence[Any]) -> Iterator[str]:
    """Yield a table of the best set-ups without each choice of the best one."""
    if not choices:
        yield "The best set-up makes no choice that could be left out."
        return
    lines = []
    for choice, runner in zip(choices, runners, strict=True):
        seconds = None if runner is None else runner.seconds
        over = None if seconds is None else percent(seconds / best.outcome.seconds - 1, signed=True)
        words = "none can be" if runner is None else short_words(runner.set_up)
        lines.append({"without": choice.words, "s": seconds, "over best": over, "best set-up then": words})
    yield f"\nthe same search without a choice of the best set-up\n{plain(lines)}"


def gpu_counts(case: Case, tried: Sequence[Any], days: float) -> Iterator[str]:
    """Yield a table of the numbers of GPUs that were tried, and the answer."""
    fewest = min(count.gpus for count in tried if count.within(days))
    lines = [
        {"GPUs": count.gpus, "days": count.days, "s": count.seconds, "best set-up": count.words or "none can be"}
        for count in sorted(tried, key=lambda count: count.gpus)
    ]
    tokens = number(case.job.training_tokens)
    yield f"{model_of(case).label} on {case.network.fabric}: a training of {tokens} tokens within {days:g} days"
    yield plain(lines, ["GPUs", "days", "s"])
    yield f"The fewest GPUs in time, of those tried: {fewest:,}."
    if case.job.batch.global_batch is not None and any(count.days is None for count in tried):
        yield wrap(
            f"Set-ups must divide the batch of {case.job.batch.global_batch:,} sequences, which rules out many numbers "
            "of GPUs; leave job.batch.global_batch open for about 4,096 sequences that fit each number."
        )
    yield ""


def least(every: Sequence[Any], by: str) -> Any:
    """Return the best of several fabrics."""
    return min(every, key=lambda best: (best.rows[0][COLUMNS[by]] is None, best.rows[0][COLUMNS[by]]))


def by_fabric(every: Sequence[Any], by: str) -> Iterator[str]:
    """Yield a table of the best set-up on each of several fabrics."""
    if len(every) < 2:
        return
    first = least(every, by).rows[0][COLUMNS[by]]
    lines = []
    for best in sorted(every, key=lambda best: best.rows[0][COLUMNS[by]] or 0.0):
        row = best.rows[0]
        over = percent(row[COLUMNS[by]] / first - 1, signed=True) if first and row[COLUMNS[by]] else None
        facts = {"s": row["iteration_s"], "$/Mtok": row["usd_per_million_tokens"], "over best": over}
        lines.append({"fabric": row["fabric"], "GPUs": str(row["gpus"])} | facts)
    yield f"\nthe best set-up on each fabric, by {by}\n{plain(lines)}"
