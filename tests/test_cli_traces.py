"""`mfabric traces`: what it prints and writes about a recording, and what it fits."""

import json
import re

import numpy as np
import pytest

from mfabric_jax.apps.recordings import fit
from mfabric_jax.report import read_rows
from mfabric_jax.traffic import Knobs, open_trace
from mfabric_jax.traffic.generator import TrafficShape, draw

from . import command_line


@pytest.fixture
def run(tmp_path):
    """A recording of three iterations, two layers, four ranks with two experts each."""
    path = tmp_path / "run.npz"
    np.savez(path, tokens=np.random.default_rng(0).integers(1, 99, (3, 2, 1, 4, 8)))
    return path


@pytest.fixture
def said(capsys):
    """What a command prints."""

    def printed(*words):
        assert command_line.status("traces", *words) == 0
        return capsys.readouterr().out

    return printed


def test_info_prints_shape_statistics_and_drift_of_chosen_records_and_ranks(said, run):
    out = said("info", run, "--ranks-per-server", 2)
    assert out.startswith(
        f"tokens, recorded {run}, records 0 to 2\niteration 3, layer 2, micro-batch 1, source rank 4, e"
    )
    assert "\na server: 2 ranks (--ranks-per-server)\n" in out
    assert re.findall(r"^ +(\d)  +(\d)  ", out.partition("correlation")[2], re.M) == [("1", "1"), ("2", "2")]
    out = said("info", run, "--records", "1-1", "--ranks", "2")
    assert f"recorded {run}, records 1 to 1\niteration 1, " in out
    assert "loads by distance between iterations" not in out  # one record does not drift
    assert "a server: " not in out  # 2 ranks fit into one
    np.savez(run, tokens=np.ones((1, 1, 1, 16, 16)))
    server = "a server: 8 ranks (8 GPUs; no degrees are known, so every GPU is a rank); --ranks-per-server changes this"
    assert server in said("info", run)
    np.savez(run, logical_count=np.ones((1, 2, 8)))
    assert "destination rank" not in said("info", run)
    assert "hottest destination rank / mean" in said("info", run, "--ranks", "4")


def test_rows_are_written_of_every_recording(said, tmp_path):
    counts = {f"{name}_topk": np.ones((5, 3, experts)) for name, experts in (("olmoe", 64), ("mistral", 8))}
    np.savez(tmp_path / "olmoe_mixtral_expert_counts.npz", **counts)
    out = said("info", tmp_path, "--records", "0-0", "--out", tmp_path / "r.csv")
    assert out.count("OLMoE expert counts, recorded ") == 2
    rows, config = read_rows(tmp_path / "r.csv")
    assert [row["recording"] for row in rows] == ["olmoe"] * 3 + ["mistral"] * 3
    assert (config["command"], config["path"], config["records"]) == ("traces info", str(tmp_path), "0-0")


def test_one_of_several_recordings_is_converted(said, capsys, tmp_path):
    counts = {f"{name}_topk": np.ones((5, 3, 8)) for name in ("olmoe", "mistral")}
    np.savez(tmp_path / "a_expert_counts.npz", **counts)
    assert command_line.mistake(capsys, "traces", "convert", tmp_path, tmp_path / "o.npz") == (
        f"{tmp_path} holds several recordings; convert one of {tmp_path / 'olmoe'}, {tmp_path / 'mistral'}."
    )
    assert said("convert", tmp_path / "mistral", tmp_path / "o.npz").strip() == str(tmp_path / "o.npz")
    assert open_trace(tmp_path / "o.npz")[0].origin.startswith("OLMoE expert counts: recorded ")


def test_the_degrees_of_a_router_trace_are_those_of_the_options_or_of_a_model(said, tmp_path):
    # Two replicas of two expert-parallel ranks of two tensor-parallel slices; every rank sends to its own expert.
    lines = [
        {"step": step, "layer": 0, "rank": rank, "num_tokens": 1, "topk": 1, "top_indices": [[rank // 2 % 2]]}
        for step in (1, 2, 3)
        for rank in range(8)
    ]
    trace = tmp_path / "router_trace_rank0.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    degrees = ("--tp", "2", "--ep", "2", "--dp", "2")
    for words, shape in (
        ((*degrees, "--experts", "4"), "expert 4"),
        (("--model", "mixtral-8x7b", *degrees), "expert 8"),
        ((*degrees, "--order", "tp-cp-ep-dp-pp"), "expert 2"),
    ):
        assert f"\niteration 3, layer 1, micro-batch 2, source rank 2, {shape}\n" in said("info", trace, *words)


def test_knobs_and_a_table_are_printed_and_written(said, run, tmp_path):
    np.savez(run, tokens=draw(TrafficShape(2, 1, 2, 4, 500), Knobs(skew=1.0, sampled=True), 3, np.arange(3)))
    out = tmp_path / "made" / "knobs.json"
    head, knobs, table = said("fit", run, "--records", "1-2", "--iterations", 2, "--out", out).split("\n\n")
    (recording,) = open_trace(run)
    want = fit(recording.select((1, 2)), 2)
    assert Knobs.read(out) == want.knobs
    assert head == f"tokens, recorded {run}, records 1 to 2"
    assert [line.split()[0] for line in knobs.splitlines()[2:]] == [*want.knobs.changes]
    assert table.split()[:4] == ["statistic", "recorded", "fitted", "error"]
    assert len(table.splitlines()) == 2 + len(want.rows())
