"""What is public, a line each: names, settings, presets, commands, exit statuses, columns, formats (docs/api.md).

`python -m tests.surface` prints the list; `--write` accepts a change of tests/surface.txt.
"""

import enum
import functools
import importlib
import inspect
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, get_origin

import mfabric_jax
from mfabric_jax.commands import COMMANDS, OF_CASES, STATUS, TWO_WORDS

LIST = pathlib.Path(__file__).with_name("surface.txt")


def surface() -> list[str]:
    """Lines KIND NAME: WHAT. A change of one is a change that users can notice."""
    parts = (names(), settings_and_presets(), commands_and_options(), exit_statuses(), columns_of_rows(), formats())
    return sorted(line for part in parts for line in part)


# --------------------------------------------------------------------------------------------------------------- names
PUBLIC = {  # names in Python that code of others may rely on, each once; every other one may change
    "": "Case Circuits FlowProblem InputError Plan Region all_to_all_time cases completion_times greedy load "
    "max_min_rates programs resolve simulate star_completion units",
    "case": "Cases presets",
    "flows": "Completion MaxMinRates SolveOutcome star_rates",
    "workload": "Gpu NAMES Workload get get_gpu memory_of",
    "traffic": "Knobs Recording Tokens generated_tokens likely_demands measured_tokens open_trace recorded_tokens",
    "fabric": "Cluster Fabric NAMES Prices cluster cluster_cost cost_table get read_graph",
    "routing": "arrivals degree_bound fluid_lower_bound relay_shares",
    "policies": "Policy allow_code check_legal exact_circuits get joint load save",
    "timing": "exchanges iterate",
    "circuit_schedules": "CircuitSchedule NAMES get schedule_time stack_schedules",
    "evaluate": "Results example_timeline iteration_of solve_cluster",
    "report": "QueryOptions comparison draw_fabric frame html_report query read_rows write_rows",
    "apps.failures": "failures",
    "apps.graphs.export": "export_iteration",
    "apps.graphs.jobs": "compare_jobs read_jobs",
    "apps.graphs.replay": "Replay replay",
    "apps.graphs.tasks": "TaskGraph read_tasks write_tasks",
    "apps.learning": "RegionEnv TrainingSettings best_trajectory evaluate_policies train",
    "apps.recordings": "trace_study",
    "apps.serving": "Deployment cheapest fastest search serve",
    "apps.sweep": "Sweep read_sweep sweep",
}
MOST_PUBLIC = 100


def packages() -> list[ModuleType]:
    """The package itself and its public packages."""
    return [importlib.import_module(f"mfabric_jax.{name}".rstrip(".")) for name in PUBLIC]


def exported(module: ModuleType) -> set[str]:
    """The public names of a package."""
    return set(PUBLIC[module.__name__.removeprefix("mfabric_jax").removeprefix(".")].split())


def names() -> Iterator[str]:
    """Public names: functions and classes with their parameters, methods and properties of classes, constants."""
    for module in packages():
        for name in exported(module):
            thing, path = getattr(module, name), f"name {module.__name__}.{name}"
            if inspect.isclass(thing) and issubclass(thing, enum.Enum):
                yield f"{path}: one of {', '.join(thing.__members__)}"
            elif inspect.isclass(thing):
                yield f"{path}: class{_parameters(thing)}"
                yield from (f"{path}.{member}: {what}" for member, what in _members(thing))
            elif callable(thing) and hasattr(thing, "__name__") and not get_origin(thing):
                yield f"{path}: {_parameters(thing)}"
            else:
                yield f"{path}: {_constant(thing)}"


def _members(cls: type) -> Iterator[tuple[str, str]]:
    """Public methods and properties that the package defines, inherited ones too; fields stand in the parameters."""
    fields = {*getattr(cls, "__dataclass_fields__", ()), *getattr(cls, "_fields", ())}
    fields |= {*getattr(cls, "__struct_fields__", ())}
    for name in sorted({name for base in cls.__mro__ if _ours(base) for name in vars(base)}):
        if name.startswith("_") or name in fields:
            continue
        thing = inspect.getattr_static(cls, name)
        if isinstance(thing, property | functools.cached_property):
            yield name, "property"
        elif isinstance(thing, staticmethod | classmethod) or inspect.isroutine(thing):
            yield name, _parameters(getattr(cls, name))


def _ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == mfabric_jax.__name__


