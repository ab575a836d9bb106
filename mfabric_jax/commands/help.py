"""Help of commands: their options, and the settings of a case (on one screen, by group, or a single one in full)."""

import dataclasses
import itertools
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from mfabric_jax.case import Case
from mfabric_jax.case.layers import Layer, presets
from mfabric_jax.case.own_code import FLAG, SAID
from mfabric_jax.case.paths import AUTO, SHORT, UNITS, Choice, Leaf, alternatives, parts_of, settings, unknown, words
from mfabric_jax.case.tree import Group
from mfabric_jax.commands.words import OF_CASES, OF_COMMAND, Option, flags_of_cases, options_in

WIDTH = 110
ALL = "all"
SHOWN = {  # short flags: what each takes, and its default in one word if the setting is auto
    "--model": ("NAME|FILE", ""),
    "--fabric": ("NAME", ""),
    "--nic-gbps": ("X", ""),
    "--nic-use": ("USE", ""),
    "--gpu": ("NAME|FILE", ""),
    "--gpus": ("N", "1024"),
    "--global-batch": ("N", "4096"),
    "--micro-batches": ("N", "auto"),
    "--sequence": ("N", ""),
    "--policy": ("NAME", ""),
    "--routing": ("NAME", ""),
    "--ocs": ("NAME", "none"),
    "--efficiency": ("X", "kernels"),
    "--trace": ("PATH", "none"),
    "--seed": ("N", ""),
    "--draws": ("N", ""),
    "--precision": ("NAME", "recipe"),
    "--tokens": ("N", "none"),
}
CODE = f"{FLAG} FILE.py,..."  # an option of every command
DEGREES = ("--tp", "--pp", "--ep", "--dp")


def groups() -> dict[str, type[Group]]:
    """Return the groups of a case by name."""
    hints = typing.get_type_hints(Case)
    return {name: hints[name] for name in Case.__struct_fields__}


def of_options(program: str, cls: type) -> str:
    """Return the help of a program without cases."""
    known = options_in(cls).values()
    places = " ".join(f"[{one.place.name} ...]" if one.listed else one.place.name for one in known if one.place)
    lines = [f"usage: {program}{' ' * bool(places)}{places} [options]", "", *_about(cls), ""]
    named = [(one.place.name if one.place else f"{_flag(one)} {_takes(one)}".rstrip(), one) for one in known]
    wide = min(max((len(name) for name, _ in named), default=len(CODE)), 34) + 4
    for name, one in named:
        lines += _entry(name, one.said + _default(one), wide)
    lines += _entry(CODE, f"{SAID}.", wide)
    return "\n".join(lines)


def _about(cls: type) -> list[str]:
    paragraphs = textwrap.dedent("    " + (cls.__doc__ or "")).strip().split("\n\n")
    return [line for one in paragraphs for line in textwrap.wrap(" ".join(one.split()), WIDTH)]


def _flag(option: Option) -> str:
    return f"--[no-]{option.flag[2:]}" if option.kind is bool and option.default is True else option.flag


def _takes(option: Option) -> str:
    """Return the placeholder after a flag."""
    if option.kind is bool:
        return ""
    kinds = [one for one in parts_of(option.kind) if one is not type(None)]
    names = [str(value) for one in kinds if typing.get_origin(one) is Literal for value in typing.get_args(one)]
    if names and len(", ".join(names)) < 24:
        return "|".join(names)
    inner = [typing.get_args(one) for one in kinds if typing.get_origin(one) is tuple]
    if (int, int) in inner:
        return "FIRST-LAST"
    plain = {int: "N", float: "X"}
    if inner:
        return plain.get(inner[0][0], "NAME") + ",..."
    return next((plain[one] for one in kinds if one in plain), "TEXT")


def _default(option: Option) -> str:
    value = option.default
    if value is dataclasses.MISSING:
        return "" if option.place else " (must be given)"
    if value is None or option.kind is bool or value == () or "(default" in option.said:
        return ""
    return f" (default: {','.join(map(str, value)) if isinstance(value, tuple) else value})"


def option_text(option: Option) -> str:
    """Return what an option takes and its default, in words."""
    given = "must be given" if option.default is dataclasses.MISSING else f"default {default_text(option.default)}"
    return f"{words(option.kind)}; {given}"


def _entry(name: str, text: str, wide: int) -> list[str]:
    """Return the lines of a name and its text, which starts on the next line if the name is long."""
    lines = textwrap.wrap(text, WIDTH - wide - 2) or [""]
    first = [f"  {name:<{wide}}{lines[0]}"] if len(name) + 2 <= wide else [f"  {name}", " " * (wide + 2) + lines[0]]
    return [line.rstrip() for line in [*first, *(" " * (wide + 2) + line for line in lines[1:])]]


# --------------------------------------------------------------------------------------------------------------- cases
def of_cases(
    command: str, cls: type, topic: str | None = None, *, below: Sequence[Layer] = (), reads: tuple[str, ...] = ("",)
) -> str:
    """Return the help of a command with cases: one screen, or a topic (a group, "all", or a path).

    - `below`: layers with defaults of the command.   - `reads`: prefixes of the paths that it reads.

    Raise InputError for an unknown topic.
    """
    if topic is None:
        return "\n".join(_screen(command, cls, below, reads))
    if topic == ALL:
        return "\n\n".join(_group(name) for name in groups())
    if topic in groups():
        return _group(topic)
    path = SHORT.get(topic, topic)
    for named in (path, flags_of_cases(command).get(f"--{topic.removeprefix('--')}", path)):
        if named in settings():
            return "\n".join(_in_full(named))
        if at := alternatives().get(named):
            return "\n".join(_in_full(at[0]))
        if inside := [one for one in settings() if one.startswith(named + ".")]:
            return "\n".join(line for one in inside for line in _setting(settings()[one]))
    raise unknown(path)


