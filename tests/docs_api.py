"""The tables of docs/api.md: names and commands, between their marks (`<!-- docstrings -->`) and `<!-- end -->`.

`python -m tests.docs_api` compares the page with the docstrings, and with `--write` writes it again.
"""

import ast
import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from mfabric_jax.commands import COMMANDS
from tests.docs_tables import ROOT

PAGE = ROOT / "docs" / "api.md"
PART = re.compile(r"<!-- (docstrings|commands) -->\n.*?<!-- end -->", re.S)
# Constants and aliases of types: Python keeps no docstring of them.
WITHOUT_DOCSTRING = {
    "mfabric_jax.fabric.NAMES": "Names of fabrics.",
    "mfabric_jax.workload.NAMES": "Names of models.",
    "mfabric_jax.policies.Policy": "Type of a policy: a function of demand and region that gives a `Plan`.",
    "mfabric_jax.schedule.First": "What the first all-to-all of a forward pass finds: names of `circuits.turn`.",
    "mfabric_jax.schedule.Span": "For how long circuits stay set, and what they are chosen for.",
}


def packages() -> list[ModuleType]:
    """The package itself and its public packages, in pipeline order of the data."""
    folders = sorted(path.parent.name for path in (ROOT / "mfabric_jax").glob("*/__init__.py"))
    names = ["mfabric_jax", *(f"mfabric_jax.{folder}" for folder in folders)]
    return [module for module in map(importlib.import_module, names) if exported(module)]


def exported(module: ModuleType) -> set[str]:
    """`__all__`, or what the package imports under its own name on purpose (`import X as X`)."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    tree = ast.parse(pathlib.Path(str(module.__file__)).read_text(encoding="utf-8"))
    return {name.asname for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names if name.asname}


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


def made_again(page: str) -> str:
    """The page with its tables as docstrings make them now."""
    commands = ("| command | |", "|---|---|", *(f"| `{name}` | {what} |" for name, what in COMMANDS.items()))
    body = {"docstrings": "\n".join(tables()).strip(), "commands": "\n".join(commands)}
    return PART.sub(lambda part: f"<!-- {part[1]} -->\n\n{body[part[1]]}\n\n<!-- end -->", page)


def main(words: list[str]) -> int:
    """Says whether the page is what docstrings make, or writes it."""
    before = PAGE.read_text(encoding="utf-8")
    after = made_again(before)
    if after == before:
        return 0
    if "--write" in words:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    print("docs/api.md is not what docstrings make: python -m tests.docs_api --write")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
