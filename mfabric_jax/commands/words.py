"""Parser of command lines: the options of a command, and its cases.

Options are a frozen dataclass. Each field is a flag `--its-name`, with the text below the field as its help;
`Positional` marks a word without a flag; a field that is a dataclass adds its own fields. Commas separate lists.
"""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import sys
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import SettingsLayer, merge_layers, overrides, read_layers
from mfabric_jax.case.network import GRAPH, is_graph
from mfabric_jax.case.paths import parts_of, read_statement, settings
from mfabric_jax.case.policies import split_words as split_words
from mfabric_jax.checks import InputError, one_of

T = TypeVar("T")
WORDS = {int: "a whole number", float: "a number"}
LISTED = {int: "whole numbers", float: "numbers", bool: "true or false,"}
COMMENT = re.compile(r"^    (\w+): .*  # (.+)$", re.MULTILINE)
RANGE = re.compile(r"(\d{1,18})-(\d{1,18})")
QUOTED = re.compile(r"""(["'])((?:(?!\1).)*)\1""")
CASE_FILES = (".toml", ".json")
ALSO = {  # other spellings of flags; both spellings work
    **{"--models": "--model", "--fabrics": "--fabric", "--policies": "--policy", "--routings": "--routing"},
    **{"--traces": "--trace", "--seeds": "--seed", "--nic-uses": "--nic-use", "--seq": "--sequence"},
    **{"--figure": "--picture", "--sigma": "--sigmas", "--size": "--sizes", "--isl": "--prompt", "--osl": "--answer"},
}
IN_ONE_WORD = {"--precision": "job.precision"}  # flags of several settings together
WITH_COMMAS = ("traffic.trace.axes",)  # settings whose single value contains commas


# ------------------------------------------------------------------------------------------------------------- options
@dataclasses.dataclass(frozen=True)
class Positional:
    """Marks a field whose value is a word without a flag.

    - `name`: its name in help.   - `needs`: what the command asks for if the word is missing.
    - `label`: its name in error messages; "": the name of the field.
    - `states`: the setting of cases that the word states, unless it is the file of a graph; "": none.
    """

    name: str
    needs: str = ""
    label: str = ""
    states: str = ""


class Option(NamedTuple):
    """One option; `default`: `dataclasses.MISSING` if it must be given."""

    field: str
    kind: Any
    default: Any
    text: str
    positional: Positional | None

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def label(self) -> str:
        """The name of the option in error messages."""
        return (self.positional.label if self.positional else "") or self.field

    @property
    def takes_list(self) -> bool:
        return any(typing.get_origin(part) is tuple for part in parts_of(self.kind))


@functools.cache
def options_in(cls: type) -> dict[str, Option]:
    """Return the options of a class by field. Nested classes add theirs in place; inherited options come last."""
    options: dict[str, Option] = {}
    hints, texts = typing.get_type_hints(cls, include_extras=True), _texts(cls)
    order = list(dict.fromkeys(name for base in cls.__mro__[:-1] for name in inspect.get_annotations(base)))
    for field in sorted(dataclasses.fields(cls), key=lambda field: order.index(field.name)):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            options |= options_in(hint)
            continue
        places = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Positional)]
        kind = hint.__origin__ if places else hint
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        options[field.name] = Option(
            field.name, kind, default, texts.get(field.name, ""), places[0] if places else None
        )
    return options


