"""Settings by path: the known settings, statements of their values, and the case that a statement makes.

A statement is a flat dictionary from path to value; the value of a choice is the name of an alternative. For example,
`circuits.predict.sigma` is a leaf of the alternative `predict` of `circuits.reconfigure`; `compute.efficiency` stands
both for an alternative and for its only value.
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
from mfabric_jax.case import policies
from mfabric_jax.case.job import (
    Compute,
    FailureSettings,
    GpuSettings,
    Job,
    Model,
    PlacementSettings,
    RunSettings,
    Traffic,
)
from mfabric_jax.case.network import CircuitSettings, Network
from mfabric_jax.case.schema import Alternative, SettingsGroup
from mfabric_jax.case.serving import ServingSettings
from mfabric_jax.checks import InputError, check_letter_case, check_size, format_value, one_of, suggestion
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
    "training_tokens": {"T": KILO**4, "B": KILO**3, "M": KILO**2},
}
RANGE = re.compile(r"(\d{1,18})\s*-\s*(\d{1,18})")
NOT_OF_KIND = (msgspec.ValidationError, UnicodeEncodeError)  # words of a command line may not be UTF-8
WITH_UNIT = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-z/]+)")


def of_text(kind: Any, text: str) -> Any:
    """Convert a command-line word to the type; a word that can be a number is one."""
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
    listed = tuple(part.strip() for part in word.split("+"))
    tried += [*_as_numbers(listed), listed]
    tried += [word]
    for value in tried:
        try:
            return msgspec.convert(value, kind)
        except NOT_OF_KIND:
            continue
    return tried[0] if isinstance(tried[0], int | float) else word


def _as_numbers(listed: tuple[str, ...]) -> list[tuple[float, ...]]:
    try:
        numbers = tuple(map(float, listed))
        return [tuple(int(each) if each.is_integer() else each for each in numbers)]
    except ValueError:
        return []


def convert_value(path: str, kind: Any, value: Any) -> Any:
    """Convert a value to its type. Raise InputError if it is invalid."""
    value = _in_units(path, kind, value)
    if isinstance(value, float) and math.isnan(value):
        raise InputError(f"{path} must be {words(kind)}, got nan.")
    if isinstance(value, bool) and bool not in parts_of(kind):
        raise InputError(f"{path} must be {words(kind)}, got {str(value).lower()}.")
    try:
        result = msgspec.convert(value, kind)
    except NOT_OF_KIND:
        raise _not_of_kind(path, kind, value) from None
    if isinstance(result, float) and math.isinf(result):
        if not path.endswith("capacity_factor"):
            raise InputError(f"{path} must be {words(kind)}, got {result}.")
    elif isinstance(result, int | float) and not isinstance(result, bool):
        check_size(path, result)
    return result


def _not_of_kind(path: str, kind: Any, value: Any) -> InputError:
    accepted = _accepted_words(kind)
    check_letter_case(path, value, accepted)
    near = suggestion(str(value), accepted)
    return InputError(f"{path} must be {words(kind)}, got {format_value(value)}{near}.")


def _accepted_words(kind: Any) -> list[str]:
    """Return the words that a type accepts."""
    return [word for part in parts_of(kind) for word in typing.get_args(part) if isinstance(word, str)]


def _in_units(path: str, kind: Any, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if tuple in {typing.get_origin(part) for part in parts_of(kind)} and (ends := RANGE.fullmatch(value.strip())):
        return int(ends[1]), int(ends[2])
    unit = max((unit for unit in UNITS if path.endswith(unit)), key=len, default=None)
    match = WITH_UNIT.fullmatch(value.strip()) if unit else None
    if match is None or unit is None:
        return value
    if match[2] not in UNITS[unit]:
        raise InputError(f"{path} must be a number or a text in {', '.join(UNITS[unit])}, got {value!r:.80}.")
    return float(match[1]) * UNITS[unit][match[2]]


def parts_of(kind: Any) -> list[Any]:
    """Return the types of a union, without annotations."""
    if typing.get_origin(kind) is typing.Annotated:
        return parts_of(kind.__origin__)
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for member in typing.get_args(kind) for part in parts_of(member)]
    return [kind]


def _bounds(kind: Any) -> list[str]:
    words = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    bounds = []
    for annotation in _annotations(kind):
        for meta in annotation.__metadata__:
            if isinstance(meta, msgspec.Meta):
                bounds += [
                    f"{word} {getattr(meta, name):g}" for name, word in words.items() if getattr(meta, name) is not None
                ]
    return bounds


def _annotations(kind: Any) -> list[Any]:
    if typing.get_origin(kind) is typing.Annotated:
        return [kind, *_annotations(kind.__origin__)]
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return [part for member in typing.get_args(kind) for part in _annotations(member)]
    return []


def words(kind: Any) -> str:
    """Return what a type accepts, in words."""
    texts: list[str] = []
    bounds = " and ".join(_bounds(kind))
    for part in parts_of(kind):
        if typing.get_origin(part) is typing.Literal:
            texts += [str(value) for value in typing.get_args(part)]
        elif typing.get_origin(part) is tuple:
            ends, inner = typing.get_args(part) == (int, int), typing.get_args(part)[0]
            several = f"a list, each {words(inner)}" if _bounds(inner) else "a list"
            texts.append("FIRST-LAST" if ends else several)
        elif part is not type(None):
            plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
            number = f" {bounds}" if part in (int, float) and bounds else ""
            texts.append(plain.get(part, "a value") + number)
        else:
            texts.append(AUTO)
    last = texts.pop()
    return f"{', '.join(texts)} or {last}" if texts else last


SHORT = {  # groups that may be stated by a plain value, and the path that it sets
    "model": "model.name",
    "gpu": "gpu.name",
    "placement": "placement.rule",
    "traffic": "traffic.source",
    "network": "network.fabric",
}
EITHER = (  # a later layer that states one of these removes the others from earlier layers
    ("job.batch.global_batch", "job.batch.micro_batches", "job.batch.per_stage", "job.batch.bubble"),
    ("job.parallel.gpus", "job.parallel.dp"),
)
PRECISIONS = {  # `job.precision` in one word: compute, dispatch, combine, gradients
    "bf16": ("bf16", "bf16", "bf16", "bf16"),
    "fp8": ("fp8", "fp8", "bf16", "bf16"),  # as DeepSeek-V3 does (arXiv 2412.19437)
}

Statement = dict[str, Any]


class Case(SettingsGroup, frozen=True):
    """All settings that decide one result, in groups; immutable."""

    model: Model = Model()
    gpu: GpuSettings = GpuSettings()
    job: Job = Job()
    compute: Compute = Compute()
    traffic: Traffic = Traffic()
    placement: PlacementSettings = PlacementSettings()
    network: Network = Network()
    circuits: CircuitSettings = CircuitSettings()
    run: RunSettings = RunSettings()
    failures: FailureSettings = FailureSettings()
    serving: ServingSettings = ServingSettings()

    def with_(self, changes: Mapping[str, Any]) -> "Case":
        """Return the case with changed values, by path: `case.with_({"network.nic_gbps": 400})`; None means auto.

        Raise InputError for an unknown path or an invalid value.
        """
        above = read_statement(changes)
        for path, value in above.items():
            if isinstance(value, list) and not settings()[path].listed:
                raise InputError(
                    f"{path} must be a single value in a case, got {value!r}; cases(case, axes) makes several cases."
                )
        return build(merge_statements(flat(self), above))

    def __repr__(self) -> str:
        """Show values that differ from the defaults, as Python that makes the case again."""
        changes = differences(self)
        return f"Case().with_({changes!r})" if changes else "Case()"

    def _repr_html_(self) -> str:
        rows = [{"setting": path, "value": str(value)} for path, value in differences(self).items()]
        return (
            html_table(rows, "A case: values that differ from the defaults") if rows else "<p>A case: all defaults</p>"
        )


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One setting, of type `kind`. It belongs to the alternative `of` of `choice`, or to none ("").

    `traced`: other values need no recompilation; `file`: it may name a file; `open`: it may be None; `listed`: it may
    be a tuple; `flag`: its short flag, of one `command` or ("") of all.
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
    flag: str = ""
    command: str = ""


@dataclasses.dataclass(frozen=True)
class SettingChoice:
    """A setting that selects one of several alternatives by name; `default`: a name, or None if it is open."""

    path: str
    alternatives: Mapping[str, type[Alternative]]
    default: str | None
    doc: str
    open: bool
    traced: bool = False
    listed: bool = False
    flag: str = ""
    command: str = ""


def _doc_and_marks(hint: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the text and the marks that `schema.doc` gives a setting."""
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
def _alternatives_of(cls: type) -> dict[str, dict[str, type[Alternative]]]:
    """The alternatives of each field of a group; to hash a hint takes longer than to read it here."""
    return {attribute: _alternatives(hint) for attribute, _, hint, _ in _fields(cls)}


