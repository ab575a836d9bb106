"""`mfabric timeline`: what it prints and writes, that it agrees with compare, and one sentence for every mistake."""

import json

import numpy as np
import pytest

from mfabric_jax.simulation import example_timeline
from tests.command_line import status
from tests.small import MODEL, small

SMALL = ("timeline", "--model", MODEL, "--nic-gbps", "100", "--micro-batches", "2", "--set", "run.dtype=float64")
SMALL = (*SMALL, "--preset", "paper", "--efficiency", "0.5", "--fabric", "mfabric")
pytestmark = pytest.mark.usefixtures("command_line")
GIVEN = {"circuits.packets_wait": "true", "job.parts": "2", "job.overlap_gradients": "true"}
OWN = [word for path, value in GIVEN.items() for word in ("--set", f"{path}={value}")]
CASE = small(
    {"network.fabric": "mfabric", "circuits.packets_wait": True, "job.parts": 2, "job.overlap_gradients": True}
)
PARTS = ("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")


@pytest.fixture(scope="module")
def solved(as_users_have_it):
    """Segments and rows of one job, solved once."""
    return example_timeline(CASE)


def test_prints_a_row_for_every_stage_and_writes_both_files(capsys, tmp_path, solved):
    out, picture = tmp_path / "t.json", tmp_path / "g.png"
    assert status(*SMALL, *OWN, "--out", out, "--picture", picture) == 0
    output = capsys.readouterr()
    assert output.err.split() == [str(out), str(picture)]
    heading, job, columns, _, *lines = output.out.splitlines()
    _, rows = solved
    seconds = f"an iteration of {rows[0]['iteration_s']:.4g} s"
    assert heading == f"{MODEL} on mfabric at 100 Gbps: {seconds}; seconds of every pipeline stage"
    assert job.startswith(f"{MODEL}: 1024 GPUs = DP 8 x TP 4 x PP 4 x EP 8, 2 micro-batches of 8 x 4096 tokens, ")
    assert columns.split() == ["stage", "compute", "TP", "EP", "DP", "reconf", "bubble"]
    shown = [[float(word) for word in line.split()] for line in lines]
    want = [[one["stage"], *(one[part] for part in PARTS)] for one in rows]
    np.testing.assert_allclose(shown, want, rtol=1e-3, atol=1e-3 * rows[0]["iteration_s"])
    trace = json.loads(out.read_text())
    resolved = trace["otherData"]["resolved"]
    assert (resolved["model.name"], resolved["network.nic_gbps"]) == (MODEL, 100)
    assert {path: str(resolved[path]).lower() for path in ("circuits.packets_wait", "job.overlap_gradients")} == {
        path: GIVEN[path] for path in ("circuits.packets_wait", "job.overlap_gradients")
    }
    slices = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["name"] != "reconfigure"]
    assert max(one["ts"] + one["dur"] for one in slices) == pytest.approx(rows[0]["iteration_s"] * 1e6)
    assert picture.read_bytes().startswith(b"\x89PNG")
