"""What `mfabric buy` says: networks that are equal inside the error, hours lost to failures, set-ups found."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

from mfabric_jax import Case, InputError, cases, simulate
from mfabric_jax.apps.failures import failures
from mfabric_jax.apps.failures.months import Month
from mfabric_jax.apps.purchase import jobs_and_networks
from mfabric_jax.case.layers import layers_of, merge_layers
from mfabric_jax.commands import buy, shared
from mfabric_jax.commands.buy_sentences import (
    cheapest_of_equal,
    facts,
    on_circuits,
    on_lost_hours,
    on_slow_switches,
    purchase,
    sentences,
    together,
    trainings,
    verdict,
)
from mfabric_jax.evaluate.setups import found
from mfabric_jax.report import read_rows
from mfabric_jax.support.measured_errors import measured_steps, ratio_errors
from tests.command_line import status


def test_the_verdict_calls_networks_inside_the_error_equal():
    """Of ratios of two steps, 8 in 10 are within some 5%: 2% apart is equal, 20% is dearer."""

    def said(*over):
        return verdict([SimpleNamespace(network=name, over=ratio) for name, ratio in zip("abc", over, strict=False)])

    assert said(1.0, 1.02, 1.2) == "a and b are equal inside the error (they differ by 2.0%); c costs 20.0% more"
    assert said(2.0, 2.04, 2.06) == "a, b and c are equal inside the error (they differ by 3.0%)"
    assert said(1.0, 1.2) == "a costs least; b costs 20.0% more"


def test_equal_networks_differ_in_what_they_cost_to_buy():
    def cheapest(*usd):
        every = zip("abc", (1.0, 1.02, 1.2), usd, strict=True)
        offers = [SimpleNamespace(network=n, over=o, rows=[{"cluster_cost_usd": u}]) for n, o, u in every]
        return list(cheapest_of_equal(offers))

    assert cheapest(3e6, 2e6, 1e6) == ["Of the equal networks, b costs least to buy: 2 M$."]
    assert cheapest(2e6, 3e6, 1e6) == ["Of the equal networks, a costs least to buy: 2 M$."]
    assert cheapest(2e6, 2e6, 1e6) == []


def test_lost_hours_are_a_mean_over_jobs_and_name_the_worst_failure():
    def month(**lost):
        rows = [{"failure": kind, "lost_hours_per_month": hours} for kind, hours in lost.items()]
        return SimpleNamespace(rows=rows, lost_h=sum(lost.values()))

    price = {"network_cost_usd": 1e6, "cluster_cost_usd": 2e6}
    over, usd = {"over": 1.0, "over_failing": 1.1}, {"usd": (2.0, 3.0), "usd_failing": (2.2, 3.1)}
    offers = [SimpleNamespace(network=name, rows=[price], **over, **usd) for name in "ab"]
    months = {"a": [month(gpu=3.0, switch=4.0), month(gpu=3.0, switch=0.0)], "b": [month(gpu=0.0)] * 2}
    of_a, of_b = together(offers, ["short", "long"], months)
    mean = "lost h/month, mean of jobs"
    assert (of_a[mean], of_a["worst failure"]) == (pytest.approx(5.0), "gpu")
    assert of_b[mean] == 0.0
    assert "worst failure" not in of_b
    assert mean not in together(offers, ["short", "long"], {})[0]
    for offer in offers:
        offer.usd, offer.usd_failing = (2.0,), None
    assert (of_a["$/Mtok, short"], of_a["short with failures"]) == (2.0, 2.2)
    assert together(offers, ["short"], {"a": months["a"][:1]})[0]["lost h/month"] == pytest.approx(7.0)


def test_the_purchase_is_one_sentence_and_each_job_has_its_own_days_band_and_dollars():
    price = {"gpus": 2048, "cluster_cost_usd": 81.2e6, "usd_per_gpu_hour": 2.31}
    names = ("training_days", "training_low_days", "training_high_days", "training_usd")
    short, long, without = (
        price | dict(zip(names, values, strict=True))
        for values in ((24.5, 22.0, 31.0, 2.7e6), (30.0, 27.0, 38.0, 3e6), (None, None, None, None))
    )
    bought = "torus: 2,048 H200-SXM, 81.2 M$ to buy, 2.31 $/GPU-hour"

    def offer(*rows):
        return SimpleNamespace(network="torus", rows=rows)

    assert purchase(offer(short, long), "H200-SXM") == f"{bought}."
    nothing_fails = [
        "short: 24.5 days (22 to 31), 2.7 M$ if nothing fails.",
        "long: 30 days (27 to 38), 3 M$ if nothing fails.",
    ]
    assert list(trainings(offer(short, long), ["short", "long"], {})) == nothing_fails
    assert list(trainings(offer(short, without), ["short", "long"], {})) == nothing_fails[:1]
    spares = ({"spare_usd": 3e5, "spare_part_usd": None}, {"spare_usd": 2e5, "spare_part_usd": 1e5})
    month = Month({}, spares, (), lost_h=73.0, stopped_h=0.0, usd=2.0, spares_usd=0.0, usd_with=2.5)
    (failing,) = trainings(offer(short), ["short"], {"torus": [month]})
    assert failing == (  # 24.5 / 0.9; 2.7 x 2.5 / 2; one server and a part
        "short: 24.5 days (22 to 31), 2.7 M$ if nothing fails; with failures 27.2 days, 3.375 M$; spares 0.4 M$ to buy."
    )
    assert list(facts(offer(short, without), ["short", "long"], {"short": 1.59})) == [
        "short: with the maker's set-up 1.59 times as long: 39.0 days.",
    ]
    assert list(facts(offer(short, without), ["short", "long"], {"long": 1.2})) == [
        "long: with the maker's set-up 1.2 times as long."
    ]
    assert list(facts(offer(short), ["short"], {})) == []


def test_errors_of_a_time_and_of_a_comparison_stand_in_one_sentence_and_set_ups_are_said_to_be_found():
    row = {"iteration_s": 1.0, "low_s": 0.9, "high_s": 1.2, "cluster_cost_usd": 1e6}
    offers = [SimpleNamespace(network="torus", over=1.0, over_failing=None, rows=[row])]
    of_search, stated = (" ".join(sentences(offers, [], {}, {}, is_found, ["H200-SXM"])) for is_found in (True, False))
    (measured,) = (step.ratio for step in measured_steps().values() if step.gpu == "H200-SXM")
    (said,) = re.findall(
        r"A time, and its dollars, may be 10.0% less to 20.0% more than predicted .*? within [\d.]+%\.", stated
    )
    assert f"the one H200-SXM step measured took {measured - 1:.1%} longer than predicted). A comparison" in said
    assert said.endswith(f"are within {ratio_errors().eight_in_ten:.1%}.")
    found_words = "Times and dollars are those of the set-ups found, not of the maker's."
    assert said in of_search
    assert found_words in of_search
    assert found_words not in stated
    assert "Over best" not in stated  # of one job


def test_the_network_that_loses_most_hours_has_a_reason():
    def month(**kinds):
        names = ("failures_per_month", "stopped_hours_per_month", "slower_hours_per_month")
        rows = [{"failure": kind} | dict(zip(names, own, strict=True)) for kind, own in kinds.items()]
        rows = [row | {"lost_hours_per_month": row[names[1]] + row[names[2]]} for row in rows]
        return SimpleNamespace(rows=rows, lost_h=sum(row["lost_hours_per_month"] for row in rows))

    def why(own, other):
        return list(on_lost_hours({"mfabric": [month(**own)] * 2, "tree": [month(**other)] * 2}))

    gpu, most = (
        (2.0, 1.0, 0.2),
        "mfabric loses {} h a month to failures, tree 1.2 h (mean of jobs). The difference is mainly {}",
    )
    links = {"gpu": gpu, "optical-link": (4.0, 2.0, 0.8)}
    assert why(links, {"gpu": gpu}) == [
        f"{most.format('4', 'optical-link')} failures: mfabric has 4 a month, tree none."
    ]
    assert why({"gpu": (4.0, 2.0, 0.4)}, {"gpu": gpu}) == [
        f"{most.format('2.4', 'gpu')} failures: mfabric has 4 a month, tree 2."
    ]
    assert why({"gpu": (2.0, 3.0, 0.2)}, {"gpu": gpu})[0].endswith("each stops the job for 1.5 h, on tree for 0.5 h.")
    slower = "after each the job runs slower until the repair, which costs 0.5 h"
    assert why({"gpu": (2.0, 1.0, 1.0)}, {"gpu": gpu})[0].endswith(f"{slower}, on tree 0.1 h.")
    assert why({"gpu": (2.0, 1.0, 1.0)}, {"gpu": (2.0, 1.0, 0.0)})[0].endswith(f"{slower}.")
    assert why({"gpu": gpu}, {"gpu": gpu}) == []


def test_hours_that_reconfigurations_take_are_a_warning_with_the_remedy():
    """Of 3 s more, 2 are reconfigurations: 2/3 of the slower hours."""
    times = {"healthy_s": 1.0, "failed_s": 4.0, "healthy_reconfig_s": 0.0, "reconfig_s": 2.0}
    slow = times | {"failure": "optical-nic", "slower_hours_per_month": 3.0}
    waits = slow | {"failure": "switch", "failed_s": None, "reconfig_s": None}

    def warned(name, *rows):
        month = SimpleNamespace(rows=rows, lost_h=10.0, first={"fabric": name})
        return list(on_slow_switches({f"{name}, 400 Gbps": [month] * 2}))

    assert warned("mfabric", slow, waits) == [
        "Warning: mfabric, 400 Gbps loses 2 of its 10 hours a month to reconfigurations while optical-nic is broken; "
        "keep circuits (--set circuits.reconfigure=span --set circuits.span.length=run)."
    ]
    assert not warned("mfabric", slow | {"slower_hours_per_month": 1.0})  # few hours
    assert not warned("mfabric", slow | {"healthy_reconfig_s": 2.0})
    assert not warned("photonic-rails", slow)  # it reconfigures between phases under all settings


def test_the_policy_is_named_unless_policies_are_the_networks():
    fabrics = {"network.fabric": ["fat-tree", "mfabric"]}
    usual = cases(Case().with_(JOB), fabrics)
    ask = "joint with relay routing is often faster: add --policy greedy,joint --routing relay."
    assert list(on_circuits(usual)) == [f"greedy (the default) chooses the circuits of mfabric; {ask}"]
    stated = cases(Case().with_(JOB | {"circuits.policy": "uniform"}), fabrics)
    own = dataclasses.replace(stated, stated={"circuits.policy": "uniform"})
    assert list(on_circuits(own)) == [f"uniform chooses the circuits of mfabric; {ask}"]
    faster = {"circuits.policy": "joint", "circuits.routing": "relay"}
    assert list(on_circuits(cases(Case().with_(JOB | faster), fabrics))) == []
    assert list(on_circuits(cases(Case().with_(JOB), {"network.fabric": ["fat-tree", "torus"]}))) == []
    stated = JOB | fabrics | {"circuits.policy": ["greedy", "uniform"]}
    several = merge_layers(layers_of(stated, "case.toml", typed=True))
    assert list(on_circuits(several)) == []
    assert {network for _, network in jobs_and_networks(several)} == {
        *("fat-tree", "mfabric, policy greedy", "mfabric, policy uniform")
    }


def test_makers_set_ups_are_those_of_the_best_network(monkeypatch):
    open_cases = cases(Case(), {"network.fabric": ["fat-tree", "torus"]})
    seconds = {"fat-tree": (2.0, 3.0), "torus": (4.0, None)}

    def resolved(case):
        found_s, recipe_s = seconds[case.network.fabric]
        return SimpleNamespace(
            server=SimpleNamespace(name="H200-SXM"), searched=SimpleNamespace(seconds=found_s, recipe_s=recipe_s)
        )

    monkeypatch.setattr("mfabric_jax.evaluate.resolving.resolve.resolve_without_jax", resolved)
    named = [("job", "fat-tree"), ("job", "torus")]
    assert buy._of_network("fat-tree", named, open_cases) == ("H200-SXM", {"job": 1.5})
    assert buy._of_network("torus", named, open_cases) == ("H200-SXM", {})


def test_set_ups_found_name_the_gpu_where_gpus_differ(monkeypatch):
    networks = cases(Case(), {"network.fabric": ["fat-tree", "torus"], "gpu.name": ["H200-SXM", "B200-HGX"]})

    def findings(every):
        best = SimpleNamespace(words="tp 1")
        yield from ((case, SimpleNamespace(seconds=1.0, one_s=1.0, recipe_s=None, best=best)) for case in every)

    monkeypatch.setattr(found, "findings", findings)
    told = "\n".join(shared.found_lines(networks))
    assert told.count("B200-HGX") == told.count("H200-SXM") == 4  # two lines of the table, two of the words
    assert "torus 400 Gbps, gpu B200-HGX" in " ".join(told.split())
    alone = "\n".join(shared.found_lines(cases(Case(), {"network.fabric": ["fat-tree", "torus"]})))
    assert "H200-SXM" not in alone
    assert "mixtral-8x7b fat-tree" in " ".join(alone.split())  # the only job has its name


def test_a_job_that_is_not_searched_says_whose_set_up_it_has(monkeypatch):
    monkeypatch.setattr(found, "findings", lambda every: iter(()))
    both = cases(Case(), {"model.name": ["deepseek-v3", "mixtral-8x22b"]})
    monkeypatch.setattr("mfabric_jax.evaluate.resolving.resolve.is_open", lambda case: case.model.name == "deepseek-v3")
    *_, said = shared.found_parts(both)
    assert said == (
        "mixtral-8x22b: not searched, the set-up is the maker's, NVIDIA Megatron MoE model zoo, run_mixtral_8x22B.sh; "
        "--set job.search=each searches for a better one."
    )


JOB = {"model.name": "mixtral-8x7b", "model.recipe": "none", "model.blocks": 4, "job.parallel.gpus": 32}
JOB |= {"job.search": "recipe", "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 8}


@pytest.mark.usefixtures("command_line")
def test_set_ups_are_written_as_cases_beside_the_rows(tmp_path, capsys):
    axes = {"job.batch.sequence": [2048, 8192], "network.fabric": ["fat-tree", "torus"], "network.nic_gbps": [400, 800]}
    settled = cases(Case().with_(JOB), axes)
    named = jobs_and_networks(settled)
    _, command = buy._keep_set_ups(settled, named, str(tmp_path / "rows.csv"), settled.varied)
    for file in (tmp_path / "rows.setups").iterdir():  # also values that are defaults
        assert axes.keys() <= dict(line.split(" = ") for line in file.read_text("utf-8").splitlines() if line).keys()
    *words, file = command.split()
    assert words == ["mfabric", "failures"]
    assert len(list((tmp_path / "rows.setups").iterdir())) == len(settled)
    assert status("compare", file, "--out", tmp_path / "one.csv") == 0
    (again,), _ = read_rows(tmp_path / "one.csv")
    (row,) = simulate(next(iter(settled))).rows()
    assert again["iteration_s"] == pytest.approx(row["iteration_s"], rel=1e-6)
    assert "32 GPUs" in capsys.readouterr().out
    (line,) = buy._keep_set_ups(settled, named, None, settled.varied)
    assert "--out rows.csv also writes case files" in line


RATES = """
[gpu]
per_million_hours = 12
[electrical-nic]
per_million_hours = 0.3
"""


@pytest.mark.usefixtures("command_line")
def test_what_failures_refuse_is_said_before_set_ups_are_searched(tmp_path, capsys, monkeypatch):
    def settle(*_):
        pytest.fail("searched first")

    monkeypatch.setattr(shared, "settle", settle)
    rates = tmp_path / "rates.toml"
    words = "--model", "mixtral-8x7b", "--gpus", 32, "--fabric", "fat-tree,mfabric", "--set", f"failures.rates={rates}"
    for command in ("buy", "failures"):
        assert status(command, *words) == 2
        assert "give a .toml or .json file of rates of failures" in capsys.readouterr().err
    rates.write_text(RATES)
    words += "--set", "circuits.reconfigure=on-demand,pays", "--set", "job.recompute=none"
    refused = "circuits.reconfigure must be on-demand or reuse or predict or span for failures, got pays"
    for command, network in (("buy", " (network: mfabric, reconfigure pays)"), ("failures", "")):
        assert status(command, *words) == 2
        assert f"{refused}{network}." in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("without", ["fat-tree", "torus"])
def test_a_network_without_dollars_of_failures_keeps_its_row(without, tmp_path, capsys, monkeypatch):
    def fails(case, progress):
        if case.network.fabric == without:
            raise InputError("failures.kinds must not be gpu here.")
        return failures(case, progress)

    monkeypatch.setattr("mfabric_jax.apps.failures.failures", fails)
    (tmp_path / "rates.toml").write_text(RATES)
    changes = {"job.batch.global_batch": 64, "network.fabric": ["fat-tree", "torus"]}
    (tmp_path / "case.json").write_text(json.dumps(dict(sorted((JOB | changes).items()))))
    words = tmp_path / "case.json", "--set", f"failures.rates={tmp_path / 'rates.toml'}"
    assert status("buy", *words, "--page", tmp_path / "page.html", "--out", tmp_path / "rows.csv") == 0
    why = f"{without} has no dollars with failures: failures.kinds must not be gpu here."
    text = " ".join(capsys.readouterr().out.split())
    assert why in text
    assert "lost h/month" in text
    assert why in (tmp_path / "page.html").read_text("utf-8")
    assert len((tmp_path / "rows.csv").read_text("utf-8").splitlines()) == 3