def _alternatives(hint: Any) -> dict[str, type[Alternative]]:
    classes = [member for member in parts_of(hint) if isinstance(member, type) and issubclass(member, Alternative)]
    return {member.__struct_config__.tag: member for member in classes}  # type: ignore[misc]


@functools.cache
def settings() -> dict[str, Leaf | SettingChoice]:
    """Return every setting that can be stated, by path."""
    return {setting.path: setting for setting in _settings_of(Case, "")}


def _settings_of(cls: type, prefix: str) -> Iterable[Leaf | SettingChoice]:
    for _, name, hint, default in _fields(cls):
        path, (text, marks) = prefix + name, _doc_and_marks(hint)
        if isinstance(hint, type) and issubclass(hint, SettingsGroup):
            yield from _settings_of(hint, path + ".")
        elif several := _alternatives(hint):
            named = default.name if isinstance(default, Alternative) else None
            flags = {name: marks[name] for name in ("flag", "command") if name in marks}
            yield SettingChoice(path, several, named, text, type(None) in parts_of(hint), **flags)
            for alternative in several:
                for field, _, own, usual in _fields(several[alternative]):
                    yield _leaf(leaf_path(prefix + alternative, field), own, usual, path, alternative)
        else:
            yield _leaf(path, hint, default)


def _leaf(path: str, hint: Any, default: Any, choice: str = "", of: str = "") -> Leaf:
    (text, marks), parts = _doc_and_marks(hint), parts_of(hint)
    listed = any(typing.get_origin(part) is tuple for part in parts)
    marked = marks.get("traced", False), marks.get("file", False)
    flags = marks.get("flag", ""), marks.get("command", "")
    return Leaf(path, hint, default, text, *marked, type(None) in parts, listed, choice, of, *flags)


