"""Settings by path: the known settings, statements of their values, and the case that a statement makes.

A statement is a flat dictionary from path to value; the value of a choice is the name of an alternative. For example,
`circuits.predict.sigma` is a leaf of the alternative `predict` of `circuits.turn`; `compute.efficiency` stands both for
an alternative and for its only value.
"""

import dataclasses
import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from mfabric_jax import units
from mfabric_jax.case import policies, tree
from mfabric_jax.case.serving import ServingSettings
from mfabric_jax.case.tree import Alternative, Group
from mfabric_jax.checks import InputError, check_size, meant, one_of, shown
from mfabric_jax.support.notebooks import html_table

POLICY = "circuits.policy"
AUTO = "auto"  # how files and the command line write an open value
KILO = 1000.0
UNITS = {  # by suffix of a name: units that a text may have, as multiples of the name's unit
    "_s": {"s": 1.0, "ms": units.ms(1.0), "us": units.us(1.0), "ns": units.ns(1.0), "min": 60.0, "h": 3600.0},
    "_gbps": {"Gbps": 1.0, "Tbps": KILO, "Mbps": 1 / KILO},
    "_tbps": {"Tbps": 1.0, "Gbps": 1 / KILO},
    "_tflops": {"TFLOP/s": 1.0, "PFLOP/s": KILO},
    "_gigabytes_per_s": {"GB/s": 1.0, "TB/s": KILO, "MB/s": 1 / KILO},
    "_gigabytes": {"GB": 1.0, "TB": KILO, "MB": 1 / KILO},
    "watts": {"W": 1.0, "kW": KILO},
}
RANGE = re.compile(r"(\d{1,18})\s*-\s*(\d{1,18})")
NOT_OF_KIND = (msgspec.ValidationError, UnicodeEncodeError)  # words of a command line may not be UTF-8
WITH_UNIT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]+)")


def of_text(kind: Any, text: str) -> Any:
    """Convert a command-line word to the type; numbers take precedence over texts."""
    word = text.strip()
    if Any in parts_of(kind):
        return word
    tried: list[Any] = []
    for number in (int, float):
        try:
            tried.append(number(word))
        except ValueError:
            continue
    tried += [word == "true"] if word in ("true", "false") else []
    tried += [tuple(part.strip() for part in word.split("+"))] if "+" in word else [(word,)]
    tried += [word]
    for value in tried:
        try:
            return msgspec.convert(value, kind)
        except NOT_OF_KIND:
            continue
    return tried[0] if isinstance(tried[0], int | float) else word


def converted(path: str, kind: Any, value: Any) -> Any:
    """Convert a value to its type. Raise InputError if it is invalid."""
    value = _in_units(path, kind, value)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{path} must be {words(kind)}, got nan.")
    if isinstance(value, bool) and bool not in parts_of(kind):
        raise InputError(f"{path} must be {words(kind)}, got {str(value).lower()}.")
    try:
        found = msgspec.convert(value, kind)
    except NOT_OF_KIND:
        raise InputError(
            f"{path} must be {words(kind)}, got {shown(value)}{meant(str(value).lower(), _accepted(kind))}."
        ) from None
    if isinstance(found, float) and math.isinf(found):
        if not path.endswith("capacity_factor"):
            raise InputError(f"{path} must be {words(kind)}, got {found}.")
    elif isinstance(found, int | float) and not isinstance(found, bool):
        check_size(path, found)
    return found


def _accepted(kind: Any) -> list[str]:
    """Return the words that a type accepts."""
    return [one for part in parts_of(kind) for one in typing.get_args(part) if isinstance(one, str)]


