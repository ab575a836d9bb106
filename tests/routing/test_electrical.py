"""All-to-alls on packet-switched fabrics and inside servers, against simulation and closed forms."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.routing.fixed import add_paths, delegated_bytes, forward_time, inside_time, spray_time
from tests.batches import assert_batch_is_its_loop
from tests.oracles import dense
from tests.oracles.tree import tree

GBPS = 400.0

NIC = GBPS * 0.125e9  # bytes/s

RANKS, DRAWS = 8, 6

RTOL = 1e-9


def fabric(over=None, nic_use="own", nics=8, pxn=False):
    over = None if over is None else jnp.asarray(over)
    return Electrical(jnp.asarray(GBPS), nics=nics, oversubscription=over, nic_use=nic_use, pxn=pxn)


@eqx.filter_jit
def seconds(where, demand, ranks_per_server):
    return jax.vmap(lambda one: spray_time(where, one, ranks_per_server))(demand)


nvswitch_seconds = jax.jit(inside_time)


def draw(seed, ranks=RANKS, draws=DRAWS):
    """Heavy and light pairs, some without any bytes, and ranks that keep some."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.5, (draws, ranks, ranks)) * (rng.random((draws, ranks, ranks)) < 0.8) * 1e8


def leaving(demand, per_server):
    """Without the pairs that share a server."""
    server = np.arange(demand.shape[-1]) // per_server
    return np.where(server[:, None] == server[None, :], 0, demand)


def sends(pairs, ranks=RANKS):
    """Gigabytes by pair, the same in every draw."""
    demand = np.zeros((DRAWS, ranks, ranks))
    for pair, gigabytes in pairs.items():
        demand[(slice(None), *pair)] = gigabytes * 1e9
    return demand


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


PLAIN, TIGHT = (None, False), (3.0, False)  # oversubscription, pxn


