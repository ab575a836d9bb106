"""`network.oversubscription` on every switch tree of a comparison: rates, all-to-alls and prices, by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, resolve
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.fabric import NAMES, degrade, get
from mfabric_jax.fabric.cost import tree_attachment
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.routing.fixed import fixed_time
from mfabric_jax.routing.graphs import add_rates, paths_on_links
from tests.small import JOB, row, small


def group(name, ratio, **changes):
    asked = resolve(small({"network.fabric": name, "network.oversubscription": ratio} | changes))
    one = get(name).group(asked.site, 100.0)
    return one, asked


@pytest.mark.parametrize("name", ["fat-tree", "oversub-fat-tree", "mfabric"])
def test_a_server_sends_so_many_times_less_beyond_a_switch_of_its_own(name):
    """`small` has the text of arXiv 2501.03905, with one server below an edge switch."""
    free, _ = group(name, 1.0)
    for ratio in (2.0, 3.0, 7.0):
        assert group(name, ratio)[0].eps_Bps == pytest.approx(free.eps_Bps / ratio)
    usual = {"oversub-fat-tree": 3.0}.get(name, 1.0)
    assert group(name, None)[0].eps_Bps == pytest.approx(free.eps_Bps / usual)


def test_all_to_alls_below_a_rail_are_as_fast_and_others_wait_for_the_uplinks():
    demand = jnp.asarray(np.kron(1 - np.eye(4), np.ones((2, 2))) * 1e9)  # 4 servers of 2 ranks: 6 GB leave each rank
    over_nvswitch = {"network.rail-optimized.pxn": True}
    seconds = lambda *asked: float(fixed_time(group(*asked, **over_nvswitch)[0], demand, 2))  # noqa: E731
    ports = 6e9 / (4 * 12.5e9)  # a rank has 4 NICs
    assert seconds("fat-tree", 1.0) == seconds("rail-only", 5.0) == seconds("rail-optimized", 5.0)
    assert seconds("fat-tree", 1.0) == pytest.approx(ports)
    assert seconds("fat-tree", 5.0) == pytest.approx(5 * ports)


def test_prices_follow_the_ratio():
    for name, nics in {"fat-tree": 8, "rail-optimized": 8, "mfabric": 2}.items():
        asked = group(name, 4.0)[1]
        on_tree = get(name).parts(asked.site)[-1]
        assert on_tree.nics == nics
        assert on_tree.attachment.counts == tree_attachment(4.0, asked.tiers).counts
    assert get("fat-tree").parts(FabricSite())[0].attachment.counts == tree_attachment().counts


def test_one_number_for_two_names():
    three = {"network.oversubscription": 3.0}
    tree, named = (
        row(small({"network.fabric": name} | changes))
        for name, changes in (("fat-tree", three), ("oversub-fat-tree", {}))
    )
    assert tree["iteration_s"] == named["iteration_s"] > row(small({"network.fabric": "fat-tree"}))["iteration_s"]


WITH_TREE = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "multi-plane", "mfabric", "acos")
WITH_TREE += ("nvl72", "mfabric-cpo", "scale-up", "cloudmatrix384")
FITTING = {"twisted-torus": {"job.parallel.dp": 8}}  # 16 servers, 2 x 2 x 4


@pytest.mark.parametrize("name", NAMES)
def test_every_fabric_takes_a_ratio_or_says_why_not(name):
    changes = {"network.fabric": name, "network.oversubscription": 2.0} | FITTING.get(name, {})
    told = outcome(small(changes))
    if name in WITH_TREE:
        assert not told
        tree = get(name).links(resolve(small(changes)).site).tree
        assert tree is not None
        assert tree.oversubscription == 2
    else:
        assert told == f"network.oversubscription must be auto or 1 on {name}, which has no switch tree, got 2."
    assert not outcome(small(changes | {"network.oversubscription": 1.0}))


def outcome(case):
    """The sentence with which a case is refused; "": it can be simulated."""
    try:
        problem_at(resolve(case), (case.network.nic_gbps,))
    except InputError as sentence:
        return str(sentence)
    return ""


def test_co_packaged_domains_send_less_on_their_nics_and_as_much_over_circuits():
    """A domain of 64 GPUs has as many NICs of 100 Gbps on the tree, at 2:1 as fast as 32, and 8 Tbps less the NIC, of
    which half are 39 ports of each GPU."""
    (free, _), (half, _) = (group("mfabric-cpo", ratio, **JOB) for ratio in (1.0, 2.0))
    assert (free.eps_Bps, half.eps_Bps) == (64 * 12.5e9, 32 * 12.5e9)
    for nic_gbps, ports in ((100.0, 39), (200.0, 19)):
        assert int(free.with_bandwidth(nic_gbps, 8.0).optical_degree) == 64 * ports
        assert int(half.with_bandwidth(nic_gbps, 8.0).optical_degree) == 64 * ports
    spare = degrade(half, "gpu", servers=2, ranks_per_server=2, gpus_per_rank=4)
    assert spare.group.electrical_nics[-1] == pytest.approx(1 / 2)


SHARED = JOB | {"network.leaf_servers": "most"}


def on_leaves(name, ratio, **changes):
    """A group with what its servers send at once, on 16 servers of 8 NICs in 8 groups of 2."""
    one, asked = group(name, ratio, **SHARED | changes)
    return add_rates(one, asked.job, "spray") if one.shares_links else one, asked


def test_servers_below_one_switch_share_no_uplink():
    """Leaves of 48 NICs down and 16 up hold six servers: three groups of two, whose all-to-alls stay below them. Of the
    ring of a stage one server in six sends to another leaf, its eight NICs over sixteen links."""
    one, asked = on_leaves("oversub-fat-tree", None)
    even = np.ones((1, asked.job.ep, asked.job.ep))
    free, _ = group("fat-tree", 1.0, **JOB)
    ways = paths_on_links(one, asked.job, "spray")
    assert ways.times_now(one, even)[0] == pytest.approx(float(fixed_time(free, jnp.asarray(even[0]), 2)))
    assert one.eps_Bps == pytest.approx(free.eps_Bps)


def test_groups_that_cross_leaves_wait_for_the_uplinks():
    """Radix 8 at 3:1 has leaves of 6 NICs with 2 up. In every group one leaf holds NICs of one server alone, all of
    whose bytes go up."""
    one, asked = on_leaves("oversub-fat-tree", None, **{"network.radix": 8, "network.tiers": 3})
    even = np.ones((1, asked.job.ep, asked.job.ep))
    free, _ = group("fat-tree", 1.0, **JOB)
    ratio = paths_on_links(one, asked.job, "spray").times_now(one, even)[0] / float(
        fixed_time(free, jnp.asarray(even[0]), asked.job.ranks_per_server)
    )
    assert ratio == pytest.approx(3.0)  # six NICs of one server over two links


def test_a_broken_uplink_of_a_shared_switch():
    """One of the two links up of the first leaf is left to group 0, which then takes twice as long; the two groups with
    which it shares leaves take as long as before."""
    one, asked = on_leaves("oversub-fat-tree", None, **{"network.radix": 8, "network.tiers": 3})
    even = np.ones((1, asked.job.ep, asked.job.ep))
    before = paths_on_links(one, asked.job, "spray").times_now(one, even)[0]
    sizes = {"servers": 2, "ranks_per_server": 2, "gpus_per_rank": 4}
    left = add_rates(degrade(one, "link", **sizes).group, asked.job, "spray")
    after = paths_on_links(left, asked.job, "spray").times_now(left, even)[0]
    assert after / before == pytest.approx((2 + 1 + 1) / 3)
    whole = degrade(one, "server", **sizes)
    assert whole.group is one


@pytest.mark.parametrize("leaf_servers", [1, "most"])
def test_single_paths_are_no_faster_than_spraying(leaf_servers):
    """Before, they crossed a tree of one server a leaf as if it were not oversubscribed."""
    oversubscribed = SHARED | {"network.fabric": "oversub-fat-tree"}
    spray, ecmp = (
        row(small(oversubscribed | {"network.leaf_servers": leaf_servers, "network.paths": paths}))
        for paths in ("spray", "ecmp")
    )
    assert ecmp["ep_comm_s"] >= spray["ep_comm_s"] > 0


@pytest.mark.parametrize("name", ["rail-optimized", "rail-only"])
def test_a_rail_holds_as_many_servers_as_its_switch_has_ports_down(name):
    """A switch has ports for all 16 servers of a rail, whose bytes no uplink carries."""
    one, _ = on_leaves(name, 3.0, **{"network.rail-optimized.pxn": True})
    free, _ = group(name, 1.0, **JOB)
    assert one.eps_Bps == pytest.approx(free.eps_Bps)
    alone, _ = on_leaves(name, 3.0, **{"network.rail-optimized.pxn": True, "network.radix": 16, "network.tiers": 2})
    assert alone.shares_links  # 12 servers a switch


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"network.fabric": "rail-only", "network.radix": 4, "network.oversubscription": 3.0},
            "has room for 12 hosts",
        ),
        ({"network.fabric": "fat-tree", "network.oversubscription": 3.0, "network.paths": "ecmp"}, "single paths"),
    ],
)
def test_what_is_not_modelled_is_refused(changes, told):
    with pytest.raises(InputError, match=told):
        group(changes.pop("network.fabric"), changes.pop("network.oversubscription"), **changes)
