"""What networks cost for several jobs, the prices that would change the answer, and the page of `mfabric buy`."""

import dataclasses
import json
import re

import pytest

from mfabric_jax import Case, InputError, cases, resolve, simulate
from mfabric_jax.apps.purchase import GpuQuote, Offer, gpu_quotes, offers_of, turning_points, with_larger_switches
from mfabric_jax.apps.purchase.offers import jobs_and_networks, usd_by_part
from mfabric_jax.case import Cases
from mfabric_jax.commands import buy_sentences as sentences
from mfabric_jax.evaluate.rows.costs import bill_by_part, bill_of
from tests.command_line import status

JOB = {"model.name": "mixtral-8x7b", "model.blocks": 4, "job.parallel.gpus": 32, "job.batch.global_batch": 64}
JOB |= {"job.search": "recipe", "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 8}
AXES = {"job.batch.sequence": [2048, 8192], "network.fabric": ["fat-tree", "torus", "mfabric"]}
RATES = """
[gpu]
per_million_hours = 12
[switch]
per_million_hours = 5.7
[electrical-nic]
per_million_hours = 0.3
"""


@pytest.fixture(scope="module")
def given():
    return cases(Case().with_(JOB | {"model.recipe": "none"}), AXES)


@pytest.fixture(scope="module")
def rows(given):
    return simulate(given).rows()


@pytest.mark.parametrize(
    "settings",
    [
        *({"network.fabric": name} for name in ("fat-tree", "rail-only", "torus", "topoopt")),
        {"network.fabric": "fat-tree", "network.oversubscription": 3.0},
        {
            "network.fabric": "mfabric",
            "circuits.ocs": "palomar",
            "circuits.delay_s": 0.01,
            "network.prices": {"ocs.palomar.usd": 9e4},
        },
        {"network.fabric": "scale-up", "network.prices": {"scale_up_per_gpu": 4321.0}},
    ],
)
def test_dollars_by_part_are_those_of_the_bill(settings, tmp_path):
    if own := settings.get("network.prices"):
        file = tmp_path / "prices.json"
        nested = {"ocs": {"palomar": {"usd": 9e4}}} if "ocs.palomar.usd" in own else own
        file.write_text(json.dumps(nested))
        settings = settings | {"network.prices": str(file)}
    resolved = resolve(Case().with_(JOB | {"model.recipe": "none"} | settings))
    bill, parts = bill_of(resolved, resolved.job, 400.0), bill_by_part(resolved, resolved.job, 400.0)
    assert sum(parts.values()) == pytest.approx(float(bill.cluster_usd), rel=1e-12)
    network = {part: usd for part, usd in parts.items() if part not in ("gpus", "servers")}
    assert sum(network.values()) == pytest.approx(float(bill.network_usd), rel=1e-12)
    assert min(parts.values()) > 0


def test_parts_without_a_price_are_named():
    resolved = resolve(Case().with_(JOB | {"model.recipe": "none", "network.fabric": "scale-up"}))
    with pytest.raises(InputError, match="scale-up has no price of scale_up_per_gpu"):
        bill_by_part(resolved, resolved.job, 400.0)


def test_dollars_of_a_token_by_part_add_up(given, rows):
    for case, row in zip(given, rows, strict=True):
        assert sum(usd_by_part(case, row).values()) == pytest.approx(row["usd_per_million_tokens"], rel=1e-12)


def test_variants_that_every_network_has_are_jobs_of_their_names():
    jobs = {"short": {"job.batch.sequence": 2048}, "long": {"job.batch.sequence": 8192}}
    networks = {"network.fabric": ["fat-tree", "torus"]}
    blocks = [
        dataclasses.replace(block, variant=name)
        for name, stated in jobs.items()
        for block in cases(Case().with_(JOB | stated), networks).blocks
    ]
    both = Cases(tuple(blocks), ("network.fabric", "job.batch.sequence"))
    assert jobs_and_networks(both) == [(job, network) for job in jobs for network in ("fat-tree", "torus")]
    fewer = Cases(tuple(blocks[:3]), both.varied)  # long jobs on a fat-tree alone: a variant is more than a job
    assert jobs_and_networks(fewer)[2] == ("mixtral-8x7b, sequence 8192", "fat-tree")


def test_variants_that_are_networks_name_them():
    networks = {"ours": {"network.fabric": "fat-tree"}, "theirs, 2:1": {"network.oversubscription": 2}}
    axes = {"network.nic_gbps": [100, 400], "job.batch.sequence": [2048, 8192]}
    blocks = [
        dataclasses.replace(block, variant=name)
        for name, stated in networks.items()
        for block in cases(Case().with_(JOB | stated), axes).blocks
    ]
    several = Cases(tuple(blocks), ("network.fabric", "network.oversubscription", *axes))
    jobs = ("mixtral-8x7b, sequence 2048", "mixtral-8x7b, sequence 8192")
    named = [(job, f"{name}, {gbps} Gbps") for name in networks for job in jobs for gbps in (100, 400)]
    assert jobs_and_networks(several) == named


def test_every_job_counts_alike(given, rows):
    jobs, offers, others = offers_of(jobs_and_networks(given), list(given), rows)
    assert jobs == ["mixtral-8x7b, sequence 2048", "mixtral-8x7b, sequence 8192"]
    assert not others
    usd = {(row["fabric"], row["job.batch.sequence"]): row["usd_per_million_tokens"] for row in rows}
    least = {sequence: min(usd[name, sequence] for name in AXES["network.fabric"]) for sequence in (2048, 8192)}
    for offer in offers:
        own = [usd[offer.network, sequence] / least[sequence] for sequence in (2048, 8192)]
        assert offer.over == pytest.approx(sum(own) / 2, rel=1e-12)
    assert [offer.over for offer in offers] == sorted(offer.over for offer in offers)
    _, some, others = offers_of(jobs_and_networks(given), list(given), [None, *rows[1:]])
    assert others == ["fat-tree"]
    assert {offer.network for offer in some} == {"torus", "mfabric"}


def test_dollars_with_failures_are_compared_to_those_without(given, rows):
    failing = [row["usd_per_million_tokens"] * 1.25 for row in rows]
    _, offers, _ = offers_of(jobs_and_networks(given), list(given), rows, failing)
    for sold in offers:
        assert sold.over_failing == pytest.approx(1.25 * sold.over, rel=1e-12)
    _, offers, _ = offers_of(jobs_and_networks(given), list(given), rows, [None, *failing[1:]])
    assert {sold.network for sold in offers if sold.usd_failing is None} == {"fat-tree"}
    with pytest.raises(InputError, match="a row of every case"):
        offers_of(jobs_and_networks(given), list(given), rows[:-1])


def offer(name, **shares):
    total = sum(shares.values())
    return Offer(name, (), (total,), (shares,), None, total)


def test_prices_at_which_another_network_is_the_best_by_hand():
    best, other = offer("direct", nic=0.5, gpus=0.5), offer("tree", nic=0.2, switch_port=0.4, gpus=0.5)
    turned = {turning.part: turning for turning in turning_points([best, other])}
    assert turned["nic"].above == (pytest.approx(1 + 0.1 / 0.3, rel=1e-8), other)  # 0.5 f + 0.5 = 0.2 f + 0.9
    assert turned["nic"].below is None
    assert turned["switch_port"].below == (pytest.approx(0.75, rel=1e-8), other)  # 0.4 f + 0.7 = 1
    assert turned["switch_port"].above is None
    assert turned["gpus"] == ("gpus", pytest.approx(0.5), None, None)
    assert [turning.part for turning in turning_points([best, other])][-1] == "switch_port"


def test_every_part_of_any_network_has_a_line_and_a_gpu_its_price():
    best, other = offer("direct", nic=0.5, gpus=0.5), offer("tree", nic=0.2, ocs_port=0.8, gpus=0.1)
    turned = turning_points([best, other])
    quotes = [GpuQuote("gpus", 30000, None)]
    lines = {line["price of"]: line for line in sentences.price_lines(turned, quotes)}
    assert set(lines) == {"NICs", "gpus", "optical ports"}
    assert lines["optical ports"]["share"] == "0.0%"
    assert lines["gpus"]["dearer"] == "from 1.25 x (37,500 $): tree"  # 0.5 + 0.5 f = 1 + 0.1 f
    assert lines["NICs"]["dearer"] == "from 1.33 x: tree"
    (_, gpus, _) = sentences.price_lines(turned, [*quotes, GpuQuote("gpus", 40000, None)])
    assert gpus["dearer"] == "from 1.25 x: tree"  # two prices: none to multiply


def test_scaled_prices_reverse_the_order_where_they_are_said_to(given, rows, tmp_path):
    """Against rows that are computed again with other prices."""
    _, offers, _ = offers_of(jobs_and_networks(given), list(given), rows)
    turned = [turning for turning in turning_points(offers) if turning.above or turning.below]
    found = 0
    usual = resolve(next(iter(given))).parts.prices
    for turning in turned:
        for point in filter(None, (turning.above, turning.below)):
            if turning.part not in ("switch_port", "nic", "transceiver") or point[0] < 0.02:
                continue
            for factor, first in (
                (point[0] * 1.02, turning.above is point),
                (point[0] * 0.98, turning.above is not point),
            ):
                file = tmp_path / f"{turning.part}-{factor:.4f}.json"
                prices = {name: list(getattr(usual, name)) for name in ("gbps", "nic", "transceiver", "switch_port")}
                prices[turning.part] = [usd * factor for usd in prices[turning.part]]
                file.write_text(json.dumps(prices))
                priced = cases(given, {"network.prices": [str(file)]})
                again = simulate(priced).rows()
                _, other, _ = offers_of(jobs_and_networks(given), list(priced), again)
                cheaper = {offer.network: offer.over for offer in other}
                assert (cheaper[point[1].network] < cheaper[offers[0].network]) == first, (turning.part, factor)
                found += 1
    assert found >= 2


@pytest.fixture(scope="module")
def of_two_gpus():
    """Networks of two kinds of GPUs, with the prices in a file."""

    def offers_at(prices):
        stated = JOB | {"model.recipe": "none", "network.prices": str(prices)}
        axes = {"gpu.name": ["H200-SXM", "B200-HGX"], "network.fabric": ["fat-tree", "torus"]}
        own = cases(Case().with_(stated), axes)
        return offers_of(jobs_and_networks(own), list(own), simulate(own).rows())[1]

    return offers_at


def gpu_prices(file, **usd):
    file.write_text(json.dumps({"gpus": {name.replace("_", "-"): {"usd": each} for name, each in usd.items()}}))
    return file


def test_each_gpu_has_a_price_that_changes_the_answer(of_two_gpus, tmp_path):
    """At the multiple found, both networks cost the same."""
    best, *_ = offers = of_two_gpus(gpu_prices(tmp_path / "now.json", H200_SXM=30000, B200_HGX=35000))
    assert best.network.endswith("B200-HGX")
    turned = {turning.part: turning for turning in turning_points(offers)}
    factor, other = turned["B200-HGX"].above
    assert other.network.endswith("H200-SXM")
    assert turned["H200-SXM"].share == 0
    again = of_two_gpus(gpu_prices(tmp_path / "then.json", H200_SXM=30000, B200_HGX=35000 * factor))
    over = {offer.network: offer.over for offer in again}
    assert over[best.network] == pytest.approx(over[other.network], rel=1e-6)
    factor, other = turned["H200-SXM"].below
    again = of_two_gpus(gpu_prices(tmp_path / "low.json", H200_SXM=30000 * factor, B200_HGX=35000))
    over = {offer.network: offer.over for offer in again}
    assert over[best.network] == pytest.approx(over[other.network], rel=1e-6)


def test_prices_of_gpus_say_whose_they_are(tmp_path):
    file = gpu_prices(tmp_path / "own.json", H200_SXM=20000)
    axes = {"gpu.name": ["H200-SXM", "B200-HGX"], "network.fabric": ["fat-tree", "torus"]}
    own, other = gpu_quotes(cases(Case().with_(JOB | {"model.recipe": "none", "network.prices": str(file)}), axes))
    assert own == ("H200-SXM", 20000, None)
    assert other[:2] == ("B200-HGX", 35000)
    assert "J. Huang, March 2024" in other.source
    assert next(sentences.on_gpu_prices([own])) == "H200-SXM: 20,000 $ is yours."
    assert gpu_quotes([Case().with_(JOB | {"model.recipe": "none", "gpu.usd": 1234.0})]) == [("H100-SXM", 1234.0, None)]


LARGE = JOB | {"job.parallel.gpus": 128, "job.batch.global_batch": 256, "model.recipe": "none"}


def test_switches_of_twice_the_ports_only_where_a_tree_has_tiers_and_none_are_stated():
    names = {"network.fabric": ["torus", "fat-tree"]}
    small = cases(Case().with_(JOB | {"model.recipe": "none"}), names)  # one switch is enough
    assert with_larger_switches(small) is None
    assert with_larger_switches(cases(Case().with_(LARGE), {"network.fabric": ["torus", "rail-only"]})) is None
    ports, larger = with_larger_switches(cases(Case().with_(LARGE), names))
    assert ports == 128
    assert [case.network.radix for case in larger] == [128, 128]
    stated = dataclasses.replace(cases(Case().with_(LARGE), names), stated={"network.radix": 64})
    assert with_larger_switches(stated) is None
    assert with_larger_switches(cases(Case().with_(LARGE), names | {"network.radix": [64, 256]})) is None


@pytest.mark.usefixtures("command_line")
def test_the_answer_with_larger_switches_is_under_the_verdict(tmp_path, capsys):
    """Ports are so dear that a tree of two tiers costs more than a torus, and a single switch less."""
    prices = {"gbps": [400], "nic": [1499], "transceiver": [659], "switch_port": [16000]}
    (tmp_path / "dear.json").write_text(json.dumps(prices))
    stated = LARGE | {"network.prices": str(tmp_path / "dear.json"), "network.fabric": ["fat-tree", "torus"]}
    (tmp_path / "case.json").write_text(json.dumps(dict(sorted(stated.items()))))
    assert status("buy", tmp_path / "case.json", "--page", tmp_path / "page.html") == 0
    text = " ".join(capsys.readouterr().out.split())
    other = (
        "Switch ports decide: with 128 a switch at the same dollars a port, fat-tree costs least; torus costs 35.8% "
        "more. State"
    )
    assert text.startswith("torus costs least; fat-tree costs 16.9% more. " + other)
    assert text.count(other) == 1
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.index('class="verdict"') < page.index(other) < page.index(" M$ to buy") < page.index('class="facts"')
    assert status("buy", tmp_path / "case.json", "--set", "network.radix=64") == 0
    assert "128-port" not in capsys.readouterr().out


@pytest.mark.usefixtures("command_line")
def test_the_command_prints_the_answer_and_writes_the_page(tmp_path, capsys):
    (tmp_path / "rates.toml").write_text(RATES)
    (tmp_path / "case.json").write_text(json.dumps(dict(sorted((JOB | {"model.recipe": "none"} | AXES).items()))))
    words = tmp_path / "case.json", "--set", f"failures.rates={tmp_path / 'rates.toml'}"
    assert status("buy", *words, "--page", tmp_path / "page.html", "--out", tmp_path / "rows.csv") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "All jobs together" in text
    assert "Prices that would change the answer" in text
    assert "Failures and spares add" in text
    assert "lost h/month, mean of jobs" in text
    assert "optical ports 0.0%" in text  # of mfabric alone
    (bought,) = re.findall(r"(?:fat-tree|torus|mfabric): 32 H100-SXM, [\d.]+ M\$ to buy, [\d.]+ \$/GPU-hour\.", text)
    assert text.index(bought) < text.index("All jobs together")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.index(bought) < page.index("All jobs together")
    assert "<h1>Which network to buy</h1>" in page
    assert page.count("<table") >= 4
    assert "worst failure" in page
    assert "rates.toml, per million hours of a part: gpu " in page
    assert "checkpoint every 60 min, restart 10 min" in page
    assert "mixtral-8x7b, sequence 8192: best by dollars a token" in page
    assert len((tmp_path / "rows.csv").read_text("utf-8").splitlines()) == 7


@pytest.mark.usefixtures("command_line")
def test_one_network_is_no_purchase(capsys):
    assert status("buy", "--model", "mixtral-8x7b", "--fabric", "fat-tree") == 2
    assert "buy compares networks, got one; give several" in capsys.readouterr().err