def _screen(command: str, cls: type, below: Sequence[Layer], reads: tuple[str, ...]) -> Iterator[str]:
    known = options_in(cls).values()
    places = " ".join(one.place.name for one in known if one.place)
    yield f"usage: mfabric {command} {places + ' ' if places else ''}[FILE ...] [--set PATH=VALUE ...] [options]"
    yield from (f"  {line}" for line in _about(cls)[:3])
    yield "what is simulated (values separated by commas are compared); FILE: a case in TOML or JSON"
    usual = {path: value for layer in below for path, value in layer.stated.items()}
    own = OF_COMMAND.get(command, {})
    flags = [_short(flag, usual) for flag in SHOWN if flag not in own and OF_CASES[flag].startswith(reads)]
    flags += [f"{' '.join(DEGREES)}  recipe"] if "job.parallel.tp".startswith(reads) else []
    yield from _columns([*flags, "--set PATH=VALUE  any other setting"], 3)
    if own:
        yield from _columns([f"{flag} {default_text(settings()[path].default)}" for flag, path in own.items()], 5)
    yield from _entry("--preset NAME,...", ", ".join(presets()), 22)
    options = [one for one in known if not one.place]
    yield "options of this command"
    yield f"  {CODE:<22}{SAID}"
    for one in options:
        first = textwrap.shorten(one.said.split(". ")[0].rstrip(".") + _default(one), WIDTH - 26, placeholder=" ...")
        yield f"  {f'{_flag(one)} {_takes(one)}'.rstrip():<22}{first}"
    yield "all settings: --help GROUP, --help all, --help PATH (one in full, such as network.fabric)"
    counts = {name: [one for one in settings() if one.startswith(name + ".")] for name in groups()}
    yield from _columns(
        [f"{name:<10} {len(counts[name]):>2}  {_sentence(group)}" for name, group in groups().items()], 2
    )
    yield f"mfabric show FILE prints all values and their sources; mfabric {command} --help PATH explains one setting."


def _columns(cells: Sequence[str], many: int) -> Iterator[str]:
    """Arrange cells in this many columns, filling the first column first."""
    deep = -(-len(cells) // many)
    many = -(-len(cells) // deep)
    rows = [cells[at::deep] for at in range(deep)]
    widths = [max(map(len, cells[deep * at : deep * (at + 1)]), default=0) for at in range(many)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _short(flag: str, usual: Mapping[str, Any]) -> str:
    path, (takes, default) = OF_CASES[flag], SHOWN[flag]
    if path in usual:
        value = usual[path]
        default = f"{len(value)} names" if isinstance(value, list) else default_text(value)
    default = default or default_text(settings()[path].default)
    return f"{f'{flag} {takes}':<18} {default}"


def _sentence(cls: type) -> str:
    return textwrap.shorten(
        (cls.__doc__ or "").strip().split("\n")[0].split(". ")[0].rstrip("."), 42, placeholder=" ..."
    )


def _group(name: str) -> str:
    lines = [f"{name}: {' '.join((groups()[name].__doc__ or '').split())}"]
    for one in settings().values():
        if one.path.startswith(name + "."):
            lines += _setting(one)
    return "\n".join(lines)


def _setting(one: Leaf | Choice) -> list[str]:
    """Return a setting with its default, type and text; settings of an alternative are indented further."""
    inner = isinstance(one, Leaf) and bool(one.choice)
    margin = "      " if inner else "  "
    head = f"{margin}{one.path} = {default_text(one.default)}"
    text = f"{one.doc} ({kind_words(one)})"
    return [head, *textwrap.wrap(text, WIDTH, initial_indent=margin + "    ", subsequent_indent=margin + "    ")]


def kind_words(one: Leaf | Choice) -> str:
    """Return what a setting takes, in words."""
    if isinstance(one, Choice):
        return ", ".join(one.alternatives) + (f", or {AUTO}" if one.open else "")
    return words(one.kind)


def default_text(value: Any) -> str:
    """Return a default as written in a file."""
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_full(path: str) -> Iterator[str]:
    """Yield the full help of one setting."""
    one = settings()[path]
    yield f"{path}: {one.doc}"
    yield f"  takes      {kind_words(one)}"
    unit = next((unit for unit in sorted(UNITS, key=len, reverse=True) if path.endswith(unit)), None)
    if unit and isinstance(one, Leaf):
        yield f'  units      a number, or a text in {", ".join(UNITS[unit])}, such as "2 {list(UNITS[unit])[-1]}"'
    yield f"  default    {default_text(one.default)}"
    if isinstance(one, Leaf) and one.choice:
        yield f"  belongs to {one.choice} = {one.of}; stating it chooses {one.of}"
    if one.traced:
        yield "  axis       a list of any length runs in one compiled program"
    every = itertools.chain(OF_CASES.items(), *(own.items() for own in OF_COMMAND.values()))
    flags = [flag for flag, at in every if at == path]
    yield f"  flag       {flags[0] if flags else '--set ' + path}{' ' if flags else '='}VALUE,..."
    group, _, rest = path.partition(".")
    yield f"  file       [{group}] {rest} = ..."
    yield f'  Python     case.with_({{"{path}": ...}})'
    if isinstance(one, Choice):
        for name, alternative in one.alternatives.items():
            yield from _entry(name, " ".join((alternative.__doc__ or "").split()), 24)
            inside = [leaf for leaf in settings().values() if isinstance(leaf, Leaf) and leaf.choice == path]
            yield from (line for leaf in inside if leaf.of == name for line in _setting(leaf))
