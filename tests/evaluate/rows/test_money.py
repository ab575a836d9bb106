"""Bills of whole clusters counted by hand: dollars, watts, and what an iteration and a million tokens cost."""

import numpy as np
import pytest

from mfabric_jax import cases, resolve, simulate
from mfabric_jax.evaluate.rows.costs import bill_of, unknown_parts
from mfabric_jax.evaluate.rows.results import describe_cases
from mfabric_jax.evaluate.rows.rows import changes_of, share_columns
from mfabric_jax.report.ranking import rankings
from mfabric_jax.report.tables import comparison
from mfabric_jax.support.unread import Unread
from mfabric_jax.workload import get
from tests.small import base, small

SERVERS, GPUS = 128, 1024
# llama-moe at 400 Gbps, a server of 8 GPUs: NICs, switch ports, transceivers, fibres, OCS ports, panel ports.
COUNTS = {
    "fat-tree": (8, 40, 48, 24, 0, 0),
    "oversub-fat-tree": (8, 56 / 3, 80 / 3, 40 / 3, 0, 0),
    "rail-optimized": (8, 40, 48, 24, 0, 0),
    "rail-only": (8, 24, 32, 16, 0, 0),
    "topoopt": (8, 0, 8, 8, 0, 8),
    "mfabric": (8, 10, 18, 12, 6, 0),
}
USD = (1499, 1090, 659, 150, 520, 100)
WATTS = (25, 11.7, 9, 0, 0.8, 0)
A100 = (15000, 400, 21102, 3140)  # dollars and watts of a GPU, and of a server without GPUs and NICs
H100 = (30000, 700, 21102, 4400)


SECONDS = {"iteration_s": 1.0, "ep_comm_s": 0.0, "bubble_s": 0.0}
OF_GPUS = ("perf_per_cluster_dollar", "usd_per_iteration", "joules_per_iteration")
OF_GPUS = (*OF_GPUS, "usd_per_million_tokens", "joules_per_million_tokens")


def resolved(name, changes=None):
    """llama-moe on a fabric at 400 Gbps."""
    given = {"model.name": "llama-moe", "network.fabric": name, "network.nic_gbps": 400.0}
    return resolve(base().with_({"job.batch.micro_batches": None} | given | (changes or {})))


def settings(changes=None):
    return resolved("fat-tree", changes)


def bill(name, changes=None):
    one = resolved(name, changes)
    found = bill_of(one, one.job, 400.0)
    return found, list(unknown_parts(one, found))


def of_cluster(usd, watts, gpu):
    return usd + GPUS * gpu[0] + SERVERS * gpu[2], watts + GPUS * gpu[1] + SERVERS * gpu[3]


def test_every_fabric_by_hand():
    for name, counts in COUNTS.items():
        usd = SERVERS * sum(count * each for count, each in zip(counts, USD, strict=True))
        watts = SERVERS * sum(count * each for count, each in zip(counts, WATTS, strict=True))
        for gpu, facts in (("A100-80GB-SXM", A100), ("H100-SXM", H100)):
            found, unknown = bill(name, {"gpu.name": gpu})
            everything = of_cluster(usd, watts, facts)
            assert (found.network_usd, found.cluster_usd) == pytest.approx((usd, everything[0]), rel=1e-12)
            assert (found.network_watts, found.cluster_watts) == pytest.approx((watts, everything[1]), rel=1e-12)
            assert unknown == []


