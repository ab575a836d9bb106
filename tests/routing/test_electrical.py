"""All-to-alls on packet-switched fabrics and inside servers, against simulation and closed forms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, all_to_all_time
from mfabric_jax.fabric import Electrical, Flat, Region
from mfabric_jax.policies import greedy
from mfabric_jax.routing import delegated, inside_time, spray_time
from mfabric_jax.traffic import server_bytes
from tests.oracles.tree import tree

GBPS = 400.0
NIC = GBPS * 0.125e9  # bytes/s
RANKS, DRAWS = 8, 6
RTOL = 1e-9


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile():
    """Many small programs, each run a few times."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def fabric(over=None, nic_use="own", nics=8, pxn=False):
    over = None if over is None else jnp.asarray(over)
    return Electrical("fat-tree", jnp.asarray(GBPS), nics=nics, oversubscription=over, nic_use=nic_use, pxn=pxn)


@eqx.filter_jit
def seconds(where, demand, ranks_per_server):
    return jax.vmap(lambda one: spray_time(where, one, ranks_per_server))(demand)


def draw(seed, ranks=RANKS, draws=DRAWS):
    """Heavy and light pairs, some without any bytes, and ranks that keep some."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.5, (draws, ranks, ranks)) * (rng.random((draws, ranks, ranks)) < 0.8) * 1e8


def leaving(demand, per_server):
    """Without the pairs that share a server."""
    server = np.arange(demand.shape[-1]) // per_server
    return np.where(server[:, None] == server[None, :], 0, demand)


def per_servers(demand, per_server):
    servers = demand.shape[-1] // per_server
    return demand.reshape(-1, servers, per_server, servers, per_server).sum(axis=(2, 4))


@pytest.mark.parametrize("over", [None, 1.0, 3.0])
@pytest.mark.parametrize("per_server", [1, 2, 4])
def test_own_nics_against_the_oracle(per_server, over):
    demand = draw(per_server)
    got = seconds(fabric(over), demand, per_server)
    port = np.full(RANKS, NIC * 8 / per_server)
    edge = () if over is None else (np.full(RANKS // per_server, 8 * NIC / over),) * 2
    want = [tree(one, port, port, *edge).max() for one in leaving(demand, per_server)]
    np.testing.assert_allclose(got, want, rtol=RTOL)


@pytest.mark.parametrize(("per_server", "over"), [(2, None), (2, 3.0), (4, None), (4, 3.0)])
def test_pooled_nics_against_the_oracle(per_server, over):
    demand = draw(10 + per_server)
    got = seconds(fabric(over, "pooled"), demand, per_server)
    port = np.full(RANKS // per_server, 8 * NIC / (over or 1.0))
    want = [tree(one, port, port).max() for one in per_servers(leaving(demand, per_server), per_server)]
    np.testing.assert_allclose(got, want, rtol=RTOL)


@pytest.mark.parametrize("nic_use", ["own", "pooled"])
@pytest.mark.parametrize("over", [None, 3.0])
def test_pairs_inside_a_server_do_not_count(nic_use, over):
    demand = draw(20)
    where = fabric(over, nic_use)
    np.testing.assert_array_equal(seconds(where, demand, 2), seconds(where, leaving(demand, 2), 2))
    inside_only = demand - leaving(demand, 2)
    np.testing.assert_array_equal(seconds(where, inside_only, 2), np.zeros(DRAWS))


def test_one_server_has_nothing_to_send():
    np.testing.assert_array_equal(seconds(fabric(), draw(20), RANKS), np.zeros(DRAWS))


# ------------------------------------------------------------------------------------------------------ closed forms
def balanced(ranks, each=1e8):
    """Every rank sends as much to every rank, itself included."""
    return np.full((DRAWS, ranks, ranks), each)


@pytest.mark.parametrize(("ranks", "per_server"), [(8, 2), (8, 4)])
def test_balanced_traffic_takes_the_bytes_over_the_nics(ranks, per_server):
    leaves = (ranks - per_server) * 1e8  # of every rank
    own = leaves / (8 / per_server * NIC)
    np.testing.assert_allclose(seconds(fabric(), balanced(ranks), per_server), own, rtol=RTOL)
    np.testing.assert_allclose(seconds(fabric(nic_use="pooled"), balanced(ranks), per_server), own, rtol=RTOL)
    for nic_use in ("own", "pooled"):  # the edge limits: all of it behind 8/3 NICs
        np.testing.assert_allclose(seconds(fabric(3.0, nic_use), balanced(ranks), per_server), 3 * own, rtol=RTOL)


def test_fewer_nics():
    # 16 messages leave each server over 2 NICs; with 8 NICs and own ones, see above.
    pooled = seconds(fabric(nics=2, nic_use="pooled"), balanced(8), 4)
    np.testing.assert_allclose(pooled, 16e8 / (2 * NIC), rtol=RTOL)


def test_a_rank_s_own_nics_limit_it_however_wide_the_edge():
    demand = np.zeros((DRAWS, 8, 8))
    demand[:, 0, 4] = 1e9
    np.testing.assert_allclose(seconds(fabric(), demand, 4), 1e9 / (2 * NIC), rtol=RTOL)
    np.testing.assert_allclose(seconds(fabric(nic_use="pooled"), demand, 4), 1e9 / (8 * NIC), rtol=RTOL)
    # One to one, 2 NICs; behind an edge 8-fold oversubscribed there is 1.
    np.testing.assert_allclose(seconds(fabric(8.0), demand, 4), 1e9 / NIC, rtol=RTOL)


@pytest.mark.parametrize("over", [None, 3.0])
def test_pooling_never_takes_longer_between_two_servers(over):
    # There the pooled time is the port bound itself. With more servers max-min sharing can favour either by percents.
    demand = draw(30)
    own, pooled = (np.asarray(seconds(fabric(over, use), demand, 4)) for use in ("own", "pooled"))
    assert np.all(own >= pooled * (1 - RTOL))
    assert over is not None or np.all(own > 1.1 * pooled)


@pytest.mark.parametrize("nic_use", ["own", "pooled"])
def test_rail_optimised_is_a_fat_tree_for_all_to_alls(nic_use):
    demand = draw(40)
    rails = Electrical("rail-optimized", jnp.asarray(GBPS), nic_use=nic_use)
    np.testing.assert_array_equal(seconds(rails, demand, 2), seconds(fabric(nic_use=nic_use), demand, 2))


def test_two_servers_balanced_mfabric_over_fat_tree():
    # Six circuits carry what eight NICs carry: 8/6.
    demand, region = balanced(16), Region(2, GBPS)
    apart = server_bytes(jnp.asarray(demand[0]), 8)
    plan = greedy(apart, region)
    np.testing.assert_array_equal(plan.circuits.count, [[0, 6], [6, 0]])
    on_circuits = jax.jit(lambda d: all_to_all_time(region, plan, d))(apart)
    for nic_use in ("own", "pooled"):
        on_tree = seconds(fabric(nic_use=nic_use), demand, 8)
        np.testing.assert_allclose(on_circuits / on_tree, 8 / 6, rtol=1e-6)


def test_bandwidth_and_oversubscription_are_data():
    traces = []

    @jax.jit
    def run(gbps, over, demand):
        traces.append(gbps)
        return spray_time(Electrical("oversub-fat-tree", gbps, oversubscription=over), demand, 2)

    demand = draw(50)[0]
    at = [(100.0, 3.0), (400.0, 3.0), (400.0, 1.5)]
    one = [run(jnp.asarray(gbps), jnp.asarray(over), demand) for gbps, over in at]
    assert len(traces) == 1
    np.testing.assert_allclose(one[0] / one[1], 4.0, rtol=RTOL)
    gbps, over = (jnp.asarray(column) for column in zip(*at, strict=True))
    np.testing.assert_allclose(jax.vmap(run, (0, 0, None))(gbps, over, jnp.asarray(demand)), one, rtol=RTOL)


def test_float32():
    # Rounding of sums over a few dozen events: digits, not percents.
    demand = draw(60)
    for nic_use in ("own", "pooled"):
        where = Electrical("fat-tree", jnp.asarray(GBPS, jnp.float32), nic_use=nic_use)
        got = seconds(where, jnp.asarray(demand, jnp.float32), 2)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, seconds(fabric(nic_use=nic_use), demand, 2), rtol=2e-5)


# ---------------------------------------------------------------------------------------------------------------- pxn
def by_way_of(demand, per_server):
    """With pxn, one pair after the other: bytes from NICs to NICs, and over the NVSwitch of the sender [S g g]."""
    nics = np.zeros_like(demand)
    inside = np.zeros((len(demand) // per_server, per_server, per_server))
    for src, dst in np.ndindex(demand.shape):
        server = src // per_server
        if server != dst // per_server:
            nics[server * per_server + dst % per_server, dst] += demand[src, dst]
            inside[server, src % per_server, dst % per_server] += demand[src, dst]
    return nics, inside


def sends(ranks, pairs):
    """Gigabytes by pair, the same in every draw."""
    demand = np.zeros((DRAWS, ranks, ranks))
    for pair, gigabytes in pairs.items():
        demand[(slice(None), *pair)] = gigabytes * 1e9
    return demand


@pytest.mark.parametrize(("per_server", "over"), [(2, None), (2, 3.0), (4, None), (4, 3.0)])
def test_pxn_against_the_oracle(per_server, over):
    demand = draw(80 + per_server)
    got = seconds(fabric(over, pxn=True), demand, per_server)
    port = np.full(RANKS, NIC * 8 / per_server)
    edge = () if over is None else (np.full(RANKS // per_server, 8 * NIC / over),) * 2
    want = [tree(by_way_of(one, per_server)[0], port, port, *edge).max() for one in demand]
    np.testing.assert_allclose(got, want, rtol=RTOL)
    if over is None:
        assert np.any(np.abs(got / seconds(fabric(), demand, per_server) - 1) > 0.05)


@pytest.mark.parametrize(
    ("pairs", "own", "pxn"),
    [
        # Two ranks a server, of 4 NICs each; GB over a rank's NICs. Rank 0 for both ranks of server 1: two rails carry.
        ({(0, 2): 4, (0, 3): 4}, 8, 4),
        # Ranks 0 and 1 for first ranks, in two servers: all of it leaves by rank 0's NICs.
        ({(0, 2): 4, (1, 4): 4}, 4, 8),
        # Both for rank 2: its own NICs limit either way.
        ({(0, 2): 4, (1, 2): 4}, 8, 8),
        # Rank 0 for second ranks and back: the rail of rank 1 alone is loaded, in both directions.
        ({(0, 3): 6, (3, 0): 2}, 6, 6),
        # On their own rails nothing changes.
        ({(0, 2): 3, (1, 5): 5, (4, 0): 1}, 5, 5),
    ],
)
def test_pxn_on_skewed_traffic_by_hand(pairs, own, pxn):
    demand = sends(6, pairs)
    np.testing.assert_allclose(seconds(fabric(), demand, 2), own * 1e9 / (4 * NIC), rtol=RTOL)
    np.testing.assert_allclose(seconds(fabric(pxn=True), demand, 2), pxn * 1e9 / (4 * NIC), rtol=RTOL)


@pytest.mark.parametrize("over", [None, 3.0])
def test_pxn_changes_nothing_where_traffic_is_balanced(over):
    same = seconds(fabric(over), balanced(8), 2)
    np.testing.assert_allclose(seconds(fabric(over, pxn=True), balanced(8), 2), same, rtol=RTOL)
    np.testing.assert_allclose(same, 6e8 * (over or 1) / (4 * NIC), rtol=RTOL)


def test_pxn_of_one_rank_a_server_and_of_one_server():
    demand = draw(90)
    np.testing.assert_array_equal(seconds(fabric(pxn=True), demand, 1), seconds(fabric(), demand, 1))
    assert not delegated(PXN, jnp.asarray(demand[0]), RANKS).any()


def test_rails_without_a_way_between_them_need_pxn():
    with pytest.raises(InputError, match="rail-only has no way between rails without pxn"):
        Electrical("rail-only", GBPS)
    with pytest.raises(InputError, match="nic_use must be own, got 'pooled'"):
        Electrical("rail-optimized", GBPS, nic_use="pooled", pxn=True)
    demand, rails = draw(91), Electrical("rail-only", jnp.asarray(GBPS), pxn=True)
    np.testing.assert_array_equal(seconds(rails, demand, 2), seconds(fabric(pxn=True), demand, 2))


# ----------------------------------------------------------------------------------------------------- inside servers
OWN, PXN, POOLED = fabric(), fabric(pxn=True), fabric(nic_use="pooled")
CIRCUITS, WIRED, CO_PACKAGED = Region(2, GBPS), Flat(2, GBPS), Region(2, GBPS, name="mfabric-cpo")

# GB from rank to rank on two servers of two: 0 and 1 send 6 and 2 and get 4 and 0, 2 and 3 send 0 and 4, get 6 and 2.
CROSSING = {(0, 2): 6, (1, 3): 2, (3, 0): 4, (0, 1): 9}  # 9 stays in the server


@pytest.mark.parametrize(
    ("where", "first", "second"),
    [
        (OWN, [[0, 0], [0, 0]], [[0, 0], [0, 0]]),
        # To the rank of the destination; 3 -> 0 leaves by rank 2.
        (PXN, [[6, 0], [0, 2]], [[0, 0], [4, 0]]),
        # Half of 8 GB leaves by either: 0 hands 2 to 1, and gets 2 of its 4 from there. Server 1: 2 from 3, 2 from 3.
        (POOLED, [[0, 2], [2, 0]], [[0, 0], [4, 0]]),
        # Out 6/2 and 2/2 to both, in 4/2 from both; server 1: out 4/2 to both, in 6/2 and 2/2 from both.
        (CIRCUITS, [[3 + 2, 3], [1 + 2, 1]], [[3, 1], [2 + 3, 2 + 1]]),
        (WIRED, [[3 + 2, 3], [1 + 2, 1]], [[3, 1], [2 + 3, 2 + 1]]),
        # Out as on pooled NICs, in as from circuits.
        (CO_PACKAGED, [[2, 2], [2, 0]], [[3, 1], [2 + 3, 1]]),
    ],
)
def test_what_crosses_the_nvswitch_by_hand(where, first, second):
    got = delegated(where, jnp.asarray(sends(4, CROSSING)[0]), 2)
    np.testing.assert_allclose(got / 1e9, [first, second], rtol=RTOL, atol=1e-12)


def test_what_crosses_the_nvswitch_takes_its_time():
    # A rank has 1 GB/s: the busiest port, without what stays on a rank.
    ends = [
        float(nvswitch_seconds(delegated(where, jnp.asarray(sends(4, CROSSING)[0]), 2), 1e9))
        for where in (OWN, PXN, POOLED, CIRCUITS, CO_PACKAGED)
    ]
    np.testing.assert_allclose(ends, [0, 4, 4, 5, 5], rtol=RTOL, atol=1e-12)


@pytest.mark.parametrize("per_server", [2, 4])
def test_pxn_inside_against_the_oracle(per_server):
    for demand in draw(100 + per_server):
        got = delegated(PXN, jnp.asarray(demand), per_server)
        np.testing.assert_allclose(got, by_way_of(demand, per_server)[1], rtol=RTOL)


def scattered(demand, per_server):
    """Every pair's bytes from its source to all ranks of that server, and to its sink from all ranks of that one."""
    moved = np.zeros((len(demand) // per_server, per_server, per_server))
    for src, dst in np.ndindex(demand.shape):
        if src // per_server != dst // per_server:
            moved[src // per_server, src % per_server] += demand[src, dst] / per_server
            moved[dst // per_server, :, dst % per_server] += demand[src, dst] / per_server
    return moved


@pytest.mark.parametrize("per_server", [2, 4])
def test_circuits_inside_against_the_oracle(per_server):
    for demand in draw(110 + per_server):
        for where in (CIRCUITS, WIRED):
            got = delegated(where, jnp.asarray(demand), per_server)
            np.testing.assert_allclose(got, scattered(demand, per_server), rtol=RTOL)


@pytest.mark.parametrize("where", [POOLED, CO_PACKAGED])
def test_pooled_nics_move_no_more_than_they_must(where):
    # One way alone, four ranks a server: afterwards all have the mean, and nobody both hands over and gets.
    demand = leaving(draw(120)[0], 4)
    demand[4:] = 0
    moved = np.asarray(delegated(where, jnp.asarray(demand), 4))[0]
    out = demand[:4].sum(1)
    np.testing.assert_allclose(out - moved.sum(1) + moved.sum(0), out.mean(), rtol=RTOL)
    np.testing.assert_allclose(moved.sum(), np.maximum(out - out.mean(), 0).sum(), rtol=RTOL)
    assert not np.any((moved.sum(0) > 0) & (moved.sum(1) > 0))
    assert moved.min() >= 0


def test_balanced_traffic_inside():
    # Each rank sends 1e8 to each of four ranks elsewhere: nothing to level, a quarter to and from every circuit.
    even = jnp.asarray(balanced(8)[0])
    for where, each in ((OWN, 0), (POOLED, 0), (PXN, 1e8), (CIRCUITS, 2e8), (CO_PACKAGED, 1e8)):
        np.testing.assert_allclose(delegated(where, even, 4), np.full((2, 4, 4), each), rtol=RTOL, err_msg=repr(where))


nvswitch_seconds = jax.jit(inside_time)


def test_inside_against_the_oracle():
    demand = draw(70, ranks=4, draws=3)
    rate, alone = 9e11, np.eye(3)[:, :, None, None]
    port = np.full(4, rate)
    want = [tree(np.where(np.eye(4, dtype=bool), 0, one), port, port).max() for one in demand]
    each = [nvswitch_seconds(jnp.asarray(demand * pick), rate) for pick in alone]
    np.testing.assert_allclose(each, want, rtol=RTOL)
    np.testing.assert_allclose(nvswitch_seconds(jnp.asarray(demand), rate), max(want), rtol=RTOL)


def test_inside_balanced_and_nothing_to_send():
    np.testing.assert_allclose(nvswitch_seconds(jnp.full((3, 4, 4), 1e9), 1e12), 3e9 / 1e12, rtol=RTOL)
    assert nvswitch_seconds(jnp.full((3, 4, 4), 1e9) * jnp.eye(4)[None], 1e12) == 0