def leaf_path(alternative: str, field: str) -> str:
    return alternative if field == "value" else f"{alternative}.{field}"


# ---------------------------------------------------------------------------------------------------- what is stated
RENAMED = {  # settings that were renamed before 0.2
    "circuits.turn": "circuits.reconfigure",
    "network.torus.ways": "network.torus.paths",
    "network.full-mesh.ways": "network.full-mesh.paths",
    "placement.given": "placement.file",
}


def unknown(path: str, where: str = "") -> InputError:
    """Return the error for an unknown path, with the closest known one."""
    known = settings()
    if path in RENAMED:
        return InputError(f"{where}{path} is now {RENAMED[path]}; use that name.")
    last = path.rpartition(".")[2]
    of_section = [each for each in known if each.startswith(path.split(".")[0] + ".") and each.endswith("." + last)]
    near = difflib.get_close_matches(path, of_section or known, n=1, cutoff=0.6)
    near = near or [candidate for candidate in known if candidate.rpartition(".")[2] == last][:1]
    near = near or difflib.get_close_matches(last, [candidate.rpartition(".")[2] for candidate in known], n=1)
    near = (
        [candidate for candidate in known if candidate == near[0] or candidate.endswith("." + near[0])] if near else []
    )
    hint = f" (did you mean {near[0]}?)" if near else ""
    return InputError(f"{where}{path} is unknown{hint}; mfabric show --help lists all settings.")


