"""The loss of a month by hand, and files of rates that are refused."""

import functools
import importlib
import math

import numpy as np
import pytest

from mfabric_jax import resolve
from mfabric_jax.apps.failures import failures
from mfabric_jax.apps.failures.failure_rows import Rate, expected_loss, read_rates
from mfabric_jax.apps.failures.iterations import failures_of, failures_of_cases
from mfabric_jax.apps.failures.months import months
from mfabric_jax.commands.failures import month_price_lines
from mfabric_jax.fabric import NAMES
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.failures import KINDS, Failure
from mfabric_jax.fabric.parts_list import get_ocs
from mfabric_jax.fabric.registry import get, site_table
from mfabric_jax.timing import Iteration
from mfabric_jax.timing.passes import Exchanges
from tests.mistakes import check_refused
from tests.small import small


def test_a_month_by_hand():
    # 1,000 GPUs, one failure of each in 73,000 h: 10 a month. Each: 20 h at 4/5 of the speed lose 4 h; half of a
    # checkpoint interval of 1 h and 15 minutes to restart lose 0.75 h. An iteration of 9 s: 400 an hour.
    found = expected_loss(Rate(1 / 73000, 20.0, True), 1000, 0.25, 9.0, 3600.0, 900.0)
    assert found["failures_per_month"] == pytest.approx(10)
    assert found["lost_hours_per_month"] == pytest.approx(47.5)
    assert (found["stopped_hours_per_month"], found["slower_hours_per_month"]) == pytest.approx((7.5, 40))
    assert (found["hours_a_stop"], found["repair_hours"]) == (0.75, 20)
    assert found["lost_iterations_per_month"] == pytest.approx(47.5 * 400)
    runs_on = expected_loss(Rate(1 / 73000, 20.0, False), 1000, 0.25, 9.0, 3600.0, 900.0)
    assert runs_on["lost_hours_per_month"] == runs_on["slower_hours_per_month"] == pytest.approx(40)
    assert set(expected_loss(None, 1000, 0.25, 9.0, 3600.0, 900.0).values()) == {None}


SAME = {"gpu": 1024, "server": 128, "electrical-nics": 128, "controller": 32, "nvswitch": 768}  # 4 servers a region
ON_TREE = {"electrical-nic": 1024, "nic-link": 1024, "link": 1024, "switch": 32}
DOMAINS = {"server": 16, "nvswitch": 16 * 18}  # of 64 GPUs
COUNTS = {  # mixtral-8x7b: 1,024 GPUs, 4 stages of 32 servers; switches of 64 ports
    "fat-tree": ON_TREE | {"spine-link": 1024, "spine": 32 + 16},
    # 3:1: edge switches of 48 NICs, 16 of their ports up; 341 1/3 links of each tier above serve 1,024 NICs.
    "oversub-fat-tree": {"electrical-nic": 1024, "nic-link": 1024, "link": 341, "spine-link": 341, "switch": 22},
    "rail-optimized": ON_TREE | {"spine-link": 1024, "spine": 32 + 16},
    "rail-only": ON_TREE | {"spine-link": 0, "spine": 8 * 2},  # 128 NICs a rail: 4 switches, 128 links to 2 spines
    "multi-plane": ON_TREE | {"plane": 8, "plane-link": 8192, "spine": 8 * 2},
    "mfabric": {"electrical-nic": 256, "optical-nic": 768, "nic-link": 256, "optical-link": 768, "link": 256}
    | {"spine-link": 256, "switch": 8, "spine": 8 + 4, "optical-switch": 32},
    "acos": {"electrical-nic": 256, "optical-nic": 768, "optical-switch": 768},  # a small switch for each NIC
    "topoopt": {"electrical-nic": 0, "optical-nic": 1024, "link": 512},
    "torus": {"electrical-nic": 0, "optical-nic": 768, "link": 3 * 128},  # 2 x 2 x 32
    "full-mesh": {"optical-nic": 1024, "link": 512},
    "photonic-rails": {"optical-nic": 1024, "link": 1024, "optical-switch": 8, "controller": 8},
    "dragonfly-plus": {"electrical-nic": 1024, "link": 1024, "switch": 32, "spine": 32},
    "nvl72": ON_TREE | DOMAINS,
    # 8 Tbps less 100 Gbps, half of it in ports of 100 Gbps.
    "mfabric-cpo": ON_TREE | DOMAINS | {"optical-nic": 1024 * 39, "optical-link": 0},
    "cloudmatrix384": ON_TREE | {"server": 4, "nvswitch": 4 * 7},  # 256 of 384 NPUs work; 7 sub-planes
}


