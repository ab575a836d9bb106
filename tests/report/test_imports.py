"""The source of the package names no jax, no pyplot, and optional packages only inside functions."""

import ast
import pathlib

import pytest

import mfabric_jax.report

FILES = sorted(pathlib.Path(mfabric_jax.report.__file__).parent.rglob("*.py"))


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_imports(file):
    tree = ast.parse(file.read_text())
    everywhere = set(imported(ast.walk(tree)))
    assert not {name for name in everywhere if name.split(".")[0] in ("jax", "jaxlib", "equinox")}
    assert not {name for name in everywhere if "pyplot" in name}
    at_the_top = set(imported(tree.body))
    assert not {name for name in at_the_top if name.split(".")[0] in ("matplotlib", "pyarrow")}
