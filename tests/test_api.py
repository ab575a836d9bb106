"""docs/api.md is made from docstrings and names every command; versions of a release agree."""

import pathlib
import re

import mfabric_jax
from tests.docs_reference import exported, packages, sentence
from tests.surface import MOST_PUBLIC, PUBLIC

ROOT = pathlib.Path(__file__).parents[1]


def test_every_public_name_exists_and_has_a_sentence():
    for module in packages():
        for name in exported(module):
            assert hasattr(module, name), f"{module.__name__}.{name}"
            assert len(sentence(module, name)) > 5, f"{module.__name__}.{name} has no docstring"


def test_public_names_are_few_and_stand_once():
    assert sum(len(names.split()) for names in PUBLIC.values()) <= MOST_PUBLIC


def numbers(version):
    return [int(part) for part in version.removesuffix(".dev0").split(".")]


def test_the_version_is_the_same_everywhere():
    """The citation is of the last release."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (released, day), *_ = re.findall(r"^## \[(\d[^\]]*)\] - (\d{4}-\d\d-\d\d)$", changes, re.M)
    now = re.search(r'^version = "(.*)"$', project, re.M)[1]
    assert now == mfabric_jax.__version__
    coming = re.search(r"^## \[Unreleased\]\n+[^#\s]", changes, re.M)  # the next version, in development
    assert now.endswith(".dev0") and numbers(now) > numbers(released) if coming else now == released
    assert re.search(r"^version: (.*)$", cited, re.M)[1] == released
    assert re.search(r"^date-released: (.*)$", cited, re.M)[1] == day
