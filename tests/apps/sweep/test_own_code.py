"""Files of sweeps are data: code that only they name never runs."""

import pytest

from mfabric_jax.apps.sweep import read_sweep
from mfabric_jax.case import own_code
from tests.case.test_own_code import no_reader_runs

SWEEPS = {
    "all-to-alls": {"evaluate": "all-to-all", "grid": {"policy": ["greedy", "NAME"]}},
    "replays": {"evaluate": "replay", "fixed": {"workload": "w.json", "circuits": {"policy": "NAME"}}},
}


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("where", SWEEPS)
def test_no_reader_takes_code_that_its_file_names(where, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_allowed", set())
    no_reader_runs(read_sweep, SWEEPS[where], tmp_path)
