"""Options of a command from its settings: flags, words for lists, choices, presets."""

import dataclasses
import re
import types
import typing
from typing import Any, Literal, TypeGuard

from mfabric_jax.checks import InputError, one_of

KINDS = {int: "whole numbers", float: "numbers"}


def flags(options: type) -> dict[str, Any]:
    """Every flag of a class of options, those of nested settings too, with the type of its field."""
    found: dict[str, Any] = {}
    hints, marked = typing.get_type_hints(options), typing.get_type_hints(options, include_extras=True)
    for field in dataclasses.fields(options):
        if "Suppress" in map(repr, getattr(marked[field.name], "__metadata__", ())):
            continue  # not for the command line
        if _is_settings(hints[field.name]):
            found |= flags(hints[field.name])
        else:
            found["--" + field.name.replace("_", "-")] = hints[field.name]
    return found


def _is_settings(hint: Any) -> TypeGuard[type]:
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def unchecked(options: type) -> type:
    """The class without its checks, nor those of nested settings: a parser makes it, `checked` the real one."""
    hints = typing.get_type_hints(options)
    nested = [(field.name, hints[field.name]) for field in dataclasses.fields(options)]
    nested = [(name, unchecked(hint)) for name, hint in nested if _is_settings(hint)]
    own = {"__post_init__": lambda self: None, "__doc__": options.__doc__}
    return dataclasses.make_dataclass(
        options.__name__, nested, bases=(options,), frozen=True, kw_only=True, namespace=own
    )


def checked(options: type, parsed: Any) -> Any:
    """The options with all their checks. `InputError` for what they refuse."""
    hints, values = typing.get_type_hints(options), {}
    for field in dataclasses.fields(options):
        value, hint = getattr(parsed, field.name), hints[field.name]
        values[field.name] = checked(hint, value) if _is_settings(hint) else value
    return options(**values)


def settings(cls: type, options: Any, **values: Any) -> Any:
    """Settings of that class, from the options that it has and `values`."""
    own = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(options)}
    return cls(**{name: getattr(options, name) for name in own} | values)


def plain_words(words: list[str], options: type, preset: dict[str, Any] | None = None) -> list[str]:
    """The words as the parser takes them: lists divided at commas, `FIRST-LAST` in two, the preset's defaults added.

    `InputError` for a value that is none of an option's choices, or no number in a list of them.
    """
    known, plain = flags(options), []
    given = {word.split("=")[0].replace("--no-", "--") for word in words if word.startswith("--")}
    for name, value in (preset or {}).items():
        flag = "--" + name.replace("_", "-")
        if flag in known and flag not in given:
            words = [*words, flag] if value is True else [*words, flag, str(value)]
    at = 0
    while at < len(words):
        flag, equals, value = words[at].partition("=")
        at += 1
        if flag not in known:
            plain.append(flag + equals + value)
            continue
        plain.append(flag)
        if not equals and at < len(words) and not words[at].startswith("--") and known[flag] is not bool:
            value, at = words[at], at + 1
        if value:
            plain += _values(flag, value, known[flag])
    return plain


def _values(flag: str, value: str, hint: Any) -> list[str]:
    field = flag[2:].replace("-", "_")
    for one in _alternatives(hint):
        if field == "dtype":
            from mfabric_jax.study.fields import check_of_simulator

            check_of_simulator(value)
        if typing.get_origin(one) is Literal:
            return [one_of(field, value, [str(choice) for choice in typing.get_args(one)])]
        if typing.get_origin(one) is tuple:
            return _listed(field, value, typing.get_args(one))
    return [value]


def _alternatives(hint: Any) -> tuple:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _listed(field: str, value: str, kinds: tuple) -> list[str]:
    if kinds == (int, int):
        ends = re.fullmatch(r"(\d+)-(\d+)", value.strip())
        if not ends:
            raise InputError(f"{field} must be FIRST-LAST, such as 2011-5001, got {value!r}.")
        return [ends[1], ends[2]]
    words = [word.strip() for word in value.split(",") if word.strip()]
    for word in words:
        try:
            kinds[0](word)
        except ValueError:
            raise InputError(f"{field} must be {KINDS[kinds[0]]} separated by commas, got {word!r}.") from None
    return words
