"""Help of commands: their options, and the settings of a case (on one screen, by group, or a single one in full)."""

import dataclasses
import textwrap
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from mfabric_jax.case import Case
from mfabric_jax.case.layers import SettingsLayer, presets
from mfabric_jax.case.own_code import CODE_HELP, FLAG
from mfabric_jax.case.paths import (
    AUTO,
    SHORT,
    UNITS,
    Leaf,
    SettingChoice,
    alternatives,
    parts_of,
    settings,
    unknown,
    words,
)
from mfabric_jax.case.schema import SettingsGroup
from mfabric_jax.checks import InputError
from mfabric_jax.commands.words import Option, flags_of_cases, options_in
from mfabric_jax.support.columns import Column

WIDTH = 80
ALL = "all"
COLUMNS = "columns"
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
OF_CASE_ROWS = "compare", "buy", "rerun"  # commands that write rows of cases
CODE = f"{FLAG} FILE.py,..."  # an option of every command
DEGREES = ("--tp", "--pp", "--ep", "--dp")


def groups() -> dict[str, type[SettingsGroup]]:
    """Return the groups of a case by name."""
    hints = typing.get_type_hints(Case)
    return {name: hints[name] for name in Case.__struct_fields__}


def of_options(program: str, cls: type) -> str:
    """Return the help of a command that takes no cases."""
    known = options_in(cls).values()
    places = " ".join(
        f"[{option.positional.name} ...]" if option.takes_list else option.positional.name
        for option in known
        if option.positional
    )
    lines = [f"usage: {program}{' ' * bool(places)}{places} [options]", "", *_about(cls), ""]
    named = [
        (option.positional.name if option.positional else f"{_flag(option)} {_takes(option)}".rstrip(), option)
        for option in known
    ]
    wide = min(max((len(name) for name, _ in named), default=len(CODE)), 34) + 4
    for name, option in named:
        lines += _entry(name, option.text + _default(option), wide)
    lines += _entry(CODE, f"{CODE_HELP}.", wide)
    return "\n".join(lines)


def _about(cls: type) -> list[str]:
    paragraphs = textwrap.dedent("    " + (cls.__doc__ or "")).strip().split("\n\n")
    return [line for paragraph in paragraphs for line in textwrap.wrap(" ".join(paragraph.split()), WIDTH)]


def _flag(option: Option) -> str:
    return f"--[no-]{option.flag[2:]}" if option.kind is bool and option.default is True else option.flag


def _takes(option: Option) -> str:
    """Return the placeholder after a flag."""
    if option.kind is bool:
        return ""
    kinds = [kind for kind in parts_of(option.kind) if kind is not type(None)]
    names = [str(value) for kind in kinds if typing.get_origin(kind) is Literal for value in typing.get_args(kind)]
    if names and len(", ".join(names)) < 24:
        return "|".join(names)
    inner = [typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple]
    if (int, int) in inner:
        return "FIRST-LAST"
    plain = {int: "N", float: "X"}
    if inner:
        return plain.get(inner[0][0], "NAME") + ",..."
    return next((plain[kind] for kind in kinds if kind in plain), "TEXT")


def _default(option: Option) -> str:
    value = option.default
    if value is dataclasses.MISSING:
        return "" if option.positional else " (must be given)"
    if value is None or option.kind is bool or value == () or "(default" in option.text:
        return ""
    return f" (default: {','.join(map(str, value)) if isinstance(value, tuple) else value})"


def option_text(option: Option) -> str:
    """Return what an option takes and its default, in words."""
    default = "must be given" if option.default is dataclasses.MISSING else f"default {default_text(option.default)}"
    return f"{words(option.kind)}; {default}"


def _entry(name: str, text: str, wide: int) -> list[str]:
    """Return the lines of a name and its text, which starts on the next line if the name is long."""
    lines = textwrap.wrap(text, WIDTH - wide - 2) or [""]
    first = [f"  {name:<{wide}}{lines[0]}"] if len(name) + 2 <= wide else [f"  {name}", " " * (wide + 2) + lines[0]]
    return [line.rstrip() for line in [*first, *(" " * (wide + 2) + line for line in lines[1:])]]