@functools.cache
def on_fabric(name, **given):
    given = {path.replace("_", "."): value for path, value in given.items()} | {"network.fabric": name}
    return failures_of(small(given))


@pytest.mark.parametrize("name", COUNTS)
def test_how_many_there_are(name):
    counted = on_fabric(name).cluster_parts
    for kind, count in (SAME | COUNTS[name]).items():
        if kind in COUNTS[name] or (kind not in ("electrical-nics", "controller") and not get(name).domain_gpus):
            assert counted.devices(kind) == count, kind


PASSIVE = ("fibre", "panel_port", "ocs_port", "scale_up_per_gpu", "co_packaged_per_gpu")


@pytest.mark.parametrize("name", NAMES)
def test_as_many_parts_fail_as_the_bill_has(name):
    """NICs, transceivers and switch ports of the bill are those of the kinds that can fail; none is left out."""
    plan = on_fabric(name)
    counted, job = plan.cluster_parts, plan.cluster_parts.job
    bill = {}
    for row in site_table(counted.on, counted.site, 100, Prices()):
        bill[row["part"]] = bill.get(row["part"], 0) + job.servers * row["count"]
    there = {kind: counted.devices(kind) for kind in KINDS if kind not in plan.absent}
    has = lambda *kinds: sum(there.get(kind, 0) for kind in kinds)  # noqa: E731
    own_ports = counted.job.gpus * 39 if name == "mfabric-cpo" else 0  # in the price of a GPU
    assert has("electrical-nic", "optical-nic") - own_ports == pytest.approx(bill["nic"])
    ends = 1 if counted.group.phases else 2
    transceivers = 2 * has("nic-link", "spine-link") + ends * has("link") + has("optical-link")
    assert transceivers == pytest.approx(bill["transceiver"], abs=4)  # thirds of links are rounded
    on_switches = has("nic-link") + 2 * has("link", "spine-link") if there.get("switch") else 0
    assert on_switches == pytest.approx(bill.get("switch_port", 0), abs=4)
    assert (has("optical-switch") > 0) == ("ocs_port" in bill or own_ports > 0)
    assert (has("switch") > 0) == ("switch_port" in bill)
    assert set(bill) <= {"nic", "transceiver", "switch_port", *PASSIVE}
    assert has("gpu") == job.gpus
    assert has("server") == job.servers
    assert has("nvswitch") > 0


def test_all_kinds_are_there_or_absent_for_a_reason():
    for name in NAMES:
        plan = on_fabric(name)
        for kind in KINDS:
            assert (plan.cluster_parts.devices(kind) > 0) or kind in plan.absent, (name, kind)


def test_switches_that_serve_several_regions_are_as_many_as_are_bought():
    # 4 servers with 6 NICs: 24 ports a region; Polatis has 576, for 24 regions: 2 switches for 32.
    assert get_ocs("polatis").ports == 576
    counted = on_fabric("mfabric", circuits_ocs="polatis").cluster_parts
    assert (counted.devices("optical-switch"), counted.devices("controller")) == (2, 32)


EIGHT = {f"job_parallel_{name}": degree for name, degree in (("dp", 1), ("pp", 1), ("tp", 8), ("ep", 8))}  # servers
FULL_AND_EMPTY = ("fat-tree", "rail-only", "multi-plane")


@pytest.mark.parametrize("name", FULL_AND_EMPTY)
def test_uplinks_of_partly_empty_switches_are_those_that_are_billed(name):
    # 8 servers, 64 NICs: as many links up, whether in two full switches, or one of every rail or plane.
    counted = on_fabric(name, **EIGHT).cluster_parts
    assert (counted.job.gpus, counted.devices("link")) == (64, 64)


def test_the_share_of_an_edge_switch_that_a_link_takes():
    # 8 servers: two full switches of 32 NICs; a switch for each rail, with 8 NICs; 64 NICs on every plane.
    uplinks = {name: on_fabric(name, **EIGHT).cluster_parts.switches.uplinks for name in FULL_AND_EMPTY}
    assert uplinks == {"fat-tree": 32, "rail-only": 8, "multi-plane": 64}
    left = [Failure("link", 0, 8, uplinks=8, spines=spines).links_left() for spines in (1, math.inf)]
    assert left == [7 / 8, 1]  # all NICs of a rail at one switch: its uplinks carry nothing
    assert Failure("spine", 0, 8, uplinks=8, spines=2).links_left() == 1 / 2
    assert Failure("spine", 0, 8, uplinks=8, spines=1).links_left() == 0  # then the job waits


