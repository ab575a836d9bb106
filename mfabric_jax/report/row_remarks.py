"""Remarks on rows: their jobs, and conspicuous results, mostly of optical switches."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mfabric_jax.flows.host import EXACT_PORTS
from mfabric_jax.report import grid, numerals
from mfabric_jax.report.grid import Rows, group_rows
from mfabric_jax.report.numerals import number, percent, usable
from mfabric_jax.report.ranking import above_peak
from mfabric_jax.report.served import page_remarks
from mfabric_jax.support.bands import HIGH, LOW, OF_KERNELS
from mfabric_jax.support.measured_errors import (
    StepErrors,
    date_of_errors,
    errors_by_gpu,
    measured_steps,
    ratio_errors,
)
from mfabric_jax.workload.parallel import region_remark

TIME, RECONFIG, CHANGES, OVER = "iteration_s", "reconfig_s", "circuit_changes", "reconfigurations_over_allowed"
SPAN, BEGIN_RECONFIGURED = "circuits_for", ("block", "stage", "iteration")
STATIC = ("uniform", "static")  # policies with fixed circuits
_MOSTLY = 0.5  # above this fraction of an iteration, reconfiguration dominates it
_COUNTED = 8  # most values that a sentence names
_UNEVEN = 1.2  # above this ratio of the busiest rank to the mean, a remark says so
_SAME = 0.0001  # relative: equal results
GPU, RATE, KERNEL_TABLE = "gpu.name", "compute.rate", "compute.kernels.table"
AS_MEASURED = {RATE: "kernels", KERNEL_TABLE: None, "compute.calibration": "none"}  # predictions whose errors are known
_LACKING = "none"  # value of a setting that a fabric does not have
HELD = "8 of 10 measured training steps lie within, each source weighted alike"
MILLION = 1_000_000
_MOST_ROWS = 20_000
_PLACE = ("model", "fabric", "ocs", "policy")
_SUBJECTS = ("model", "fabric")  # compared subjects, not settings
Row = Mapping[str, Any]


def remarks(rows: Rows, effective: Mapping[str, Any] | None = None) -> list[str]:
    """Return remarks on rows: batches, rates above peak, optical switches, idle settings, experts, prices, accuracy."""
    known = [row for row in rows if usable(row.get(TIME))]
    named = [row for row in grid.with_named_graphs(known) if None not in (row.get("model"), row.get("fabric"))]
    sentences = [*_batches(named), *_above_peak(named), *_switches(named), *_idle(known, effective or {})]
    sentences += [*_experts(named), *_estimates(named), *_small(named), *_missing_quotes(named, effective or {})]
    return [*sentences, *_accuracy(named, effective or {}), *page_remarks(rows, effective or {})]


def _missing_quotes(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on price files that quote switches, but none for some bandwidths of the rows."""
    speeds = sorted({row["nic_gbps"] for row in rows if usable(row.get("nic_gbps"))})
    for file, values in (effective.get("own_prices") or {}).items():
        ports = [name.split(".")[1] for name in values if name.startswith("switch.") and name.endswith(".usd")]
        served = {float(values.get(f"switch.{port}.nic_gbps", [port])[0]) for port in ports}
        beside = [number(speed) for speed in speeds if served and speed not in served]
        if beside:
            yield (
                f"{file} quotes switches for NICs of {', '.join(map(number, sorted(served)))} Gbps only; NICs of "
                f"{', '.join(beside)} Gbps take the usual price of a port "
                "(nic_gbps in [switch.GBPS] sets which NICs a switch serves)."
            )


