"""Photonic rails: rings by hand and by a plain loop, the turns between phases, the bill, and what does not go."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, cases, resolve, simulate
from mfabric_jax.evaluate.whole_cluster import solve_cluster
from mfabric_jax.fabric import cluster_cost
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.failures import degrade
from mfabric_jax.fabric.rail_rings import RailRings, ring_of
from mfabric_jax.routing.fixed import add_paths, fixed_time, fixed_times_now, rail_bytes
from mfabric_jax.timing.passes import behind_sends, order_of, places
from mfabric_jax.units import to_gbps
from tests.oracles.graph import run
from tests.small import refused, row, small

RAILS = {"network.fabric": "photonic-rails"}


def rings(servers, nics=1):
    """At 1 byte/s a NIC."""
    return add_paths(RailRings(servers, to_gbps(1.0), nics, float(nics), 1.0, ring_of(servers)))


@pytest.mark.parametrize("servers", range(1, 10))
def test_even_all_to_alls_by_hand(servers):
    # A byte a pair: distances 1, 2, .. each way, half of S/2 where that is the distance; ports have half a NIC.
    ways = sum(range(1, (servers + 1) // 2), Fraction(0)) + (Fraction(servers, 4) if servers % 2 == 0 else 0)
    want = 2 * ways if servers > 1 else Fraction(0)
    assert want == Fraction(servers**2 - servers % 2, 4) or servers == 1
    assert float(fixed_time(rings(servers), jnp.ones((servers, servers)), 1)) == pytest.approx(float(want))


def test_an_all_to_all_by_hand():
    # Four servers of two ranks, a rail each; rank 0 of server 0 sends 6 bytes to rank 1 of server 2: on rail 1, half
    # either way, over ports of 1/2 byte/s: 6 s. Rank 1 of server 3 sends 2 to rank 1 of server 0 at the same time: its
    # flow and half of the other share no link (3 -> 0 against 0 -> 3).
    demand = np.zeros((8, 8))
    demand[0, 5] = 6
    assert float(fixed_time(rings(4, 2), jnp.asarray(demand), 2)) == pytest.approx(6)
    demand[7, 1] = 2
    assert float(fixed_time(rings(4, 2), jnp.asarray(demand), 2)) == pytest.approx(6)
    demand[7, 3] = 2  # 3 -> 0 -> 1 or 3 -> 2 -> 1, a byte each: 3 -> 0 carries 3 bytes, as 0 -> 1 does 3 + 1
    busiest = float(fixed_time(rings(4, 2), jnp.asarray(demand), 2))
    assert busiest == pytest.approx(8)
    demand[4, 2] = 5  # on rail 0, which is another ring: from server 2 to 1
    assert float(fixed_time(rings(4, 2), jnp.asarray(demand), 2)) == pytest.approx(10)


def ways(servers, src, dst):
    """{link: part} of the shorter way around, links (server, step)."""
    ahead = (dst - src) % servers
    found = {}
    for step, hops in ((1, ahead), (-1, servers - ahead)):
        if hops <= servers - hops:
            part = Fraction(1, 2) if 2 * hops == servers else Fraction(1)
            found |= {((src + step * hop) % servers, step): part for hop in range(hops)}
    return found


@pytest.mark.parametrize(("servers", "per_server", "nics"), [(3, 1, 1), (4, 2, 2), (5, 2, 4), (6, 1, 2), (8, 2, 2)])
def test_rings_against_exact_fractions(servers, per_server, nics):
    ranks, rng = servers * per_server, np.random.default_rng(servers)
    many = rng.integers(0, 50, (3, ranks, ranks)) * (rng.random((3, ranks, ranks)) < 0.4)
    group, want = rings(servers, nics), []
    links = [(server, step) for server in range(servers) for step in (1, -1)]
    rate = Fraction(nics, per_server) / 2
    for demand in many:
        ends = []
        for rail in range(per_server):
            size = {}
            for (i, j), sent in np.ndenumerate(demand):
                a, b = i // per_server, j // per_server
                if a != b and j % per_server == rail:
                    size[a, b] = size.get((a, b), 0) + int(sent)
            size = {pair: sent for pair, sent in size.items() if sent}
            paths = [[(links.index(link), part) for link, part in ways(servers, *pair).items()] for pair in size]
            _, finish = run([rate] * len(links), paths, [Fraction(sent) for sent in size.values()])
            ends.append(max(finish, default=0))
        want.append(float(max(ends)))
    got = fixed_times_now(group, many.astype(float), per_server)
    np.testing.assert_allclose(got, want, rtol=1e-9)
    one = float(fixed_time(group, jnp.asarray(many[0], float), per_server))
    assert one == pytest.approx(want[0], rel=1e-6)


def test_bytes_go_on_the_rail_of_their_destination():
    demand = np.arange(36.0).reshape(6, 6)  # three servers of two ranks
    rails = rail_bytes(demand, 2)
    assert rails.shape == (2, 3, 3)
    for g, s, t in np.ndindex(2, 3, 3):
        want = 0 if s == t else demand[2 * s, 2 * t + g] + demand[2 * s + 1, 2 * t + g]
        assert rails[g, s, t] == want


# ------------------------------------------------------------------------------------------------------------- turns
def job(**changes):
    degrees = {"tp": 4, "pp": 4, "dp": 2, "ep": 8} | {k: v for k, v in changes.items() if k in ("pp", "dp")}
    rest = {"job.batch.micro_batches": changes.get("micro_batches", 4), "traffic.drawn": 1}
    rest |= {"job.schedule": changes["schedule"]} if "schedule" in changes else {}
    return RAILS | rest | {f"job.parallel.{name}": degree for name, degree in degrees.items()}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "dualpipe"])
def test_rails_turn_back_behind_sends(schedule):
    """Against a plain walk through the passes of each stage, or pairs of them."""
    work = resolve(small(job(schedule=schedule, micro_batches=8))).job
    order, where = order_of(work), places(work)
    passes = order.kind.shape[1]
    inputs, outputs = set(), set()
    for stage, position, need, crossing in zip(order.stage, order.position, order.needs, order.crossing, strict=True):
        if need >= 0 and crossing >= 0:
            inputs.add((stage, position))
            outputs.add(divmod(int(need), passes))
    got = behind_sends(work)
    for stage in range(work.pp):
        turn, expected, q = False, np.zeros_like(got[stage]), 0
        while q < passes:
            pair = [q, q + 1] if order.paired is not None and order.paired[stage, q] else [q]
            turn |= any((stage, one) in inputs for one in pair)
            slots = [(one, block, half) for one in pair for block in range(got.shape[2]) for half in (0, 1)]
            slots = [at for at in slots if where.layer[stage, at[0], at[1]] >= 0]
            if where.lane is not None:
                lane = where.lane[stage].tolist()
                slots.sort(key=lambda at: lane.index((at[0] * got.shape[2] + at[1]) * 2 + at[2]))
            if turn and slots:
                expected[slots[0]], turn = True, False
            turn |= any((stage, one) in outputs for one in pair)
            q += len(pair)
        np.testing.assert_array_equal(got[stage], expected)
    assert got.any()
    assert not behind_sends(resolve(small(job(pp=1, dp=8, schedule="1f1b"))).job).any()


def seconds(delay_s, **changes):
    return row(small(job(**changes) | {"circuits.delay_s": delay_s, "traffic.alike": "everything"}))


def test_turns_that_nothing_hides():
    # One stage: to the ring of gradients and back.
    still, late = (seconds(delay_s, pp=1, dp=8) for delay_s in (0, 0.125))
    assert late["iteration_s"] - still["iteration_s"] == pytest.approx(0.25, rel=1e-9)
    assert late["dp_comm_s"] - still["dp_comm_s"] == pytest.approx(0.25, rel=1e-9)
    # Two stages, one micro-batch: there and back are two sends, each behind a turn, and gradients. The turns back to
    # the ring are hidden behind the other stage.
    still, late = (seconds(delay_s, pp=2, dp=4, micro_batches=1) for delay_s in (0, 0.0625))
    assert late["iteration_s"] - still["iteration_s"] == pytest.approx(4 * 0.0625, rel=1e-9)
    assert late["reconfig_s"] == 0
    # More micro-batches than stages: a stage waits for its ring between passes.
    still, late = (seconds(delay_s, pp=2, dp=4, micro_batches=8) for delay_s in (0, 1.0))
    assert late["reconfig_s"] > still["reconfig_s"] + 4
    assert late["iteration_s"] > still["iteration_s"] + 8


def test_many_delays_and_bandwidths_are_as_one_by_one():
    axes = {"circuits.delay_s": (0.0, 0.01, 0.05, 0.1, 0.2, 0.5), "network.nic_gbps": (100.0, 200.0, 400.0)}
    many = simulate(cases(small(job(pp=2, dp=4)), axes)).rows()
    assert len(many) == 18
    for place, at in ((0, (0.0, 100.0)), (10, (0.1, 200.0)), (17, (0.5, 400.0))):
        one = row(small(job(pp=2, dp=4) | dict(zip(axes, at, strict=True))))
        for column in ("iteration_s", "ep_comm_s", "dp_comm_s", "reconfig_s"):
            assert many[place][column] == pytest.approx(one[column], rel=1e-9), column


def test_half_of_a_nic_for_either_neighbour():
    for stages, nics in ((1, 8), (2, 8), (3, 4), (4, 4)):
        one = resolve(small(job(pp=stages, dp=8)))
        group = one.fabric.group(one.site, 100.0)
        assert (group.send_Bps, group.eps_Bps) == (nics * 12.5e9, 8 * 12.5e9)


def test_slower_than_packet_rails_by_the_ring_alone():
    # 4 servers, even traffic: 4 against 3 bytes a NIC; two stages alone send with whole NICs.
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "circuits.delay_s": 0.0}
    ring = row(small(job(pp=1, dp=8) | even))
    star = row(small(job(pp=1, dp=8) | even | {"network.fabric": "rail-only"}))
    assert ring["ep_comm_s"] / star["ep_comm_s"] == pytest.approx(4 / 3, rel=1e-6)  # NVSwitches are faster
    assert ring["dp_comm_s"] == pytest.approx(star["dp_comm_s"], rel=1e-9)


# ------------------------------------------------------------------------------------------------- the bill, and not
def test_a_port_of_the_switch_for_each_port_of_a_nic():
    prices = Prices()
    want = 8 * (1499 + 659 + prices.price_of("fibre", 400) + 2 * prices.ocs_port)
    assert cluster_cost("photonic-rails", 16, 400) == pytest.approx(16 * want)
    one = resolve(small(job(pp=4, dp=2)))
    switches_of = one.fabric.about.optics.switches
    assert switches_of is not None
    assert switches_of(one.site) == (2 * 32, 8)  # 32 servers, 8 rails
    (parts,) = one.fabric.parts(one.site)
    assert parts.attachment.counts == {"nic": 1, "transceiver": 1, "fibre": 1, "ocs_port": 2}


def test_what_does_not_go():
    assert "job.overlap_gradients must be false" in refused(job() | {"job.overlap_gradients": True}, small())
    sharded = job() | {"job.sharding": "parameters"}
    assert "job.sharding must be none or optimizer" in refused(sharded, small())
    said = refused(job(dp=16) | {"circuits.ocs": "calient"}, small())
    assert said == "circuits.ocs calient has 320 ports, but a rail of 256 servers needs 512."
    with pytest.raises(InputError, match="one kind of communication at a time"):
        solve_cluster(small(job(pp=1)))


# ----------------------------------------------------------------------------------------------------------- failures
def broken(servers, nics, ranks, kind, server=0):
    return degrade(rings(servers, nics), kind, server=server, ranks_per_server=ranks)


def after(servers, nics, ranks, kind, demand, server=0):
    left = broken(servers, nics, ranks, kind, server)
    return float(fixed_times_now(left.group, np.asarray(demand, float)[None], ranks)[0])


def test_a_nic_and_a_switch_down_by_hand():
    # Four servers of two ranks, a rail each, a byte a pair: 2 ranks of a server send 2 bytes on the rail of the other
    # end, so links of healthy rings carry 4 bytes at 1/2 byte/s, 8 s. Without the NIC of server 0 on rail 0, rail 1
    # also carries its bytes from and to server 0, 2 a pair: link 0 -> 1 has 4, 2 more to server 1, half of 2 to 2.
    even = np.ones((8, 8))
    assert after(4, 2, 2, "optical-nic", even) == pytest.approx(2 * (4 + 2 + 1))
    assert after(4, 2, 2, "link", even) == pytest.approx(14)
    # Without rail 0, rail 1 carries all.
    assert after(4, 2, 2, "optical-switch", even) == pytest.approx(16)
    # Rail 0 alone has bytes, between servers 1 and 3, opposite each other: once half either way around; without the NIC
    # of server 0 on the ring of three, all over the link between them.
    far = np.zeros((8, 8))
    far[2, 6] = 6
    assert after(4, 2, 2, "optical-nic", far, server=2) == pytest.approx(12)
    assert float(fixed_time(rings(4, 2), jnp.asarray(far), 2)) == pytest.approx(6)
    # One rank with two rails has half of its bytes on each: of server 0 then all on the second.
    assert after(4, 2, 1, "optical-nic", np.ones((4, 4))) == pytest.approx(2 * (1 + 0.5 + 0.25))
    assert after(4, 2, 1, "optical-switch", np.ones((4, 4))) == pytest.approx(4)


@pytest.mark.parametrize("servers", [2, 3, 4, 5, 8])
def test_a_line_is_no_faster_than_a_rail_without_the_nic(servers):
    line = add_paths(RailRings(servers, to_gbps(1.0), 1, 1.0, 1.0, ring_of(servers).without_one(0, 1)))
    without = after(servers, 2, 2, "link", np.kron(np.ones((servers, servers)), np.eye(2)))
    assert float(fixed_time(line, jnp.ones((servers, servers)), 1)) >= without - 1e-6


@pytest.mark.parametrize("kind", ["optical-nic", "optical-switch"])
@pytest.mark.parametrize(("servers", "ranks", "nics"), [(2, 2, 2), (3, 1, 2), (4, 2, 4), (5, 2, 2), (6, 3, 6)])
def test_broken_rails_against_exact_fractions(servers, ranks, nics, kind):
    rng, each = np.random.default_rng(servers), nics // ranks
    size = servers * ranks
    demand = rng.integers(0, 50, (size, size)) * (rng.random((size, size)) < 0.5)
    hit, carried = servers - 1, [{} for _ in range(nics)]
    for (i, j), sent in np.ndenumerate(demand):
        a, b, rank = i // ranks, j // ranks, j % ranks
        if a == b or not sent:
            continue
        mine = list(range(rank * each, (rank + 1) * each))
        if 0 in mine and (kind == "optical-switch" or hit in (a, b)):
            mine = mine[1:] or [1]
        for rail in mine:
            carried[rail][a, b] = carried[rail].get((a, b), 0) + Fraction(int(sent), len(mine))
    ends = [Fraction(0)]
    for rail, size in enumerate(carried):
        there = [one for one in range(servers) if (rail, kind, one) != (0, "optical-nic", hit)]
        links = [(server, step) for server in range(len(there)) for step in (1, -1)]
        paths = [
            [(links.index(link), part) for link, part in ways(len(there), *map(there.index, pair)).items()]
            for pair in size
        ]
        _, finish = run([Fraction(1, 2)] * len(links), paths, list(size.values())) if size else (None, ends)
        ends.append(max(finish))
    assert after(servers, nics, ranks, kind, demand, hit) == pytest.approx(float(max(ends)), rel=1e-9)


def test_what_is_left_of_gradients_and_what_cannot_fail():
    for kind in ("optical-nic", "link", "optical-switch"):
        left = broken(4, 8, 8, kind)
        assert (left.eps_left, left.everywhere) == (7 / 8, kind == "optical-switch")
        assert broken(4, 1, 1, kind).waits == "no other rail could carry its bytes, so the job waits for the repair"
    for kind in ("gpu", "server"):
        assert broken(4, 8, 8, kind).group.servers == 4
    assert broken(4, 8, 8, "controller").waits is not None
    assert after(1, 2, 2, "optical-nic", np.ones((2, 2))) == 0