def _texts(cls: type) -> dict[str, str]:
    """Return the text below every field, or the comment after it; nothing if the source cannot be read."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue
        texts |= COMMENT.findall(source)
        body = ast.parse(source).body[0]
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for field, text in itertools.pairwise(lines):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(content))):
                    texts[name] = " ".join(content.split())
    return texts


def parse(cls: type[T], words: Sequence[str], command: str) -> T:
    """Parse the options of a command line. Raise InputError for an unknown word, a value that a field cannot have, and
    a missing option."""
    values, free, _ = _sort_words(cls, words)
    return _options(cls, values, free, command)


@functools.cache
def flags_of_cases(command: str = "") -> dict[str, str]:
    """Return the settings that short flags of a command stand for; "": those that every command has."""
    flags = [(setting.flag, setting.command, path) for path, setting in settings().items() if setting.flag]
    shared = {flag: path for flag, own, path in flags if not own} | IN_ONE_WORD
    return shared | {flag: path for flag, own, path in flags if command and own == command}


def _sort_words(
    cls: type, words: Sequence[str], of_cases: Mapping[str, str] | None = None
) -> tuple[dict, list[str], list]:
    """Return values of options by field, words without a flag, and (flag, text) of the flags `of_cases`."""
    flags = {option.flag: option for option in options_in(cls).values() if option.positional is None}
    for pair in ALSO.items():
        for own, other in (pair, pair[::-1]):
            if own in flags and other not in flags and other not in (of_cases or {}):
                flags[other] = flags[own]
    known = {flag: option.kind is bool for flag, option in flags.items()}
    if of_cases is not None:
        known |= dict.fromkeys((*of_cases, *ALSO, "--preset", "--set"), False)
    values, free, others = {}, [], []
    for flag, value in _pairs(words, known, of_cases=of_cases is not None):
        if not flag:
            free.append(str(value))
        elif flag in flags:
            if flags[flag].field in values:
                raise InputError(f"option {flags[flag].flag} is given twice; give it once.")
            values[flags[flag].field] = value if isinstance(value, bool) else _value(flags[flag], value)
        else:
            others.append((ALSO.get(flag, flag), str(value)))
    return values, free, others


def _options(cls: type[T], values: dict[str, Any], free: Sequence[str], command: str) -> T:
    """Make the options from values by field and from words without a flag."""
    known, left = options_in(cls), list(free)
    places = [option for option in known.values() if option.positional]
    for option in places:
        if not left:
            break
        took = left if option.takes_list else left[:1]
        values[option.field] = tuple(took) if option.takes_list else _value(option, took[0])
        left = left[len(took) :]
    if left:
        raise _does_not_take(left[0], command)
    for option in sorted(known.values(), key=lambda candidate: candidate.positional is None):
        if option.field in values or option.default is not dataclasses.MISSING:
            continue
        chosen = [candidate.field for candidate in places if typing.get_origin(candidate.kind) is Literal]
        first = [str(values[field]) for field in chosen if field in values]
        if option.positional:
            raise InputError(
                f"{' '.join([command, *first])} needs {option.positional.needs or option.positional.name}."
            )
        what = option.text[:1].lower() + option.text[1:].rstrip(".")
        raise InputError(f"{' '.join([command, *first])} needs {option.flag}, {what}.")
    return _make_options(cls, values)


def _does_not_take(word: str, command: str) -> InputError:
    return InputError(f"{command} does not take {word!r}; --help lists what it takes.")


def _make_options(cls: type[T], values: Mapping[str, Any]) -> T:
    hints, arguments = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(typing.cast(Any, cls)):
        if dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = _make_options(hints[field.name], values)
        elif field.name in values:
            arguments[field.name] = values[field.name]
    return cls(**arguments)


def _pairs(
    words: Sequence[str], known: Mapping[str, bool], *, of_cases: bool = False
) -> Iterator[tuple[str, str | bool]]:
    """Yield (flag, value) for every option, and ("", word) for a word without a flag.

    - `known`: flags; True for a switch.   - `of_cases`: suggest settings of cases for unknown flags.
    """
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        switch = name if known.get(name) else "--" + name.removeprefix("--no-")
        if not word.startswith("--"):
            yield "", word
        elif known.get(switch):
            if equals:
                raise InputError(f"option {name} takes no value, got {value!r}.")
            yield switch, switch == name
        elif name not in known:
            raise _unknown(name, list(known), of_cases)
        elif not equals and (not left or left[0].startswith("--")):
            raise InputError(f"option {name} needs a value after it; --help shows what it takes.")
        else:
            yield name, value if equals else left.pop(0)


def _unknown(flag: str, known: Sequence[str], of_cases: bool) -> InputError:
    """Return the error for an unknown flag."""
    if of_cases:
        name = flag.removeprefix("--").replace("-", "_")
        paths = [path for path in settings() if path.rpartition(".")[2].replace("-", "_") == name]
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.8)
        if paths and not near:
            return InputError(f"option {flag!r} is unknown (did you mean --set {' or '.join(paths)}=...?).")
    near = difflib.get_close_matches(flag, known, n=1, cutoff=0.7)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return InputError(f"option {flag!r} is unknown{hint}; --help lists all options.")


def _value(option: Option, text: str) -> Any:
    """Convert a word to the value of an option. Raise InputError if the option cannot have it."""
    kinds = parts_of(option.kind)
    for kind in kinds:
        if typing.get_origin(kind) is tuple:
            return _list_value(option, text, typing.get_args(kind))
        named = {str(value): value for value in typing.get_args(kind)} if typing.get_origin(kind) is Literal else {}
        if text in named:
            return named[text]
        if kind in WORDS:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in kinds or Any in kinds:
        return text
    if number := next((kind for kind in kinds if kind in WORDS), None):
        raise InputError(f"option {option.flag} takes {WORDS[number]}, got {text!r}.")
    names = [str(value) for kind in kinds if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]
    return one_of(option.label, text, names)


def _list_value(option: Option, text: str, kinds: tuple) -> tuple:
    if kinds == (int, int):
        if not (ends := RANGE.fullmatch(text.strip())):
            raise InputError(f"{option.field} must be FIRST-LAST, such as 2011-5001, got {text!r}.")
        return int(ends[1]), int(ends[2])
    values, kind = [], kinds[0]
    for word in split_words(text):
        try:
            values.append({"true": True, "false": False}[word.lower()] if kind is bool else kind(word))
        except (ValueError, KeyError):
            raise InputError(f"{option.field} must be {LISTED[kind]} separated by commas, got {word!r}.") from None
    return tuple(values)


# --------------------------------------------------------------------------------------------------------------- cases
def read(command: str, words: Sequence[str], options: type[T], below: Sequence[SettingsLayer] = ()) -> tuple[Cases, T]:
    """Parse the cases and the options of a command. Raise InputError for words that are neither.

    - `below`: layers with the command's own defaults.
    """
    short = flags_of_cases(command)
    values, free, flags = _sort_words(options, words, short)
    changes: dict[str, Any] = {}
    presets: list[str] = []
    for flag, text in flags:
        if flag == "--preset":
            presets += split_words(text)
        else:
            path, text = (short[flag], text) if flag in short else _split_assignment(text)
            if path in changes:
                raise InputError(f"{path} is stated twice, the second time as {text!r:.80}; state it once.")
            changes[path] = _values(path, text)
    places = [option.positional for option in options_in(options).values() if option.positional is not None]
    for positional, word in zip(places, free, strict=False):
        if positional.states and not is_graph(word):
            if positional.states in changes:
                raise InputError(f"{positional.states} is {word} ({positional.name}); leave out the flag or --set.")
            changes[positional.states] = _values(positional.states, word)
    changes = _with_graphs(changes)
    free, files = free[: len(places)], free[len(places) :]
    for word in files:
        if not word.lower().endswith(CASE_FILES):
            raise _does_not_take(word, command)
    stated = read_layers(presets, files)
    for sentence in overrides(stated):
        print(sentence, file=sys.stderr)
    layers = [
        *below,
        *stated,
        SettingsLayer("flag", read_statement(changes, text=True), typed=True),
    ]
    command_options = _options(options, values, free, command)
    return merge_layers(layers), command_options


def _with_graphs(stated: dict[str, Any]) -> dict[str, Any]:
    """Replace files of graphs among the fabrics by fabric graph, and state them as network.graph."""
    fabrics = stated.get("network.fabric", [])
    fabrics = [fabrics] if isinstance(fabrics, str) else fabrics
    graphs = [name for name in fabrics if name != GRAPH and is_graph(name)]
    if not graphs:
        return stated
    if "network.graph" in stated:
        raise InputError(f"network.graph is {graphs[0]} (network.fabric); leave out the flag or --set.")
    names = list(dict.fromkeys(GRAPH if name in graphs else name for name in fabrics))
    both = {"network.fabric": names, "network.graph": graphs}
    return stated | {path: values[0] if len(values) == 1 else values for path, values in both.items()}


def _split_assignment(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"option --set takes PATH=VALUE, such as network.nic_gbps=100,400, got {text!r}.")
    others = [word.partition("=")[0] for word in split_words(value)[1:] if word.partition("=")[0] in settings()]
    if others:
        raise InputError(f"option --set takes one path, got {path.strip()} and {others[0]}; give --set once for each.")
    return path.strip(), value


def _values(path: str, text: str) -> str | list[str]:
    """Return one value, or a list of values; a text in quotation marks is one value, whatever it contains."""
    if path in WITH_COMMAS:
        return text
    if quoted := QUOTED.fullmatch(text.strip()):
        return quoted[2]
    several = split_words(text)
    return several[0] if len(several) == 1 else several
