"""Reference that settings, columns and docstrings make, for a line of a page that ends with
`<!-- made: NAME -->`.

The site has it in its pages (docs/site/hooks.py); none of it is committed. A terminal has it under `--help`.
"""

import inspect
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from mfabric_jax.case import Case, presets
from mfabric_jax.case.layers import load
from mfabric_jax.case.paths import Leaf, SettingChoice, flat, settings
from mfabric_jax.commands import COMMANDS
from mfabric_jax.commands.help import default_text, groups, kind_words
from mfabric_jax.commands.words import flags_of_cases
from mfabric_jax.report.kinds import KINDS
from mfabric_jax.support.columns import Column
from mfabric_jax.workload.frameworks import RULES
from tests.surface import exported, packages

PART = re.compile(r"^.*<!-- made: ([\w-]+) -->$", re.M)
COMPARED = ("paper", "as-0.1")  # presets that one table has beside the defaults


def cell(said: Any) -> str:
    """Text that may stand in a table."""
    return str(said).replace("|", "\\|")


def the_tree() -> Iterator[str]:
    """Every group, every path."""
    yield f"Groups: {', '.join(f'[{name}](#{name})' for name in groups())}."
    yield ""
    for name, group in groups().items():
        yield f"### {name}"
        yield ""
        yield " ".join((group.__doc__ or "").split())
        yield ""
        yield "| path | takes | default | |"
        yield "|---|---|---|---|"
        for one in settings().values():
            if one.path.startswith(name + "."):
                mark = " ~" if one.traced else ""
                cells = (cell(kind_words(one)), cell(default_text(one.default)), cell(one.doc))
                yield f"| `{one.path}`{mark} | {' | '.join(cells)} |"
        yield ""


def the_choices() -> Iterator[str]:
    """What excludes each other."""
    yield "| choice | alternatives | which of them have further settings |"
    yield "|---|---|---|"
    for one in settings().values():
        if isinstance(one, SettingChoice):
            inside: dict[str, list[str]] = {}
            for leaf in settings().values():
                if isinstance(leaf, Leaf) and leaf.choice == one.path:
                    inside.setdefault(leaf.of, []).append(f"`{leaf.path}`")
            further = "; ".join(", ".join(paths) for paths in inside.values())
            yield f"| `{one.path}` | {', '.join(one.alternatives)} | {further} |"


def the_presets() -> Iterator[str]:
    """Each with its first sentence."""
    yield "| preset | |"
    yield "|---|---|"
    for name, sentence in presets().items():
        yield f"| `{name}` | {sentence} |"


def the_short_flags() -> Iterator[str]:
    """Flags of one setting."""
    yield ", ".join(f"`{flag}` (`{path}`)" for flag, path in flags_of_cases().items()) + "."


def the_defaults() -> Iterator[str]:
    """Where presets differ from the defaults."""
    yield f"| setting | default | {' | '.join(f'preset {name}' for name in COMPARED)} |"
    yield "|---|---|" + "---|" * len(COMPARED)
    usual, others = flat(Case()), [[flat(case) for case in _several(name)] for name in COMPARED]
    for path in usual:
        if path in ("network.fabric", "network.nic_use", "network.nic_gbps", "model.name"):
            continue  # those of as-0.1 are a tour of them
        every = [list(dict.fromkeys(default_text(one.get(path)) for one in other if path in one)) for other in others]
        if any(some and some != [default_text(usual[path])] for some in every) and path in settings():
            said = [", ".join(some) or "-" for some in every]
            yield f"| `{path}` | {default_text(usual[path])} | {' | '.join(said)} |"


def _several(name: str) -> list[Case]:
    found = load(preset=name)
    return [found] if isinstance(found, Case) else [block.case for block in found.blocks][:1]


# ----------------------------------------------------------------------------------------------------- docs/formats.md
def column_table(columns: Mapping[str, Column]) -> Iterator[str]:
    """A row for each column; a star marks details, which only `--all-columns` writes."""
    yield "| column | unit | |"
    yield "|---|---|---|"
    for name, column in columns.items():
        yield f"| `{name}`{' *' if column.detail else ''} | {cell(column.unit)} | {cell(column.text)} |"


def columns_of_others() -> Iterator[str]:
    """A table for each further kind of rows; kinds that repeat another add a sentence."""
    again = {"sweep": "cases", "traces study designs": "cases", "sweep of replays": "replay"}
    for kind, columns in KINDS.items():
        if kind in ("cases", "serve"):
            continue
        yield f"#### {kind}"
        yield ""
        base = KINDS[again[kind]] if kind in again else {}
        if base:
            yield f"The columns of {again[kind]}, and:"
            yield ""
        yield from column_table({name: column for name, column in columns.items() if name not in base})
        yield ""


# --------------------------------------------------------------------------------------------------------- docs/api.md
# Constants and aliases of types: Python keeps no docstring of them.
WITHOUT_DOCSTRING = {
    "mfabric_jax.circuit_schedules.NAMES": "Names of schedulers.",
    "mfabric_jax.fabric.NAMES": "Names of fabrics.",
    "mfabric_jax.workload.NAMES": "Names of models.",
    "mfabric_jax.policies.Policy": "Type of a policy: a function of demand and region that gives a `Plan`.",
    "mfabric_jax.timing.First": "What the first all-to-all of a forward pass finds: names of `circuits.reconfigure`.",
    "mfabric_jax.timing.CircuitSpan": "For how long circuits stay set, and what they are chosen for.",
}


def sentence(module: ModuleType, name: str) -> str:
    """The first paragraph of a docstring, which is one sentence."""
    path = f"{module.__name__}.{name}"
    if path in WITHOUT_DOCSTRING:
        return WITHOUT_DOCSTRING[path]
    thing = getattr(module, name)
    text = inspect.cleandoc(thing.__doc__ or "").partition("\n\n")[0]
    return " ".join(text.split()).replace("|", "\\|")


def tables() -> Iterator[str]:
    """A table for every package."""
    for module in packages():
        yield f"### {module.__name__}"
        yield ""
        yield "| name | |"
        yield "|---|---|"
        for name in sorted(exported(module), key=lambda name: (name.lower(), name)):
            yield f"| `{name}` | {sentence(module, name)} |"
        yield ""


def commands() -> Iterator[str]:
    """The table of commands."""
    yield from ("| command | |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in COMMANDS.items()))


def frameworks() -> Iterator[str]:
    """What a set-up must keep to, and where that is stated."""
    yield "| what must hold | source |"
    yield "|---|---|"
    for rule in RULES:
        yield f"| {cell(rule.words.partition(', got')[0])} | {cell(rule.source)} |"


MADE = {
    "frameworks": frameworks,
    **{"tree": the_tree, "choices": the_choices, "presets": the_presets, "short-flags": the_short_flags},
    **{"defaults": the_defaults},
    **{"docstrings": tables, "commands": commands},
    "columns-of-cases": lambda: column_table(KINDS["cases"]),
    "columns-of-serve": lambda: column_table(KINDS["serve"]),
    "columns-of-others": columns_of_others,
}


def made_again(page: str) -> str:
    """A page with its reference in it."""
    return PART.sub(lambda found: "\n".join(MADE[found[1]]()).strip(), page)
