"""The loss of a month by hand, and files of rates that are refused."""

import dataclasses
import functools

import numpy as np
import pytest

from mfabric_jax.fabric import NAMES
from mfabric_jax.fabric.parts_list import get_ocs
from mfabric_jax.fabric.registry import cost_table, get
from mfabric_jax.failures.failure_rows import Rate, devices, expected_loss, read_rates
from tests.mistakes import check_refused
from tests.small import scenario, small


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
COUNTS = {  # mixtral-8x7b: 1,024 GPUs, 4 stages of 32 servers; switches of 64 ports
    "fat-tree": {"electrical-nic": 1024, "link": 32 * 32, "switch": 32},  # 32 NICs and 32 uplinks each
    "oversub-fat-tree": {"electrical-nic": 1024, "link": 22 * 16, "switch": 22},  # 48 NICs and 16 uplinks
    "rail-optimized": {"electrical-nic": 1024, "link": 32 * 32, "switch": 32},
    "rail-only": {"electrical-nic": 1024, "link": 8 * 4 * 32, "switch": 8 * 4},  # 128 NICs a rail
    "mfabric": {"electrical-nic": 256, "optical-nic": 768, "link": 8 * 32, "switch": 8, "optical-switch": 32},
    # 2 of 8 NICs lead to the stages beside it: none of the first and of the last stage leads on.
    "topoopt": {"electrical-nic": 0, "optical-nic": 1024, "link": 128 * 6 // 2 + 3 * 32},
    "torus": {"electrical-nic": 0, "optical-nic": 768, "link": 3 * 128},  # 2 x 2 x 32
    # Domains of 64: 16 of them.
    "nvl72": {"electrical-nic": 1024, "link": 32 * 32, "switch": 32, "server": 16, "nvswitch": 96},
    # 8 Tbps less 100 Gbps, half of it in ports of 100 Gbps.
    "mfabric-cpo": {"electrical-nic": 1024, "optical-nic": 1024 * 39, "link": 32 * 32, "server": 16, "nvswitch": 96},
}


@functools.cache
def on_fabric(name, ocs=None, dp=None):
    given = {"network.fabric": name} | ({"circuits.ocs": ocs} if ocs else {}) | ({"job.parallel.dp": dp} if dp else {})
    return scenario(small(given))


@pytest.mark.parametrize("name", COUNTS)
def test_how_many_there_are(name):
    one = on_fabric(name)
    for kind, count in (SAME | COUNTS[name]).items():
        if kind not in ("electrical-nics", "controller") or not get(name).domain_gpus:
            assert devices(kind, one, 64, 6) == count, kind


@pytest.mark.parametrize("name", NAMES)
def test_as_many_as_the_bill_and_the_whole_cluster_have(name):
    one = on_fabric(name)
    job, gbps = one.workload, one.bandwidths[0]
    form = one.fabric.form(one.settings, one.workload)
    bill = {}
    for row in cost_table(name, gbps, gpus=job.gpus_per_server, **vars(form)):
        bill[row["part"]] = bill.get(row["part"], 0) + job.servers * row["count"]
    nics = [devices(kind, one, 64, 6) for kind in ("electrical-nic", "optical-nic")]
    assert bill["nic"] == pytest.approx(nics[0] if one.group.reconfigures and get(name).domain_gpus else sum(nics))

    def choose(degree, policy=None):  # TopoOpt's are chosen; how mFabric's circuits lie does not count here
        count = np.zeros([job.servers_per_region] * 2, int) if one.group.reconfigures else one.group.mesh.count
        return np.broadcast_to(count, (job.servers // job.servers_per_region, *count.shape))

    circuits = one.fabric.circuits
    built = dataclasses.replace(form, regions=circuits and circuits(job, form, gbps, choose))
    cluster = one.fabric.cluster(job.servers, gbps, built, {})
    link = devices("link", one, 64, 6)
    if cluster.tree is None:
        nics_of_links = cluster.circuits.count
        joined = np.where(nics_of_links % 1, 1, nics_of_links).sum() / 2  # lanes of a pair are one link
        if one.group.phases:  # circuits of every phase lie over the same fibres, two from each NIC to its rail's switch
            joined = 2 * sum(nics)
        assert link + nics[0] == joined  # NICs on routers are links, too
    else:
        links = dict(cluster.network.links)
        planes = form.planes  # each link and switch of the cluster stands for one of every plane
        assert (link, nics[0]) == (planes * links["edge up"], links["nic up"])
        assert devices("switch", one, 64, 6) == planes * dict(cluster.tree.switches)["edge"]
        # The bill has a fibre for every NIC and, for every tier above, for the uplinks in use.
        optical = [group for group in one.fabric.parts(form) if not group.attachment.switch_ports]
        beside = job.servers * sum(group.nics * (group.attachment.fibres - 1) for group in optical)
        used = (bill["fibre"] - bill["nic"] - beside) / (len(cluster.tree.switches) - 1)
        assert used == pytest.approx(nics[0] / cluster.tree.oversubscription)
        assert used <= link / planes < used + cluster.tree.parts * cluster.tree.edge_ports[0]


def test_switches_that_serve_several_regions_are_as_many_as_are_bought():
    # 4 servers with 6 NICs: 24 ports a region; Polatis has 576, for 24 regions: 2 switches for 32.
    assert get_ocs("polatis").ports == 576
    assert devices("optical-switch", on_fabric("mfabric", ocs="polatis"), 64, 6) == 2
    assert devices("controller", on_fabric("mfabric", ocs="polatis"), 64, 6) == 32


def test_edge_switches_that_are_partly_empty_have_all_their_uplinks():
    # 128 NICs: 32 under a switch of 64 ports, 8 of 16, and of 48 ports 24 under each of 6, the last with 8.
    few = on_fabric("fat-tree", dp=1)
    assert [devices("link", few, radix, 6) for radix in (64, 16, 48)] == [4 * 32, 16 * 8, 6 * 24]


def test_files_of_rates(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text("[gpu]\nmtbf_hours = 50000\n[controller]\nper_million_hours = 5\nrepair_hours = 2\n")
    assert read_rates(str(file)) == {"gpu": Rate(2e-5, 24.0, True), "controller": Rate(5e-6, 2.0, False)}
    for text, said in (
        ("[gpus]\nmtbf_hours = 1", "failure in .* 'gpus' is unknown .did you mean 'gpu'"),
        ("[gpu]\nmtbf_hours = [1, 2]", "gpu.mtbf_hours must be a number, got .1, 2."),
        ("gpu = 3", "gpu in .* must be a table such as . mtbf_hours = 50000 ., got 3"),
        ("[gpu]\nmtbf = 1", "key 'mtbf' is unknown"),
        ("[gpu]\nrepair_hours = 1", "needs per_million_hours or mtbf_hours, one of them"),
        ("[gpu]\nmtbf_hours = 0", "gpu.mtbf_hours must be finite and above 0, got 0"),
        ("[gpu]\nmtbf_hours = 9\nstops = 1", "gpu.stops must be true or false, got 1"),
        ("[gpu]\nmtbf_hours = 9\nrepair_hours = -1", "gpu.repair_hours must be finite and not negative, got -1"),
    ):
        file.write_text(text)
        check_refused(said, read_rates, str(file))