RATES = {"gpu": 50000, "server": 100000, "link": 200000, "switch": 200000, "electrical-nic": 500000}
RATES |= {"nvswitch": 500000, "optical-switch": 200000}
STOP, WAIT, SLOWER = 2400 / 3600, 24.0, 24.0 * 0.2  # hours: half an hour and 10 minutes; a repair; at 4/5 of the speed
# 256 GPUs in 32 servers and 4 stages; regions of 4 servers. Failures an hour of kinds that go on, and that wait.
MONTHS = {
    # Links: 256 of each of three tiers. 8 edge switches; above them 8 of 512 ports and 4 of 256.
    "fat-tree": (256 / 50000 + 32 / 100000 + 256 / 500000 + 3 * 256 / 200000 + 12 / 200000 + 192 / 500000, 8 / 200000),
    # 64 NICs on the tree and 192 on 8 optical switches, whose links have one transceiver for two.
    "mfabric": (
        256 / 50000 + 32 / 100000 + 256 / 500000 + (3 * 64 + 192 / 2 + 3 + 8) / 200000 + 192 / 500000,
        2 / 200000,
    ),
    "torus": (192 / 500000 + 96 / 200000 + 36 / 200000 + 192 / 500000, 256 / 50000 + 32 / 100000),  # 2 x 2 x 8
    "full-mesh": (256 / 500000 + 128 / 200000 + 192 / 500000, 256 / 50000 + 32 / 100000),
}


@pytest.mark.parametrize("name", MONTHS)
def test_hours_of_a_month_by_hand(name, tmp_path, monkeypatch):
    """Iterations take a quarter longer with anything broken, so that a repair of 24 h loses 4.8 h."""
    file = tmp_path / "rates.toml"
    file.write_text("".join(f"[{kind}]\nmtbf_hours = {hours}\n" for kind, hours in RATES.items()))
    module = importlib.import_module("mfabric_jax.apps.failures.iterations")
    times = [Iteration(*[np.full(1, seconds)] * 8)._replace(stage=np.zeros(1, int)) for seconds in (1.0, 1.25)]
    monkeypatch.setattr(module, "solve", lambda one: Exchanges(*[np.zeros(())] * 7))
    monkeypatch.setattr(module, "_solve_hit", lambda one, left, stage: (left, None))
    monkeypatch.setattr(module, "_with_stages", lambda *_: None)
    monkeypatch.setattr(module, "_hit_iterations", lambda one, hits: [times[left is not None] for _, left, _ in hits])
    case = small({"network.fabric": name, "job.parallel.dp": 2, "failures.rates": str(file)})
    rows = list(failures(case))
    assert len(rows) == sum(len(config.present) for config in failures_of_cases(case))
    (month,) = months(rows)
    goes_on, waits = MONTHS[name]
    assert month.lost_h == pytest.approx(730 * (goes_on * (STOP + SLOWER) + waits * (STOP + WAIT)), rel=1e-9)
    assert month.stopped_h == pytest.approx(730 * (goes_on * STOP + waits * (STOP + WAIT)), rel=1e-9)
    assert month.waiting_h == pytest.approx(730 * waits * WAIT)
    lost = {row["failure"]: row["lost_hours_per_month"] for row in month.rows}
    if name in ("torus", "full-mesh"):  # nothing takes over for a server
        assert lost["gpu"] + lost["server"] == pytest.approx(730 * (256 / 50000 + 32 / 100000) * (24 + 2 / 3))
        assert lost["gpu"] + lost["server"] == pytest.approx(98, abs=0.1)
    assert month.without == (("electrical-nics", "controller") if name == "mfabric" else ())


def a_row(kind, **given):
    usual = {"model": "m", "fabric": "f", "nic_gbps": 400.0, "nic_use": "own", "failure": kind, "remedy": None}
    usual |= {
        "healthy_s": 2.0,
        "tokens_per_iteration": 1e6,
        "usd_per_million_tokens": 0.5,
        "lost_hours_per_month": 3.65,
    }
    usual |= {"stopped_hours_per_month": 3.0, "spare_part_usd": 1.0, "spare_usd": None, "failures_per_month": 0.1}
    return usual | {"spare_usd_per_month": None, "spare_part_usd_per_month": 100.0, "repair_hours": 24.0} | given


def test_dollars_of_a_month_by_hand():
    # A million tokens in 2 s: 1,314,000 in 730 h, for 657,000 dollars. Ten kinds lose 36.5 h, 5 %: 1,248,300 are left.
    rows = [a_row(str(kind)) for kind in range(8)]
    rows += [a_row(kind, spare_usd=5.0, spare_usd_per_month=8000.0) for kind in ("gpu", "server")]  # of the same spare
    rows += [a_row("controller", lost_hours_per_month=None)]
    (month,) = months(rows)
    assert month.lost_h == pytest.approx(36.5)
    assert month.spares_usd == 10 * 100 + 8000
    assert month.usd_with == pytest.approx((657000 + 9000) / (0.95 * 1314000))
    assert month.without == ("controller",)
    (none,) = months([a_row("gpu", lost_hours_per_month=800.0)])
    assert (none.usd, none.usd_with) == (0.5, None)


