"""The twisted torus: hops, diameter and loads of the published slices, prices, and clusters that no shape fits."""

import numpy as np
import pytest

from mfabric_jax.fabric import cluster, cluster_cost, degrade
from mfabric_jax.fabric.grids import rings
from mfabric_jax.fabric.torus import torus_mesh
from mfabric_jax.fabric.twisted_torus import shape_of, twisted_mesh, usual_shape
from mfabric_jax.routing.fixed import add_paths, fixed_time
from mfabric_jax.routing.shortest import distances
from tests.fabric.links import carried, loads_of, mean_hops, of_all, oracle
from tests.small import JOB, refused, row, small


def even(mesh):
    return np.ones((mesh.servers, mesh.servers))


# shape: mean hops, diameter, busiest link of an all-to-all of one unit a pair, that of the plain torus.
# 4x4x8: 440 hops from every node to the 127 others, over 6 links each: 440 / 6. Plain torus in dimension order: a link
# of the ring of 8 carries N x 8 / 8. Hops: 3.465 as published figures of this graph (tests/fabric/test_made_graphs.py).
SLICES = {(4, 4, 8): (440 / 127, 6, 440 / 6, 128), (4, 8, 8): (1104 / 255, 6, 184, 256)}


@pytest.mark.parametrize("shape", SLICES)
def test_all_to_alls_on_the_published_slices(shape):
    hops, diameter, busiest, plain = SLICES[shape]
    mesh = twisted_mesh(shape, 1)
    assert mean_hops(mesh) == pytest.approx(hops)
    assert distances(mesh.network, np.arange(mesh.servers)).max() == diameter
    np.testing.assert_allclose(carried(mesh, even(mesh)), busiest, rtol=1e-12)  # all links alike
    assert carried(torus_mesh(shape, 1), even(mesh)).max() == plain


def test_the_gain_over_the_plain_torus():
    found = {shape: (hops, plain / busiest) for shape, (hops, _, busiest, plain) in SLICES.items()}
    assert found[4, 4, 8] == pytest.approx((3.465, 1.745), abs=5e-4)
    assert found[4, 8, 8] == pytest.approx((4.329, 1.391), abs=5e-4)


def test_a_short_ring_closes_with_a_shift():
    # 2 x 4, by hand: from (1, y) on to (0, y + 2), from (x, 3) on to (x, 0).
    ((_, _, along), (_, _, up)) = rings((2, 4), 2)
    assert along.tolist() == [1, 4, 3, 6, 5, 0, 7, 2]
    assert up.tolist() == [2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.parametrize("shape", [(2, 2, 4), (2, 4, 4), (3, 3, 6)])
def test_every_link_carries_what_a_plain_loop_says(shape):
    mesh = twisted_mesh(shape, 2)
    demand = np.random.default_rng(1).integers(0, 50, (mesh.servers,) * 2)
    found = loads_of(mesh, demand)
    assert found == pytest.approx(oracle(mesh, demand))
    assert mesh.count.sum(axis=1).tolist() == [12] * mesh.servers


def test_an_all_to_all_takes_what_its_busiest_link_takes():
    group = of_all(twisted_mesh((4, 4, 8), 1))
    assert float(fixed_time(group, np.ones((128, 128)), 1)) == pytest.approx(440 / 6)
    assert group.ring_nics == pytest.approx(127 * 6 / 440)  # gradients: an even all-to-all of a NIC's bytes
    left = add_paths(degrade(group, "link").group)
    assert left.mesh.nics.sum() == group.mesh.nics.sum() - 2
    assert float(fixed_time(left, np.ones((128, 128)), 1)) > 440 / 6


def test_shapes():
    known = {
        16: (2, 2, 4),
        32: (2, 4, 4),
        54: (3, 3, 6),
        108: (3, 6, 6),
        128: (4, 4, 8),
        256: (4, 8, 8),
        2048: (8, 16, 16),
    }
    assert {servers: usual_shape(servers) for servers in known} == known
    assert shape_of(128, "8x4x4") == (8, 4, 4)
    twisted = {"network.fabric": "twisted-torus"}
    assert refused(twisted | {"job.parallel.gpus": 512}, small()) == (
        "network.fabric twisted-torus needs n x n x 2n or n x 2n x 2n servers, n at least 2 (16, 32, 54, 108, 128, 256 "
        "and so on), got 64."
    )
    for shape, sentence in (
        ("4x4x4", "only sizes n and 2n, such as 4x4x8, got 4x4x4."),
        ("8x16", "network.twisted-torus.shape must be three sizes with the product 128 (servers), got 8x16."),
        ("2x4x4", "network.twisted-torus.shape must be three sizes with the product 128 (servers), got 2x4x4."),
    ):
        assert sentence in refused(twisted | {"network.twisted-torus.shape": shape}, small())
    assert "twisted-torus needs equally many NICs in each of its 6" in refused(twisted | {"network.nics": 8}, small())


def test_what_a_server_pays():
    # 4x4x8: of 6 NICs 2/4 + 2/4 + 2/8 = 1.25 close rings through an optical switch, 4.75 share a fibre with a peer.
    dollars = 6 * (1499 + 659) + 4.75 / 2 * 150 + 1.25 * (150 + 520)
    assert cluster_cost("twisted-torus", 128, 400, shape=(4, 4, 8)) == pytest.approx(128 * dollars)
    assert cluster("twisted-torus", 128, 400.0).mesh.inner_links == 3 * 128


@pytest.mark.usefixtures("as_users_have_it")
def test_an_iteration():
    # 16 servers in 2 x 2 x 4; groups are two servers along x, which the one link of the ring of 2 joins directly, and
    # the one that closes it does not, as it is twisted: half of the torus's two NICs.
    found, torus = (row(small(JOB | {"network.fabric": name})) for name in ("twisted-torus", "torus"))
    assert (found["nic_use"], found["routing"]) == ("pooled", "shortest paths")
    assert found["ep_comm_s"] > torus["ep_comm_s"]