def _parameters(thing: Any) -> str:
    """Names, kinds and plain defaults; annotations change with versions of Python and are left out."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    plain = [
        one.replace(annotation=inspect.Parameter.empty, default=_Shown(one.default))
        if one.default is not inspect.Parameter.empty
        else one.replace(annotation=inspect.Parameter.empty)
        for one in found.parameters.values()
        if one.name not in ("self", "cls")
    ]
    return str(inspect.Signature(plain))


class _Shown:
    """A default in a signature: its value where that is plain, else three dots."""

    def __init__(self, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value) if _is_plain(self.value) else "..."


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)


def _constant(thing: Any) -> str:
    if isinstance(thing, ModuleType):
        return "module"
    if isinstance(thing, dict | tuple | list | set | frozenset) and all(isinstance(one, str) for one in thing):
        return ", ".join(sorted(thing))
    return "type" if getattr(thing, "__module__", None) == "typing" or hasattr(thing, "__origin__") else "constant"


# ---------------------------------------------------------------------------------------------------- words of the user
def settings_and_presets() -> Iterator[str]:
    """Paths of settings with what they take and their default; presets."""
    from mfabric_jax.case.layers import presets
    from mfabric_jax.case.paths import settings
    from mfabric_jax.commands.help import default_text, kind_words

    for one in settings().values():
        yield f"setting {one.path}: {kind_words(one)}; default {default_text(one.default)}"
    yield from (f"preset {name}: a preset" for name in presets())


def commands_and_options() -> Iterator[str]:
    """Commands; their options with type and default; short flags of settings."""
    from mfabric_jax.case.own_code import CODE_HELP, FLAG
    from mfabric_jax.commands.help import option_text
    from mfabric_jax.commands.words import ALSO, flags_of_cases, options_in

    for command in sorted({*COMMANDS, *TWO_WORDS}):
        module = importlib.import_module(f"mfabric_jax.commands.{command.replace(' ', '_').replace('-', '_')}")
        yield f"command {command}: {'takes cases' if command in OF_CASES else 'options alone'}"
        for option in options_in(module.Options).values():
            yield (
                f"option {command} {option.positional.name if option.positional else option.flag}: "
                f"{option_text(option)}"
            )
        if command in OF_CASES:
            yield from (f"option {command} {flag}: {path}" for flag, path in flags_of_cases(command).items())
    yield from (f"option {also}: {flag}" for also, flag in ALSO.items())
    yield f"option every command {FLAG}: {CODE_HELP}"


def exit_statuses() -> Iterator[str]:
    """Every exit status, and what it says."""
    return (f"exit {status}: {what}" for status, what in STATUS.items())


# ------------------------------------------------------------------------------------------------------ what is written
def columns_of_rows() -> Iterator[str]:
    """Every column of every kind of rows, with its unit."""
    from mfabric_jax.report.kinds import KINDS
    from mfabric_jax.support.columns import SCHEMA

    yield f"format schema of rows: {SCHEMA}"
    for kind, columns in KINDS.items():
        for name, column in columns.items():
            yield f"column {kind}, {name}: {column.unit or 'number'}{', detail' if column.detail else ''}"


def formats() -> Iterator[str]:
    """Formats of files that are written and read, with their versions."""
    from mfabric_jax.apps.graphs.tasks.formats import own, registry
    from mfabric_jax.apps.recordings.formats import FORMATS as recorded
    from mfabric_jax.apps.recordings.measurements.formats import FORMATS as measured
    from mfabric_jax.fabric.graphs.files import ALLOWED as graphs
    from mfabric_jax.policies.policy_file import VERSION as of_policies
    from mfabric_jax.report import perfetto, rows, style
    from mfabric_jax.traffic.knobs import SCHEMA_VERSION as of_knobs
    from mfabric_jax.traffic.recording import SCHEMA_VERSION as of_tokens

    written = {"rows": rows.EXTENSIONS, "timeline": perfetto.EXTENSIONS, "picture": style.EXTENSIONS}
    yield from (f"format {what}: {', '.join(extensions)}" for what, extensions in written.items())
    yield from (f"format task graph read, {name}: {form.suffix or 'any'}" for name, form in registry.READERS.items())
    yield f"format task graph written: {', '.join(registry.WRITERS)}"
    yield f"format mfabric tasks: version {own.VERSION}"
    yield f"format policy file: version {of_policies}"
    yield f"format knobs: version {of_knobs}"
    yield f"format tokens: version {of_tokens}"
    yield f"format graph: {graphs}"
    yield f"format recording: {recorded}"
    yield f"format measured times: {measured}"


def main(given: list[str]) -> None:
    """Print the list, or write it."""
    text = "".join(f"{line}\n" for line in surface())
    if "--write" in given:
        LIST.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
