"""`mfabric traces`: what it prints and writes about a recording, what it fits, one sentence for every mistake."""

import json

import numpy as np
import pytest

from mfabric_jax.recordings import fit, statistics
from mfabric_jax.report import read_rows
from mfabric_jax.traffic import Knobs, open_trace
from mfabric_jax.traffic.generator import Shape, draw

from . import command_line


@pytest.fixture
def run(tmp_path):
    """A recording of three iterations, two layers, four ranks with two experts each."""
    path = tmp_path / "run.npz"
    np.savez(path, tokens=np.random.default_rng(0).integers(1, 99, (3, 2, 1, 4, 8)))
    return path


def status(*words):
    return command_line.status("traces", *words)


def mistake(capsys, *words):
    return command_line.mistake(capsys, "traces", *words)


def test_info_prints_shape_statistics_and_drift_of_chosen_records_and_ranks(capsys, run):
    assert status("info", run, "--ranks-per-server", 2) == 0
    said = capsys.readouterr()
    assert said.err == ""
    first, second, *lines = said.out.splitlines()
    assert first == f"tokens, recorded {run}, records 0 to 2"
    assert second == "iteration 3, layer 2, micro-batch 1, source rank 4, expert 8"
    (recording,) = open_trace(run)
    for row in statistics.quantile_rows(statistics.statistics_by_layer(recording, ranks_per_server=2)):
        (line,) = [line for line in lines if line.startswith(row["statistic"])]
        printed = [float(word) for word in line.removeprefix(row["statistic"]).split()]
        np.testing.assert_allclose(printed, [row["p10"], row["median"], row["p90"]], atol=6e-4, rtol=1e-3)
    assert [line.split()[:2] for line in lines[-3:-1]] == [["1", "1"], ["2", "2"]]
    assert status("info", run, "--records", "1-1", "--ranks", "2") == 0
    said = capsys.readouterr().out
    assert f"recorded {run}, records 1 to 1\niteration 1, " in said
    assert "loads of iterations apart" not in said  # one record does not drift
    np.savez(run, logical_count=np.ones((1, 2, 8)))
    assert status("info", run) == 0
    assert "destination rank" not in capsys.readouterr().out
    assert status("info", run, "--ranks", "4") == 0
    assert "hottest destination rank / mean" in capsys.readouterr().out


def test_info_says_how_many_ranks_a_server_was_taken_to_hold(capsys, run):
    assert status("info", run, "--ranks-per-server", 2) == 0
    assert "\na server: 2 ranks, as given\n" in capsys.readouterr().out
    assert status("info", run) == 0
    assert "a server: " not in capsys.readouterr().out  # 4 ranks fit into one
    np.savez(run, tokens=np.ones((1, 1, 1, 16, 16)))
    assert status("info", run) == 0
    said = "a server: 8 ranks (8 GPUs; no degrees are known, so every GPU is a rank); --ranks-per-server says otherwise"
    assert said in capsys.readouterr().out


