"""`mfabric show [FILE ...]`: the resolved values of a case and their sources."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mfabric_jax.case import Case, Cases
from mfabric_jax.case.grid import RULES, fabric_reads, random_axes
from mfabric_jax.case.layers import presets
from mfabric_jax.case.paths import AUTO, Leaf, flat, is_axis, is_chosen, settings

COLUMN = 48  # where comments begin
DEFAULT = "default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Print a case as TOML: every value with its source (default, model, preset, file, flag). Auto values are resolved.

    The output is itself a FILE for other commands.
    """

    changed: bool = False
    """Print only values that differ from the defaults."""
    presets: bool = False
    """List the presets."""


def run(cases: Cases, options: Options) -> None:
    if options.presets:
        wide = max(map(len, presets()))
        print("\n".join(f"{name:<{wide}}  {sentence}" for name, sentence in presets().items()))
        return
    if options.changed:
        _check_names(cases)
    print("\n".join(as_toml(cases, changed=options.changed)))


def _check_names(cases: Cases) -> None:
    """Raise `InputError` for an unknown model or GPU, where nothing else is worked out."""
    from mfabric_jax.evaluate.resolving.resolve import gpu_of, model_of

    for block in cases.blocks:
        model_of(block.case)
        gpu_of(block.case)


class _Open:
    """Values that were open and differ between the cases."""

    def __init__(self, values: list[Any]):
        self.values = values


def as_toml(cases: Cases, *, changed: bool = False) -> Iterator[str]:
    """Yield the lines of a file that makes these cases again."""
    each = [block.case for block in cases.blocks]
    ends, why = (each, {}) if changed else _work_out(each)
    values = {} if changed else _alike(each, ends)
    read = {path for case in (*each, *ends) for path in _read_paths(case)}
    axes = [path for path, value in cases.stated.items() if path in read and is_axis(path, value)]
    if axes:
        yield "# axes: the first one changes slowest"
    for path in axes:
        yield _line(path, cases.stated[path], cases.sources.get(path, DEFAULT))
    group = "axes" if axes else ""
    for path in settings():
        if path in axes or path not in read or _stands_elsewhere(path, cases, values, changed=changed):
            continue
        if path.partition(".")[0] != group:
            yield from [""] if group else []
            group = path.partition(".")[0]
        yield _setting(path, cases, values, why)
    yield from _beside(cases)
    if unread := [path for path in settings() if path not in read and path in cases.stated]:
        fabrics = ", ".join(dict.fromkeys(case.network.fabric for case in each))
        yield from ("", f"# not read by any case here ({fabrics}): {', '.join(unread)}")


def _of_variants(cases: Cases) -> set[str]:
    return {path for variant in cases.variants for path in variant.stated}


def _stands_elsewhere(path: str, cases: Cases, values: Mapping[str, Any], *, changed: bool) -> bool:
    """Whether the list leaves out a setting, because it is drawn at random, is a default, or belongs to an alternative
    that only some variants or auto choices have."""
    if path in random_axes(cases.random) or (changed and path not in cases.stated):
        return True
    leaf = settings()[path]
    if not isinstance(leaf, Leaf) or not leaf.choice:
        return False
    chosen = cases.stated.get(leaf.choice, settings()[leaf.choice].default)
    chosen = values.get(leaf.choice) if chosen is None else chosen
    return not is_chosen(path, {leaf.choice: chosen})


def _setting(path: str, cases: Cases, values: Mapping[str, Any], why: Mapping[str, str]) -> str:
    """Return the line of one setting."""
    stated = cases.stated.get(path, settings()[path].default)
    value = stated if path in _of_variants(cases) else values.get(path, stated)
    if isinstance(value, _Open):
        return f"# {path} is auto: {', '.join(map(_value, value.values))}"
    worked_out = path in why and value != stated
    unless = f"{DEFAULT}, which variants replace" if path in _of_variants(cases) else DEFAULT
    return _line(path, value, f"auto: {why[path]}" if worked_out else cases.sources.get(path, unless))


def _beside(cases: Cases) -> Iterator[str]:
    """Yield the lines of random settings, rules of a sweep, and variants."""
    rules = {name: value for name, value in cases.rules.items() if value != RULES[name]}
    if cases.random or rules:
        yield ""
    yield from (f"random.{path} = {_value(spec)}" for path, spec in random_axes(cases.random).items())
    yield from (f"sweep.{name} = {_value(value)}" for name, value in rules.items())
    for variant in cases.variants:
        yield from ("", "[[variants]]", f"name = {_value(variant.name)}")
        yield from (f"{path} = {_value(value)}" for path, value in variant.stated.items())


def _work_out(each: Sequence[Case]) -> tuple[list[Case], Mapping[str, str]]:
    """Return the cases with all values resolved, and the reasons for these values."""
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax

    resolved = [resolve_without_jax(case) for case in each]
    return [item.case for item in resolved], resolved[0].why


TP, ETP = "job.parallel.tp", "job.parallel.etp"


def _alike(each: Sequence[Case], ends: Sequence[Case]) -> dict[str, Any]:
    """Return the resolved values: one if the cases agree, `_Open` if the setting was open and they differ."""
    common: dict[str, Any] = {}
    before, after = ([flat(case) for case in several] for several in (each, ends))
    for path in settings():
        values = [case_values[path] for case_values in after if path in case_values]
        distinct = [value for index, value in enumerate(values) if value not in values[:index]]
        if len(distinct) == 1:
            common[path] = distinct[0]
        elif distinct and all(case_values.get(path) is None for case_values in before):
            common[path] = _Open(distinct)
    if isinstance(common.get(TP), _Open) and not isinstance(common.get(ETP), _Open):
        common[ETP] = _Open([common[ETP]])  # etp means nothing without tp
    return common


def _read_paths(case: Case) -> list[str]:
    stated = flat(case)
    return [path for path in stated if fabric_reads(path, stated)]


def _line(path: str, value: Any, source: str) -> str:
    return f"{f'{path} = {_value(value)}':<{COLUMN}} # {' '.join(source.split())}"


def _value(value: Any) -> str:
    """Return a value in TOML."""
    if value is None:
        return f'"{AUTO}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(item)}' for name, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return (
        str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    )