def _accuracy(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """A remark on accuracy on the GPUs of the rows, if these compute at the rates of the package's measured kernels."""
    resolved = {"compute.calibration": "none"} | effective.get("resolved", {})  # older files have no calibration
    if not any(all(_may_be(row, resolved, path, value) for path, value in AS_MEASURED.items()) for row in rows):
        return
    every = [row[GPU] for row in rows if row.get(GPU) is not None]
    if not every:
        listed = resolved.get(GPU, [])
        every = [listed] if isinstance(listed, str) else listed
    if every:
        loads = (usable(row.get("rank_load_over_mean")) for row in rows)
        yield accuracy_words(every, [load for load in loads if load is not None])


def accuracy_words(gpus: Iterable[str], loads: Iterable[float] = ()) -> str:
    """Return sentences on the errors of measured steps of some GPUs.

    `loads`: load of the busiest rank over the mean, of each row; measured steps had evenly routed tokens.
    """
    known, listed = errors_by_gpu(), list(dict.fromkeys(gpus))
    errors = [f"for {gpu} {_distance_words(known[gpu])}" for gpu in listed if gpu in known]
    without = [gpu for gpu in listed if gpu not in known]
    made = f"measured with even routing (mfabric validate training, {date_of_errors()})"
    sentences = [f"Predictions {'; '.join(errors)}; {made}."] if errors else []
    if without:
        sentences.append(f"No step of {' or '.join(without)} was measured (mfabric validate training).")
    sentence = " ".join(sentences)
    each = list(dict.fromkeys(f"{load:.2f}" for load in sorted(loads)))
    if not each:
        return sentence
    over = each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
    return f"{sentence} In these rows the busiest rank receives {over} times the mean."


def _distance_words(errors: StepErrors) -> str:
    mean, worst = (f"{percent(abs(error))}" for error in (errors.mean, errors.worst))
    side, other = ("below" if error < 0 else "above" for error in (errors.mean, errors.worst))
    if errors.steps == 1:
        return f"are {mean} {side} the one step measured"
    at_worst = f"{worst} at worst" if side == other else f"{worst} {other} at worst"
    return f"are {mean} {side} measured steps on average ({errors.steps} steps), {at_worst}"


def errors_words(gpus: Iterable[str], rows: Rows) -> str:
    """Return how far a time may be off, with the measured steps of some GPUs, and how far a comparison.

    `rows`: their widest band is that of a time.
    """
    bands = [(row.get(LOW), row[TIME], row.get(HIGH)) for row in rows if usable(row.get(TIME))]
    ends = [(low / seconds, high / seconds) for low, seconds, high in bands if low and high and low < high]
    steps = "; ".join(map(_steps_words, dict.fromkeys(gpus)))
    sentence = f"{steps[:1].upper()}{steps[1:]}."
    if ends:
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        may = f"A time, and its dollars, may be {percent(1 - low)} less to {percent(high - 1)} more than predicted"
        sentence = f"{may} ({HELD}; {steps})."
    ratio = percent(ratio_errors().eight_in_ten)
    return f"{sentence} A comparison of two designs errs less: 8 of 10 measured ratios of two steps are within {ratio}."


def _steps_words(gpu: str) -> str:
    """Return how long the measured steps of a GPU took, over what is predicted."""
    ratios = [step.ratio for step in measured_steps().values() if step.gpu == gpu]
    if not ratios:
        return f"no step of {gpu} was measured"
    over = math.fsum(ratios) / len(ratios) - 1
    longer = f"took {percent(abs(over))} {'longer' if over > 0 else 'less'} than predicted"
    if len(ratios) == 1:
        return f"the one {gpu} step measured {longer}"
    return f"{len(ratios)} {gpu} steps {longer} on average"


def _may_be(row: Row, resolved: Mapping[str, Any], path: str, value: str | None) -> bool:
    """Whether a row may have this value of a setting: by its own column, else by the resolved settings of all rows."""
    own = row.get(path)
    own = resolved.get(path) if own is None else own
    return value in own if isinstance(own, list) else own == value


def band_words(rows: Iterable[Mapping[str, Any]], draws: int = 0) -> str:
    """Return what the band of some rows means, after a colon; `draws`: further draws of traffic, if known."""
    if any(row.get(column) is not None for row in rows for column in OF_KERNELS.values()):
        return HELD
    return f"spread of {draws + 1} draws of traffic, but not of seeds" if draws else "spread of draws of traffic"


def job_words(rows: Rows) -> list[str]:
    """Return the job of one model's rows in words: all values if rows differ, nothing for unknown values."""
    gpus, batches = (_values(rows, name) for name in ("gpus", "micro_batches"))
    folded = _values(rows, "etp") not in ("", _values(rows, "tp"))
    degrees = {name.upper(): _values(rows, name) for name in ("dp", "etp" if folded else "tp", "pp", "ep")}
    product = f" = {' x '.join(f'{name} {value}' for name, value in degrees.items())}" if all(degrees.values()) else ""
    product += f" (attention TP {_values(rows, 'tp')})" if product and folded else ""
    each = [_values(rows, name) for name in ("micro_batch", "sequence")]
    of = f" of {' x '.join(map(str, each))} tokens" if all(each) else ""
    tokens = " and ".join(number(value / MILLION) for value in sorted(set(map(_tokens, rows)) - {0.0}))
    words = [f"{gpus} GPUs{product}"] if gpus else []
    if (recipe := _values(rows, "recipe")) not in ("", "none"):
        words.append(f"set-up of {recipe} (--set model.recipe=none drops it)")
    if regions := _values(rows, "region_servers"):
        words.append(f"regions of {regions} server{'' if regions == '1' else 's'}")
    words += [f"{batches} micro-batches{of}"] if batches else []
    words += [f"{tokens} M tokens an iteration"] if tokens else []
    return [*words, *precision_words(rows)]


def precision_words(rows: Rows) -> list[str]:
    """Return the number formats in which rows compute and send, in words; nothing if unknown."""
    computed, sent = (_values(rows, name) for name in ("compute_precision", "precision"))
    return [f"computed in {computed}, sent in {sent}"] if computed and sent else []


def _values(rows: Rows, name: str) -> str:
    known = [numerals.plain_scalar(row[name]) for row in rows if row.get(name) is not None]
    return " and ".join(dict.fromkeys(number(x) for x in known if x == x))


def _tokens(row: Mapping[str, Any]) -> float:
    tokens = usable(row.get("tokens_per_iteration"))
    if tokens is None:
        tokens = (usable(row.get("tokens_per_s")) or 0) * (usable(row.get(TIME)) or 0)
    return float(f"{tokens:.3g}")


def _batches(rows: Rows) -> Iterator[str]:
    tokens: dict[Any, set[float]] = {}
    for row in rows:
        if own := _tokens(row):
            tokens.setdefault(row["model"], set()).add(own)
    if len(set().union(*tokens.values())) > 1 and len(tokens) > 1:
        millions = {
            model: " and ".join(f"{number(x / MILLION)} M" for x in sorted(own)) for model, own in tokens.items()
        }
        each = ", ".join(f"{model} {some}" for model, some in millions.items())
        yield f"Models differ in tokens per iteration ({each}): compare their tokens_per_s, not their seconds."


def _largest(rows: Rows, value: Callable[[Row], float | None], above: float) -> dict[Any, float]:
    largest: dict[Any, float] = {}
    for row in rows:
        if (own := value(row) or 0.0) > above:
            largest[row["model"]] = max(largest.get(row["model"], 0.0), own)
    return largest


def _above_peak(rows: Rows) -> Iterator[str]:
    if rates := _largest(rows, above_peak, 0.0):
        models = ", ".join(f"{model} {percent(rate)}" for model, rate in rates.items())
        yield (
            f"Warning: computation exceeds the peak of the priced GPU ({models} of it), which is impossible. Use "
            "seconds only as ratios. Dollars and joules of the whole cluster stay empty unless you set "
            "compute.efficiency."
        )


def _experts(rows: Rows) -> Iterator[str]:
    """Remarks on experts that compute as if balanced although loads are uneven, and on dropped selections."""
    balanced = [row for row in rows if row.get("expert_load") == "balanced"]
    if over := _largest(balanced, lambda row: usable(row.get("rank_load_over_mean")), _UNEVEN):
        models = ", ".join(f"{model} {number(load)}" for model, load in over.items())
        yield (
            f"The busiest rank receives more than the mean ({models} times), but experts compute as if loads were "
            "even; --set compute.experts=received makes them compute what they receive."
        )
    if parts := _largest(rows, lambda row: usable(row.get("dropped_share")), 0.0):
        most = ", ".join(f"{model} {percent(part)}" for model, part in parts.items())
        yield f"Experts drop selections beyond their capacity (share of all): {most}."


def _estimates(rows: Rows) -> Iterator[str]:
    ranks = sorted({row["ep"] for row in rows if (usable(row.get("ep")) or 0) > EXACT_PORTS})
    if ranks:
        yield (
            f"All-to-alls among {', '.join(map(number, ranks))} ranks with own NICs are estimated from an exactly "
            "computed sample; on a GPU all are exact (page Accuracy)."
        )


def _small(rows: Rows) -> Iterator[str]:
    models: dict[float, dict[str, None]] = {}
    for row in rows:
        if row.get("ocs") not in (None, _LACKING) and (size := usable(row.get("region_servers"))) is not None:
            models.setdefault(size, {})[str(row["model"])] = None
    for size, names in models.items():
        if remark := region_remark(int(size), f"A region of {', '.join(names)}"):
            yield remark


KEPT = "--set circuits.reconfigure=span --set circuits.span.length=run"
ADVICE = {  # on a switch that is too slow, by what its circuits follow
    "traffic": f"it is too slow for circuits that follow the traffic; keep circuits ({KEPT}) or take a faster switch.",
    "schedule": (
        "it is too slow for circuits that change during an all-to-all; choose them once "
        f"(--set circuits.schedule=none {KEPT}) or take a faster switch."
    ),
    "phases": (
        "it reconfigures between phases of communication under all settings; take a faster switch, or a fabric with "
        "fixed links."
    ),
}


def slow_switch_words(where: str, what: str, reconfig: float, whole: float, bubble: float, changes: str) -> str | None:
    """Return a warning if reconfigurations take most of an iteration without its bubble, else None.

    The bubble is left out because other stages wait for reconfigurations in it. `reconfig`, `whole`, `bubble`: seconds.
    `changes`: what circuits follow, a key of `ADVICE`.
    """
    without_bubble = whole - bubble
    if not reconfig > _MOSTLY * without_bubble or without_bubble <= 0:
        return None
    share = f"{percent(reconfig / without_bubble)} of an iteration{' without its bubble' if bubble else ''}"
    seconds = f"({number(reconfig)} of {number(without_bubble)} s)"
    return f"Warning: on {where}, {what} waits for the optical switch for {share} {seconds}: {ADVICE[changes]}"


def _switches(rows: Rows) -> Iterator[str]:
    """Remarks on reconfiguration that dominates an iteration or is too frequent, and on circuits that never change."""
    wanted: list[Row] = [
        {name: row.get(name) for name in (*_PLACE, TIME, CHANGES, SPAN, "schedule")}
        | {name: usable(row.get(name)) or 0.0 for name in (RECONFIG, "bubble_s", OVER)}
        for row in rows
    ]
    places = group_rows(wanted, *_PLACE)
    still: dict[tuple[str, str], None] = {}
    for (model, fabric, ocs, policy), same in places.items():
        where = f"{fabric} with {ocs}" if ocs not in (None, "none", "unnamed") else str(fabric)
        beside = [row[TIME] - row["bubble_s"] for row in same]
        parts = [row[RECONFIG] / seconds if seconds > 0 else 0.0 for row, seconds in zip(same, beside, strict=True)]
        worst = same[parts.index(max(parts))]
        changes = "phases" if worst[SPAN] == _LACKING else "traffic"
        changes = "schedule" if worst["schedule"] not in (None, _LACKING) else changes
        if words := slow_switch_words(where, model, worst[RECONFIG], worst[TIME], worst["bubble_s"], changes):
            yield words
        if (times := max(row[OVER] for row in same)) > 1:
            yield f"Warning: {where} reconfigures {number(times)} times as often as it may ({model})."
        if policy not in STATIC and all(
            usable(row[CHANGES]) == 0 and not row[RECONFIG] and row[SPAN] not in BEGIN_RECONFIGURED for row in same
        ):
            still[f"{where} ({policy})", str(model)] = None
    together: dict[tuple[str, ...], list[str]] = {}
    for where in dict.fromkeys(where for where, _ in still):
        together.setdefault(tuple(model for label, model in still if label == where), []).append(where)
    for models, where in together.items():
        same = "fixed links would give the same times"
        yield f"Circuits of {', '.join(where)} never change in these rows for {', '.join(models)}: {same}."


def _idle(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on settings whose values all give equal times if other settings are equal."""
    if not 1 < len(rows) <= _MOST_ROWS:
        return
    names = [n for n in grid.setting_columns(rows, effective) if n not in grid.COUNTERS and n in rows[0]]
    names = [name for name in names if len(grid.values_in(rows, name)) > 1]
    for name in names:
        if name in _SUBJECTS:
            continue
        others = [other for other in names if other != name]
        pairs = [some for some in group_rows(rows, *others).values() if len({row[name] for row in some}) > 1]
        times = [[row[TIME] for row in some] for some in pairs]
        equal = all(max(each) - min(each) <= _SAME * max(each) for each in times)
        alike = {number(row[name]) for some in pairs for row in some}
        had = [value for value in grid.values_in(rows, name) if value != _LACKING]
        if pairs and len(alike) == len(had) and equal:
            values = ", ".join(sorted(alike)) if len(alike) <= _COUNTED else f"{len(alike)} values"
            yield f"{name} has no effect on {TIME}: {values} give equal times where other settings are equal."
