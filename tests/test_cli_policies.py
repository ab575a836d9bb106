"""`mfabric train`, `evaluate` and `policies bench`: files, tables, rows, figures; sentences for mistakes."""

import importlib
import json

import pytest

from mfabric_jax import report
from mfabric_jax.commands.words import options_in
from mfabric_jax.policies import load
from tests.command_line import mistake, status

TRAIN = "--kind index --routing split --steps 2 --batch 2 --sizes 4 --log-every 1 --checkpoint-every 1 --share-steps 2"


pytestmark = pytest.mark.usefixtures("command_line")


@pytest.fixture(autouse=True)
def few_families(monkeypatch):
    """All of them take long to compile; tests/apps/learning/test_train.py has one of each."""
    from mfabric_jax.apps.learning import demands

    monkeypatch.setattr(demands, "BROAD", {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("train")


def test_a_run_leaves_a_policy_metrics_and_curves_and_evaluate_judges_it(folder, capsys):
    assert status("train", "--out", folder / "run", *TRAIN.split()) == 0
    said = capsys.readouterr()
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    head, names, _, *body = said.out.strip().splitlines()
    assert head.startswith("mean time over the degree bound")
    assert names.split() == ["step", "time", "held_out_4"]
    assert [line.split()[0] for line in body] == ["0", "1", "2"]
    assert float(body[2].split()[2]) == pytest.approx(lines[2]["held_out_4"], rel=6e-3)
    assert str(folder / "run" / "curves.png") in said.err
    policy = folder / "run" / "trained.policy"
    assert load(policy).configuration["steps"] == 2
    assert (folder / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")

    words = ["--policies", f"{policy},static", "--routings", "split", "--sizes", "4", "--sigmas", "0,0.5"]
    words += ["--samples", "9", "--out", folder / "rows.csv", "--figures", folder]
    assert status("evaluate", *words) == 0
    table = capsys.readouterr().out
    rows, _ = report.read_rows(folder / "rows.csv")
    assert len(rows) == 2 * (2 + 3)  # workloads: drawn has no past, tables have
    assert {(row["workload"], row["forecast"]) for row in rows} >= {("drawn", "0.5"), ("tables", "predicted")}
    assert all(1 - 1e-5 <= row["low"] <= row["over_bound"] <= row["high"] for row in rows)
    best = min(rows[:2], key=lambda row: row["over_bound"])
    block = table.split("\n\n")[0].splitlines()
    assert block[0] == "drawn, 4 servers, routing split"
    (line,) = [line for line in block if line.startswith(best["policy"])]
    assert line.split()[1] == f"{best['over_bound']:.3f}"
    assert (folder / "policies_under_forecasts.png").read_bytes().startswith(b"\x89PNG")


def test_a_scoreboard_that_is_stopped_keeps_its_rows_and_goes_on_to_a_table(folder, capsys, monkeypatch):
    from mfabric_jax.apps import learning

    def interrupted(config, *, progress, start):
        yield from (row for row, _ in zip(scoreboard(config, progress=progress), range(3), strict=False))
        raise KeyboardInterrupt

    scoreboard = learning.scoreboard
    monkeypatch.setattr(learning, "scoreboard", interrupted)
    words = ["--policies", "uniform", "--workloads", "zipf", "--servers", "4", "--routings", "split"]
    words += ["--instances", "2", "--sigmas", "0,1,2,3"]
    assert status("policies", "bench", *words, "--out", folder / "part.csv") == 130
    rows, config = report.read_rows(folder / "part.csv")
    assert (len(rows), config["complete"]) == (3, False)
    monkeypatch.setattr(learning, "scoreboard", lambda config, *, progress, start: scoreboard(config, start=start))
    capsys.readouterr()
    assert status("policies", "bench", *words, "--out", folder / "part.csv") == 0
    head, names, *_ = capsys.readouterr().out.splitlines()
    assert head == "4 servers, routing split, forecast error 0"
    assert names.split() == ["policy", "mean", "median", "p90", "zipf", "decisions/s"]
    whole, config = report.read_rows(folder / "part.csv")
    assert (whole[:3], [row["sigma"] for row in whole], config["complete"]) == (rows, [0, 1, 2, 3], True)


OWN = """
import jax.numpy as jnp
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan, uniform

def loops(demand, region, *, previous=None, key=None):
    return Plan(Circuits(jnp.full((region.servers, region.servers), 8)))

def sly(demand, region, *, previous=None, key=None):
    legal = uniform(demand, region).circuits.count  # as long as demand is heavy-tailed, as in the trial
    return Plan(Circuits(jnp.where(demand.max() > 2 * demand.mean(), legal, 9 * legal)))
"""


def test_no_command_takes_circuits_that_break_a_rule(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    judged = ["--routings", "split", "--sizes", "4", "--sigmas", "0", "--samples", "7"]
    bench = ["policies", "bench", "--workloads", "dense", "--servers", "8", "--routings", "split", "--instances", "2"]
    for words, function, sentence in (
        (["evaluate", *judged, "--policies"], "loops", "they must be zero on the diagonal"),
        ([*bench, "--policies"], "sly", "they must be at most 6 at a server"),
        (["cluster", "--model", "llama-moe", "--policy"], "loops", "they must be zero on the diagonal"),
        (["failures", "--model", "llama-moe", "--policy"], "loops", "they must be zero on the diagonal"),
        (["timeline", "--out", f"{tmp_path}/t.json", "--policy"], "loops", "they must be zero on the diagonal"),
        (["draw", "mfabric", "--out", f"{tmp_path}/d.png", "--policy"], "loops", "they must be zero on the diagonal"),
    ):
        assert status(*words, f"{tmp_path}/own.py:{function}") == 2, words
        assert sentence in capsys.readouterr().err


def test_help_names_both_commands_first(capsys):
    assert status("policies", "--help") == 0
    usage, about = capsys.readouterr().out.split("\n\n")[:2]
    assert usage.startswith("usage: mfabric policies bench ")
    for command in ("policies bench, described here", "(mfabric policies regimes --help)"):
        assert command in " ".join(about.split())


def test_help_says_what_renewal_knows_beyond_an_own_policy_and_that_own_policies_are_asked_for_each_value(capsys):
    assert status("policies", "regimes", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "pool losses over all chains of the regime and know how many all-to-alls are left" in said
    for row in ('"X always"', '"X pays"', '"tuned horizon"', '"renewal"', '"renewal of greedy"', '"renewal of X"'):
        assert row in said
    assert status("show", "--help", "circuits.delay_s") == 0
    assert "a policy of your own is asked anew" in capsys.readouterr().out


def test_regimes_tells_a_wrong_policy_of_the_user_in_a_sentence_and_leaves_no_file(tmp_path, capsys):
    (tmp_path / "own.py").write_text(OWN)
    out = tmp_path / "rows.csv"
    words = ["policies", "regimes", "--servers", "8", "--out", out, "--code", f"{tmp_path}/own.py", "--also"]
    assert "zero on the diagonal" in mistake(capsys, *words, f"{tmp_path}/own.py:loops")
    said = mistake(capsys, *words, f"{tmp_path}/own.py:loops(x=[0.1,0.3])")
    assert said.endswith(f"for each value: {tmp_path}/own.py:loops(x=0.1),{tmp_path}/own.py:loops(x=0.3).")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("rows")] == []


BEFORE_A_DEVICE = {"train": "--out run", "evaluate": "", "policies bench": ""}
TOO_MANY = {
    "train": (
        "--sizes 4096 --batch 1000",
        "batch x sizes^2 must be at most 2,147,483,647 together, got 1,000 x 16,777",
    ),
    "train --out run": ("--width 4096 --depth 4096", "depth x width^2 must be at most"),
    "evaluate": ("--policies static --sizes 4,4096 --samples 999", "samples x sizes^2 must be at most"),
    "policies bench": ("--policies uniform --servers 65536", "instances x servers^2 must be at most"),
}


@pytest.fixture
def no_device(monkeypatch):
    """Fails the test where a command gets as far as a device."""

    def start(*given):
        raise AssertionError("JAX starts")

    monkeypatch.setattr("mfabric_jax.commands.shared.start_jax", start)


@pytest.mark.parametrize("command", BEFORE_A_DEVICE)
def test_every_number_has_bounds_that_are_told_before_a_device_starts(command, no_device, capsys):
    name, words = command.split()[0], [*command.split(), *BEFORE_A_DEVICE[command].split()]
    numbers = (int, float, int | None, tuple[int, ...], tuple[float, ...], tuple[int, ...] | None)
    options = [
        option.flag
        for option in options_in(importlib.import_module(f"mfabric_jax.commands.{name}").Options).values()
        if option.kind in numbers
    ]
    assert len(options) >= 3
    for flag in options:
        for value in ("9" * 60, "-1"):
            got = mistake(capsys, *words, f"{flag}={value}")
            assert got.startswith(flag[2:].replace("-", "_") + " must be "), got


@pytest.mark.parametrize("command", TOO_MANY)
def test_what_no_device_holds_is_told_before_one_starts(command, no_device, capsys):
    more, sentence = TOO_MANY[command]
    out = ["--out", "run"] if command == "train" else []
    assert mistake(capsys, *command.split(), *out, *more.split()).startswith(sentence)
