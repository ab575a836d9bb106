"""`mfabric timeline`: what it prints and writes, that it agrees with compare, and one sentence for every mistake."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax.simulation import example_timeline
from tests.command_line import status
from tests.small import MODEL, row, small

SMALL = ("timeline", "--model", MODEL, "--nic-gbps", "100", "--micro-batches", "2", "--dtype", "float64")
SMALL = (*SMALL, "--compute", "achieved")
pytestmark = pytest.mark.usefixtures("command_line")
OWN = ("--preset", "paper", "--eps-waits", "--overlap-parts", "2", "--dp-overlap")  # what is passed on, and looked up
CONFIG = small(fabrics=("mfabric",), eps_waits=True, overlap_parts=2, dp_overlap=True)
PARTS = ("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")


@pytest.fixture(scope="module")
def solved(as_users_have_it):
    """Segments, rows and effective configuration of one job, solved once."""
    return example_timeline(CONFIG)


def test_prints_a_row_for_every_stage_and_writes_both_files(capsys, tmp_path, solved):
    out, picture = tmp_path / "t.json", tmp_path / "g.png"
    assert status(*SMALL, "--fabric", "mfabric", *OWN, "--out", out, "--picture", picture) == 0
    output = capsys.readouterr()
    assert output.err.split() == [str(out), str(picture)]
    heading, job, columns, _, *lines = output.out.splitlines()
    _, rows, effective = solved
    seconds = f"an iteration of {rows[0]['iteration_s']:.4g} s"
    assert heading == f"{MODEL} on mfabric at 100 Gbps: {seconds}; seconds of every pipeline stage"
    assert job.startswith(f"{MODEL}: 1024 GPUs = DP 8 x TP 4 x PP 4 x EP 8, 2 micro-batches of 8 x 4096 tokens, ")
    assert columns.split() == ["stage", "compute", "TP", "EP", "DP", "reconf", "bubble"]
    shown = [[float(word) for word in line.split()] for line in lines]
    want = [[one["stage"], *(one[part] for part in PARTS)] for one in rows]
    np.testing.assert_allclose(shown, want, rtol=1e-3, atol=1e-3 * rows[0]["iteration_s"])
    trace = json.loads(out.read_text())
    assert trace["otherData"]["models"] == [MODEL]
    assert trace["otherData"]["nic_gbps"] == [100.0]
    assert trace["otherData"]["workloads"] == json.loads(json.dumps(effective["workloads"]))
    slices = [one for one in trace["traceEvents"] if one["ph"] == "X" and one["name"] != "reconfigure"]
    assert max(one["ts"] + one["dur"] for one in slices) == pytest.approx(rows[0]["iteration_s"] * 1e6)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_agrees_with_compare(solved):
    compared, (segments, rows, effective) = row(CONFIG), solved
    assert len(rows) == CONFIG.workload(MODEL).pp
    busiest = min(rows, key=lambda one: one["bubble_s"])
    for part in (*PARTS, "iteration_s"):
        np.testing.assert_allclose(busiest[part], compared[part], rtol=1e-9, atol=1e-9, err_msg=part)
    for one in rows:
        np.testing.assert_allclose(sum(one[part] for part in PARTS), one["iteration_s"], rtol=1e-12)
        mine = [segment for segment in segments if (segment["stage"], segment["kind"]) == (one["stage"], "tp")]
        length = sum(segment["end_s"] - segment["start_s"] for segment in mine)
        np.testing.assert_allclose(length, one["tp_comm_s"], rtol=1e-9, atol=1e-9)
    assert effective["fabrics"] == CONFIG.fabrics


def test_several_of_anything_show_the_first(solved):
    more = {"models": (MODEL, "llama-moe"), "fabrics": ("mfabric", "fat-tree"), "nic_gbps": (100.0, 400.0)}
    several = dataclasses.replace(CONFIG, **more)
    assert example_timeline(several)[0] == solved[0]
