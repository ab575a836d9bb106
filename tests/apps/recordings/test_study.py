"""A study of a recording: rows as `compare` has them, and sentences that say what these rows say."""

import dataclasses

import numpy as np
import pytest

from mfabric_jax import Case, load, resolve, simulate
from mfabric_jax.apps.recordings.study import (
    AHEAD,
    BEST,
    CIRCUITS,
    HELD,
    PUBLISHED,
    SHARE,
    STATIC,
    UNIFORM,
    UNKNOWN,
    Studied,
    TraceStudy,
    answers,
    trace_study,
)
from mfabric_jax.case.paths import flat
from mfabric_jax.commands import traces_study
from mfabric_jax.commands.words import read
from mfabric_jax.report.numerals import number
from mfabric_jax.traffic import open_trace
from mfabric_jax.traffic.recording import Recording, Sources, Targets
from mfabric_jax.workload import get
from tests import command_line
from tests.mistakes import refused

pytestmark = pytest.mark.usefixtures("as_users_have_it")
JOB = get("llama-moe")
DESIGNS = tuple(TraceStudy(case=Case()).designs)
FEW = (*DESIGNS[:2], UNIFORM)  # those that compile fast
PAPER = load(preset="paper").with_({"model.name": "llama-moe", "run.iterations": 1})


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """Five iterations of the same loads, two layers, 16 ranks and experts."""
    path = tmp_path_factory.mktemp("trace") / "run.npz"
    count = np.random.default_rng(0).integers(1, 99, (1, 2, 1, 16, 16))
    np.savez(path, tokens=np.repeat(count, 5, axis=0))
    return path


@pytest.fixture
def few(monkeypatch):
    every = vars(TraceStudy)["designs"].fget
    monkeypatch.setattr(TraceStudy, "designs", property(lambda self: {name: every(self)[name] for name in FEW}))


