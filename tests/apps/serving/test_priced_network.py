"""The network that dollars of serving count: that of the GPUs of both pools, by hand."""

import pytest

from mfabric_jax.apps.serving import serve
from mfabric_jax.apps.serving.deployment import deployment
from mfabric_jax.case import Case, cases
from mfabric_jax.commands import serve_sentences
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax

NIC, PORT, TRANSCEIVER, FIBRE = 1499, 1090, 659, 150  # dollars at 400 Gbps
BEHIND_NIC = {  # by tiers
    1: PORT + 2 * TRANSCEIVER + FIBRE,
    2: 3 * PORT + 4 * TRANSCEIVER + 2 * FIBRE,
    3: 5 * PORT + 6 * TRANSCEIVER + 3 * FIBRE,
}
CASE = Case().with_(
    {
        **{"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "network.fabric": "fat-tree"},
        **{"network.nic_gbps": 400.0, "serving.ep": 32, "serving.prefill.ep": 8, "serving.batch": 32.0},
    }
)


def deployed(**changes):
    return deployment(CASE.with_({name.replace("__", "."): value for name, value in changes.items()}))


@pytest.mark.parametrize(
    ("decode_groups", "prefill_groups", "gpus", "tiers"),
    [(1, 1, 40, 1), (1, 4, 64, 1), (1, 5, 72, 2), (2, 1, 72, 2), (63, 4, 2048, 2), (63, 5, 2056, 3)],
)
def test_a_network_has_the_tiers_that_the_gpus_of_both_pools_need(decode_groups, prefill_groups, gpus, tiers):
    both, groups = deployed(), (decode_groups, prefill_groups)
    assert both.network_of(groups) == (gpus, tiers)
    network_usd = both.decode.group.bill_on(tiers).network_usd
    assert network_usd == pytest.approx(32 * (NIC + BEHIND_NIC[tiers]))
    each = [pool.per_gpu(tiers)[0] for pool in (both.decode, both.prefill)]
    assert both.usd_per_s(groups) == pytest.approx(32 * decode_groups * each[0] + 8 * prefill_groups * each[1])


def test_the_parts_of_one_tier_cost_what_they_cost_by_hand_an_hour():
    """The network adds 0.123 $ per GPU-hour behind one switch, 0.232 $ behind two tiers (with the energy of parts)."""
    pool = deployed().decode
    hours, kwh = 4 * 8766, pool.group.hardware.parts.running.usd_per_kwh * pool.group.hardware.parts.running.pue
    for tiers, watts in ((1, 25 + 11.7 + 2 * 9), (2, 25 + 3 * 11.7 + 4 * 9)):
        bill = pool.group.bill_on(tiers)
        usd = float(bill.network_usd) / 32 / hours + float(bill.network_watts) / 32 / 1000 * kwh
        assert usd == pytest.approx((NIC + BEHIND_NIC[tiers]) / hours + watts / 1000 * kwh)


@pytest.mark.parametrize(("fabric", "most"), [("fat-tree", 8), ("rail-only", 64), ("mfabric", 32)])
def test_serving_and_training_take_the_same_tiers(fabric, most):
    """A server has 8 NICs on a fat-tree, 1 on each of 8 rails, 2 of 8 on the tree of mFabric: servers on one switch."""
    for servers, tiers in ((2, 1), (most, 1), (most + 1, 2)):
        job = {"job.parallel.gpus": 8 * servers, "job.parallel.tp": 8, "job.parallel.pp": 1, "job.parallel.ep": 1}
        assert (
            resolve_without_jax(Case().with_({"network.fabric": fabric, "model.name": "llama-moe", **job})).tiers
            == tiers
        )
        one = deployed(network__fabric=fabric, serving__ep=8)
        assert one.network_of((servers - 1, 1)) == (8 * servers, tiers)


def test_stated_tiers_are_priced_as_stated():
    assert deployed(network__tiers=2).network_of((1, 1)).tiers == 2


@pytest.mark.parametrize("changes", [{}, {"network__oversubscription": 4.0}])
def test_an_oversubscribed_tree_below_one_edge_switch_costs_as_much_as_a_full_one(changes):
    """An edge switch of 64 ports has 48 down: 40 NICs need no uplinks, 56 do."""
    full, over = deployed(), deployed(network__fabric="oversub-fat-tree", **changes)
    assert [over.network_of(groups).tiers for groups in ((1, 1), (1, 2), (1, 3))] == [1, 1, 2]
    assert over.decode.per_gpu(1) == full.decode.per_gpu(1)
    for groups in ((1, 1), (1, 2)):
        assert over.usd_per_s(groups) == pytest.approx(full.usd_per_s(groups))
    leaves = deployed(network__fabric="oversub-fat-tree", network__leaf_servers=1)
    assert leaves.network_of((1, 1)).tiers == 2


def test_groups_of_half_a_server_share_its_nics():
    half = deployed(serving__ep=4, serving__prefill__ep=4)
    assert half.network_of((8, 8)) == (64, 1)
    assert half.network_of((8, 9)) == (68, 2)


LOAD = {
    **{"serving.ep": 8, "serving.batch": 39.0, "serving.overlap": False, "serving.prefill.tokens": 2048},
    **{"serving.load.rate": 20.0, "serving.load.requests": 300, "serving.answer": 100, "serving.prompt": 2000},
}


def test_rows_under_a_load_count_the_network_of_all_groups_and_say_so():
    several = cases(CASE.with_(LOAD | {"serving.load.prefill_groups": 2}), {"serving.load.decode_groups": [1, 7]})
    few, many = serve(several)
    assert (few["network_gpus"], few["network_tiers"]) == (24, 1)
    assert (many["network_gpus"], many["network_tiers"]) == (72, 2)
    per_gpu = [
        row["load_usd_per_million_tokens"] * row["load_tokens_per_s"] / row["network_gpus"] for row in (few, many)
    ]
    assert per_gpu[1] > per_gpu[0]
    (said,) = serve_sentences.network_sentences([few])
    assert said.endswith("its network is priced as a 1-tier tree for 24 GPUs, both pools.")
    assert few["low_ports_usd"] < few["load_usd_per_million_tokens"]


def test_dollars_at_other_quotes_by_hand():
    """At 400 Gbps a switch port is also quoted at 563 $ ; one port is behind a NIC of a single switch."""
    (row,) = serve(CASE.with_(LOAD | {"serving.load.decode_groups": 1, "serving.load.prefill_groups": 1}))
    seconds = 4 * 8766 * 3600
    less = (PORT - 563) * 16 / seconds / row["load_tokens_per_s"] * 1e6
    assert row["load_usd_per_million_tokens"] - row["low_ports_usd"] == pytest.approx(less)
    assert row["low_gpus_usd"] is None  # H200 has one quote


def test_of_passes_on_the_same_gpus_those_with_the_soonest_first_tokens_are_taken():
    """All are in time; full passes of 8,192 tokens prefill the most and make prompts wait the longest."""
    limits = {"serving.tpot_ms": 50.0, "serving.load.ttft_ms": 3000.0, "serving.load.decode_groups": 1}
    base = CASE.with_(LOAD | limits | {"serving.load.prefill_groups": 1})
    (chosen,) = serve(base.with_({"serving.prefill.tokens": None}))
    each = {row["prefill_tokens"]: row for row in serve(cases(base, {"serving.prefill.tokens": [2048, 4096, 8192]}))}
    assert all(row["in_time"] for row in each.values())
    assert min(each, key=lambda tokens: each[tokens]["load_ttft_p99_s"]) == chosen["prefill_tokens"] == 2048
