"""What breaks on single fabrics: slow-downs, spares and remarks beside the numbers of the healthy cluster."""

import re

import pytest

from mfabric_jax import InputError, cases
from mfabric_jax.apps.failures import failures
from mfabric_jax.apps.failures.failure_rows import availability
from mfabric_jax.apps.failures.spare_ports import full_tree_words
from mfabric_jax.commands import shared
from mfabric_jax.commands.failures import slow_switches
from mfabric_jax.fabric import Prices
from mfabric_jax.policies import uniform
from tests.evaluate.resolving.test_switch_words import tree_of
from tests.evaluate.rows.test_resolve import STAGES, WAYS
from tests.evaluate.rows.test_slow_switches import case_on
from tests.evaluate.rows.test_wirings import WIRINGS, on
from tests.fabric.test_cost import quoted
from tests.fabric.test_domains import EVEN, degrees
from tests.fabric.test_one_switch import job
from tests.fabric.test_photonic_rails import job as rails_job
from tests.small import JOB, row, small


@pytest.mark.usefixtures("as_users_have_it")
@pytest.mark.parametrize("way", WAYS)
def test_failures_begin_with_the_iteration_of_compare(way):
    case = small(STAGES | WAYS[way])
    (broken,) = failures(case.with_({"failures.kinds": ("nvswitch",)}))
    assert broken["healthy_s"] == pytest.approx(row(case)["iteration_s"], rel=1e-12)


def test_failures_of_each_wiring_begin_with_the_iteration_of_compare():
    healthy = set()
    for wiring in WIRINGS:
        case = on(wiring, "mixtral-8x7b", **{"failures.kinds": ["optical-nic", "server"]})
        nic, server = failures(case)
        assert nic["healthy_s"] == server["failed_s"] == pytest.approx(row(case)["iteration_s"], rel=1e-9)
        assert nic["failed_s"] > 0.999 * nic["healthy_s"], "greedy matchings may gain from one NIC less"
        healthy.add(nic["healthy_s"])
    assert len(healthy) > 1


def test_a_spare_switch_costs_what_the_switch_does(tmp_path):
    quoted(tmp_path)
    given = {"network.fabric": "fat-tree", "failures.kinds": ["switch"], "network.nic_gbps": 400}
    given |= {"job.batch.micro_batches": 1, "network.prices": str(tmp_path / "quote.toml")}
    (row,) = failures(small(given))
    assert row["spare_part_usd"] == 28000  # not 64 ports of 218.75


def test_a_switch_of_many_that_fails():
    job = degrees(tp=4, pp=1, dp=4, ep=8) | {"failures.kinds": ["nvswitch"]}
    for name, planes in (("scale-up", 18), ("cloudmatrix384", 7)):
        (one,) = failures(small({"network.fabric": name} | EVEN | job))
        domains = 2 if name == "scale-up" else 1
        assert one["devices"] == planes * domains
        slower = one["ep_comm_s"] / one["healthy_ep_comm_s"]
        assert slower == pytest.approx(planes / (planes - 1), rel=1e-6)


def test_a_nic_of_a_dragonfly_fails():
    (broken,) = failures(small(JOB | {"network.fabric": "dragonfly", "failures.kinds": ["electrical-nic"]}))
    assert broken["devices"] == 16 * 8
    assert broken["slow_down"] > 0


def test_availability_as_published_for_ub_mesh():
    # arXiv 2503.20377 (second hand): MTBF 13.8 and 98.5 h, MTTR 75 and 13 min: 13.8 / 15.05, 98.5 / 99.75 and
    # 98.5 / 98.717, published as 91.6, 98.8 and 99.78 %.
    found = [availability(1 / hours, minutes / 60) for hours, minutes in ((13.8, 75), (98.5, 75), (98.5, 13))]
    assert found == pytest.approx([0.91694, 0.98747, 0.99781], abs=1e-5)
    assert availability(0.0, 24.0) == 1


def test_nothing_leads_up_from_one_switch():
    case = job("fat-tree", 64)
    with pytest.raises(InputError, match="fat-tree: its bill has none"):
        list(failures(case.with_({"failures.kinds": ["link"]})))
    rails = job("rail-only", 64, **{"failures.kinds": ["switch"]})
    (row,) = failures(cases(rails, {"job.parallel.gpus": (64,)}))
    assert row["devices"] == 8


