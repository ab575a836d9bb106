"""`mfabric show [FILE ...]`: what a case becomes, and why."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from mfabric_jax.case import Case, Cases
from mfabric_jax.case.grid import RULES, fabric_reads
from mfabric_jax.case.layers import presets
from mfabric_jax.case.paths import Leaf, flat, settings
from mfabric_jax.case.values import AUTO

COLUMN = 48  # where comments begin
DEFAULT = "default"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """A case as TOML: every value with what stated it (default, model, preset, file, flag), open ones as worked out.

    It can be given back as a FILE.
    """

    changed: bool = False
    """Only what is not a default."""
    presets: bool = False
    """Which presets there are."""


def run(cases: Cases, options: Options) -> int:
    """Returns the exit status."""
    if options.presets:
        wide = max(map(len, presets()))
        print("\n".join(f"{name:<{wide}}  {said}" for name, said in presets().items()))
        return 0
    print("\n".join(as_toml(cases, changed=options.changed)))
    return 0


class _Open:
    """Values that were open, and differ among the cases."""

    def __init__(self, values: list[Any]):
        self.values = values


def as_toml(cases: Cases, *, changed: bool = False) -> Iterator[str]:
    """Lines of a file that makes these cases again."""
    found, why = ({}, {}) if changed else _worked_out(cases)
    drawn = _leaves(cases.random)
    every = {path for block in cases.blocks for path in _read_paths(block.case)}
    apart = {path for variant in cases.variants for path in variant.stated}
    stated = {path: value for path, value in cases.stated.items() if path in every}
    axes = [path for path, value in stated.items() if _is_axis(path, value)]
    if axes:
        yield "# axes: the first one changes slowest"
    for path in axes:
        yield _line(path, stated[path], cases.sources.get(path, DEFAULT))
    group = "" if not axes else "axes"
    for path, setting in settings().items():
        if path in (*axes, *drawn) or path not in every or (path not in stated and changed):
            continue
        if _of_another(path, cases.stated) or (path in apart and path not in stated and changed):
            continue
        if path.partition(".")[0] != group:
            yield from [""] if group else []
            group = path.partition(".")[0]
        said = stated.get(path, setting.default)
        value = said if path in apart else found.get(path, said)
        source = cases.sources.get(path, DEFAULT)
        if isinstance(value, _Open):
            yield f"# {path} is open: {', '.join(map(_value, value.values))}"
        else:
            source = f"open: {why[path]}" if path in why and value != said else source
            yield _line(path, value, source)
    if cases.random or cases.rules:
        yield ""
    yield from (f"random.{path} = {_value(spec)}" for path, spec in drawn.items())
    yield from (f"sweep.{name} = {_value(value)}" for name, value in cases.rules.items() if value != RULES[name])
    for variant in cases.variants:
        yield from ("", "[[variants]]", f"name = {_value(variant.name)}")
        yield from (f"{path} = {_value(value)}" for path, value in variant.stated.items())
    unread = [path for path in settings() if path not in every and path in cases.stated and path not in apart]
    if unread:
        fabrics = ", ".join(dict.fromkeys(block.case.network.fabric for block in cases.blocks))
        yield f"\n# read by no case here ({fabrics}): {', '.join(unread)}"


def _worked_out(cases: Cases) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Open values as the cases have them in the end, and why."""
    from mfabric_jax.simulation import resolve

    each = [resolve(block.case) for block in cases.blocks]
    said = [flat(block.case) for block in cases.blocks]
    found: dict[str, Any] = {}
    for path in settings():
        values = [flat(one.case)[path] for one in each if path in flat(one.case)]
        distinct = [value for at, value in enumerate(values) if value not in values[:at]]
        plain = [one[path] for one in said if path in one]
        if len(distinct) == 1:
            found[path] = distinct[0]
        elif distinct and all(value is None for value in plain):
            found[path] = _Open(distinct)
    return found, each[0].why


def _read_paths(case: Case) -> list[str]:
    stated = flat(case)
    return [path for path in stated if fabric_reads(path, stated)]


def _leaves(random: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What is drawn, by path."""
    found: dict[str, Any] = {}
    for name, value in random.items():
        path = prefix + name
        found |= {path: value} if path in settings() else _leaves(value, path + ".")
    return found


def _is_axis(path: str, value: Any) -> bool:
    return isinstance(value, list) and not (settings()[path].listed and not any(isinstance(v, list) for v in value))


def _of_another(path: str, stated: Mapping[str, Any]) -> bool:
    """Whether a leaf belongs to an alternative that only variants choose."""
    leaf = settings()[path]
    if not isinstance(leaf, Leaf) or not leaf.choice:
        return False
    chosen = stated.get(leaf.choice, settings()[leaf.choice].default)
    return leaf.of not in (chosen if isinstance(chosen, list) else [chosen])


def _line(path: str, value: Any, source: str) -> str:
    return f"{f'{path} = {_value(value)}':<{COLUMN}} # {source}"


def _value(value: Any) -> str:
    """In TOML."""
    if value is None:
        return f'"{AUTO}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_value(one)}' for name, one in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return (
        str(value) if isinstance(value, int) else json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    )