def read_statement(tables: Mapping[str, Any], where: str = "", *, text: bool = False) -> Statement:
    """Return the checked statement of nested tables and dotted paths. A list holds one value per case.

    `where`: prefix of errors; `text`: values are command-line words.
    """
    statement: Statement = {}
    _collect(tables, "", statement, where)
    for path, value in statement.items():
        setting, value = settings()[path], policies.spread(value) if path == POLICY else value
        if (
            text
            and isinstance(setting, Leaf)
            and setting.listed
            and isinstance(value, list)
            and any("+" in word for word in value)
        ):
            value = [of_text(setting.kind, word) for word in value]
        if not is_axis(path, value):
            statement[path] = check(setting, value, where, text)
            continue
        if not value:
            raise InputError(f"{where}{path} must have at least one value, got an empty list.")
        several = [check(setting, item, where, text) for item in value]
        if any(item in several[:index] for index, item in enumerate(several)):
            raise InputError(f"{where}{path} must not repeat a value, got {', '.join(map(str, value))}.")
        statement[path] = several if len(several) > 1 else several[0]
    return statement


def _collect(tables: Mapping[str, Any], prefix: str, statement: Statement, where: str) -> None:
    for name, value in tables.items():
        path = prefix + str(name)
        if path in ("job.precision",) and not isinstance(value, Mapping):
            value = _precision(value, where)
        elif not isinstance(value, Mapping):
            path = SHORT.get(path, path)
        if isinstance(value, Mapping):
            alternative = alternatives().get(path)
            if not alternative and not any(setting.startswith(path + ".") for setting in settings()):
                raise unknown(path, where)
            if alternative and not value:
                statement.setdefault(alternative[0], alternative[1])
            _collect(value, path + ".", statement, where)
        elif path in statement:
            raise InputError(f"{where}{path} is stated twice.")
        elif path in settings():
            statement[path] = value
        elif names := alternatives().get(path):
            raise InputError(
                f"{where}{path} is an alternative of {names[0]} without a value of its own; write {names[0]} = ..."
            )
        else:
            raise unknown(path, where)


def _precision(value: Any, where: str) -> Any:
    names = ("compute", "dispatch", "combine", "gradients")
    values = value if isinstance(value, list) else [value]
    for word in values:
        if word not in PRECISIONS:
            raise InputError(f"{where}job.precision must be {' or '.join(PRECISIONS)}, or a table, got {word!r}.")
    if len(values) > 1:
        raise InputError(
            f"{where}job.precision must be one word, got {value!r}; for several, list job.precision.dispatch."
        )
    return dict(zip(names, PRECISIONS[values[0]], strict=True))


@functools.cache
def alternatives() -> dict[str, tuple[str, str]]:
    """Return (path of the choice, name) of every alternative, by the path of its table."""
    by_table = {}
    for choice in settings().values():
        if isinstance(choice, SettingChoice):
            group = choice.path.rpartition(".")[0]
            by_table |= {f"{group}.{name}": (choice.path, name) for name in choice.alternatives}
    return by_table


def is_axis(path: str, value: Any) -> bool:
    """Return whether a value is a list with one value per case, not a single value that is a list."""
    if not isinstance(value, list):
        return False
    return not settings()[path].listed or any(isinstance(item, list | tuple) for item in value)


def check(setting: Leaf | SettingChoice, value: Any, where: str = "", text: bool = False) -> Any:
    """Return one value of a setting in its stored form. Raise InputError if it is invalid."""
    if value is None or (isinstance(value, str) and value == AUTO):
        if not setting.open:
            raise InputError(f"{where}{setting.path} must have a value, got {AUTO!r}.")
        return None
    if isinstance(setting, SettingChoice):
        if isinstance(value, Alternative) and value.name in setting.alternatives:
            return value
        return one_of(f"{where}{setting.path}", str(value), setting.alternatives)
    if setting.path == POLICY and not (isinstance(value, str) or callable(value)):
        raise InputError(f"{where}{POLICY} must be the name of a policy, or a function, got {format_value(value)}.")
    value = of_text(setting.kind, value) if text and isinstance(value, str) else value
    return convert_value(f"{where}{setting.path}", setting.kind, value)


def in_row(path: str, value: Any) -> Any:
    """Return a setting's value as rows hold it: a list as on a command line, 1+0.5 or FIRST-LAST."""
    if not isinstance(value, tuple):
        return value
    setting = settings()[path]
    by = "-" if isinstance(setting, Leaf) and words(setting.kind).startswith("FIRST-LAST") else "+"
    return by.join(f"{item:g}" if isinstance(item, float) else str(item) for item in value)


