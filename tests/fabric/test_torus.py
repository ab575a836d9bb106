"""The torus by hand: links, shortest ways in dimension order, what a server pays, a ring of eight servers."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.evaluate import resolve
from mfabric_jax.fabric import Circuits, cluster, cluster_cost, get
from mfabric_jax.fabric.grids import ascending_steps, ring_circuits, totient_steps
from mfabric_jax.fabric.region import round_robin
from mfabric_jax.fabric.registry import cost_table
from mfabric_jax.fabric.torus import dimension_order, near_cube, near_square, torus_links
from mfabric_jax.routing import cluster_routes, links_of
from mfabric_jax.routing.fixed import add_paths, fixed_time
from mfabric_jax.workload import get as job_of
from tests.small import small

SHAPES = ((4, 3, 2), (5, 1, 1), (2, 2, 2), (3, 3, 3), (1, 1, 1))


def steps(shape, a, b):
    """Hops of a shortest way: around every ring the shorter way."""
    here, there = (np.unravel_index(server, shape[::-1])[::-1] for server in (a, b))
    return sum(min((t - h) % n, (h - t) % n) for h, t, n in zip(here, there, shape, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_is_a_shortest_one_along_x_then_y_then_z(shape):
    links, following, servers = torus_links(shape), dimension_order(shape), int(np.prod(shape))
    np.testing.assert_array_equal(links, links.T)
    np.testing.assert_array_equal(links.sum(1), 2 * sum(size > 1 for size in shape))
    for a, b in itertools.product(range(servers), repeat=2):
        at, axes = a, []
        while at != b:
            then = following[at, b]
            assert links[at, then] > 0
            axes.append(1 if (then - at) % shape[0] == 0 else 0)
            at = then
        assert len(axes) == steps(shape, a, b)
        assert axes == sorted(axes)  # never back to x


def test_planes_and_boxes():
    assert [near_square(n) for n in (1, 2, 4, 8, 7, 12)] == [(1, 1), (2, 1), (2, 2), (4, 2), (7, 1), (4, 3)]
    assert [near_cube(n) for n in (1, 8, 64, 128, 13)] == [(1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 4, 4), (13, 1, 1)]


def test_a_ring_of_four_by_hand():
    # 4 servers in a 2 x 2 plane, one NIC a direction: x and y join neighbours twice. Everybody sends 6 GB to the
    # server across: one hop along x beside everybody else, then one along y: 6 GB over 2 links of 1 GB/s each.
    settings, job = resolve(small({"network.fabric": "torus"})), job_of("mixtral-8x7b")
    group = get("torus").group(settings.site_of(job), 8.0)
    assert (group.servers, group.nics, group.ring_nics) == (4, 4, 2)
    group = add_paths(group)
    assert group.stage_nics == 1 / 8  # eight replicas of a stage share the way to the next one
    across = np.zeros((4, 4))
    across[[0, 1, 2, 3], [3, 2, 1, 0]] = 6e9
    assert float(fixed_time(group, across, 1)) == pytest.approx(3.0)
    beside = np.zeros((4, 4))
    beside[0, 1] = 6e9
    assert float(fixed_time(group, beside, 1)) == pytest.approx(3.0)


def test_groups_of_one_server_lay_stages_out_in_planes():
    """Two stages of 16 servers of 8 GPUs, whose groups are single servers: 4 x 4 x 2, a NIC for each send."""
    degrees = {"tp": 1, "ep": 8, "pp": 2, "dp": 16}
    degrees = {f"job.parallel.{name}": degree for name, degree in degrees.items()}
    found = resolve(small({"network.fabric": "torus"} | degrees))
    torus = get("torus")
    mesh = torus.links(found.site).mesh
    assert mesh is not None
    np.testing.assert_array_equal(mesh().places.max(axis=0) + 1, (4, 4, 2))
    group = torus.group(found.site, 400.0)
    assert (group.servers, group.ring_nics, group.stage_nics) == (1, 2, 1)


def test_flows_of_a_cluster_take_the_way_of_their_group():
    made = cluster("torus", 24, 100.0, shape=(4, 3, 2), link_delay_s=0.0)
    network, gpus = links_of(made), made.gpus_per_server
    src, dst = (x.ravel() * gpus for x in np.mgrid[:24, :24])
    routes = cluster_routes(made, src, dst)
    circuits = network.run("circuit")
    crossed = ((routes.hops >= circuits.start) & (routes.hops < circuits.stop)).sum(1)
    np.testing.assert_array_equal(
        crossed, [steps((4, 3, 2), s // gpus, d // gpus) for s, d in zip(src, dst, strict=True)]
    )
    np.testing.assert_allclose(network.capacity[circuits], made.nic_Bps * np.where(made.circuits.count > 1, 2, 1))


def test_what_a_server_pays():
    # (4, 2, 8): of 6 NICs 2/4 + 2/2 + 2/8 = 1.75 go through an optical switch, the others share a fibre with a peer.
    rows = {(row["attached_to"], row["part"]): row["count"] for row in cost_table("torus", 400, shape=(4, 2, 8))}
    direct = {"nic": 4.25, "transceiver": 4.25, "fibre": 2.125}
    through = dict.fromkeys(("nic", "transceiver", "fibre", "ocs_port"), 1.75)
    want = {("direct link", part): n for part, n in direct.items()} | {
        ("wrap-around", part): n for part, n in through.items()
    }
    assert rows == pytest.approx(want)
    dollars = 6 * (1499 + 659) + 2.125 * 150 + 1.75 * (150 + 520)
    assert cluster_cost("torus", 64, 400, shape=(4, 2, 8)) == pytest.approx(64 * dollars)
    assert cluster_cost("torus", 64, 400, nics=12, shape=(4, 2, 8)) == pytest.approx(128 * dollars)


def test_steps():
    for servers, rings, ascending, totient in [
        (8, 2, [1, 3], [1, 3]),
        (8, 3, [1, 3, 5], [1, 3, 1]),  # 5 is 3 the other way
        (6, 2, [1, 5], [1, 1]),
        (16, 3, [1, 3, 5], [1, 3, 7]),  # 16^(1/3) = 2.52: 2.52, then 7.56
        (32, 3, [1, 3, 5], [1, 3, 9]),  # 3.17: 3.17, then 9.52
        (2, 3, [1, 1, 1], [1, 1, 1]),
        (1, 2, [1, 1], [1, 1]),
    ]:
        assert ascending_steps(servers, rings) == ascending, (servers, rings)
        assert totient_steps(servers, rings) == totient, (servers, rings)


def test_circuits():
    ring = [[0, 1, 0, 0, 0, 1], [1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1]]
    np.testing.assert_array_equal(ring_circuits(6, [1]), [*ring, [1, 0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(ring_circuits(6, [5]), ring_circuits(6, [1]))
    np.testing.assert_array_equal(ring_circuits(2, [1, 1]), [[0, 4], [4, 0]])
    assert not ring_circuits(1, [1]).any()
    eight = ring_circuits(8, [1, 3, 5])
    np.testing.assert_array_equal(eight[0], [0, 1, 0, 2, 0, 2, 0, 1])
    assert (eight == eight.T).all()
    assert (eight.sum(axis=1) == 6).all()


LEGAL = [[0, 2, 1], [2, 0, 1], [1, 1, 0]]  # degrees 3, 3, 2
ILLEGAL = {
    "not symmetric": [[0, 2, 1], [1, 0, 1], [1, 1, 0]],
    "a server joined to itself": [[1, 1, 0], [1, 0, 1], [0, 1, 0]],
    "a count that is negative or NaN": [[0, -1, 1], [-1, 0, 1], [1, 1, 0]],
    "more circuits at a server than its optical degree": [[0, 2, 2], [2, 0, 1], [2, 1, 0]],
}


@eqx.filter_jit
def checked(count, degree):
    return Circuits(count).check_legal(degree).count


def test_legal_circuits_pass_unchanged():
    for kind in (int, float):
        count = jnp.asarray(LEGAL, kind)
        for got in (checked(count, jnp.asarray(3)), Circuits(count).check_legal(3).count):
            np.testing.assert_array_equal(got, count)
            assert got.dtype == count.dtype
    half = jnp.asarray([[0, 0.5], [0.5, 0]])  # of a relaxation
    assert Circuits(half).check_legal(0.5).count is not None
    Circuits(LEGAL).check_legal(jnp.asarray([3, 3, 2]))  # every server may have its own degree


def test_the_broken_rule_is_named_under_jit_too():
    for rule, count in ILLEGAL.items():
        with pytest.raises(Exception, match=f"circuits: {rule}"):
            Circuits(count).check_legal(3)
        with pytest.raises(Exception, match=f"circuits: {rule}"):
            jax.block_until_ready(checked(jnp.asarray(count), jnp.asarray(3)))
    for count, degree in ((LEGAL, jnp.asarray([3, 3, 1])), ([[0, 0.5], [0.5, 0]], 0.4)):
        with pytest.raises(Exception, match="more circuits at a server than its optical degree"):
            Circuits(jnp.asarray(count)).check_legal(degree)


def test_round_robin_lets_every_pair_meet_once():
    for servers in range(1, 12):
        rounds = round_robin(servers)
        assert rounds.shape == (servers - 1 + servers % 2, servers, servers)
        np.testing.assert_array_equal(rounds, rounds.transpose(0, 2, 1))
        np.testing.assert_array_equal(rounds.sum(0), 1 - np.eye(servers))
        partners = rounds.sum(2)
        assert partners.max(initial=0) <= 1  # a matching: one rests if odd
        np.testing.assert_array_equal((partners == 0).sum(0), servers % 2)