def of_columns(command: str) -> str:
    """Return the columns of a command's rows: name, unit, meaning. Raise `InputError` for a command without rows."""
    from mfabric_jax.report.kinds import KINDS

    kinds = _kinds_of(command)
    if not kinds:
        raise InputError(f"{command} writes no rows; mfabric {command} --help lists what it takes.")
    lines = ["* only with --all-columns"]
    for kind in kinds:
        lines += [f"{kind}:"]
        for name, column in KINDS[kind].items():
            lines += _entry(f"{name}{' *' * column.detail}", f"{column.text}{_unit(column)}", 34)
    return "\n".join(lines)


def _kinds_of(command: str) -> list[str]:
    """The kinds of rows that a command writes."""
    from mfabric_jax.report.kinds import KINDS

    return [kind for kind in KINDS if f"{kind} ".startswith(f"{command} ")] or ["cases"] * (command in OF_CASE_ROWS)


def _unit(column: Column) -> str:
    return f" [{column.unit}]" if column.unit and column.is_number else ""


def _column(command: str, name: str) -> str | None:
    """Return the unit and meaning of a column, of this command's rows if it is there; None if no row has it."""
    from mfabric_jax.report.kinds import KINDS, column_named

    own = [KINDS[kind][name] for kind in _kinds_of(command) if name in KINDS[kind]]
    column = own[0] if own else column_named(name)
    return None if column is None else f"{name}{_unit(column)}, a column of rows: {column.text}"