def test_rows_are_those_of_compare_and_are_told_on_a_page(few, trace, tmp_path, capsys):
    words = ("traces", "study", trace, "--preset", "paper", "--model", "llama-moe", "--nic-gbps", "200")
    assert command_line.status(*words, "--set", "run.iterations=1", "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    shared = {"network.nic_gbps": 200, "traffic.trace.path": str(trace)}
    networks = [{"network.fabric": "fat-tree", "network.nic_use": use} for use in ("own", "pooled")]
    networks.append({"network.fabric": "mfabric", "circuits.policy": "uniform", "circuits.routing": "relay"})
    rows = simulate([PAPER.with_(shared | network) for network in networks]).rows()
    for row, design in zip(rows, FEW, strict=True):
        line = next(line for line in said.splitlines() if line.startswith(f"{design} "))
        without = row["ep_comm_s"] / (row["iteration_s"] - row["bubble_s"])
        shares = [f"{share:.1%}" for share in (row["ep_share"], without)]
        assert [word for word in line.split() if "%" in word] == shares
        assert number(row["iteration_s"]) in line
    assert "previous-iteration misplaces 0.0% of the selections" in said
    page = (tmp_path / "out" / "study.html").read_text()
    for question in (SHARE, CIRCUITS, AHEAD, HELD, UNKNOWN):
        assert f"<h2>{question}</h2>" in page
    assert page.count("<figure>") == len(list((tmp_path / "out" / "pictures").iterdir())) == 5
    assert sorted(path.name for path in (tmp_path / "out").glob("*.csv")) == ["designs.csv", "predictors.csv"]


def test_one_record_without_sources_says_what_it_cannot_tell(few, tmp_path):
    np.savez(tmp_path / "load.npz", logical_count=np.random.default_rng(1).integers(1, 9, (1, 2, 16)))
    (recording,) = open_trace(tmp_path / "load.npz")
    said = answers(trace_study(recording, TraceStudy(case=PAPER)))
    assert said[SHARE][-1] == said[CIRCUITS][-1] == "Assumption, since sources are unknown: all ranks send the same."
    assert said[AHEAD] == ["A single record has no history to predict from: record several iterations."]
    assert said[UNKNOWN][0].startswith("Sources are unknown: all ranks are assumed to send the same")
    assert said[UNKNOWN][1] == "There is one record: drift is unknown."


def row(design, seconds, cost=1.0):
    fabric = "fat-tree" if design.startswith("fat-tree") else "mfabric"
    parts = {"ep_comm_s": seconds / 4, "bubble_s": seconds / 2, "ep_share": 0.25, "ep_share_without_bubble": 0.5}
    seconds = {"iteration_s": seconds, "network_cost_usd": cost, "over_tree": 1.0}
    return {"design": design, "fabric": fabric, "traffic": "made up"} | parts | seconds


def circuits(*seconds, job=JOB):
    """What is said of circuits, given the seconds of every design."""
    priced = [(name, 0.5 if "mFabric" in name else 1.0) for name in DESIGNS]
    rows = [row(name, time, usd) for (name, usd), time in zip(priced, seconds, strict=True)]
    recording = Recording(np.ones((1, 1, 1, 16, 16)), np.zeros(1, int), "run", "made up")
    return " ".join(answers(Studied(recording, job, rows, [], [], {}, []))[CIRCUITS])


def test_designs_differ_in_the_network_and_in_circuits_alone():
    """Model, GPU, bandwidth and the rate of computation are those of the case, two records are simulated."""
    said = {"model.name": "qwen-moe", "gpu.name": "B200-HGX", "network.nic_gbps": 800, "compute.efficiency": 0.3}
    case = Case().with_(said)
    found = TraceStudy(case=case).designs
    assert set(found) == {*DESIGNS} >= {PUBLISHED, BEST, STATIC, UNIFORM}
    for design in found.values():
        differs = {path for path, value in flat(design).items() if value != flat(case).get(path)}
        assert {path.rpartition(".")[0] for path in differs} <= {"network", "circuits"}
        assert resolve(design).efficiency_of(JOB) == 0.3
    cases, _ = read("traces study", ["run.npz", "--model", "qwen-moe"], traces_study.Options, traces_study.BELOW)
    assert [case.run.iterations for case in cases] == [2]


def test_the_verdict_on_circuits():
    said = circuits(3, 2, 2.5, 1.5, 1.8, 1.9)
    assert said.startswith("In time, yes: with circuits an iteration takes 1.5 s, 25.0% less than on the best fat-tre")
    assert "pooled NICs). In price, yes: a dollar of the network alone does 2.67 times the work (the network" in said
    assert f"Best: {BEST} (" in said
    assert "takes 67% longer than the best design" in said
    assert "patch panel" not in said
    assert "an iteration takes 50% longer" in said
    said = circuits(2, 2, 3, 2.2, 2.2, 2.21)
    assert said.startswith("In time, no: with circuits an iteration takes 2.21 s, 10.5% longer than on")
    assert f"Best: {UNIFORM} (" in said
    assert f"Within 1% of it: {BEST}, {STATIC}. So circuits need not be reconfigured" in said
    assert "share the NICs of their server" not in said
    assert circuits(2, 2, 2.01, 2.01, 2.5, 2.5).startswith("In time, no difference: with circuits an iteration take")
    assert f"Best: {PUBLISHED} (" in circuits(2, 2, 2, 2, 2.5, 2.5)
    inside = dataclasses.replace(JOB, tp=1, ep=8, gpus=JOB.gpus // JOB.tp // JOB.ep * 8)
    said = circuits(2, 2, 3, 3, 3, 3, job=inside)
    assert said.endswith("no all-to-all leaves it. An iteration takes 1.50 times as long as on the fat-tree.")
    assert "In price, no: a dollar of the network alone does 0.67 times the work" in circuits(2, 2, 6, 6, 6, 6)


def test_what_is_unknown_is_said():
    def unknown(shape, number, **kinds):
        return answers(Studied(Recording(np.ones(shape), number, "x", "x", **kinds), JOB, [], [], [], {}, []))[UNKNOWN]

    said = unknown((3, 1, 1, 1, 4), np.array([1, 11, 21]), sources=Sources.UNKNOWN, targets=Targets.RANKS)
    assert [line.split(":")[0] for line in said[:2]] == ["Sources are unknown", "Experts are unknown"]
    assert said[2] == "Records are several iterations apart: changes between them are unknown."
    (only,) = unknown((12, 1, 1, 2, 4), np.arange(12), sources=Sources.DOMAINS)
    assert only.startswith("Rows are text domains")


def test_skew_drift_and_locality_in_numbers():
    load = np.tile([9.0, 1, 1, 1], (2, 2, 1, 1, 1))
    one = Recording(load, np.arange(2), "x", "x", sources=Sources.UNKNOWN)
    assert answers(Studied(one, JOB, [], [], [], {}, []))[HELD] == [
        "The busiest expert of a layer over the mean: median 3, 3 to 3 in four of five cases.",
        "Loads 1 iteration apart correlate by 1.000.",
    ]
    local = Recording(np.tile(np.eye(2), (1, 1, 1, 1, 1)), np.zeros(1), "x", "x")
    said = answers(Studied(local, JOB, [], [], [], {}, []))[HELD]
    assert "Selections that stay on their rank: median 100.0%, 100.0% to 100.0% in four of five cases." in said


def test_a_server_holds_the_ranks_of_the_job():
    """32 source ranks of 64 experts for EP 16, TP 4 on 8-GPU servers: a job's rank r is recorded as 2 r and 2 r + 1."""
    job = dataclasses.replace(JOB, tp=4, ep=16, gpus=JOB.gpus // JOB.tp // JOB.ep * 64)
    assert job.ranks_per_server == 2
    between = np.zeros((16, 16))
    between[np.arange(16), np.arange(16) ^ 1] = 3  # to the other rank of the server
    between[np.arange(16), np.arange(16) ^ 2] = 1
    recorded = np.kron(between, np.ones((2, 4)))
    recording = Recording(recorded[None, None, None], np.zeros(1), "x", "x")

    def stays(per_server=None):
        said = answers(Studied(recording, job, [], [], [], {}, [], per_server))[HELD]
        (line,) = (line for line in said if "in their server" in line)
        return line.split(",")[0]

    assert stays() == "Selections that stay in their server of 2 ranks of the group: median 75.0%"
    assert stays(1) == "Selections that stay in their server of 1 rank of the group: median 0.0%"
    assert stays(4) == "Selections that stay in their server of 4 ranks of the group: median 100.0%"


def test_mistakes(trace, capsys):
    assert refused(TraceStudy, case=PAPER, ranks_per_server=3) == "ranks_per_server must divide the 16 ranks, got 3."
    study = ("traces", "study", trace, "--model", "llama-moe")
    for more, words in (
        (
            ("--policy", "joint"),
            "designs of preset designs, which set this value; leave out circuits.policy, got 'joint'.",
        ),
        (("--nic-gbps", "100,200"), "traces study shows one case, got 2 that differ in network.nic_gbps"),
        (("--set", "compute.measured.iteration_s=1", "--efficiency", "0.5"), "compute.rate"),
    ):
        assert words in command_line.mistake(capsys, *study, *more)
