"""Runs that are written to files, and the precision in which they are predicted."""

import json

import pytest

from tests.small import configured


@pytest.fixture
def double_precision():
    with configured(jax_enable_x64=True):
        yield


@pytest.fixture
def written(tmp_path):
    """Writes a run, hand-made or text, and gives its file."""

    def write(run, name="run.json"):
        file = tmp_path / name
        file.write_text(run if isinstance(run, str) else json.dumps(run), encoding="utf-8")
        return file

    return write
