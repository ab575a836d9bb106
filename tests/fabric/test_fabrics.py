"""`Region` and `Electrical`: what they refuse, in words, and what they may carry as data."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from mfabric_jax import load, resolve
from mfabric_jax.fabric import NAMES, Fabric, Region, cluster, degrade, get
from mfabric_jax.fabric.failures import KINDS, PLANES
from mfabric_jax.fabric.parts_list import OCS, get_ocs
from mfabric_jax.fabric.registry import site_of
from mfabric_jax.fabric.transport import TRANSPORTS, Transport, get_transport
from mfabric_jax.workload import get as job_of
from tests.mistakes import refused
from tests.small import small


def test_every_fabric_answers_for_itself():
    # What a group sees: bytes/s of a server beyond its switch, by hand at 400 Gbps; NVLink at 8 Tbps a GPU.
    settings = dataclasses.replace(resolve(small()), server_nics=None)  # as many as usual on each
    beyond = {
        "fat-tree": 8,
        "multi-plane": 8,
        "oversub-fat-tree": 8 / 3,
        "rail-optimized": 8,
        "rail-only": 8,
        "topoopt": 2,
    }
    beyond |= {"mfabric": 2, "nvl72": 64, "mfabric-cpo": 64, "torus": 2}
    for name, nics in beyond.items():
        fabric = get(name)
        assert fabric.name == name
        job = job_of(
            "deepseek-v3" if fabric.gpus_per_server > 8 else "mixtral-8x7b", gpus_per_server=fabric.gpus_per_server
        )
        hardware = dataclasses.replace(settings, case=settings.case.with_({"network.fabric": name}))
        group = fabric.group(hardware.site_of(job), 400.0)
        assert group.eps_Bps == pytest.approx(nics * 50e9, rel=1e-12), name
        assert group.reconfigures is fabric.reconfigures
        faster = group.with_bandwidth(800.0, settings.gpu_tbps)
        assert faster.nic_Bps == 100e9
    nvlink = {name: get(name).inside_Bps(8.0, 400.0, 900e9) for name in beyond}
    scale_up = {"nvl72": 950e9, "mfabric-cpo": 475e9}
    assert nvlink == pytest.approx(dict.fromkeys(beyond, 900e9) | scale_up, rel=1e-12)


TREELESS = [name for name in NAMES if get(name).links(site_of(name, {})[0]).tree is None]


@pytest.mark.parametrize("name", TREELESS)
def test_a_fabric_without_a_tree_refuses_an_oversubscribed_one(name):
    assert {"topoopt", "torus", "dragonfly"} <= set(TREELESS)
    given = {"network.fabric": name, "network.oversubscription": 2.0}
    said = f"network.oversubscription must be auto or 1 on {name}, which has no switch tree, got 2."
    assert refused(resolve, small(given)) == said
    assert resolve(small(given | {"network.oversubscription": 1.0})).fabric.name == name
    assert refused(cluster, name, 16, 400.0, oversubscription=2.0) == said


SAYS = {"group", "links", "parts", "paths", "fills"}  # and `about`


def test_a_fabric_says_six_things_and_the_rest_follows():
    for name in NAMES:
        above = [kind for kind in type(get(name)).__mro__ if issubclass(kind, Fabric) and kind is not Fabric]
        own = {member for kind in above for member in vars(kind) if not member.startswith("_")}
        assert own <= SAYS | {"mesh", "unequal_nics", "joins_groups"}, name  # `OnMesh` makes links of a mesh; facts


def test_every_fabric_looks_like_itself():
    looks = [get(name).about.look for name in NAMES]
    assert len({label for label, _, _ in looks}) == len({look[1:] for look in looks}) == len(NAMES)


@pytest.mark.parametrize(("gbps", "ports", "nvlink"), [(400.0, 9, 950e9), (800.0, 4, 900e9)])
def test_what_a_nic_leaves_of_a_gpu_is_nvlink_and_optical_ports(gbps, ports, nvlink):
    cpo, nvl72, settings = get("mfabric-cpo"), get("nvl72"), resolve(small())
    site = settings.site_of(job_of("deepseek-v3", gpus_per_server=64))
    group = cpo.group(site, gbps)
    assert group.optical_degree == ports * 64
    assert nvl72.inside_Bps(8.0, gbps, None) == pytest.approx(nvlink)
    assert cpo.inside_Bps(8.0, gbps, None) == pytest.approx(nvlink / 2)
    traced = jax.jit(lambda group, gbps: group.with_bandwidth(gbps, 8.0).optical_degree)(cpo.group(site, 100.0), gbps)
    assert int(traced) == ports * 64  # the same rule where the bandwidth is traced


OWN = {"payload_bytes": 3000, "header_bytes": 1000}


def test_what_it_takes_and_adds_by_hand():
    one = Transport(name="own", **OWN, pacing=0.9, ack_bytes=200, startup_s=1e-5)
    assert (one.goodput, one.acks, one.wire_bytes) == (0.75, 0.05, 4000)
    assert one.receiver_goodput == pytest.approx(0.675)
    # Three links of 1 us; at 1 GB/s two switches each hold 4000 bytes for 4 us; 10 us until it starts.
    assert one.path_s(3, 1e-6, 1e9) == pytest.approx(3e-6 + 8e-6 + 1e-5)
    assert one.path_s(1, 0, 1e9) == 1e-5
    assert one.round_trip_s(3, 1e-6, 1e9) == pytest.approx(6e-6 + 12e-6)
    through = Transport(name="cut-through", **OWN, store_and_forward=False)
    assert through.path_s(3, 1e-6, 1e9) == pytest.approx(3e-6)
    none = get_transport("none")
    assert (none.receiver_goodput, none.acks, none.path_s(6, 1e-6, 1e9), none.regain) == (1, 0, 6 * 1e-6, None)


def test_constants_of_the_named_ones():
    ndp, dctcp = get_transport("ndp"), get_transport("dctcp")
    assert (ndp.wire_bytes, ndp.pacing, ndp.ack_bytes, ndp.startup_s, ndp.regain) == (4160, 0.99, 64, 0, None)
    assert (dctcp.goodput, dctcp.pacing, dctcp.ack_bytes, dctcp.regain) == (1, 1, 40, 0.25)
    assert dctcp.startup_s == pytest.approx(15e-6)
    assert get_transport(ndp) is ndp
    assert all(one.name == name for name, one in TRANSPORTS.items())


@pytest.mark.parametrize("extension", ["toml", "json"])
def test_a_file_of_ones_own(tmp_path, extension):
    file = tmp_path / f"rocev2.{extension}"
    given = OWN | {"regain": 0.5, "store_and_forward": False}
    toml = "\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    file.write_text(json.dumps(given) if extension == "json" else toml)
    assert get_transport(file) == get_transport(str(file)) == Transport(name="rocev2", **given)
    file.write_text(json.dumps(given | {"name": "mine"}) if extension == "json" else f'name = "mine"\n{toml}')
    assert get_transport(file).name == "mine"


MODEL = "mixtral-8x7b"  # 4 servers a region
DEGREE = "network.mfabric.optical_degree"


def resolved(ocs=None, changes=None, model=MODEL):
    """A case on mFabric with eight NICs a server."""
    given = {"model.name": model, "network.fabric": "mfabric", "circuits.ocs": ocs} | (changes or {})
    return resolve(load(preset="paper").with_(given))


def region_of(one):
    region = one.fabric.group(one.site, 100.0)
    assert isinstance(region, Region)
    return region


def test_the_published_table():
    published = {
        "polatis": (576, (0.010, 0.025)),
        "calient": (320, (0.010, 0.015)),
        "rotornet": (128, (1e-5, 1e-5)),
        "lightmatter": (32, (7e-6, 7e-6)),
        "epiphotonics": (16, (1e-8, 1e-8)),
    }
    for name, (ports, delay_s) in published.items():
        assert OCS[name].ports == ports
        assert OCS[name].delay_s == pytest.approx(delay_s, rel=1e-12)
    for name, one in OCS.items():
        assert get_ocs(name) is one
        assert one.name == name
        assert one.technology
        assert isinstance(one.ports, int)
    # The trade-off the table is there to show: more ports are slower.
    known = sorted((one.ports, *one.delay_s) for one in OCS.values() if one.delay_s is not None)
    assert all(0 < fastest <= slowest for _, fastest, slowest in known)
    assert known == sorted(known, key=lambda row: (row[2], row[0]))


def test_a_case_takes_the_slowest_delay_unless_given_and_needs_a_known_one():
    for name, one in OCS.items():
        if one.delay_s is not None:
            found = resolved(name, {DEGREE: 4})  # 16 ports: enough for the smallest
            assert found.case.circuits.delay_s == region_of(found).delay_s == one.delay_s[1]
    for delay_s in (0.001, 0.0):
        assert region_of(resolved("polatis", {"circuits.delay_s": delay_s})).delay_s == delay_s
    assert region_of(resolved()).delay_s == 0.025
    assert "ocs 'palomar' has no reported delay; give" in refused(resolved, "palomar")
    assert region_of(resolved("palomar", {"circuits.delay_s": 0.02})).delay_s == 0.02


def test_a_case_is_refused_where_ports_are_too_few():
    for name, degree in (("epiphotonics", 4), ("lightmatter", 8)):
        nics = {"network.nics": 10}
        assert region_of(resolved(name, nics | {DEGREE: degree})).optical_degree == degree
        ports, needs = 4 * degree, 4 * (degree + 1)
        sentence = (
            f"has {ports} ports, but a region of 4 servers with optical_degree {degree + 1} needs {needs}; choose "
        )
        sentence += "a larger switch or a smaller degree."
        assert sentence in refused(resolved, name, nics | {DEGREE: degree + 1})


def test_regions_decide_and_without_a_switch_nothing_does():
    # Two servers a region want 12 ports, four want 24.
    assert resolved("epiphotonics", model="llama-moe").case.circuits.delay_s == pytest.approx(1e-8)
    assert "a region of 4 servers with optical_degree 6 needs 24;" in refused(resolved, "epiphotonics")
    assert resolved("epiphotonics", {"network.fabric": "fat-tree"}).case.circuits.ocs == "epiphotonics"


def region(**settings):
    return Region(**{"servers": 3, "nic_gbps": 100.0, "optical_degree": 6, "electrical_nics": 4.0} | settings)


# kind: optical and electrical NICs of all servers when server 1 of 3 is hit, and the stage's part of the EPS.
LEFT = {
    "electrical-nic": ([6, 6, 6], [4, 3, 4], 3 / 4),
    "electrical-nics": ([6, 6, 6], [4, 0, 4], 1 / 2),
    "optical-nic": ([6, 5, 6], [4, 4, 4], 1),
    "link": ([6, 6, 6], [3.75, 3.75, 3.75], 15 / 16),  # radix 32: 16 links up
    "gpu": ([6, 6, 6, 0], [4, 4, 4, 4], 1),
    "nic-link": ([6, 6, 6], [4, 3, 4], 3 / 4),
    "optical-link": ([6, 5, 6], [4, 4, 4], 1),
    "spine-link": ([6, 6, 6], [4, 4, 4], 1),
    "spine": ([6, 6, 6], [3.75, 3.75, 3.75], 15 / 16),  # a link of every edge switch
    "server": ([6, 0, 6], [4, 4, 4], 1),
    "optical-switch": ([0, 0, 0], [4, 4, 4], 1),
    "controller": ([6, 6, 6], [4, 4, 4], 1),
    "nvswitch": ([6, 6, 6], [4, 4, 4], 1),
}


def test_what_is_left_and_that_all_else_stays():
    assert set(LEFT) == set(KINDS) - {"switch", *PLANES}
    whole = region(delay_s=0.5, relay_efficiency=0.75, nic_gbps=400.0)
    for kind, (optical, electrical, eps_left) in LEFT.items():
        got = degrade(whole, kind, server=1, radix=32)
        assert (got.kind, got.server, got.group.servers) == (kind, 1, len(optical))
        np.testing.assert_array_equal(got.group.optical_degree, optical)
        np.testing.assert_array_equal(got.group.electrical_nics, electrical)
        assert (got.eps_left, got.relays, got.tp_on_eps) == (eps_left, kind == "electrical-nics", False)
        assert got.moved == (kind == "gpu")
        assert (got.stays, got.nvlink_left) == (kind == "controller", 5 / 6 if kind == "nvswitch" else 1)
        for field in ("nic_gbps", "delay_s", "relay_efficiency"):
            assert getattr(got.group, field) == getattr(whole, field)
        # Elsewhere ranks stay where they are.
        if kind != "gpu":
            share = degrade(region(), kind, server=2, gpus_per_rank=4).share_of_rank(6, 2)
            np.testing.assert_array_equal(share, np.repeat(np.eye(3), 2, axis=0))
    assert (whole.optical_degree, whole.electrical_nics, whole.servers) == (6, 4, 3)
    for server in (0, 2):
        got = degrade(region(), "optical-nic", server=server).group
        assert got.optical_degree.tolist() == [6 - (server == s) for s in range(3)]


def test_the_last_electrical_nic_is_all_of_them():
    got = degrade(region(electrical_nics=1.0), "electrical-nic", server=2)
    assert (got.kind, got.relays, got.eps_left) == ("electrical-nics", True, 0.5)
    assert got.group.electrical_nics.tolist() == [1, 1, 0]


def test_the_last_optical_nic_and_links_that_stay_up():
    for degree in (0, 1):
        got = degrade(region(optical_degree=degree), "optical-nic")
        assert got.group.optical_degree.tolist() == [0, degree, degree]
    for radix, part in (({"radix": 4}, 1 / 2), ({"radix": 5}, 1 / 2), ({"radix": 6}, 2 / 3), ({}, 31 / 32)):
        got = degrade(region(), "link", **radix)  # 64 unless given
        np.testing.assert_allclose(got.group.electrical_nics, 4 * part, rtol=1e-15)
        np.testing.assert_allclose(got.eps_left, part, rtol=1e-15)


def test_a_gpu_takes_its_part_of_a_rank_with_it():
    # Two ranks on each of 2 servers; the first rank of server 1 loses a GPU to the spare server, number 2.
    for gpus, moved in ((1, 1.0), (2, 0.5), (4, 0.25)):
        got = degrade(region(servers=2), "gpu", server=1, gpus_per_rank=gpus)
        assert (got.moved, got.tp_on_eps) == (moved, gpus > 1)
        want = [[1, 0, 0], [1, 0, 0], [0, 1 - moved, moved], [0, 1, 0]]
        np.testing.assert_array_equal(got.share_of_rank(4, 2), want)


def test_where_every_gpu_has_ports_of_its_own_one_nic_of_the_spare_carries_it():
    for gpus, tp_on_eps in ((1, 0), (4, 1 / 4)):
        got = degrade(region(own_ports=4), "gpu", gpus_per_rank=gpus)
        assert (got.group.own_ports, got.tp_on_eps) == (4, tp_on_eps)
        assert got.group.electrical_nics.tolist() == [4, 4, 4, 1]