def test_an_iteration_pays_its_time_and_its_energy(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[running]\nusd_per_kwh = 0.1\npue = 1.5\nyears = 5\n")
    job, prices = get("llama-moe"), {"network.prices": str(own)}
    # dp 16, ep 16, 4 micro-batches of 8 sequences of 4096 tokens.
    tokens = 16 * 16 * 4 * 8 * 4096
    assert job.iteration_tokens == tokens
    found, _ = bill("mfabric", prices)
    row = share_columns(settings(prices), job, {"iteration_s": 2.0, "ep_comm_s": 0.5, "bubble_s": 1.0}, found, 0.5)
    joules = found.cluster_watts * 2.0 * 1.5
    usd = found.cluster_usd * 2.0 / (5 * 8766 * 3600) + joules / 3.6e6 * 0.1
    assert row["joules_per_iteration"] == pytest.approx(joules, rel=1e-12)
    assert row["usd_per_iteration"] == pytest.approx(usd, rel=1e-12)
    assert row["usd_per_gpu_hour"] == pytest.approx(usd / 2.0 * 3600 / job.gpus, rel=1e-12)
    assert row["usd_per_million_tokens"] == pytest.approx(usd * 1e6 / tokens, rel=1e-12)
    assert row["joules_per_million_tokens"] == pytest.approx(joules * 1e6 / tokens, rel=1e-12)
    assert row["perf_per_cluster_dollar"] == pytest.approx(1 / (2 * found.cluster_usd), rel=1e-12)
    assert (row["network_kw"], row["cluster_kw"]) == (found.network_watts / 1000, found.cluster_watts / 1000)
    assert (row["ep_share"], row["bubble_share"], row["ep_share_without_bubble"]) == (0.25, 0.5, 0.5)


def test_what_is_above_the_peak_costs_nothing_that_is_known():
    """A GPU that computes above its peak is none that anybody could pay for; the network stays what it is."""
    found, job = bill("mfabric")[0], get("llama-moe")
    below, above = (share_columns(settings(), job, SECONDS, found, rate) for rate in (1.0, 1.01))
    assert None not in below.values()
    assert {name for name, value in above.items() if value is None} == set(OF_GPUS)
    assert above["perf_per_dollar"] == below["perf_per_dollar"]
    columns = share_columns(settings(), job, SECONDS, found, np.array([1.0, 1.01]))
    for name in OF_GPUS:
        assert columns[name][0] == below[name]
        assert np.isnan(columns[name][1])


def test_the_cheapest_network_is_not_the_cheapest_cluster():
    # TopoOpt takes 39 % more time for less than a quarter of the fat-tree's network dollars.
    judge = {
        name: share_columns(settings(), get("llama-moe"), SECONDS | {"iteration_s": s}, bill(name)[0], 0.5)
        for name, s in {"fat-tree": 1.0, "topoopt": 1.39, "mfabric": 1.05}.items()
    }

    def order(column):
        return sorted(judge, key=lambda name: -judge[name][column])

    assert order("perf_per_dollar") == ["topoopt", "mfabric", "fat-tree"]
    assert judge["topoopt"]["perf_per_dollar"] / judge["fat-tree"]["perf_per_dollar"] == pytest.approx(3.39, abs=0.005)
    assert order("perf_per_cluster_dollar")[0] == "mfabric"
    cheap = {name: row["usd_per_million_tokens"] for name, row in judge.items()}
    assert min(cheap, key=lambda name: cheap[name]) == "mfabric"


def test_a_switch_by_name_brings_its_price_and_power(tmp_path):
    usual, calient, telescent, rotornet = (
        bill("mfabric", {"circuits.ocs": name})[0] for name in (None, "calient", "telescent", "rotornet")
    )
    ports = SERVERS * 6
    # 64 regions of 12 ports: 26 of them share a switch of 320 ports, so three switches of 45 W.
    assert calient.network_usd == usual.network_usd
    assert calient.network_watts == pytest.approx(usual.network_watts - ports * 0.8 + 3 * 45, rel=1e-12)
    assert telescent.network_usd == usual.network_usd - ports * 420
    assert (rotornet.network_usd, rotornet.cluster_usd, rotornet.network_watts) == (None, None, usual.network_watts)
    own = tmp_path / "own.toml"
    own.write_text("[ocs.mine]\nports = 24\nusd = 10000\nusd_per_port = 20\ndelay_s = 0.001\nwatts = 100\n")
    mine, unknown = bill("mfabric", {"circuits.ocs": "mine", "network.prices": str(own)})
    assert mine.network_usd == usual.network_usd - ports * 500 + 32 * 10000
    assert mine.network_watts == pytest.approx(usual.network_watts - ports * 0.8 + 32 * 100, rel=1e-12)
    assert unknown == []


def test_what_is_not_known_is_said(tmp_path):
    def said(name, changes=None):
        return bill(name, changes)[1]

    no_price, no_power = said("mfabric", {"circuits.ocs": "rotornet"})
    assert "the price of optical switch 'rotornet' is unknown; give usd_per_port" in no_price
    assert "the power of optical switch 'rotornet' is unknown: 0.8 W per port are assumed." in no_power
    assert said("fat-tree", {"circuits.ocs": "rotornet"}) == []
    no_price, no_power = said("nvl72")
    assert "nvl72 has no cost: there are no public prices for NVLink domains" in no_price
    assert "nvl72 has no power: the power of a network part is unknown; give it in [watts]" in no_power
    (price,) = said("fat-tree", {"gpu.name": "GB300-NVL72"})
    assert "no price of GPU GB300-NVL72; give usd in its file or in [gpus.GB300-NVL72]" in price
    found, _ = bill("fat-tree", {"gpu.name": "GB300-NVL72"})
    assert (found.cluster_usd, found.network_usd is None) == (None, False)
    own = tmp_path / "own.toml"
    own.write_text('[gpus.GB300-NVL72]\nusd = 1000\nserver = "nvl72"\n')
    found, unknown = bill("fat-tree", {"gpu.name": "GB300-NVL72", "network.prices": str(own)})
    assert (found.cluster_usd, unknown) == (found.network_usd + GPUS * 1000, [])


def test_prices_of_gpus_of_no_case_are_named(tmp_path, recwarn):
    gpu, own = tmp_path / "mine.toml", tmp_path / "own.toml"
    gpu.write_text('like = "H100-SXM"\nname = "mine"\n')
    own.write_text("gpus.H200.usd = 1000\ngpus.H100-SXM.usd = 1000\ngpus.mine.usd = 1000\n")
    case = base().with_({"network.prices": str(own)})
    with pytest.warns(Unread, match="GPUs of no case .*: H200, mine[.]"):
        describe_cases(cases(case))
    own.write_text("gpus.mine.usd = 1000\n")
    describe_cases(cases(case, {"gpu.name": ["H200-SXM", str(gpu)]}))
    assert not recwarn.list


def test_a_gpus_own_file_wins(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('like = "H100-SXM"\nname = "H100-SXM"\nusd = 1.0\nwatts = 10.0\n')
    found, _ = bill("fat-tree", {"gpu.name": str(file)})
    usual, _ = bill("fat-tree", {"gpu.name": "H100-SXM"})
    assert usual.cluster_usd - found.cluster_usd == GPUS * 29999
    assert usual.cluster_watts - found.cluster_watts == pytest.approx(GPUS * 690)


def test_circuit_changes_are_those_of_the_whole_cluster_and_turns_those_of_the_busiest_region():
    job = get("llama-moe")  # 4 stages of 32 servers: 16 regions of 2 each
    anew, switch = np.zeros((3, 4, 8, 8, 2)), np.zeros((3, 4, 8, 8, 2), bool)
    anew[1, 0, 0, 0, 0], anew[1, 3, 7, 7, 1] = 5, 2
    switch[1, 0, 0, 0, 0] = switch[1, 3, 7, 7, 1] = switch[1, 3, 6, 0, 0] = True
    changes, turns = changes_of(job, anew, switch)
    assert changes.tolist() == [0, 16 * 7, 0]
    assert turns.tolist() == [0, 2, 0]


def test_a_training_by_hand():
    tokens = 5e9
    (row,) = simulate(cases(small({"job.training_tokens": tokens, "run.draws": 2}))).rows()
    iterations = tokens / row["tokens_per_iteration"]
    for days, seconds in (
        ("training_days", "iteration_s"),
        ("training_low_days", "low_s"),
        ("training_high_days", "high_s"),
    ):
        assert row[days] == pytest.approx(iterations * row[seconds] / 86400)
    assert row["training_tokens"] == tokens
    assert row["training_usd"] == pytest.approx(iterations * row["usd_per_iteration"])
    assert row["training_kwh"] == pytest.approx(iterations * row["joules_per_iteration"] / 3.6e6)
    said = comparison([row]).split("\n\n")[-2].splitlines()
    assert said[0] == "a training of 5e+09 tokens at 100 Gbps"
    assert said[1].split() == ["fabric", "days", "band", "M$", "MWh"]
    assert float(said[3].split()[1]) == pytest.approx(row["training_days"], rel=0.01)
    (line, _) = rankings([row, row | {"fabric": "other"}], {})[row["model"]].lines
    assert line["days"] == row["training_days"]
    assert line["training M$"] == pytest.approx(row["training_usd"] / 1e6)
    (open_,) = simulate(cases(small({"run.draws": 2}))).rows()
    assert {open_[name] for name in row if name.startswith("training_")} == {None}
    assert "training" not in comparison([open_])