def test_failures_change_which_fabric_is_cheapest_and_that_is_said():
    cheap = a_row("gpu", fabric="cheap", lost_hours_per_month=98.0, remedy="repair")
    sure = a_row("gpu", fabric="sure", usd_per_million_tokens=0.52)
    *_, said = month_price_lines([cheap, sure])
    assert said == (
        "Cheapest a million tokens with failures: m on sure, 400 Gbps, own NICs; "
        "if nothing fails, m on cheap, 400 Gbps, own NICs."
    )


def test_months_of_two_bandwidths_are_two():
    rows = [a_row(kind, nic_gbps=gbps) for gbps in (100.0, 400.0) for kind in ("gpu", "link")]
    assert [month.lost_h for month in months(rows)] == [7.3, 7.3]


def test_a_part_without_a_rate_fails_as_often_as_one_that_is_alike(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text("[electrical-nic]\nmtbf_hours = 1000\n[link]\nmtbf_hours = 500\n[switch]\nmtbf_hours = 250\n")
    every = {kind: rate.per_hour for kind, rate in read_rates(str(file)).items()}
    nic, link, switch = 1 / 1000, 1 / 500, 1 / 250
    assert every == {
        **{"electrical-nic": nic, "optical-nic": nic, "link": link, "nic-link": link, "spine-link": link},
        **{"optical-link": link / 2, "switch": switch, "spine": switch},
    }


@pytest.mark.parametrize(
    ("gpu", "each", "in_all"),  # of 256 GPUs
    [
        ("A100-80GB-SXM", 6, 192),
        ("H100-SXM", 4, 128),
        ("H200-SXM", 4, 128),
        ("B200-HGX", 2, 64),
        ("GB200-NVL72", 18, 64),
    ],
)
def test_nvswitches_are_those_of_the_gpu(gpu, each, in_all):
    plan = failures_of(small({"gpu.name": gpu, "job.parallel.dp": 2, "network.fabric": "fat-tree"}))
    assert resolve(plan.case).case.gpu.nvswitches == each
    assert plan.cluster_parts.devices("nvswitch") == in_all  # 18 of 72 GPUs: 64 of 256


def test_gpus_without_nvswitches_and_of_an_unknown_number_say_so(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("bf16_tflops = 800\nnvlink_gigabytes_per_s = 300\n")
    unknown = "their number is not known for mine: state gpu.nvswitches"
    for gpu, said in (("MI300X", "GPUs MI300X have no NVSwitch"), (str(file), unknown)):
        plan = failures_of(small({"gpu.name": gpu, "network.fabric": "fat-tree"}))
        assert plan.absent["nvswitch"].startswith(said)
    asked = failures_of(small({"gpu.name": str(file), "gpu.nvswitches": 3, "network.fabric": "fat-tree"}))
    assert asked.cluster_parts.devices("nvswitch") == 128 * 3


def test_files_of_rates(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text("[gpu]\nmtbf_hours = 50000\n[controller]\nper_million_hours = 5\nrepair_hours = 2\n")
    assert read_rates(str(file)) == {"gpu": Rate(2e-5, 24.0, True), "controller": Rate(5e-6, 2.0, False)}
    for text, said in (
        ("[gpus]\nmtbf_hours = 1", "failure in .* 'gpus' is unknown .did you mean 'gpu'"),
        ("[gpu]\nmtbf_hours = [1, 2]", "gpu.mtbf_hours must be a number, got .1, 2."),
        ("gpu = 3", "gpu in .* must be a table such as . mtbf_hours = 50000 ., got 3"),
        ("[gpu]\nmtbf = 1", "key 'mtbf' is unknown"),
        ("[gpu]\nrepair_hours = 1", "needs either per_million_hours or mtbf_hours"),
        ("[gpu]\nmtbf_hours = 0", "gpu.mtbf_hours must be finite and above 0, got 0"),
        ("[gpu]\nmtbf_hours = 9\nstops = 1", "gpu.stops must be true or false, got 1"),
        ("[gpu]\nmtbf_hours = 9\nrepair_hours = -1", "gpu.repair_hours must be finite and not negative, got -1"),
    ):
        file.write_text(text)
        check_refused(said, read_rates, str(file))