# --------------------------------------------------------------------------------------------------------------- cases
def of_cases(
    command: str,
    cls: type,
    topic: str | None = None,
    *,
    below: Sequence[SettingsLayer] = (),
    reads: tuple[str, ...] = ("",),
) -> str:
    """Return the help of a command with cases: one screen, or a topic (a group, "all", a path, or a column).

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
            return "\n".join(_in_full(named, command, below))
        if alternative := alternatives().get(named):
            return "\n".join(_in_full(alternative[0], command, below))
        if inside := [inner_path for inner_path in settings() if inner_path.startswith(named + ".")]:
            return "\n".join(line for inner_path in inside for line in _setting(settings()[inner_path]))
    if column := _column(command, topic):
        return column
    raise unknown(path)


def _screen(command: str, cls: type, below: Sequence[SettingsLayer], reads: tuple[str, ...]) -> Iterator[str]:
    known = options_in(cls).values()
    places = " ".join(entry.positional.name for entry in known if entry.positional)
    yield f"usage: mfabric {command} {places + ' ' if places else ''}[FILE ...] [--set PATH=VALUE ...] [options]"
    yield from (f"  {line}" for line in _about(cls))
    yield "what is simulated (values separated by commas are compared); FILE: a case in TOML or JSON;"
    yield "several files are layers of one case"
    usual = _usual(below)
    shared = flags_of_cases()
    own = {flag: path for flag, path in flags_of_cases(command).items() if shared.get(flag) != path}
    flags = [_short(flag, usual) for flag in SHOWN if flag not in own and shared[flag].startswith(reads)]
    flags += [f"{' '.join(DEGREES)}  recipe"] if "job.parallel.tp".startswith(reads) else []
    yield from _columns([*flags, "--set PATH=VALUE  any other setting"], 3)
    if own:
        yield from _columns([f"{flag} {default_text(settings()[path].default)}" for flag, path in own.items()], 5)
    yield from _entry("--preset NAME,...", ", ".join(presets()), 22)
    options = [entry for entry in known if not entry.positional]
    yield "options of this command"
    yield f"  {CODE:<22}{CODE_HELP}"
    for entry in options:
        text = entry.text.split(". ")[0].rstrip(".") + _default(entry)
        yield from _entry(f"{_flag(entry)} {_takes(entry)}".rstrip(), text, 22)
    yield "columns of rows: --help columns"
    yield "all settings: --help GROUP, --help all, --help PATH (one in full, such as network.fabric)"
    counts = {name: [entry for entry in settings() if entry.startswith(name + ".")] for name in groups()}
    yield from _columns(
        [f"{name:<10} {len(counts[name]):>2}  {_sentence(group)}" for name, group in groups().items()], 2
    )
    yield f"mfabric show FILE prints all values and their sources; mfabric {command} --help PATH explains one setting."


def _columns(cells: Sequence[str], many: int) -> Iterator[str]:
    """Arrange cells in this many columns, filling the first column first."""
    deep = -(-len(cells) // many)
    many = -(-len(cells) // deep)
    rows = [cells[index::deep] for index in range(deep)]
    widths = [max(map(len, cells[deep * index : deep * (index + 1)]), default=0) for index in range(many)]
    for row in rows:
        yield "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip()


def _usual(below: Sequence[SettingsLayer]) -> dict[str, Any]:
    """Return the defaults of a command that differ from those of a case."""
    return {path: value for layer in below for path, value in layer.stated.items()}


def _short(flag: str, usual: Mapping[str, Any]) -> str:
    path, (takes, default) = flags_of_cases()[flag], SHOWN[flag]
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
    for setting in settings().values():
        if setting.path.startswith(name + "."):
            lines += _setting(setting)
    return "\n".join(lines)


def _setting(setting: Leaf | SettingChoice) -> list[str]:
    """Return a setting with its default, type and text; settings of an alternative are indented further."""
    inner = isinstance(setting, Leaf) and bool(setting.choice)
    margin = "      " if inner else "  "
    head = f"{margin}{setting.path} = {default_text(setting.default)}"
    text = f"{setting.doc} ({kind_words(setting)})"
    return [head, *textwrap.wrap(text, WIDTH, initial_indent=margin + "    ", subsequent_indent=margin + "    ")]


def kind_words(setting: Leaf | SettingChoice) -> str:
    """Return what a setting takes, in words."""
    if isinstance(setting, SettingChoice):
        return ", ".join(setting.alternatives) + (f", or {AUTO}" if setting.open else "")
    return words(setting.kind)


def default_text(value: Any) -> str:
    """Return a default as written in a file."""
    if value is None:
        return AUTO
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _in_full(path: str, command: str, below: Sequence[SettingsLayer]) -> Iterator[str]:
    """Yield the full help of one setting; `command`, `below`: as in `of_cases`."""
    setting = settings()[path]
    yield f"{path}: {setting.doc}"
    yield f"  takes      {kind_words(setting)}"
    unit = next((unit for unit in sorted(UNITS, key=len, reverse=True) if path.endswith(unit)), None)
    if unit and isinstance(setting, Leaf):
        yield f'  units      a number, or a text in {", ".join(UNITS[unit])}, such as "2 {list(UNITS[unit])[-1]}"'
    own = _usual(below).get(path)
    usual = "" if own is None else f"; {command}: {', '.join(own) if isinstance(own, list) else default_text(own)}"
    yield f"  default    {default_text(setting.default)}{usual}"
    if isinstance(setting, Leaf) and setting.choice:
        yield f"  belongs to {setting.choice} = {setting.of}; stating it chooses {setting.of}"
    if setting.traced:
        yield "  axis       a list of any length runs in one compiled program;"
        yield "             a policy of your own is asked anew for values that it may weigh"
    every = [
        *flags_of_cases().items(),
        *((setting.flag, path) for path, setting in settings().items() if setting.command),
    ]
    flags = [flag for flag, setting_path in every if setting_path == path]
    yield f"  flag       {flags[0] if flags else '--set ' + path}{' ' if flags else '='}VALUE,..."
    group, _, key = path.partition(".")
    yield f"  file       [{group}] {key} = ..."
    yield f'  Python     case.with_({{"{path}": ...}})'
    if isinstance(setting, SettingChoice):
        for name, alternative in setting.alternatives.items():
            yield from _entry(name, " ".join((alternative.__doc__ or "").split()), 24)
            inside = [leaf for leaf in settings().values() if isinstance(leaf, Leaf) and leaf.choice == path]
            yield from (line for leaf in inside if leaf.of == name for line in _setting(leaf))
