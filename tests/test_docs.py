"""What README and docs show in Python runs as it stands, the blocks of a page one after the other."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [p for p in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if "```python" in p.read_text()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_run(page, capsys):
    blocks, shared = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S), {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name} block {number}", "exec"), shared)
        printed = capsys.readouterr().out
        assert printed
        assert "nan" not in printed
        assert "inf" not in printed


def test_there_are_blocks():
    assert {page.stem for page in PAGES} >= {"README", "policies"}
