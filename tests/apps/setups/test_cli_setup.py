"""`mfabric setup`: its tables agree with `mfabric compare`, and one sentence answers every mistake."""

import re

import pytest

from mfabric_jax import Case, cases, load, simulate
from mfabric_jax.apps.setups import best_set_ups, choices_of, fewest_gpus, seconds_without
from mfabric_jax.apps.setups import fewest as fewest_module
from mfabric_jax.apps.setups.best import limit_of, recomputed_share
from mfabric_jax.evaluate import resolve
from mfabric_jax.workload.space import SetUp
from tests.command_line import line_of, mistake, status
from tests.small import model_file

pytestmark = pytest.mark.usefixtures("command_line")

STATED = {
    **{"job.parallel.tp": 1, "job.parallel.pp": 2, "job.dispatcher": "nccl", "job.dispatch": "per-expert"},
    **{"job.batch.global_batch": 32, "job.batch.sequence": 512, "job.batch.micro_batch": 1},
    **{"traffic.drawn": 1, "network.fabric": "fat-tree", "run.dtype": "float64", "job.recompute": "none"},
}


@pytest.fixture
def model(tmp_path):
    return model_file(tmp_path / "tiny.toml")


def words(model, *more, gpus=16, **changes):
    stated = {path: value for path, value in (STATED | changes).items() if value is not None}
    sized = ("--gpus", gpus) if gpus else ()
    sets = (word for path, value in stated.items() for word in ("--set", f"{path}={value}"))
    return ("setup", "--model", model, *sized, *sets, *more)


def case_of(model, **changes):
    return Case().with_({"model.name": model, "job.parallel.gpus": 16, "job.search": "each"} | STATED | changes)


# ------------------------------------------------------------------------------------------------------------- answers
def test_the_table_is_what_compare_finds_and_the_file_gives_it_again(capsys, model, tmp_path):
    out = tmp_path / "best.toml"
    assert status(*words(model, "--out", out)) == 0
    output = capsys.readouterr().out
    best = best_set_ups(case_of(model))
    (row,) = simulate(load(out)).rows()
    assert row["iteration_s"] == best.rows[0]["iteration_s"]
    assert row["iteration_s"] == pytest.approx(best.outcome.seconds, rel=1e-12)
    assert simulate(cases(case_of(model))).rows()[0]["iteration_s"] == row["iteration_s"]
    said = " ".join(output.split())
    assert said.startswith("tiny on fat-tree, 400 Gbps: 16 GPUs (H100-SXM), 32 sequences of 512 tokens an iteration;")
    lines = re.findall(r"^ *1  +(.*)$", output.partition("no.  set-up")[0], re.M)  # a wide table goes on below
    seconds, over, *_, limit = " ".join(lines).split()
    assert (float(seconds), over, limit) == (
        pytest.approx(row["iteration_s"], rel=6e-3),
        "+0.0%",
        best.rows[0]["limit"],
    )
    counts = best.outcome.counts
    text = " ".join(output.split())
    assert f"Tried: {counts['bounded']:,} bounded" in text
    assert f"{counts['coarse']:,} by the coarse clock, {counts['timed']:,} timed." in text
    assert "No set-up of the space takes less than" in text
    assert best.outcome.bound_s <= row["iteration_s"]
    assert "The best set-up of a non-blocking fat-tree, on this fabric:" in text
    assert f"1 case in {out}" in output


def test_dollars_rank_fabrics_and_setups(capsys, model):
    assert (
        status(*words(model, "--objective", "dollars", "--fabric", "fat-tree,mfabric", **{"network.fabric": None})) == 0
    )
    output = capsys.readouterr().out
    assert "$/Mtok" in output
    both = [simulate(case_of(model, **{"network.fabric": name})).rows()[0] for name in ("fat-tree", "mfabric")]
    cheapest, other = sorted(both, key=lambda row: row["usd_per_million_tokens"])
    last = output.partition("the best set-up on each fabric, by dollars\n")[2]
    assert line_of(last, cheapest["fabric"])[-1] == "+0.0%"
    over = other["usd_per_million_tokens"] / cheapest["usd_per_million_tokens"] - 1
    assert line_of(last, other["fabric"])[-1] == f"{over:+.1%}"


def test_without_a_choice_the_best_is_never_faster(capsys, model):
    assert status(*words(model, "--without")) == 0
    output = capsys.readouterr().out
    best = best_set_ups(case_of(model))
    choices = choices_of(case_of(model), best.outcome.best, 8)
    assert choices
    for choice in choices:
        runner = seconds_without(case_of(model), choice)
        assert runner is None or runner.seconds >= best.outcome.seconds
        assert f"\n{choice.words}" in output


