"""NICs split over planes: rates, all-to-alls with flows on a plane of their own, room, parts and failures."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, resolve
from mfabric_jax.fabric import degrade, get
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.registry import site_of
from mfabric_jax.routing.fixed import fixed_time, on_planes
from tests.small import row, small

OWN = {"network.fabric": "multi-plane", "network.multi-plane.flows": "own"}


def group_of(changes):
    return get("multi-plane").group(resolve(small({"network.fabric": "multi-plane"} | changes)).site, 100.0)


def on_site(name, **settings):
    return get(name), site_of(name, settings)[0]


def test_sprayed_planes_are_a_tree_of_two_tiers():
    tree = {"network.fabric": "fat-tree", "network.tiers": 2}
    for planes in (1, 4, 8):
        one = row(small({"network.fabric": "multi-plane", "network.multi-plane.planes": planes}))
        assert one["iteration_s"] == row(small(tree))["iteration_s"]


def test_two_tiers_have_room_for_what_needed_three():
    planes, site = on_site("multi-plane", radix=64, planes=8)
    tree = planes.links(site).tree
    assert (tree.tiers, tree.most_hosts) == (2, 131_072)  # 512-port switches: 512 of 256 down
    whole, site = on_site("fat-tree", radix=64, tiers=2)
    assert whole.links(site).tree.most_hosts == 2_048
    with pytest.raises(InputError, match="room for 8 hosts"):
        group_of({"network.radix": 4, "network.multi-plane.planes": 1})


def test_parts_of_a_split_nic():
    (parts,), (whole,) = (
        fabric.parts(site) for fabric, site in (on_site("multi-plane", planes=8), on_site("fat-tree", tiers=2))
    )
    assert parts.attachment.counts == whole.attachment.counts


@pytest.mark.parametrize(("ranks", "per_server", "planes"), [(4, 2, 2), (6, 2, 4), (8, 4, 3), (4, 1, 1)])
def test_flows_on_a_plane_of_their_own_pair_by_pair(ranks, per_server, planes):
    rng = np.random.default_rng(ranks)
    demand = rng.uniform(0, 1e9, (3, ranks, ranks))
    port_Bps = 8 / per_server * 12.5e9 / planes
    for one in demand:
        out, into = np.zeros((ranks, planes)), np.zeros((ranks, planes))
        for i, j in np.ndindex(ranks, ranks):
            if i // per_server != j // per_server:
                out[i, (i + j) % planes] += one[i, j]
                into[j, (i + j) % planes] += one[i, j]
        # A star whose ports carry whole demands ends with its busiest port, if that port is never idle.
        group = Electrical(100.0, planes=planes, own_plane=True)
        got = float(fixed_time(group, jnp.asarray(one), per_server))
        sent = Electrical(100.0)
        assert got >= max(out.max(), into.max()) / port_Bps * (1 - 1e-12)
        assert got >= float(fixed_time(sent, jnp.asarray(one), per_server)) * (1 - 1e-12) or planes == 1
    split = on_planes(demand, planes)
    assert split.shape == (3, ranks * planes, ranks * planes)
    np.testing.assert_allclose(split.sum((1, 2)), demand.sum((1, 2)))


def test_an_all_to_all_by_hand():
    # Four servers of one rank on 8 x 12.5 GB/s, 1 GB a pair: 3 GB over 100 GB/s. Two planes of 50 GB/s: rank 0 sends
    # to 2 on plane 0 and to 1 and 3 on plane 1, which is busy for 2 GB.
    demand = jnp.asarray((1 - np.eye(4)) * 1e9)
    time = lambda **planes: float(fixed_time(Electrical(100.0, **planes), demand, 1))  # noqa: E731
    assert time(planes=2) == pytest.approx(0.03)
    assert time(planes=2, own_plane=True) == pytest.approx(0.04)


def test_planes_and_links_that_fail():
    demand = jnp.asarray((1 - np.eye(4)) * 1e9)
    whole = Electrical(100.0, planes=4)
    for kind, of_port, of_server in (("plane", 3 / 4, 3 / 4), ("switch", 3 / 4, 3 / 4), ("plane-link", 3 / 4, 31 / 32)):
        left = degrade(whole, kind, servers=4, gpus_per_rank=8)
        assert left.eps_left == of_server
        slower = float(fixed_time(left.group, demand / 12.5e9, 1))
        assert slower == pytest.approx(0.03 / of_port), kind
    with pytest.raises(InputError, match="on one plane"):
        degrade(Electrical(100.0), "plane", servers=4)


def test_what_planes_of_their_own_need():
    with pytest.raises(InputError, match="nic_use own"):
        group_of(OWN | {"network.nic_use": "pooled"})
    with pytest.raises(InputError, match="oversubscription auto or 1"):
        group_of(OWN | {"network.oversubscription": 2.0})
    one = group_of(OWN | {"network.oversubscription": 1.0})
    assert (one.planes, one.own_plane) == (8, True)
