"""Damaged files: whatever the bytes, a graph or one sentence."""

import random

import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks, read_with_remarks, write_tasks
from mfabric_jax.checks import InputError
from tests.apps.graphs.tasks.formats.test_goal import TWO
from tests.apps.graphs.tasks.formats.test_htsim import MATRIX
from tests.apps.graphs.tasks.formats.test_own import graph
from tests.apps.graphs.tasks.formats.test_simai import HEAD, LISTS, ROWS

TEXTS = {"a.goal": TWO, "a.cm": MATRIX, "simai.txt": HEAD + LISTS + ROWS}
STRANGE = [*b'-1 0 1e400 nan { } null " 3.5 [['.split(), b"9" * 25, b"", b"\xff", b"\0", b" ", b"\n"]


def damaged(data, draw):
    """The bytes with one to four places changed, cut out, repeated, or cut off."""
    data = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at = draw.randrange(len(data) + 1)
        part = data[at : at + draw.choice([1, 5, 30])]
        change = draw.choice(["byte", "out", "off", "strange", "strange", "again"])
        if change == "byte":
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif change == "out":
            del data[at : at + len(part)]
        elif change == "off":
            data = data[:at]
        elif change == "strange":
            data[at : at + draw.randrange(4)] = draw.choice(STRANGE)
        else:
            data[at:at] = part
    return bytes(data)


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize("name", [*TEXTS, "own.json", "own.parquet", "set.1.et"])
def test_a_graph_or_one_sentence(tmp_path, name):
    path, draw, outcomes = tmp_path / name, random.Random(name), set()
    if name in TEXTS:
        path.write_text(TEXTS[name])
    else:
        write_tasks(graph(), tmp_path / name.replace(".1.et", ".et"))
    whole = path.read_bytes()
    assert read_tasks(path).tasks
    for _ in range(60):
        path.write_bytes(damaged(whole, draw))
        try:
            outcomes.add(read_with_remarks(path).format != "")
        except InputError as error:
            said = str(error)
            outcomes.add("\n" not in said and said.endswith(".") and len(said) < 600)
    assert outcomes == {True}
