"""`mfabric export`: what it prints and writes."""

import pytest

from mfabric_jax.export import exported_iteration, timed_iteration
from mfabric_jax.tasks.formats.registry import read_tasks
from tests.command_line import status
from tests.small import MODEL, row, small

SMALL = ("export", "--model", MODEL, "--nic-gbps", "100", "--micro-batches", "2", "--set", "run.dtype=float64")
SMALL = (*SMALL, "--efficiency", "0.5", "--preset", "paper", "--fabric", "mfabric")
pytestmark = pytest.mark.usefixtures("command_line")


def test_an_iteration_is_written_and_takes_what_compare_says(capsys, tmp_path, as_users_have_it):
    out = tmp_path / "tasks.json"
    assert status(*SMALL, "--contention", "none", "--out", out) == 0
    output = capsys.readouterr()
    seconds = row(small({"network.fabric": "mfabric"}))["iteration_s"]
    assert f"\ncompare: {seconds:.6g} s\n" in output.out
    assert f"contention none: {seconds:.6g} s, as compare has it" in output.out
    assert output.err.split() == [str(out)]
    one = exported_iteration(small({"network.fabric": "mfabric"}))
    assert read_tasks(out).equals(one.graph)
    assert timed_iteration(one).iteration_s > seconds  # gradients hold the last send up