def test_failures_of_a_run():
    case = small(rails_job(pp=2, dp=2, micro_batches=8) | {"circuits.delay_s": 1.0, "gpu.nvswitches": 10**9})
    rows = {one["failure"]: one for one in failures(case)}
    assert list(rows) == ["optical-nic", "link", "gpu", "server", "optical-switch", "controller", "nvswitch"]
    for kind in ("gpu", "server", "nvswitch"):  # of so many NVSwitches, none is missed
        assert rows[kind]["slow_down"] == pytest.approx(0, abs=1e-9)
    one, nic, rail = (rows[kind] for kind in ("nvswitch", "optical-nic", "optical-switch"))
    assert one["reconfig_s"] == pytest.approx(one["healthy_reconfig_s"], rel=1e-9)
    assert one["reconfig_s"] > 4
    assert 0 < nic["slow_down"] < rail["slow_down"]
    assert rows["link"]["slow_down"] == nic["slow_down"]
    turns = 2.0  # to the ring of gradients and back
    slower = (nic["dp_comm_s"] - turns) / (nic["healthy_dp_comm_s"] - turns)
    assert 1.142 < slower < 8 / 7  # NVLinks inside servers are no slower
    # 16 servers of 8 NICs with a transceiver each; 32 ports of the switch of a rail
    assert [rows[kind]["devices"] for kind in ("optical-nic", "link", "optical-switch")] == [128, 128, 8]
    assert rail["spare_part_usd"] == pytest.approx(32 * Prices().ocs_port)


def test_a_rail_is_of_all_stages():
    """Where stages are alike, all are hit as the one."""
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "circuits.delay_s": 0.0}
    asked = rails_job(pp=2, dp=2) | even | {"failures.kinds": ("optical-switch",)}
    first, last = (next(failures(small(asked | {"failures.stage": stage}))) for stage in (0, 1))
    assert first["failed_s"] == pytest.approx(last["failed_s"], rel=1e-12)


def test_failures_warn_of_the_worst_row_of_a_fabric():
    case = case_on("mfabric", **{"failures.kinds": ("optical-nic", "link")})
    rows = list(failures(case))
    (words,) = slow_switches(rows, {"mfabric": shared.changes_of(case)})
    assert words.startswith("Warning: on mfabric, mixtral-8x22b")
    assert "keep circuits (--set circuits.reconfigure=span --set circuits.span.length=run)" in words
    kept = list(failures(case.with_(dict(re.findall(r"--set (\S+?)=(\w+)", words)))))
    assert not list(slow_switches(kept, {"mfabric": "traffic"})), "its advice can be followed, and helps"
    for before, after in zip(rows, kept, strict=True):
        assert after["reconfig_s"] == 0 < before["reconfig_s"]
        assert after["failed_s"] < before["failed_s"]
    still = [row | {"reconfig_s": 0.0, "healthy_reconfig_s": 0.0} for row in rows]
    assert not list(slow_switches(still, {"mfabric": "traffic"}))


def counting(demand, region, *, previous=None, key=None, state=None):
    return uniform(demand, region), 0 if state is None else state + 1


def test_failures_keep_no_state_of_a_policy():
    case = small({"network.fabric": "mfabric", "circuits.policy": counting})
    with pytest.raises(InputError, match=r"circuits\.policy must have neither the keyword history nor state for fail"):
        list(failures(case))


def test_failures_of_a_tree_that_no_all_to_all_crosses():
    """Groups of 8 ranks fill a server, so only gradients and sends cross NICs."""
    inside = degrees(tp=1, pp=1, dp=8, ep=8) | {"network.fabric": "fat-tree", "network.oversubscription": 3.0}
    inside |= {"network.leaf_servers": "most", "network.radix": 32}  # 24 NICs, of three servers, on a switch
    kinds = ["electrical-nic", "nic-link", "link"]
    every = list(failures(small(inside | {"failures.kinds": kinds})))
    assert [each["failure"] for each in every] == kinds
    for each in every:
        assert each["ep_comm_s"] == pytest.approx(each["healthy_ep_comm_s"], rel=1e-9)
        assert each["failed_s"] >= each["healthy_s"] * (1 - 1e-9)
    assert every[0]["slow_down"] > 0


def test_a_nic_of_separate_rails_that_fails_sends_its_bytes_over_another_rail():
    """Two groups of 4 servers below edge switches of 3, with 1 uplink a rail. Of 1 from each server to each, the uplink
    of servers 3 to 5 carries 3 + 4. Server 3 sends to server 0, which lost a NIC, on the next rail: 8 there."""
    tree = {"network.fabric": "rail-only", "network.tiers": 2, "network.oversubscription": 3.0, "network.radix": 4}
    case = small(degrees(tp=1, pp=1, dp=2, ep=32) | EVEN | tree, "qwen-moe-ep16")
    (nic,) = failures(case.with_({"failures.kinds": ["electrical-nic"]}))
    assert nic["ep_comm_s"] / nic["healthy_ep_comm_s"] == pytest.approx(8 / 7, rel=1e-6)


def test_a_spare_server_without_a_port_is_said():
    """128 servers fill the 128 ports of every rail; 2,048 NICs fill two tiers of 64 ports."""
    for full in (tree_of(1024, fabric="rail-only", radix=128), tree_of(2048, fabric="fat-tree")):
        assert full_tree_words([full]).startswith(f"The NICs fill all switch ports of {full.fabric.name}, so a spare ")
    assert (
        full_tree_words([tree_of(1016, fabric="rail-only", radix=128, nics=8), tree_of(1024, fabric="torus")]) is None
    )
    assert full_tree_words([tree_of(1024, fabric="rail-only", radix=128, tiers=2)]) is None