def _in_units(path: str, kind: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if tuple in {typing.get_origin(one) for one in parts_of(kind)} and (ends := RANGE.fullmatch(value.strip())):
        return int(ends[1]), int(ends[2])
    unit = max((unit for unit in UNITS if path.endswith(unit)), key=len, default=None)
    found = WITH_UNIT.fullmatch(value.strip()) if unit else None
    if found is None or unit is None:
        return value
    if found[2] not in UNITS[unit]:
        raise InputError(f"{path} must be a number or a text in {', '.join(UNITS[unit])}, got {value!r:.80}.")
    return float(found[1]) * UNITS[unit][found[2]]


def parts_of(kind: Any) -> list[Any]:
    """Return the types of a union, without annotations."""
    if typing.get_origin(kind) is typing.Annotated:
        return parts_of(kind.__origin__)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for one in typing.get_args(kind) for part in parts_of(one)]
    return [kind]


def _bounds(kind: Any) -> list[str]:
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    found = []
    for one in _annotated(kind):
        for meta in one.__metadata__:
            if isinstance(meta, msgspec.Meta):
                found += [
                    f"{word} {getattr(meta, name):g}" for name, word in words.items() if getattr(meta, name) is not None
                ]
    return found


def _annotated(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Annotated:
        return [kind, *_annotated(kind.__origin__)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for one in typing.get_args(kind) for part in _annotated(one)]
    return []


def words(kind: Any) -> str:
    """Return what a type accepts, in words."""
    said: list[str] = []
    bounds = " and ".join(_bounds(kind))
    for one in parts_of(kind):
        if typing.get_origin(one) is typing.Literal:
            said += [str(value) for value in typing.get_args(one)]
        elif typing.get_origin(one) is tuple:
            said.append("FIRST-LAST" if typing.get_args(one) == (int, int) else "a list")
        elif one is not type(None):
            plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
            number = f" {bounds}" if one in (int, float) and bounds else ""
            said.append(plain.get(one, "a value") + number)
        else:
            said.append(AUTO)
    last = said.pop()
    return f"{', '.join(said)} or {last}" if said else last


SHORT = {  # groups that may be stated by a plain value, and the path that it sets
    "model": "model.name",
    "gpu": "gpu.name",
    "placement": "placement.rule",
    "traffic": "traffic.source",
    "network": "network.fabric",
}
EITHER = (  # stating one of these in a later layer removes the others of earlier layers
    ("job.batch.global_batch", "job.batch.micro_batches", "job.batch.per_stage", "job.batch.bubble"),
    ("job.parallel.gpus", "job.parallel.dp"),
)
PRECISIONS = {  # `job.precision` in one word: compute, dispatch, combine, gradients
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "bf16", "bf16"),  # as DeepSeek-V3 does (arXiv 2412.19437)
}

Statement = dict[str, Any]


class Case(Group, frozen=True):
    """All settings that decide one result, as an immutable tree."""

    model: tree.Model = tree.Model()
    gpu: tree.GpuSettings = tree.GpuSettings()
    job: tree.Job = tree.Job()
    compute: tree.Compute = tree.Compute()
    traffic: tree.Traffic = tree.Traffic()
    placement: tree.PlacementSettings = tree.PlacementSettings()
    network: tree.Network = tree.Network()
    circuits: tree.CircuitSettings = tree.CircuitSettings()
    run: tree.RunSettings = tree.RunSettings()
    failures: tree.FailureSettings = tree.FailureSettings()
    serving: ServingSettings = ServingSettings()

    def with_(self, changes: Mapping[str, Any]) -> "Case":
        """Return the case with changed values, by path: `case.with_({"network.nic_gbps": 400})`; None opens a value.

        Raise InputError for an unknown path or an invalid value.
        """
        above = stated(changes)
        for path, value in above.items():
            if isinstance(value, list) and not settings()[path].listed:
                raise InputError(
                    f"{path} must be a single value in a case, got {value!r}; cases(case, axes) makes several cases."
                )
        return build(layered(flat(self), above))

    def __repr__(self) -> str:
        """Show values that differ from the defaults, as Python that makes the case again."""
        said = differences(self)
        return f"Case().with_({said!r})" if said else "Case()"

    def _repr_html_(self) -> str:
        rows = [{"setting": path, "value": str(value)} for path, value in differences(self).items()]
        return (
            html_table(rows, "A case: values that differ from the defaults") if rows else "<p>A case: all defaults</p>"
        )


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting, of type `kind`. It belongs to the alternative `of` of `choice`, or to none ("").

    `traced`: other values need no recompilation; `file`: it may name a file; `open`: it may be None; `listed`: it may
    be a tuple.
    """

    path: str
    kind: Any
    default: Any
    doc: str
    traced: bool
    file: bool
    open: bool
    listed: bool
    choice: str = ""
    of: str = ""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A setting that selects one of several alternatives by name; `default`: a name, or None if it is open."""

    path: str
    alternatives: Mapping[str, type[Alternative]]
    default: str | None
    doc: str
    open: bool
    traced: bool = False
    listed: bool = False


