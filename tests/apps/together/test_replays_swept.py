"""Replays as the cases of a sweep."""

import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import write_tasks
from mfabric_jax.apps.sweep import Sweep, sweep
from mfabric_jax.report import read_rows
from tests.apps.graphs.replay.test_replay import NEAR, two_sends
from tests.mistakes import check_refused


def test_a_sweep_of_replays(tmp_path):
    write_tasks(two_sends(), tmp_path / "job.json")
    paths = {"gpu.gpus_per_server": 1, "network.link_delay_s": 0.0}
    fixed = paths | {"workload": str(tmp_path / "job.json"), "gradient": True}
    grid = {"network.fabric": ["fat-tree", "rail-optimized"], "compute_scale": [1.0, 2.0]}
    space = Sweep(evaluate="replay", fixed=fixed, grid=grid, dtype="float64")
    rows = [row for file in sweep(space, tmp_path / "rows") for row in read_rows(file)[0]]
    assert [(row["fabric"], row["compute_scale"], row["nic_gbps"]) for row in rows] == [
        (name, scale, 400) for name in grid["network.fabric"] for scale in grid["compute_scale"]
    ]
    assert [row["makespan_s"] for row in rows] == pytest.approx([4.5e-3, 7.5e-3] * 2, **NEAR)
    assert {row["held_by"] for row in rows} == {"computation"}
    for words, other in (("unknown", fixed | {"wheights": "matrix.txt"}), ("workload must be the file", {})):
        check_refused(words, Sweep, evaluate="replay", fixed=other, dtype="float64")