# ------------------------------------------------------------------------------------------------------------- layers
def merge_statements(below: Statement, above: Statement, where: str = "") -> Statement:
    """Merge two statements; values of `above` win. Leaves of alternatives that are not chosen are dropped."""
    above = _with_choices(above, below, where)
    statement = dict(below)
    for group in EITHER:
        if any(path in above for path in group):
            statement = {path: value for path, value in statement.items() if path not in group}
    for path in above:
        if path in statement:
            del statement[path]  # what is stated last is also the last axis
    statement |= above
    return {path: value for path, value in statement.items() if is_chosen(path, statement)}


def _with_choices(above: Statement, below: Statement, where: str) -> Statement:
    """Add the choice of each alternative with a stated leaf; None states nothing.

    Raise InputError for two alternatives of one choice.
    """
    statement = dict(above)
    for path in above:
        leaf = settings()[path]
        if not isinstance(leaf, Leaf) or not leaf.choice or above[path] is None:
            continue
        chosen = statement.get(leaf.choice, below.get(leaf.choice))
        if leaf.of in _names(chosen):
            continue
        if leaf.choice in statement:
            other = ", ".join(_names(statement[leaf.choice]))
            raise InputError(f"{where}{leaf.choice} has one alternative at a time, got {other} and {leaf.of} ({path}).")
        statement[leaf.choice] = leaf.of
    return statement


def _names(chosen: Any) -> list[str]:
    several = chosen if isinstance(chosen, list) else [chosen]
    return [item.name if isinstance(item, Alternative) else item for item in several]


def is_chosen(path: str, stated: Statement) -> bool:
    """Return whether a setting belongs to no choice, or to the alternative that is chosen (or the default)."""
    leaf = settings()[path]
    if not isinstance(leaf, Leaf) or not leaf.choice:
        return True
    choice = settings()[leaf.choice]
    return leaf.of in _names(stated.get(leaf.choice, choice.default))


# --------------------------------------------------------------------------------------------------------------- case
def build(stated: Statement, cls: Any = Case, prefix: str = "") -> Any:
    """Build the case of a statement without axes, or its group `cls`, whose paths begin with `prefix`."""
    values, alternatives = {}, _alternatives_of(cls)
    for attribute, name, hint, default in _fields(cls):
        path = prefix + name
        if isinstance(hint, type) and issubclass(hint, SettingsGroup):
            values[attribute] = build(stated, hint, path + ".")
        elif several := alternatives[attribute]:
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
    values: Statement = {}
    for attribute, name, _, _ in _fields(type(group)):
        value, path = getattr(group, attribute), prefix + name
        if isinstance(value, SettingsGroup):
            values |= flat(value, path + ".")
        elif isinstance(value, Alternative):
            fields = {leaf_path(prefix + value.name, field): getattr(value, field) for field in value.__struct_fields__}
            values |= {path: value.name} | fields
        else:
            values[path] = value
    return values


@functools.lru_cache(maxsize=4096)
def files_of_case(case: Case, *sections: str) -> tuple[str, ...]:
    """Return the files, folders and modules that a case, or some sections of it, names, and names that could be
    files."""
    return tuple(dict.fromkeys(map(policies.file_of, file_values(case, *sections))))


def file_values(case: Case, *sections: str) -> list[str]:
    """Return the texts of the settings of a case, or of some sections of it, that may name a file."""
    some = {path: value for path, value in flat(case).items() if path in file_settings()}
    return [x for path, x in some.items() if isinstance(x, str) and (not sections or path.split(".")[0] in sections)]


@functools.cache
def file_settings() -> frozenset[str]:
    """Return the settings that may name a file."""
    return frozenset(path for path, setting in settings().items() if isinstance(setting, Leaf) and setting.file)


def differences(case: Case, than: Case | None = None) -> Statement:
    """Return the values of a case that differ from another case, or from the defaults (None)."""
    usual = flat(Case() if than is None else than)
    return {path: value for path, value in flat(case).items() if path not in usual or usual[path] != value}
