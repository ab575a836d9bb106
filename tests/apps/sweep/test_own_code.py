"""Files of sweeps are data: code that only they name never runs."""

import json

import pytest

from mfabric_jax.apps.sweep import read_sweep
from mfabric_jax.case import own_code
from mfabric_jax.commands.rerun import cases_of
from mfabric_jax.policies import allow_code
from tests.case.test_own_code import SETTINGS, no_reader_runs
from tests.case.test_own_code import theirs as theirs
from tests.mistakes import refused

SWEEPS = {
    "all-to-alls": {"evaluate": "all-to-all", "grid": {"policy": ["greedy", "NAME"]}},
    "replays": {"evaluate": "replay", "fixed": {"workload": "w.json", "circuits": {"policy": "NAME"}}},
}


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("where", SWEEPS)
def test_no_reader_takes_code_that_its_file_names(where, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_allowed", set())
    no_reader_runs(read_sweep, SWEEPS[where], tmp_path)


@pytest.mark.parametrize("where", SETTINGS)
def test_rows_are_no_way_to_run_code_either(where, theirs, tmp_path):
    content = json.loads(json.dumps(SETTINGS[where]).replace("NAME", theirs))
    variants, random, _ = (content.pop(key, {}) for key in ("variants", "random", "sweep"))
    config = {"stated": content, "varied": [], "variants": variants, "random": random, "rules": {}}
    assert "names code to run" in refused(cases_of, "rows.csv", config)
    allow_code(tmp_path / "theirs.py")
    assert len(cases_of("rows.csv", config))
