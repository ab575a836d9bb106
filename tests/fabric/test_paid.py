"""What a group pays of servers and domains that it does not fill: by hand, in training and in serving."""

from fractions import Fraction

import pytest

from mfabric_jax import Case, resolve
from mfabric_jax.apps.serving.deployment import deployment
from mfabric_jax.apps.serving.group import group_of
from mfabric_jax.evaluate.rows.results import not_known
from mfabric_jax.evaluate.rows.rows import bill_of
from mfabric_jax.fabric import NAMES, get
from mfabric_jax.workload.gpus import get_gpu
from tests.small import cases, small

H100_USD, SERVER_USD = 30000, 21102
NIC_USD = 1499 + 3 * 1090 + 4 * 659 + 2 * 150  # of 400 Gbps behind two tiers
DOMAINS = {"scale-up": (72, 72), "nvl72": (72, 64), "mfabric-cpo": (72, 64), "cloudmatrix384": (384, 384)}
FREE = "scale_up_per_gpu = 0\nco_packaged_per_gpu = 0\n[watts]\nscale_up_per_gpu = 0\nco_packaged_per_gpu = 0\n"


@pytest.fixture
def case(tmp_path):
    """A case in which only parts that have a price count."""
    (tmp_path / "free.toml").write_text(FREE)

    def of(fabric, **more):
        usual = {"gpu.name": "H100-SXM", "model.name": "deepseek-v3", "network.prices": str(tmp_path / "free.toml")}
        return Case().with_(usual | {"network.fabric": fabric} | more)

    return of


def bill(case, gpus):
    group = group_of(case, gpus)
    return bill_of(group.hardware, group.shape, 400.0)


def paid_by_hand(built, working, group):
    """GPUs that a group pays for: as many groups as fit share what is built equally; a larger one is cut into parts."""
    part = group
    while part > working or group % part:
        part -= 1
    return Fraction(group, part) * Fraction(built, working // part)


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


@pytest.mark.parametrize(
    ("built", "working", "group", "paid"),
    [(8, 8, 1, 1), (72, 72, 8, 8), (72, 72, 32, 36), (72, 72, 64, 72), (72, 64, 8, 9), (72, 64, 64, 72), (8, 8, 3, 4)],
)
def test_parts_that_fit_share_equally(built, working, group, paid):
    assert paid_by_hand(built, working, group) == paid
    gpu = get_gpu("H100-SXM")
    if built == 72:
        on = get("scale-up" if working == 72 else "nvl72")
        assert on.built_of(gpu) * on.share_of(gpu, group) == pytest.approx(paid)


def test_a_domain_that_a_gpu_sets_has_no_idle_ones(case):
    stated = case("nvl72", **{"gpu.scale_up_gpus": 32})
    assert bill(stated, 32).network_usd == pytest.approx(32 * NIC_USD)


def test_each_pool_pays_for_its_own_idle_gpus(case):
    both = {"serving.kernels": "nvlink-one-sided", "serving.prefill.kernels": "nvlink-one-sided"}
    served = case("scale-up", **{"serving.ep": 8, "serving.prefill.ep": 64, **both})
    pools = deployment(served)
    (usd, _), (prefill_usd, _) = pools.decode.per_gpu, pools.prefill.per_gpu
    hours = 4 * 8766 * 3600
    more = (NIC_USD + H100_USD + SERVER_USD / 8) / 8 / hours  # 72 for 64 that work
    energy = prefill_usd - usd - more
    assert 0 < energy < more / 10  # of the NICs and servers of idle GPUs
    found, _ = pools.per_million(decoding := pools.decoding(pools.numbers), 400.0)
    share = pools.prefill_share(decoding, 400.0)
    assert found == pytest.approx(1e6 * (usd + share * prefill_usd) / float(decoding.tokens_per_s))


def test_training_on_nvl72_pays_its_idle_gpus(case):
    one = resolve(
        small({"network.fabric": "nvl72", "gpu.name": "H100-SXM", "network.prices": case("nvl72").network.prices})
    )
    assert (one.job.gpus, one.job.gpus_per_server) == (1024, 64)
    found = bill_of(one, one.job, 400.0)
    three_tiers = 1499 + 5 * 1090 + 6 * 659 + 3 * 150
    assert found.network_usd == pytest.approx(16 * 72 * three_tiers)
    (said,) = [line for line in not_known(cases(small({"network.fabric": "nvl72"}))) if "idle" in line]
    assert said.startswith("nvl72: 1,024 GPUs of mixtral-8x7b run on 1,152 in 16 domains of 72; the others are idle")
