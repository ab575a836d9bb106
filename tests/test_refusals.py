"""Every mistake is answered with one sentence that says what is wrong.

A room or an app keeps its mistakes in a `refusals.py` among its tests as rows of `REFUSED`: a call without arguments,
then the words that its sentence must hold: the field, the value, what is allowed. The general checks (positive, whole,
unknown name) have their own test in `tests/test_checks.py`; a room has one row for each rule of its own, not one for
each bad value.
"""

import importlib
import pathlib

import pytest

from tests.mistakes import refused

ROOT = pathlib.Path(__file__).parents[1]
FILES = sorted(pathlib.Path(__file__).parent.rglob("refusals.py"))
ROOMS = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES]
REFUSED = [row for room in ROOMS for row in importlib.import_module(room).REFUSED]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: " ".join(row[1:])[:60])
def test_a_mistake_is_answered_with_what_is_wrong(row):
    call, *words = row
    sentence = refused(call)
    assert [word for word in words if word not in sentence] == [], sentence
