"""What README shows in Python runs as it stands."""

import pathlib
import re

import pytest

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_python_block_runs(number, capsys, monkeypatch):
    exec(compile(BLOCKS[number], f"README block {number}", "exec"), {})
    printed = capsys.readouterr().out
    assert printed
    assert "nan" not in printed
    assert "inf" not in printed


def test_there_are_blocks():
    assert len(BLOCKS) >= 2
