"""What a group that serves pays of servers and domains that it does not fill, by hand."""

from fractions import Fraction

import pytest

from mfabric_jax.apps.serving.deployment import deployment
from mfabric_jax.apps.serving.group import group_of
from mfabric_jax.evaluate.rows.costs import bill_of
from mfabric_jax.fabric import NAMES, get
from tests.fabric.test_paid import paid_by_hand, priced

H100_USD, SERVER_USD = 30000, 21102
NIC_USD = 1499 + 3 * 1090 + 4 * 659 + 2 * 150  # of 400 Gbps behind two tiers
DOMAINS = {"scale-up": (72, 72), "nvl72": (72, 64), "mfabric-cpo": (72, 64), "cloudmatrix384": (384, 384)}


@pytest.fixture
def case(tmp_path):
    return priced(tmp_path)


def bill(case, gpus):
    group = group_of(case, gpus)
    return bill_of(group.hardware, group.shape, 400.0)


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("fabric", ["fat-tree", "rail-optimized", *DOMAINS])
def test_a_group_of_any_size_by_hand(fabric, group, case):
    built, working = DOMAINS.get(fabric, (8, 8))
    paid = paid_by_hand(built, working, group)
    found = bill(case(fabric), group)
    assert found.network_usd == pytest.approx(float(paid * NIC_USD))
    assert found.cluster_usd == pytest.approx(float(paid * (NIC_USD + H100_USD + Fraction(SERVER_USD, 8))))
    network_watts = paid * (25 + 3 * Fraction("11.7") + 4 * 9)
    assert found.network_watts == pytest.approx(float(network_watts))
    drawn = network_watts + paid * Fraction(4400, 8) + group * 700  # idle GPUs draw nothing
    assert found.cluster_watts == pytest.approx(float(drawn))


def test_a_gpu_of_a_server_costs_the_same_however_many_share_it(case):
    for name in NAMES:
        if get(name).domain_gpus is None and name != "twisted-torus":  # which has no form of one server
            whole = bill(case(name), 8)
            for gpus in (1, 2, 4):
                assert bill(case(name), gpus).cluster_usd == pytest.approx(whole.cluster_usd * gpus / 8), name


def test_a_domain_that_a_gpu_sets_has_no_idle_ones(case):
    stated = case("nvl72", **{"gpu.scale_up_gpus": 32})
    assert bill(stated, 32).network_usd == pytest.approx(32 * NIC_USD)


def test_each_pool_pays_for_its_own_idle_gpus(case):
    both = {"serving.kernels": "nvlink-one-sided", "serving.prefill.kernels": "nvlink-one-sided"}
    served = case("scale-up", **{"serving.ep": 8, "serving.prefill.ep": 64, **both})
    pools = deployment(served)
    (usd, _), (prefill_usd, _) = pools.per_gpu()
    hours = 4 * 8766 * 3600
    more = (NIC_USD + H100_USD + SERVER_USD / 8) / 8 / hours  # 72 for 64 that work
    energy = prefill_usd - usd - more
    assert 0 < energy < more / 10  # of the NICs and servers of idle GPUs
    found, _ = pools.per_million(decoding := pools.decoding(pools.numbers), 400.0)
    share = pools.prefill_share(decoding, 400.0)
    assert found == pytest.approx(1e6 * (usd + share * prefill_usd) / float(decoding.tokens_per_s))