def test_rows_are_written(capsys, run, tmp_path):
    (recording,) = open_trace(run)
    want = statistics.statistics_by_layer(recording.chosen((1, 2)))
    for name in ("rows.csv", "rows.parquet"):
        assert status("info", run, "--records", "1-2", "--out", tmp_path / name) == 0
        assert capsys.readouterr().err.strip() == str(tmp_path / name)
        rows, config = read_rows(tmp_path / name)
        assert [(row["iteration"], row["layer"]) for row in rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
        for got, row in zip(rows, want, strict=True):
            for title in statistics.TITLES:
                assert got[title] == (None if row[title] is None else pytest.approx(row[title], rel=1e-12))
        assert (config["command"], config["path"], config["records"]) == ("traces info", str(run), "1-2")


def test_several_recordings(capsys, tmp_path):
    counts = {f"{name}_topk": np.ones((5, 3, experts)) for name, experts in (("olmoe", 64), ("mistral", 8))}
    np.savez(tmp_path / "olmoe_mixtral_expert_counts.npz", **counts)
    assert status("info", tmp_path, "--out", tmp_path / "r.csv") == 0
    said = capsys.readouterr().out
    assert said.count("OLMoE expert counts, recorded ") == 2
    rows, _ = read_rows(tmp_path / "r.csv")
    assert [row["recording"] for row in rows] == ["olmoe"] * 3 + ["mistral"] * 3
    assert mistake(capsys, "convert", tmp_path, tmp_path / "o.npz") == (
        f"{tmp_path} holds several recordings; convert one of {tmp_path / 'olmoe'}, {tmp_path / 'mistral'}."
    )
    assert status("convert", tmp_path / "mistral", tmp_path / "o.npz") == 0


def test_a_router_trace_is_converted(capsys, tmp_path):
    # Two replicas of two expert-parallel ranks of two tensor-parallel slices; every rank sends to its own expert.
    places = [(step, rank) for step in (1, 2, 3) for rank in range(8)]
    lines = [
        {"step": step, "layer": 0, "rank": rank, "num_tokens": 1, "topk": 1, "top_indices": [[rank // 2 % 2]]}
        for step, rank in places
    ]
    trace, out = tmp_path / "router_trace_rank0.jsonl", tmp_path / "out.npz"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    degrees = ("--tp", "2", "--ep", "2", "--dp", "2", "--experts", "4")
    assert status("convert", trace, out, "--records", "2-3", *degrees) == 0
    assert capsys.readouterr().out.strip() == str(out)
    (after,) = open_trace(out)
    np.testing.assert_array_equal(after.count, np.broadcast_to(np.eye(2, 4), (2, 1, 2, 2, 4)))
    assert (after.number.tolist(), after.experts) == ([2, 3], 4)
    assert after.origin.startswith("Megatron router trace: recorded ")
    assert after.origin.endswith("(tp 2, ep 2, dp 2, pp 1), records 2 to 3")
    model = ("--model", "mixtral-8x7b", "--tp", "2", "--ep", "2", "--dp", "2")
    for words, shape in (
        (degrees, "expert 4"),
        (model, "expert 8"),
        ((*degrees[:-2], "--order", "tp-cp-ep-dp-pp"), "expert 2"),
    ):
        assert status("info", trace, *words) == 0
        assert f"\niteration 3, layer 1, micro-batch 2, source rank 2, {shape}\n" in capsys.readouterr().out


def test_knobs_and_a_table_are_printed_and_written(capsys, run, tmp_path):
    np.savez(run, tokens=draw(Shape(2, 1, 2, 4, 500), Knobs(skew=1.0, sampled=True), 3, np.arange(3)))
    out = tmp_path / "made" / "knobs.json"
    assert status("fit", run, "--records", "1-2", "--iterations", 2, "--out", out) == 0
    said = capsys.readouterr()
    assert said.err.strip() == str(out)
    (recording,) = open_trace(run)
    want = fit(recording.chosen((1, 2)), 2)
    assert Knobs.read(out) == want.knobs
    head, knobs, table = said.out.split("\n\n")
    assert head == f"tokens, recorded {run}, records 1 to 2"
    assert [line.split()[0] for line in knobs.splitlines()[2:]] == [*want.knobs.turned]
    assert table.split()[:4] == ["statistic", "recorded", "fitted", "error"]
    for row in want.rows():
        (line,) = [line for line in table.splitlines() if line.startswith(row["statistic"])]
        recorded, fitted, *error = line.removeprefix(row["statistic"]).replace("%", "").split()
        np.testing.assert_allclose([float(recorded), float(fitted)], [row["recorded"], row["fitted"]], 1e-3, 6e-4)
        if row["error"] is not None:
            assert float(error[0]) == pytest.approx(100 * row["error"], abs=0.06)
