"""What every failure takes from a region, server by server."""

import numpy as np

from mfabric_jax.fabric import Region, degraded
from mfabric_jax.fabric.failures import KINDS
from tests.mistakes import refused


def region(**settings):
    return Region(**{"servers": 3, "nic_gbps": 100.0, "optical_degree": 6, "electrical_nics": 4.0} | settings)


# kind: optical and electrical NICs of all servers when server 1 of 3 is hit, and the stage's part of the EPS.
LEFT = {
    "electrical-nic": ([6, 6, 6], [4, 3, 4], 3 / 4),
    "electrical-nics": ([6, 6, 6], [4, 0, 4], 1 / 2),
    "optical-nic": ([6, 5, 6], [4, 4, 4], 1),
    "link": ([6, 6, 6], [3.75, 3.75, 3.75], 15 / 16),  # radix 32: 16 links up
    "gpu": ([6, 6, 6, 0], [4, 4, 4, 4], 1),
    "server": ([6, 0, 6], [4, 4, 4], 1),
    "optical-switch": ([0, 0, 0], [4, 4, 4], 1),
    "controller": ([6, 6, 6], [4, 4, 4], 1),
    "nvswitch": ([6, 6, 6], [4, 4, 4], 1),
}


def test_what_is_left_and_that_all_else_stays():
    assert set(LEFT) == set(KINDS) - {"switch"}
    whole = region(delay_s=0.5, relay_efficiency=0.75, nic_gbps=400.0)
    for kind, (optical, electrical, eps_left) in LEFT.items():
        got = degraded(whole, kind, server=1, radix=32)
        assert (got.kind, got.server, got.region.servers) == (kind, 1, len(optical))
        np.testing.assert_array_equal(got.region.optical_degree, optical)
        np.testing.assert_array_equal(got.region.electrical_nics, electrical)
        assert got.region.optical_degree.dtype == np.int32
        assert (got.eps_left, got.relays, got.tp_on_eps) == (eps_left, kind == "electrical-nics", False)
        assert got.moved == (kind == "gpu")
        assert (got.stays, got.nvlink_left) == (kind == "controller", 5 / 6 if kind == "nvswitch" else 1)
        for field in ("nic_gbps", "delay_s", "relay_efficiency"):
            assert getattr(got.region, field) == getattr(whole, field)
        # Elsewhere ranks stay where they are.
        if kind != "gpu":
            share = degraded(region(), kind, server=2, gpus_per_rank=4).share_of_rank(6, 2)
            np.testing.assert_array_equal(share, np.repeat(np.eye(3), 2, axis=0))
    assert (whole.optical_degree, whole.electrical_nics, whole.servers) == (6, 4, 3)
    for server in (0, 2):
        got = degraded(region(), "optical-nic", server=server).region
        assert got.optical_degree.tolist() == [6 - (server == s) for s in range(3)]


def test_the_last_electrical_nic_is_all_of_them():
    got = degraded(region(electrical_nics=1.0), "electrical-nic", server=2)
    assert (got.kind, got.relays, got.eps_left) == ("electrical-nics", True, 0.5)
    assert got.region.electrical_nics.tolist() == [1, 1, 0]


def test_the_last_optical_nic_and_links_that_stay_up():
    for degree in (0, 1):
        got = degraded(region(optical_degree=degree), "optical-nic")
        assert got.region.optical_degree.tolist() == [0, degree, degree]
    for radix, part in (({"radix": 4}, 1 / 2), ({"radix": 5}, 1 / 2), ({"radix": 6}, 2 / 3), ({}, 31 / 32)):
        got = degraded(region(), "link", **radix)  # 64 unless given
        np.testing.assert_allclose(got.region.electrical_nics, 4 * part, rtol=1e-15)
        np.testing.assert_allclose(got.eps_left, part, rtol=1e-15)


def test_a_gpu_takes_its_part_of_a_rank_with_it():
    # Two ranks on each of 2 servers; the first rank of server 1 loses a GPU to the spare server, number 2.
    for gpus, moved in ((1, 1.0), (2, 0.5), (4, 0.25)):
        got = degraded(region(servers=2), "gpu", server=1, gpus_per_rank=gpus)
        assert (got.moved, got.tp_on_eps) == (moved, gpus > 1)
        want = [[1, 0, 0], [1, 0, 0], [0, 1 - moved, moved], [0, 1, 0]]
        np.testing.assert_array_equal(got.share_of_rank(4, 2), want)


def test_where_every_gpu_has_ports_of_its_own_one_nic_of_the_spare_carries_it():
    for gpus, tp_on_eps in ((1, 0), (4, 1 / 4)):
        got = degraded(region(own_ports=True), "gpu", gpus_per_rank=gpus)
        assert (got.region.own_ports, got.tp_on_eps) == (True, tp_on_eps)
        assert got.region.electrical_nics.tolist() == [4, 4, 4, 1]


def test_mistakes_get_a_sentence():
    for kind, settings, sentence in [
        ("gpus", {}, f"failure 'gpus' is unknown (did you mean 'gpu'?); allowed: {', '.join(list(KINDS)[:-1])}."),
        ("link", {"server": 3}, "server must be below the 3 of the region, got 3."),
        ("link", {"server": -1}, "server must be a whole number of at least 0, got -1."),
        ("link", {"server": 1.0}, "server must be a whole number of at least 0, got 1.0."),
        ("link", {"radix": 2}, "radix must be 4 or more for failure 'link' (another link stays up), got 2."),
        ("link", {"radix": 3}, "radix must be 4 or more for failure 'link' (another link stays up), got 3."),
        ("link", {"radix": 1}, "radix must be a whole number of at least 2, got 1."),
    ]:
        assert sentence in refused(degraded, region(), kind, **settings)
    for kind, nics in (("electrical-nics", 2.0), ("electrical-nic", 1.0)):
        for settings in ({"optical_degree": 0}, {"servers": 1}):
            said = refused(degraded, region(electrical_nics=nics, **settings), kind)
            assert said.endswith("needs a peer that circuits reach; the region has none.")
