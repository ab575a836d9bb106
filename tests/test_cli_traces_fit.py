"""`mfabric traces fit`: knobs and a table of both, knobs to a file, and one sentence for every mistake."""

import os

import numpy as np
import pytest

from mfabric_jax import cli
from mfabric_jax.traffic import Knobs, fit, moments, open_trace
from mfabric_jax.traffic.generator import Shape, draw

pytest.importorskip("tyro", reason="the command line needs tyro")


@pytest.fixture
def run(tmp_path):
    """A recording of three iterations, two layers, two ranks with two experts each."""
    path = tmp_path / "run.npz"
    np.savez(path, tokens=draw(Shape(2, 1, 2, 4, 500), Knobs(skew=1.0, sampled=True), 3, np.arange(3)))
    return path


def status(*words):
    """Exit status, as a shell would see it."""
    try:
        return cli.main(["traces", *map(str, words)])
    except SystemExit as end:
        return end.code or 0


def test_knobs_and_a_table_are_printed_and_written(capsys, run, tmp_path):
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
        assert float(recorded) == pytest.approx(row["recorded"], rel=1e-3, abs=6e-4)
        assert float(fitted) == pytest.approx(row["fitted"], rel=1e-3, abs=6e-4)
        if row["error"] is not None:
            assert float(error[0]) == pytest.approx(100 * row["error"], abs=0.06)
    assert moments.LAGGED[1] in table


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["fit"], "traces fit needs the path of a trace next"),
        (["fit", "RUN", "x.json"], "traces fit takes one path, got 'x.json' too; knobs go to --out."),
        (["fit", "RUN", "--out", "knobs.npz"], "knobs are written as .json, got 'knobs.npz'."),
        (["fit", "RUN", "--iterations", "0"], "iterations must be a whole number of at least 1, got 0."),
        (["fit", "RUN", "--iterations", "few"], "option --iterations takes a whole number, got 'few'."),
        (["fit", "RUN", "--records", "9-10"], "records must overlap what "),
        (["fti", "RUN"], "traces command 'fti' is unknown (did you mean 'fit'?); allowed: info, convert, fit."),
    ],
)
def test_mistakes(capsys, monkeypatch, run, words, sentence):
    monkeypatch.chdir(run.parent)
    assert status(*[run if word == "RUN" else word for word in words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"mfabric: {sentence}")
    assert said.err.count("\n") == 1
    assert os.listdir(run.parent) == ["run.npz"]


def test_one_of_several_recordings_is_fitted(capsys, tmp_path):
    path = tmp_path / "olmoe_mixtral_expert_counts.npz"
    np.savez(path, olmoe_topk=np.ones((5, 3, 8)), mistral_topk=np.ones((5, 3, 8)))
    assert status("fit", path) == 2
    assert capsys.readouterr().err == (
        f"mfabric: {path} holds several recordings; fit one of {path / 'olmoe'}, {path / 'mistral'}.\n"
    )
