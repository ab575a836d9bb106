"""Pages of the documentation name every setting, every preset and every name of 0.1, as the tree has them."""

import pytest

from mfabric_jax.case import presets
from mfabric_jax.case.old import GONE, WHERE
from mfabric_jax.case.paths import settings
from tests.docs_case import MADE, PART, made_again
from tests.docs_tables import ROOT

PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
WITH_PARTS = [name for name, text in PAGES.items() if PART.search(text)]


@pytest.mark.parametrize("page", WITH_PARTS)
def test_what_the_tree_makes_of_a_page_stands_there(page):
    assert made_again(PAGES[page]) == PAGES[page], "python -m tests.docs_case --write"


def test_every_part_stands_on_a_page():
    assert {name for page in WITH_PARTS for name in PART.findall(PAGES[page])} == set(MADE)


def test_nothing_is_missing():
    assert [path for path in settings() if f"`{path}`" not in PAGES["case"]] == []
    assert [name for name in presets() if f"`{name}`" not in PAGES["case"]] == []
    assert [name for name in (*WHERE, *GONE) if f"| `{name}` |" not in PAGES["from_0.1"]] == []