def test_every_known_choice_has_settings_that_state_it_away():
    own = SetUp(
        2, 1, 8, 2, 4, 4, 1, 8, "interleaved", 2, "Et|tL", "passes", "deepep", "per-server", "gradients", "norm"
    )
    named = [choice.words for choice in choices_of(Case(), own, 8)]
    assert named == [
        *("overlap of passes", "interleaving", "a layout written out", "dispatcher deepep", "context parallelism"),
        *("recomputation", "folding (etp below tp)", "sharding gradients"),
    ]
    for choice in choices_of(Case(), own._replace(etp=2), 8):
        for way in choice.ways:
            Case().with_(way)
    stated = Case().with_({"job.overlap": "passes", "job.dispatcher": "deepep"})
    assert not {"overlap of passes", "dispatcher deepep"} & {choice.words for choice in choices_of(stated, own, 8)}
    assert choices_of(Case(), SetUp(1, 1, 8, 1, 1, 2, 1, 8), 8) == []


def test_what_limits_a_set_up(model):
    row = dict.fromkeys(("bubble_s", "ep_comm_s", "dp_comm_s", "tp_comm_s", "reconfig_s"), 0.0)
    row |= {"compute_s": 1.0, "iteration_s": 1.1}
    stated = case_of(model, **{"job.parallel.ep": 4, "job.search": "recipe"})
    plain, again = (resolve(stated.with_({"job.recompute": level})) for level in ("none", "block"))
    assert limit_of(row, plain) == "computation"
    assert limit_of(row, again) == "memory"
    assert limit_of(row | {"ep_comm_s": 0.5}, again) == "all-to-alls"
    assert limit_of(row | {"ep_comm_s": 0.05, "bubble_s": 0.12}, plain) == "bubble"
    assert recomputed_share(plain) == 0
    assert 0.15 < recomputed_share(again) < 0.35


def test_the_fewest_gpus_in_time(capsys, model, tmp_path):
    out = tmp_path / "best.toml"
    more = ("--objective", "gpus", "--tokens", "1T", "--days", "1", "--out", out)
    changes = {"job.batch.global_batch": None, "job.parallel.pp": 1}
    assert status(*words(model, *more, gpus=None, **changes)) == 0
    text = capsys.readouterr().out
    fewest = int(re.search(r"The fewest GPUs in time, of those tried: ([\d,]+)", text)[1].replace(",", ""))
    assert load(out).job.parallel.gpus == fewest
    assert simulate(load(out)).rows()[0]["training_days"] <= 1
    assert load(out).job.training_tokens == 1e12


def test_servers_are_doubled_then_bisected(model, monkeypatch):
    monkeypatch.setattr(fewest_module, "_count", lambda case, gpus: fewest_module.GpuCount(gpus, 800 / gpus))
    case = case_of(model, **{"job.parallel.gpus": None, "job.training_tokens": 1e9})
    monkeypatch.setattr(fewest_module, "least_servers", lambda case, days: 3)
    tried = [count.gpus // 8 for count in fewest_gpus(case, 9)]
    assert tried == [4, 8, 16, 12, 10, 11]
    assert min(servers for servers in tried if 100 / servers <= 9) == 12


# ------------------------------------------------------------------------------------------------------------ mistakes
WRONG = [
    ("--ep 4", "nothing is open: job.parallel.tp 1, job.parallel.pp 2, job.parallel.ep 4 are stated"),
    ("--search recipe", "job.search must be each or one for mfabric setup, got recipe"),
    ("--days 3", "days applies to objective gpus alone, got objective seconds"),
    ("--objective gpus", "objective gpus needs --days"),
    ("--objective gpus --days 3", "objective gpus needs --tokens (job.training_tokens), such as 2T or 500B."),
    ("--objective gpus --days 0 --tokens 2T", "days must be finite and above 0, got 0"),
    (
        "--objective gpus --days 3 --tokens 2T",
        "objective gpus finds job.parallel.gpus; leave out job.parallel.gpus, got 16",
    ),
    ("--objective cost", "objective 'cost' is unknown; allowed: seconds, dollars, gpus."),
    ("--tokens 2Q", "job.training_tokens must be a number or a text in T, B, M, got '2Q'."),
    ("--out best.csv", "out 'best.csv': extension '.csv' is unknown; allowed: .toml."),
    ("--nic-gbps 100,400", "setup compares fabrics alone, got cases that differ in network.nic_gbps"),
    ("--set job.wrong=1", "job.wrong is unknown"),
    ("--objektive gpus", "option '--objektive' is unknown (did you mean '--objective'?)"),
]


@pytest.mark.usefixtures("never_computes")
@pytest.mark.parametrize(("more", "sentence"), WRONG)
def test_mistakes_are_one_sentence(capsys, model, more, sentence):
    assert sentence in mistake(capsys, *words(model, *more.split()))


@pytest.mark.usefixtures("never_computes")
def test_a_batch_or_dp_that_closes_the_search_is_named(capsys, model):
    start = ("setup", "--model", model)
    assert "job.batch.micro_batches fixes micro-batches before" in mistake(capsys, *start, "--micro-batches", "4")
    assert "job.parallel.dp needs job.parallel.gpus beside it" in mistake(capsys, *start, "--dp", "2")


def test_tokens_have_units():
    for text, tokens in (("2T", 2e12), ("500 B", 5e11), ("1.5M", 1.5e6)):
        assert Case().with_({"job.training_tokens": text}).job.training_tokens == tokens