def test_own_nics_and_pxn_against_the_oracle():
    for per_server, variants in (
        (1, [PLAIN]),
        (2, [PLAIN, (None, True)]),
        (4, [PLAIN, TIGHT, (1.0, False), (None, True), (3.0, True)]),
    ):
        demand, port, got = draw(per_server), np.full(RANKS, NIC * 8 / per_server), {}
        for over, pxn in variants:
            got[over, pxn] = seconds(fabric(over, pxn=pxn), demand, per_server)
            edge = () if over is None or pxn else (np.full(RANKS // per_server, 8 * NIC / over),) * 2
            sent = [by_way_of(one, per_server)[0] if pxn else one for one in leaving(demand, per_server)]
            want = [tree(one, port, port, *edge).max() for one in sent]
            np.testing.assert_allclose(got[over, pxn], want, rtol=RTOL)
            if not pxn:  # the same backwards
                np.testing.assert_allclose(seconds(fabric(over), demand.swapaxes(1, 2), per_server), want, rtol=RTOL)
        assert per_server == 1 or np.any(np.abs(got[None, True] / got[PLAIN] - 1) > 0.05)


def test_pooled_nics_against_the_oracle():
    demand = draw(14)
    between = leaving(demand, 4).reshape(DRAWS, 2, 4, 2, 4).sum(axis=(2, 4))
    for over, nics in ((None, 8), (3.0, 8), (None, 2)):
        where, port = fabric(over, "pooled", nics), np.full(2, nics * NIC / (over or 1.0))
        got = seconds(where, demand, 4)
        np.testing.assert_allclose(got, [tree(one, port, port).max() for one in between], rtol=RTOL)
        np.testing.assert_array_equal(seconds(where, leaving(demand, 4), 4), got)


OWN, PXN, POOLED = fabric(), fabric(pxn=True), fabric(nic_use="pooled")

CIRCUITS, WIRED, CO_PACKAGED = Region(2, GBPS), DirectLinks(2, GBPS), Region(2, GBPS, own_ports=2)

# GB from rank to rank on two servers of two: 0 and 1 send 6 and 2 and get 4 and 0, 2 and 3 send 0 and 4, get 6 and 2.
CROSSING = {(0, 2): 6, (1, 3): 2, (3, 0): 4, (0, 1): 9}  # 9 stays in the server


def test_what_crosses_the_nvswitch_by_hand():
    for where, first, second, busiest in [
        (OWN, [[0, 0], [0, 0]], [[0, 0], [0, 0]], 0),
        # Half of 8 GB leaves by either: 0 hands 2 to 1, and gets 2 of its 4 from there. Server 1: 2 from 3, 2 from 3.
        (POOLED, [[0, 2], [2, 0]], [[0, 0], [4, 0]], 4),
        # Out as on pooled NICs, in as from circuits: 4/2 to both; server 1: 6/2 and 2/2 to both.
        (CO_PACKAGED, [[2, 2], [2, 0]], [[3, 1], [2 + 3, 1]], 5),
    ]:
        got = delegated_bytes(where, jnp.asarray(sends(CROSSING, 4)[0]), 2)
        np.testing.assert_allclose(got / 1e9, [first, second], rtol=RTOL, atol=1e-12)
        # At 1 GB/s a rank the busiest port decides, without what stays on a rank.
        np.testing.assert_allclose(nvswitch_seconds(got, 1e9), busiest, rtol=RTOL, atol=1e-12)


def scattered(demand, per_server):
    """Every pair's bytes from its source to all ranks of that server, and to its sink from all ranks of that one."""
    moved = np.zeros((len(demand) // per_server, per_server, per_server))
    for src, dst in np.ndindex(demand.shape):
        if src // per_server != dst // per_server:
            moved[src // per_server, src % per_server] += demand[src, dst] / per_server
            moved[dst // per_server, :, dst % per_server] += demand[src, dst] / per_server
    return moved


def test_pxn_and_circuits_inside_against_the_oracle():
    for per_server in (2, 4):
        for demand in draw(100 + per_server):
            pxn, spread = by_way_of(demand, per_server)[1], scattered(demand, per_server)
            for where, want in ((PXN, pxn), (CIRCUITS, spread), (WIRED, spread)):
                np.testing.assert_allclose(delegated_bytes(where, jnp.asarray(demand), per_server), want, rtol=RTOL)
    assert not delegated_bytes(PXN, jnp.asarray(demand), RANKS).any()


def test_pooled_nics_move_no_more_than_they_must():
    # One way alone, four ranks a server: afterwards all have the mean, and nobody both hands over and gets.
    demand = leaving(draw(120)[0], 4)
    demand[4:] = 0
    out = demand[:4].sum(1)
    for where in (POOLED, CO_PACKAGED):
        moved = np.asarray(delegated_bytes(where, jnp.asarray(demand), 4))[0]
        np.testing.assert_allclose(out - moved.sum(1) + moved.sum(0), out.mean(), rtol=RTOL)
        np.testing.assert_allclose(moved.sum(), np.maximum(out - out.mean(), 0).sum(), rtol=RTOL)
        assert not np.any((moved.sum(0) > 0) & (moved.sum(1) > 0))
        assert moved.min() >= 0


def test_inside_against_the_oracle():
    demand = draw(70, ranks=4, draws=3)
    rate, port = 9e11, np.full(4, 9e11)
    want = [tree(np.where(np.eye(4, dtype=bool), 0, one), port, port).max() for one in demand]
    each = [nvswitch_seconds(jnp.asarray(demand * pick), rate) for pick in np.eye(3)[:, :, None, None]]
    np.testing.assert_allclose(each, want, rtol=RTOL)
    np.testing.assert_allclose(nvswitch_seconds(jnp.asarray(demand), rate), max(want), rtol=RTOL)


SLOW_NIC = 8e-9  # Gbps: 1 byte/s
WIDE = 16  # hops that every table here fits in: one shape, one program
forwarded = eqx.filter_jit(eqx.debug.assert_max_traces(forward_time, max_traces=3))  # two sizes, single precision


def joined(count, nic_gbps=SLOW_NIC):
    """The wired fabric, its tables padded to one width; bandwidth is data."""
    fabric = add_paths(DirectLinks(len(count), jnp.asarray(nic_gbps)), count)
    more = ((0, 0), (0, WIDE - fabric.hops.shape[1]))
    share = jnp.pad(fabric.share, more, constant_values=1)
    return dataclasses.replace(fabric, hops=jnp.pad(fabric.hops, more, constant_values=-1), share=share)


def circuits(servers, *pairs):
    """Circuits between pairs (a, b) or (a, b, how many)."""
    count = np.zeros((servers, servers), int)
    for a, b, *many in pairs:
        count[a, b] = count[b, a] = (many or [1])[0]
    return count


def draw_circuits(seed, servers):
    """A tree and some chords, one to three circuits each; skewed demand, some pairs without."""
    rng = np.random.default_rng([seed, servers])
    count = circuits(servers, *((n, rng.integers(n), rng.integers(1, 4)) for n in range(1, servers)))
    for a, b in rng.integers(servers, size=(seed % (2 * servers), 2)):
        if a != b:
            count[a, b] = count[b, a] = rng.integers(1, 4)
    demand = rng.uniform(0.1, 1, (servers, servers)) ** 3 * (rng.random((servers, servers)) < 0.7)
    return count, demand


def ways(count, src, dst):
    """{(a, b): part} of the bytes from `src` to `dst`, which every server divides among all that are one hop closer."""
    servers, hops, near = range(len(count)), {dst: 0}, [dst]
    for at in near:
        for b in servers:
            if count[b][at] and b not in hops:
                hops[b] = hops[at] + 1
                near.append(b)
    part, here = {}, {src: 1.0}
    for _ in range(hops[src]):
        after = {}
        for a, held in here.items():
            closer = [b for b in servers if count[a][b] and hops[b] == hops[a] - 1]
            for b in closer:
                part[a, b] = part.get((a, b), 0) + held / len(closer)
                after[b] = after.get(b, 0) + held / len(closer)
        here = after
    return part


def table(count):
    """[L F] part of every pair's bytes on every link; both row-major pairs of servers."""
    servers = len(count)
    found = np.zeros((servers**2, servers**2))
    for src, dst in np.argwhere(~np.eye(servers, dtype=bool)):
        for (a, b), part in ways(count.tolist(), src, dst).items():
            found[a * servers + b, src * servers + dst] = part
    return found


def plain(count, demand):
    size = np.where(np.eye(len(demand)), 0, demand).ravel()
    return dense.completion(count.ravel().astype(float), table(count), size, 0.0).max()


def test_agrees_with_a_plain_simulation_and_one_server_has_nothing_to_do():
    for servers, seed in [*((5, seed) for seed in range(20)), *((8, seed) for seed in range(10))]:
        count, demand = draw_circuits(seed, servers)
        got = forwarded(joined(count), demand)
        np.testing.assert_allclose(got, plain(count, demand), rtol=1e-9)
        load = table(count) @ np.where(np.eye(servers), 0, demand).ravel()
        assert got >= np.max(load[count.ravel() > 0] / count[count > 0]) * (1 - 1e-12)  # the busiest circuit
    assert forward_time(add_paths(DirectLinks(1, SLOW_NIC), [[0]]), jnp.ones((1, 1))) == 0


def test_a_batch_over_bandwidths_circuits_and_demands_equals_its_loop():
    drawn = [draw_circuits(seed, 5) for seed in range(8)]
    cases = [(joined(count, SLOW_NIC * (1 + n)), demand) for n, (count, demand) in enumerate(drawn)]
    assert_batch_is_its_loop(forward_time, cases, forwarded, rtol=1e-12)
    np.testing.assert_allclose(forwarded(*cases[-1]), plain(*drawn[-1]) / len(drawn), rtol=1e-9)
