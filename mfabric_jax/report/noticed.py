"""What rows say in words: of which jobs they are, and what is to be noticed about these and about optical switches."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mfabric_jax.fabric.tree import Tree
from mfabric_jax.report import grid, numerals
from mfabric_jax.report.grid import Rows, grouped
from mfabric_jax.report.numerals import significant, usable
from mfabric_jax.report.ranking import above_peak
from mfabric_jax.workload.parallel import region_remark

TIME, TURNING, CHANGES, OVER = "iteration_s", "reconfig_s", "circuit_changes", "turns_over_allowed"
STATIC = ("uniform", "static")  # policies whose circuits never change
_MOSTLY = 0.5  # part of an iteration from which on switching decides it
_CLOSE = 0.01
_COUNTED = 8  # values that a sentence names
_UNEVEN = 1.2  # what the busiest rank receives over the mean, from which on it is said
_SAME = 0.0001  # relative: the same result
_LACKING = "none"  # of a setting that a fabric does not have
MILLION = 1_000_000
_LONG = 1000  # seconds that are written without a fraction
_MOST_ROWS = 20_000
_PLACE = ("model", "fabric", "ocs", "policy")
_SUBJECTS = ("model", "fabric")  # what is compared, no setting
Row = Mapping[str, Any]
_TREES = ("fat-tree", "oversub-fat-tree", "rail-optimized", "mfabric")
_CASE = ("model", "fabric", "nic_gbps")


def remarks(rows: Rows, effective: Mapping[str, Any] | None = None) -> list[str]:
    """Sentences on what rows say of optical switches: too slow, not needed, or all designs alike."""
    known = [row for row in rows if usable(row.get(TIME))]
    named = [row for row in known if None not in (row.get("model"), row.get("fabric"))]
    told = [*_batches(named), *_above_peak(named), *_switches(named), *_static(named), *_idle(known, effective or {})]
    return [*told, *_experts(named), *_small(named), *_tall(named, effective or {})]


def job_words(rows: Rows) -> list[str]:
    """Of which job rows of one model are: GPUs and degrees, regions, micro-batches, tokens an iteration, precision.

    Where rows differ, every value; what no row says is left out.
    """
    gpus, batches = (_values(rows, name) for name in ("gpus", "micro_batches"))
    degrees = {name.upper(): _values(rows, name) for name in ("dp", "tp", "pp", "ep")}
    product = f" = {' x '.join(f'{name} {value}' for name, value in degrees.items())}" if all(degrees.values()) else ""
    each = [_values(rows, name) for name in ("micro_batch", "sequence")]
    of = f" of {' x '.join(map(str, each))} tokens" if all(each) else ""
    tokens = " and ".join(f"{value / MILLION:.3g}" for value in sorted(set(map(_tokens, rows)) - {0.0}))
    computed, sent = (_values(rows, name) for name in ("compute_precision", "precision"))
    found = [f"{gpus} GPUs{product}"] if gpus else []
    if regions := _values(rows, "region_servers"):
        found.append(f"regions of {regions} server{'' if regions == '1' else 's'}")
    found += [f"{batches} micro-batches{of}"] if batches else []
    found += [f"{tokens} M tokens an iteration"] if tokens else []
    return found + ([f"computed in {computed}, sent in {sent}"] if computed and sent else [])


def _values(rows: Rows, name: str) -> str:
    """Those of a column, in words; none: empty."""
    known = [numerals.plain_scalar(row[name]) for row in rows if row.get(name) is not None]
    return " and ".join(dict.fromkeys(f"{x:g}" if isinstance(x, float) else str(x) for x in known if x == x))


def _tokens(row: Mapping[str, Any]) -> float:
    """Of an iteration, to three digits; 0: not known."""
    tokens = usable(row.get("tokens_per_iteration"))
    if tokens is None:
        tokens = (usable(row.get("tokens_per_s")) or 0) * (usable(row.get(TIME)) or 0)
    return float(f"{tokens:.3g}")


def _batches(rows: Rows) -> Iterator[str]:
    """Where models are trained on different numbers of tokens in an iteration."""
    tokens: dict[Any, set[float]] = {}
    for row in rows:
        if own := _tokens(row):
            tokens.setdefault(row["model"], set()).add(own)
    if len(set().union(*tokens.values())) > 1 and len(tokens) > 1:
        millions = {model: " and ".join(f"{x / MILLION:.3g} M" for x in sorted(own)) for model, own in tokens.items()}
        each = ", ".join(f"{model} {some}" for model, some in millions.items())
        yield f"Models differ in tokens an iteration ({each}): between them compare tokens_per_s, not seconds."


def _largest(rows: Rows, value: Callable[[Row], float | None], above: float) -> dict[Any, float]:
    """The largest value of every model that has one above a bound."""
    found: dict[Any, float] = {}
    for row in rows:
        if (own := value(row) or 0.0) > above:
            found[row["model"]] = max(found.get(row["model"], 0.0), own)
    return found


def _above_peak(rows: Rows) -> Iterator[str]:
    """Where computation is faster than the GPU that is priced."""
    if rates := _largest(rows, above_peak, 0.0):
        models = ", ".join(f"{model} {rate:.0%}" for model, rate in rates.items())
        yield (
            f"Warning: computation is faster than the peak of the GPU that is priced ({models} of it), as no GPU can "
            "be: seconds are a time scale, for ratios alone, and dollars and joules of the whole cluster stay empty. "
            "With compute.efficiency they are known."
        )


def _experts(rows: Rows) -> Iterator[str]:
    """Where experts compute as if balanced, though their ranks receive unevenly; and where they drop selections."""
    balanced = [row for row in rows if row.get("expert_load") == "balanced"]
    if over := _largest(balanced, lambda row: usable(row.get("rank_load_over_mean")), _UNEVEN):
        models = ", ".join(f"{model} {significant(load, 2)}" for model, load in over.items())
        yield (
            f"The busiest rank receives more than the mean ({models} times), and experts compute as if even: "
            "--set compute.experts=received has them compute what they get."
        )
    if parts := _largest(rows, lambda row: usable(row.get("dropped_share")), 0.0):
        most = ", ".join(f"{model} {part:.1%}" for model, part in parts.items())
        yield f"Experts drop what is above their capacity, of all selections: {most}."


def _small(rows: Rows) -> Iterator[str]:
    """Where regions are so small that circuits cannot differ."""
    optical = [row for row in rows if row.get("ocs") not in (None, _LACKING)]
    for model, size in dict.fromkeys((row["model"], usable(row.get("region_servers"))) for row in optical):
        if size is not None and (remark := region_remark(int(size), f"A region of {model}")):
            yield remark


def _tall(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """Where trees have a tier more than their NICs need."""
    settings = effective.get("group", effective)
    server = settings.get("server") if isinstance(settings.get("server"), Mapping) else settings.get("gpu_server") or {}
    gpus_per_server = server.get("gpus_per_server") or 8
    nics = settings.get("nics") or server.get("nics") or gpus_per_server
    two = Tree(1, tiers=2)
    tall = [row for row in rows if row["fabric"] in _TREES and row.get("tiers", settings.get("tiers")) == 3]
    most = max((usable(row.get("gpus")) or math.inf for row in tall), default=math.inf) * nics / gpus_per_server
    if most <= two.most_hosts:
        room = f"two tiers of switches with {two.radix} ports have room for {two.most_hosts:,} NICs"
        less = "and cost less: --set network.tiers=fewest"
        yield f"Trees of packet switches have three tiers, as the paper's; {room}, {less}."


def _places(rows: Rows) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    return grouped([{name: row.get(name) for name in (*_PLACE, TIME, TURNING, CHANGES, OVER)} for row in rows], *_PLACE)


def _where(fabric: Any, ocs: Any) -> str:
    return f"{fabric} with {ocs}" if ocs not in (None, "none", "unnamed") else str(fabric)


def _switches(rows: Rows) -> Iterator[str]:
    """Where switching takes most of an iteration, or is asked for too often; and where circuits never change."""
    places = _places(rows)
    for (model, fabric, ocs, _), own in places.items():
        worst = max(own, key=lambda row: (usable(row[TURNING]) or 0) / row[TIME])
        turning, where = usable(worst[TURNING]) or 0, _where(fabric, ocs)
        if turning > _MOSTLY * worst[TIME]:
            share = f"{turning / worst[TIME]:.0%} of an iteration ({_seconds(turning)} of {_seconds(worst[TIME])} s)"
            yield (
                f"Warning: on {where}, {model} waits for the optical switch for {share}: it is too slow for circuits "
                "that follow the traffic; keep them (--set circuits.span.length=run) or take a faster one."
            )
    for (model, fabric, ocs, _), own in places.items():
        times = max((usable(row[OVER]) or 0 for row in own), default=0)
        if times > 1:
            yield f"Warning: {_where(fabric, ocs)} turns {significant(times, 3)} times as often as it may ({model})."
    still: dict[tuple[Any, ...], list[str]] = {}
    follow = {(fabric, policy) for _, fabric, _, policy in places if policy not in STATIC}
    for (model, fabric, ocs, policy), own in places.items():
        if policy not in STATIC and all(usable(row[CHANGES]) == 0 for row in own):
            by = f" ({policy})" if sum(fabric == other for other, _ in follow) > 1 else ""
            still.setdefault((fabric, model), []).append(_where(fabric, ocs) + by)
    together: dict[str, list[str]] = {}
    for (_, model), where in still.items():
        together.setdefault(", ".join(dict.fromkeys(where)), []).append(str(model))
    for where, models in together.items():
        links = "links wired once do the same, no switch is needed"
        yield f"Circuits of {where} never change here for {', '.join(models)}: {links}."


def _static(rows: Rows) -> Iterator[str]:
    """Where circuits that never change are as good as those that follow the traffic."""
    placed = [{**{name: row.get(name) for name in (*_CASE, "policy", CHANGES)}, TIME: row[TIME]} for row in rows]
    for (model, fabric, gbps), some in grouped(placed, *_CASE).items():
        meshes = [row for row in some if row["policy"] in STATIC]
        follow = [row for row in some if row["policy"] not in STATIC and usable(row[CHANGES])]
        if not meshes or not follow:
            continue
        mesh, best = (min(kind, key=lambda row: row[TIME]) for kind in (meshes, follow))
        if mesh[TIME] <= (1 + _CLOSE) * best[TIME]:
            off = f"{mesh[TIME] / best[TIME] - 1:+.1%} in time"
            where = f"{model} on {fabric}" + ("" if gbps is None else f" at {gbps:g} Gbps")
            yield f"{where}: circuits that never change ({mesh['policy']}) do as well as {best['policy']} ({off})."


def _idle(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """Settings of several values that all give the same times, wherever all else is equal."""
    if not 1 < len(rows) <= _MOST_ROWS:
        return
    names = [n for n in grid.shown_settings(rows, effective) if n not in grid.COUNTERS and n in rows[0]]
    names = [name for name in names if len(grid.values_in(rows, name)) > 1]
    for name in names:
        if name in _SUBJECTS:
            continue
        others = [other for other in names if other != name]
        pairs = [some for some in grouped(rows, *others).values() if len({row[name] for row in some}) > 1]
        alike = {grid.shown(row[name]) for some in pairs for row in some}
        had = [value for value in grid.values_in(rows, name) if value != _LACKING]
        if pairs and len(alike) == len(had) and all(_equal(some) for some in pairs):
            values = ", ".join(sorted(alike)) if len(alike) <= _COUNTED else f"{len(alike)} values"
            yield f"{name} has no effect on {TIME}: {values} give the same wherever all else is equal."


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= _LONG else significant(value)


def _equal(rows: Sequence[Mapping[str, Any]]) -> bool:
    times = [row[TIME] for row in rows]
    return max(times) - min(times) <= _SAME * max(times)
