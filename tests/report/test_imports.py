"""The source of the package names no jax, no pyplot, and optional packages only inside functions."""

import ast
import pathlib

import mfabric_jax.report


def imported(nodes):
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports():
    for file in sorted(pathlib.Path(mfabric_jax.report.__file__).parent.rglob("*.py")):
        tree = ast.parse(file.read_text())
        everywhere, at_the_top = set(imported(ast.walk(tree))), set(imported(tree.body))
        assert not {name for name in everywhere if name.split(".")[0] in ("jax", "jaxlib", "equinox")}, file
        assert not {name for name in everywhere if "pyplot" in name}, file
        assert not {name for name in at_the_top if name.split(".")[0] in ("matplotlib", "pyarrow")}, file
