"""`network.rails.speeds`: all-to-alls, rings, NVSwitches, trees and prices of unequal NICs, by hand; refusals."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, resolve, simulate
from mfabric_jax.case import cases
from mfabric_jax.case.network import Rails
from mfabric_jax.case.paths import in_row, read_statement
from mfabric_jax.fabric import cluster, cluster_cost, cost_table, degrade, get
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.registry import cluster_watts, site_of
from mfabric_jax.routing import cluster_routes, transfer
from mfabric_jax.routing.cluster import links_of
from mfabric_jax.routing.fixed import delegated_bytes, fixed_time, fixed_times_now, spray_ports
from mfabric_jax.routing.graphs import add_rates, paths_on_links
from tests.small import JOB, refused, row, scenario, small

HALVES = (1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5)  # four NICs of 400 Gbps, four of 200
TURNS = (1.0, 0.5) * 4
FAST, SLOW = 50e9, 25e9  # bytes/s
ON_TREES = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "multi-plane")


def group_of(name, speeds=HALVES, **settings):
    site = site_of(name, {"servers": 4, "tiers": 1, "rails": Rails(speeds=speeds)} | settings)[0]
    return get(name).group(site, 400.0)


def between(ranks_of_server, bytes_of=1e9):
    """Bytes of every pair of ranks on different servers of four [R R]."""
    return np.kron(1 - np.eye(4), np.full((ranks_of_server, ranks_of_server), bytes_of))


def both_seconds(group, demand, ranks):
    """Seconds as a traced program has them; the loops on the host agree."""
    traced = float(fixed_time(group, jnp.asarray(demand), ranks))
    assert fixed_times_now(group, demand[None], ranks)[0] == pytest.approx(traced)
    return traced


@pytest.mark.parametrize("name", ["rail-only", "rail-optimized", "fat-tree", "multi-plane"])
def test_an_even_all_to_all_waits_for_the_slowest_rail(name):
    """A rank sends 8 GB to each of three servers. If a GPU keeps to its NIC, 24 GB cross one of 25 GB/s."""
    assert both_seconds(group_of(name), between(8), 8) == pytest.approx(24e9 / SLOW)


@pytest.mark.parametrize(
    ("name", "settings"), [("fat-tree", {}), ("multi-plane", {}), ("rail-optimized", {"pxn": False})]
)
def test_pooled_nics_carry_their_sum(name, settings):
    group = group_of(name, nic_use="pooled", **settings)
    assert both_seconds(group, between(8), 8) == pytest.approx(8 * 24e9 / (4 * FAST + 4 * SLOW))


def test_bytes_for_fast_rails_alone():
    """Slow ranks send to fast ranks, 4 GB to each of three servers: with PXN over the NICs of their destinations."""
    demand = between(8) * np.kron(np.ones((4, 4)), np.outer(np.arange(8) >= 4, np.arange(8) < 4))
    assert both_seconds(group_of("rail-only"), demand, 8) == pytest.approx(12e9 / FAST)
    assert both_seconds(group_of("rail-optimized"), demand, 8) == pytest.approx(12e9 / FAST)
    assert both_seconds(group_of("rail-optimized", pxn=False), demand, 8) == pytest.approx(12e9 / SLOW)


@pytest.mark.parametrize("name", ["rail-only", "fat-tree"])
def test_slices_of_a_rank_keep_to_their_nics(name):
    """A rank of two GPUs sends 12 GB, half by each NIC; equal NICs of a rank count as one."""
    assert both_seconds(group_of(name, TURNS), between(4), 4) == pytest.approx(6e9 / SLOW)
    assert spray_ports(group_of(name, TURNS), between(4), 4).port.tolist() == [FAST, SLOW] * 16
    assert both_seconds(group_of(name, HALVES), between(4), 4) == pytest.approx(12e9 / (2 * SLOW))
    assert spray_ports(group_of(name, HALVES), between(4), 4).port.tolist() == [2 * FAST, 2 * FAST, 50e9, 50e9] * 4


@pytest.mark.parametrize(
    ("name", "settings"), [("rail-only", {}), ("fat-tree", {}), ("fat-tree", {"nic_use": "pooled"})]
)
@pytest.mark.parametrize("speeds", [HALVES, TURNS, (1.0, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0)])
def test_random_all_to_alls_as_flows_on_the_links_of_a_cluster(name, settings, speeds):
    """Every slice of every pair of ranks is a flow between GPUs, over links that are laid out one by one. With PXN a
    server sends its bytes for a GPU by the NIC of equal rank, as one flow."""
    group, wired = group_of(name, speeds, **settings), {"tiers": 1, "rails": Rails(speeds=speeds), "link_delay_s": 0.0}
    built = cluster(name, 4, 400.0, nvswitch_gigabytes_per_s=1e9, **wired | settings)
    demand = np.random.default_rng(3).uniform(0, 1e9, (16, 16)) * (between(4) > 0)
    sent = demand
    if name == "rail-only":
        sent = np.zeros((16, 16))
        for s, t, g in np.ndindex(4, 4, 4):
            sent[4 * s + g, 4 * t + g] = demand[4 * s : 4 * s + 4, 4 * t + g].sum()
    src, dst, slice_ = (x.ravel() for x in np.mgrid[:16, :16, :2])
    routes = cluster_routes(built, 2 * src + slice_, 2 * dst + slice_)
    finish = transfer(links_of(built), routes, sent[src, dst] / 2, dtype="float64").finish
    assert both_seconds(group, demand, 4) == pytest.approx(finish.max())


def test_many_all_to_alls_are_solved_as_each_alone():
    many = np.random.default_rng(1).uniform(0, 1e9, (5, 16, 16))
    for group in (group_of("rail-only", TURNS), group_of("fat-tree", (1.0, 0.5, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0))):
        alone = [float(fixed_time(group, jnp.asarray(demand), 4)) for demand in many]
        np.testing.assert_allclose(fixed_times_now(group, many, 4), alone)


def test_planes_of_their_own():
    """Four ranks on four servers, 1 GB a pair, over two planes: rank 0 sends to 2 on plane 0, to 1 and 3 on plane 1.
    The eight GPUs of a rank send an eighth each, by half of a NIC."""
    group = Electrical(400.0, planes=2, own_plane=True, speeds=HALVES)
    demand = (1 - np.eye(4)) * 1e9
    assert both_seconds(group, demand, 1) == pytest.approx(2e9 / 8 / (SLOW / 2))


# ---------------------------------------------------------------------------------------------- rings and the NVSwitch
def test_rings_by_hand():
    """A ring has 8 rails, each with an eighth of the bytes, or all NICs together."""
    for name in ("rail-only", "rail-optimized", "fat-tree"):
        assert group_of(name).eps_Bps == group_of(name).send_Bps == 8 * SLOW
    assert group_of("fat-tree", nic_use="pooled").eps_Bps == 4 * FAST + 4 * SLOW
    thin = {"oversubscription": 3.0, "leaf_servers": 1, "tiers": 2}
    assert group_of("fat-tree", **thin).eps_Bps == pytest.approx((4 * FAST + 4 * SLOW) / 3)
    light = {"oversubscription": 1.2, "leaf_servers": 1, "tiers": 2}
    assert group_of("fat-tree", **light).eps_Bps == 8 * SLOW  # below 250 GB/s of its uplinks


@pytest.mark.parametrize(
    ("settings", "server_Bps"),
    [
        ({"network.fabric": "rail-only"}, 8 * 12.5e9),
        ({"network.fabric": "rail-optimized"}, 8 * 12.5e9),
        ({"network.fabric": "fat-tree", "network.nic_use": "pooled"}, 6 * 25e9),
    ],
)
def test_gradients_of_a_training(settings, server_Bps):
    """The ring all-reduce between 16 servers is longer by its bytes over both bandwidths; NICs of 200 Gbps."""
    settings = JOB | settings | {"job.sharding": "none", "job.overlap_gradients": False, "network.nic_gbps": 200}
    equal, unequal = (row(small(settings | {"network.rails.speeds": speeds})) for speeds in ((), HALVES))
    twice = row(small(settings | {"network.nic_gbps": 400}))
    bytes_ = (equal["dp_comm_s"] - twice["dp_comm_s"]) / (1 / 200e9 - 1 / 400e9)
    assert unequal["dp_comm_s"] - equal["dp_comm_s"] == pytest.approx(bytes_ * (1 / server_Bps - 1 / 200e9))


def test_switches_store_packets_as_long_as_the_slowest_rail_takes():
    """NDP on a rail: a packet of 4,160 bytes waits on the second of two links."""
    changes = {"network.fabric": "rail-only", "network.payload": "transport", "network.nic_gbps": 400}
    equal, unequal = (
        scenario(small(JOB | changes | {"network.rails.speeds": speeds})).rates(400.0) for speeds in ((), HALVES)
    )
    assert unequal.latency_s - equal.latency_s == pytest.approx(4160 * (1 / SLOW - 1 / FAST))


def test_a_ring_over_rails_of_a_cluster():
    """Each GPU sends 1 GB to its peer on the next server: by 50 or by 25 GB/s."""
    built = cluster("rail-only", 4, 400.0, nvswitch_gigabytes_per_s=1e9, rails=Rails(speeds=HALVES))
    gpu = np.arange(32)
    routes = cluster_routes(built, gpu, (gpu + 8) % 32)
    finish = transfer(links_of(built), routes, np.full(32, 1e9), dtype="float64").finish
    np.testing.assert_allclose(finish, np.tile([1e9 / FAST] * 4 + [1e9 / SLOW] * 4, 4), rtol=1e-4)


def test_pooled_bytes_cross_the_nvswitch_to_the_faster_nics():
    """Two ranks with 3 GB each behind 400 and 200 Gbps: 4 GB and 2 GB leave, so 1 GB moves; it arrives likewise."""
    group = Electrical(400.0, nics=2, nic_use="pooled", speeds=(1.0, 0.5))
    demand = np.kron(1 - np.eye(2), np.full((2, 2), 1.5e9))
    moved = delegated_bytes(group, demand, 2)
    np.testing.assert_allclose(moved, np.tile([[0, 1e9], [1e9, 0]], (2, 1, 1)))


# ---------------------------------------------------------------------------------------------------- links of a tree
def test_links_above_switches_carry_the_nics_below():
    """16 servers on switches of 16 ports: two edge switches a rail, or one server an edge switch of a fat-tree."""

    def widths(name, kind, **settings):
        network = cluster(name, 16, 400.0, radix=16, tiers=2, rails=Rails(speeds=HALVES), **settings).network
        return network.capacity[network.run(kind)]

    np.testing.assert_allclose(widths("rail-only", "nic up"), np.repeat([FAST, SLOW], 4 * 16))
    np.testing.assert_allclose(widths("rail-only", "edge up"), np.repeat([FAST, SLOW], 4 * 2 * 8))
    np.testing.assert_allclose(widths("rail-optimized", "edge down"), np.tile(np.repeat([FAST, SLOW], 4 * 8), 2))
    np.testing.assert_allclose(widths("fat-tree", "edge up"), np.full(16 * 8, 37.5e9))
    last = cluster("fat-tree", 3, 400.0, radix=20, tiers=2, rails=Rails(speeds=HALVES)).network  # of 10, 10 and 4 NICs
    np.testing.assert_allclose(last.capacity[last.run("edge up")], np.repeat([40e9, 40e9, 25e9], 10))
    pods = cluster("fat-tree", 16, 400.0, radix=8, tiers=3, rails=Rails(speeds=HALVES)).network
    np.testing.assert_allclose(pods.capacity[pods.run("edge up")], np.tile(np.repeat([FAST, SLOW], 4), 16))
    np.testing.assert_allclose(pods.capacity[pods.run("aggregation up")], 37.5e9)


def test_oversubscribed_rails():
    """Radix 4 at 2:1: a switch of two servers and one link up, so a rail of four servers has two. A server sends 8 GB
    to each other one on every rail: 3 x 8 GB leave a NIC, 2 x 2 x 8 GB a switch."""
    changes = {"network.fabric": "rail-only", "network.rails.speeds": HALVES, "network.oversubscription": 2.0}
    changes |= {"network.radix": 4, "network.nic_gbps": 400, "network.leaf_servers": "most"}
    job = {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("pp", 1), ("dp", 1), ("ep", 32))}
    resolved = resolve(small(changes | job | {"job.batch.micro_batches": 1}, "qwen-moe"))
    group = get("rail-only").group(resolved.site, 400.0)
    even = between(8)
    assert group.shares_links
    paths = paths_on_links(group, resolved.job, "spray")
    assert paths.times_now(group, even[None])[0] == pytest.approx(32e9 / SLOW)
    assert float(paths.time(group, jnp.asarray(even))) == pytest.approx(32e9 / SLOW)
    assert add_rates(group, resolved.job, "spray").eps_Bps == pytest.approx(
        8 * SLOW
    )  # one server of two sends to another switch


# ----------------------------------------------------------------------------------------------------------- dollars
def behind_a_nic(nic, transceiver, port, links=2):
    """Dollars of a NIC and the links behind it: a link has two transceivers and a fibre of 500 m at 0.3."""
    return nic + links * (2 * transceiver + 150) + (2 * links - 1) * port


@pytest.mark.parametrize("name", ["fat-tree", "rail-optimized", "rail-only", "multi-plane"])
def test_parts_are_paid_by_their_speed(name):
    """Four NICs at 400 Gbps: 1,499 + 4 x 659 + 3 x 1,090 + 2 x 150; four at 200 Gbps."""
    fast, slow = behind_a_nic(1499, 659, 1090), behind_a_nic(1079, 239, 374)
    assert cluster_cost(name, 3, 400.0, tiers=2, rails=Rails(speeds=HALVES)) == pytest.approx(3 * 4 * (fast + slow))
    rows = {
        (part["attached_to"], part["part"]): part
        for part in cost_table(name, 400.0, tiers=2, rails=Rails(speeds=HALVES))
    }
    to = next(to for to, _ in rows if not to.endswith("nic_gbps"))
    assert (rows[to, "nic"]["count"], rows[to, "nic"]["unit_usd"]) == (4, 1499)
    half = rows[f"{to} at 0.5 of nic_gbps", "switch_port"]
    assert (half["count"], half["unit_usd"]) == (12, 374)


def test_power_and_rows_by_speed():
    half = [cluster_watts("rail-only", 3, gbps, tiers=2) / 2 for gbps in (400.0, 200.0)]
    assert cluster_watts("rail-only", 3, 400.0, tiers=2, rails=Rails(speeds=HALVES)) == pytest.approx(sum(half))
    changes = {"network.fabric": "rail-only", "network.nic_gbps": 400}
    unequal, fast, slow = (
        row(small(JOB | changes | more)) for more in ({"network.rails.speeds": TURNS}, {}, {"network.nic_gbps": 200})
    )
    assert unequal["network_cost_usd"] == pytest.approx((fast["network_cost_usd"] + slow["network_cost_usd"]) / 2)
    assert slow["iteration_s"] == pytest.approx(unequal["iteration_s"])  # a rank waits for its slow NICs


# ------------------------------------------------------------------------------------------------- rows and refusals
@pytest.mark.parametrize("name", ON_TREES)
def test_equal_speeds_change_nothing(name):
    usual = row(small(JOB | {"network.fabric": name}))
    assert row(small(JOB | {"network.fabric": name, "network.rails.speeds": (1.0,) * 8})) == usual


def test_lists_vary_on_a_command_line_and_are_text_in_rows():
    stated = read_statement({"network.rails.speeds": ["1+0.5", "1+1"], "model.dense_blocks": "0+2"}, text=True)
    assert stated == {"network.rails.speeds": [(1.0, 0.5), (1.0, 1.0)], "model.dense_blocks": (0, 2)}
    assert in_row("network.rails.speeds", (1.0, 0.5)) == "1+0.5"
    assert in_row("traffic.trace.records", (3, 5)) == "3-5"
    assert in_row("network.nic_gbps", 400.0) == 400.0


@pytest.mark.parametrize("paths", ["spray", "ecmp"])
def test_cases_at_once_are_as_alone(paths):
    settings = JOB | {"network.fabric": "rail-optimized", "network.rails.speeds": HALVES, "network.paths": paths}
    gbps, speeds = [200, 400], [HALVES, TURNS, ()]
    together = simulate(cases(small(settings), {"network.rails.speeds": speeds, "network.nic_gbps": gbps})).rows()
    alone = [
        row(small(settings | {"network.rails.speeds": own, "network.nic_gbps": each}))
        for own in speeds
        for each in gbps
    ]
    assert [each["iteration_s"] for each in together] == pytest.approx([each["iteration_s"] for each in alone])
    assert len({each["iteration_s"] for each in alone}) >= 4
    assert together[0]["network.rails.speeds"] == "1+1+1+1+0.5+0.5+0.5+0.5"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"network.rails.speeds": (1.0, 0.5)}, "must have 8 numbers up to 1, a speed for each NIC of a server"),
        ({"network.rails.speeds": (0.5,) * 8}, "and 1 for the fastest, got [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]."),
        ({"network.nics": 4}, "must have 4 numbers up to 1"),
        ({"network.nic_gbps": 100}, "at least the 100 Gbps from which prices are listed, got 0.5 of network.nic_gbps"),
        ({"compute.rate": "measured", "compute.measured.iteration_s": 1.0}, "must be empty with compute.measured"),
        *(
            ({"network.fabric": name}, f"leave it empty on {name}, got [1.0,")
            for name in ("mfabric", "torus", "acos", "topoopt", "photonic-rails", "dragonfly", "nvl72", "scale-up")
        ),
    ],
)
def test_what_is_refused(changes, sentence):
    base = {"network.fabric": "fat-tree", "network.rails.speeds": HALVES, "network.nic_gbps": 400}
    said = refused(base | changes, small(JOB))
    assert said.startswith("network.rails.speeds ")
    assert sentence in said


def test_a_speed_is_above_0_and_at_most_1():
    for speed in (0.0, 1.5):
        with pytest.raises(InputError, match=r"rails\.speeds must be a list, each a number above 0 and at most 1"):
            small({"network.rails.speeds": (1.0, speed)})


def test_what_python_callers_are_refused():
    with pytest.raises(InputError, match="speeds must be 8 numbers, one per NIC of a server, got"):
        Electrical(400.0, speeds=(1.0, 0.5))
    with pytest.raises(InputError, match="a failure needs NICs of equal bandwidth"):
        degrade(Electrical(400.0, speeds=HALVES), "server", servers=4)
    for call in (cost_table, lambda name, gbps, **more: cluster(name, 4, gbps, **more)):
        with pytest.raises(InputError, match="leave it empty on torus"):
            call("torus", 400.0, rails=Rails(speeds=HALVES))
