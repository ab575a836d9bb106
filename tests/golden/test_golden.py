"""The same cases give the same rows. A change that is meant: `python -m tests.golden.write NAME`, and say why."""

import pytest

from tests.command_line import status
from tests.golden import table
from tests.golden.write import run_apart

GOLDEN = table()
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("command_line")]


def run(words):
    """In this process."""
    assert status(*words) == 0, " ".join(words)


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_are_those_that_were_kept(name, tmp_path):
    golden = GOLDEN[name]
    said = golden.differences(golden.made(run_apart if golden.own_process else run, tmp_path))
    assert not said, "\n".join([f"{len(said)} differences", *said[:40]])


def test_a_change_is_named():
    golden = GOLDEN["replay"]
    rows = golden.kept()
    assert golden.differences(rows[::-1]) == []
    changed = [row | {"makespan_s": str(float(row["makespan_s"]) * 1.01), "more": "1"} for row in rows[1:]]
    said = golden.differences([{k: v for k, v in row.items() if k != "tasks"} for row in changed])
    assert said[:2] == ["column tasks is gone", "column more is new"]
    assert said[2] == "row 1 job.json fat-tree 100 is gone"
    assert len(said) == 3 + len(changed)
    assert said[3].endswith("(+1 %)")
