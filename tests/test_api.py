"""docs/api.md names everything that is public and nothing else: names, commands, files of a release."""

import ast
import importlib
import pathlib
import re

import mfabric_jax
from mfabric_jax import cli

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def section(title):
    """What stands below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(title)}$(.*?)(?=^#|\Z)", PAGE, re.M | re.S)
    assert found, title
    return found[1]


def table(title):
    """{first cell: second cell} of the rows whose first cell is one name."""
    return dict(re.findall(r"^\| `([\w-]+)` \| (.*) \|$", section(title), re.M))


def exported(module):
    """`__all__`, or what the package imports under its own name on purpose."""
    if hasattr(module, "__all__"):
        return set(module.__all__)
    tree = ast.parse(pathlib.Path(module.__file__).read_text(encoding="utf-8"))
    return {name.asname for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names if name.asname}


def test_every_public_name_has_a_line():
    folders = sorted(path.parent.name for path in (ROOT / "mfabric_jax").glob("*/__init__.py"))
    for name in ("mfabric_jax", *(f"mfabric_jax.{folder}" for folder in folders)):
        module = importlib.import_module(name)
        if names := exported(module):
            lines = table(name)
            assert set(lines) == names, name
            assert all(hasattr(module, public) for public in names)
            assert min(map(len, lines.values())) > 5, name


def test_every_command_has_a_line():
    assert list(table("Command line")) == re.findall(r"^  (\w+) +\w", cli.HELP, re.M)


def test_the_version_is_the_same_everywhere():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (released, day), *_ = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", changes, re.M)
    assert re.search(r'^version = "(.*)"$', project, re.M)[1] == mfabric_jax.__version__ == released
    assert re.search(r"^version: (.*)$", cited, re.M)[1] == released
    assert re.search(r"^date-released: (.*)$", cited, re.M)[1] == day