def _said(hint: Any) -> tuple[str, Mapping[str, bool]]:
    """Return the text and the marks that `tree.doc` gives a setting."""
    for meta in getattr(hint, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description, meta.extra_json_schema or {}
    return "", {}


@functools.cache
def _fields(cls: type) -> tuple[tuple[str, str, Any, Any], ...]:
    hints = typing.get_type_hints(cls, include_extras=True)
    each = msgspec.structs.fields(cls)
    return tuple((field.name, field.encode_name, hints[field.name], field.default) for field in each)


@functools.cache
def _alternatives(hint: Any) -> dict[str, type[Alternative]]:
    found = [one for one in parts_of(hint) if isinstance(one, type) and issubclass(one, Alternative)]
    return {one.__struct_config__.tag: one for one in found}  # type: ignore[misc]


@functools.cache
def settings() -> dict[str, Leaf | Choice]:
    """Return every setting that can be stated, by path."""
    return {one.path: one for one in _settings_of(Case, "")}


def _settings_of(cls: type, prefix: str) -> Iterable[Leaf | Choice]:
    for _, name, hint, default in _fields(cls):
        path, (said, _) = prefix + name, _said(hint)
        if isinstance(hint, type) and issubclass(hint, Group):
            yield from _settings_of(hint, path + ".")
        elif several := _alternatives(hint):
            named = default.name if isinstance(default, Alternative) else None
            yield Choice(path, several, named, said, type(None) in parts_of(hint))
            for alternative in several:
                for field, _, own, usual in _fields(several[alternative]):
                    yield _leaf(leaf_path(prefix + alternative, field), own, usual, path, alternative)
        else:
            yield _leaf(path, hint, default)


def _leaf(path: str, hint: Any, default: Any, choice: str = "", of: str = "") -> Leaf:
    (said, marks), parts = _said(hint), parts_of(hint)
    listed = any(typing.get_origin(one) is tuple for one in parts)
    marked = marks.get("traced", False), marks.get("file", False)
    return Leaf(path, hint, default, said, *marked, type(None) in parts, listed, choice, of)


def leaf_path(alternative: str, field: str) -> str:
    return alternative if field == "value" else f"{alternative}.{field}"


# ---------------------------------------------------------------------------------------------------- what is stated
def unknown(path: str, where: str = "") -> InputError:
    """Return the error for an unknown path, with the closest known one."""
    known = settings()
    near = difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    last = path.rpartition(".")[2]
    near = near or [one for one in known if one.rpartition(".")[2] == last][:1]
    near = near or difflib.get_close_matches(last, [one.rpartition(".")[2] for one in known], n=1)
    near = [one for one in known if one == near[0] or one.endswith("." + near[0])] if near else []
    hint = f" (did you mean {near[0]}?)" if near else ""
    return InputError(f"{where}{path} is unknown{hint}; mfabric show --help lists all settings.")


def stated(given: Mapping[str, Any], where: str = "", *, text: bool = False) -> Statement:
    """Return the checked statement of nested tables and dotted paths. A list holds one value per case.

    `where`: prefix of errors; `text`: values are command-line words.
    """
    found: Statement = {}
    _collect(given, "", found, where)
    for path, value in found.items():
        setting, value = settings()[path], policies.spread(value) if path == POLICY else value
        if not is_axis(path, value):
            found[path] = check(setting, value, where, text)
            continue
        if not value:
            raise InputError(f"{where}{path} must have at least one value, got an empty list.")
        several = [check(setting, one, where, text) for one in value]
        if any(one in several[:at] for at, one in enumerate(several)):
            raise InputError(f"{where}{path} must not repeat a value, got {', '.join(map(str, value))}.")
        found[path] = several if len(several) > 1 else several[0]
    return found


def _collect(given: Mapping[str, Any], prefix: str, found: Statement, where: str) -> None:
    for name, value in given.items():
        path = prefix + str(name)
        if path in ("job.precision",) and not isinstance(value, Mapping):
            value = _precision(value, where)
        elif not isinstance(value, Mapping):
            path = SHORT.get(path, path)
        if isinstance(value, Mapping):
            at = alternatives().get(path)
            if not at and not any(one.startswith(path + ".") for one in settings()):
                raise unknown(path, where)
            if at and not value:
                found.setdefault(at[0], at[1])
            _collect(value, path + ".", found, where)
        elif path in found:
            raise InputError(f"{where}{path} is stated twice.")
        elif path in settings():
            found[path] = value
        elif names := alternatives().get(path):
            raise InputError(
                f"{where}{path} is an alternative of {names[0]} without a value of its own; write {names[0]} = ..."
            )
        else:
            raise unknown(path, where)


def _precision(value: Any, where: str) -> Any:
    names = ("compute", "dispatch", "combine", "gradients")
    values = value if isinstance(value, list) else [value]
    for one in values:
        if one not in PRECISIONS:
            raise InputError(f"{where}job.precision must be {' or '.join(PRECISIONS)}, or a table, got {one!r}.")
    if len(values) > 1:
        raise InputError(
            f"{where}job.precision must be one word, got {value!r}; for several, list job.precision.dispatch."
        )
    return dict(zip(names, PRECISIONS[values[0]], strict=True))


@functools.cache
def alternatives() -> dict[str, tuple[str, str]]:
    """Return (path of the choice, name) of every alternative, by the path of its table."""
    found = {}
    for choice in settings().values():
        if isinstance(choice, Choice):
            group = choice.path.rpartition(".")[0]
            found |= {f"{group}.{name}": (choice.path, name) for name in choice.alternatives}
    return found


def is_axis(path: str, value: Any) -> bool:
    """Whether a value is a list with one value per case, rather than a single value that is a list."""
    if not isinstance(value, list):
        return False
    return not settings()[path].listed or any(isinstance(one, list | tuple) for one in value)


def check(setting: Leaf | Choice, value: Any, where: str = "", text: bool = False) -> Any:
    """Return one value of a setting in its stored form. Raise InputError if it is invalid."""
    if value is None or (isinstance(value, str) and value == AUTO):
        if not setting.open:
            raise InputError(f"{where}{setting.path} must have a value, got {AUTO!r}.")
        return None
    if isinstance(setting, Choice):
        if isinstance(value, Alternative) and value.name in setting.alternatives:
            return value
        return one_of(f"{where}{setting.path}", str(value), setting.alternatives)
    if setting.path == POLICY and not (isinstance(value, str) or callable(value)):
        raise InputError(f"{where}{POLICY} must be the name of a policy, or a function, got {shown(value)}.")
    value = of_text(setting.kind, value) if text and isinstance(value, str) else value
    return converted(f"{where}{setting.path}", setting.kind, value)


# ------------------------------------------------------------------------------------------------------------- layers
def layered(below: Statement, above: Statement, where: str = "") -> Statement:
    """Merge two statements; values of `above` win. Leaves of alternatives that are not chosen are dropped."""
    above = _with_choices(above, below, where)
    found = dict(below)
    for group in EITHER:
        if any(path in above for path in group):
            found = {path: value for path, value in found.items() if path not in group}
    for path in above:
        if path in found:
            del found[path]  # what is stated last is also the last axis
    found |= above
    return {path: value for path, value in found.items() if is_chosen(path, found)}


def _with_choices(above: Statement, below: Statement, where: str) -> Statement:
    """Add the choice of each alternative with a stated leaf. Raise InputError for two alternatives of one choice."""
    found = dict(above)
    for path in above:
        leaf = settings()[path]
        if not isinstance(leaf, Leaf) or not leaf.choice:
            continue
        chosen = found.get(leaf.choice, below.get(leaf.choice))
        if leaf.of in _names(chosen):
            continue
        if leaf.choice in found:
            other = ", ".join(_names(found[leaf.choice]))
            raise InputError(f"{where}{leaf.choice} has one alternative at a time, got {other} and {leaf.of} ({path}).")
        found[leaf.choice] = leaf.of
    return found


def _names(chosen: Any) -> list[str]:
    several = chosen if isinstance(chosen, list) else [chosen]
    return [one.name if isinstance(one, Alternative) else one for one in several]


def is_chosen(path: str, stated: Statement) -> bool:
    """Whether a setting belongs to no choice, or to the alternative that is chosen (or the default)."""
    leaf = settings()[path]
    if not isinstance(leaf, Leaf) or not leaf.choice:
        return True
    choice = settings()[leaf.choice]
    return leaf.of in _names(stated.get(leaf.choice, choice.default))


# --------------------------------------------------------------------------------------------------------------- case
def build(stated: Statement, cls: Any = Case, prefix: str = "") -> Any:
    """Build the case of a statement without axes, or its group `cls`, whose paths begin with `prefix`."""
    values = {}
    for attribute, name, hint, default in _fields(cls):
        path = prefix + name
        if isinstance(hint, type) and issubclass(hint, Group):
            values[attribute] = build(stated, hint, path + ".")
        elif several := _alternatives(hint):
            chosen = stated.get(path, default)
            chosen = several[chosen]() if isinstance(chosen, str) else chosen
            for field in chosen.__struct_fields__ if chosen else ():
                if (leaf := leaf_path(prefix + chosen.name, field)) in stated:
                    chosen = msgspec.structs.replace(chosen, **{field: stated[leaf]})
            values[attribute] = chosen
        elif path in stated:
            values[attribute] = stated[path]
    return cls(**values)


def flat(group: Any, prefix: str = "") -> Statement:
    """Return every value of a case or of a group by path, except leaves of alternatives that are not chosen."""
    found: Statement = {}
    for attribute, name, _, _ in _fields(type(group)):
        value, path = getattr(group, attribute), prefix + name
        if isinstance(value, Group):
            found |= flat(value, path + ".")
        elif isinstance(value, Alternative):
            fields = {leaf_path(prefix + value.name, field): getattr(value, field) for field in value.__struct_fields__}
            found |= {path: value.name} | fields
        else:
            found[path] = value
    return found


@functools.lru_cache(maxsize=4096)
def named_files(case: Case) -> tuple[str, ...]:
    """Return the paths of files, folders and modules in a case, and names that could be those of files."""
    stated = [value for path, value in flat(case).items() if path in file_settings() and isinstance(value, str)]
    return tuple(dict.fromkeys(map(policies.file_of, stated)))


@functools.cache
def file_settings() -> frozenset[str]:
    """Return the settings that may name a file."""
    return frozenset(path for path, setting in settings().items() if isinstance(setting, Leaf) and setting.file)


def differences(case: Case, than: Case | None = None) -> Statement:
    """Return the values of a case that differ from another case, or from the defaults (None)."""
    usual = flat(Case() if than is None else than)
    return {path: value for path, value in flat(case).items() if path not in usual or usual[path] != value}
