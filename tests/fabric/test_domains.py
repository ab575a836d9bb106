"""Scale-up domains of any size and rate, and CloudMatrix384: counts, rates, idle GPUs, all-to-alls by hand."""

from fractions import Fraction

import pytest

from mfabric_jax import cases, resolve
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.rows.costs import bill_of, idle_spares
from mfabric_jax.evaluate.rows.results import not_known
from mfabric_jax.fabric import cloudmatrix, cluster, cluster_cost, get
from mfabric_jax.fabric.domains import domain_links
from mfabric_jax.fabric.site import Domain
from tests.small import refused, row, scenario, small

NIC = 12.5e9  # bytes/s
EVEN = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "traffic.drawn": 1, "job.batch.micro_batches": 1}
SCALE_UP = {"network.fabric": "scale-up"}


def degrees(**each):
    return {f"job.parallel.{name}": degree for name, degree in each.items()}


def sized(gpus, **more):
    return SCALE_UP | {"network.scale-up.gpus": gpus} | more


def test_an_nvl72_by_counts():
    # 18 ports of 50 GB/s a GPU, one at each of 18 chips of 72 ports.
    said = {"network.scale-up.gpus": 72, "network.scale-up.ports": 18, "network.scale-up.port_gigabytes_per_s": 50.0}
    domains = get("scale-up").about.domains
    assert domains is not None
    assert domains.stated is not None
    domain = domains.stated(said.__getitem__)
    assert domain == Domain(72, 900e9, 18)
    assert domain_links(domain) == 1296
    one = resolve(small(SCALE_UP))
    assert (one.gpu.scale_up_gpus, one.gpu.nvlink, one.case.gpu.nvswitches) == (72, 900e9, 18)
    assert one.gpu.nvlink == get("scale-up").inside_Bps(8.0, 800.0, one.gpu.nvlink)  # NICs take nothing of it


def test_a_supernode_by_counts():
    c = cloudmatrix
    assert c.NODE_NPUS * c.NPU_GIGABYTES_PER_S == c.SUB_PLANES * c.SECOND_TIER * c.LINK_GIGABYTES_PER_S == 3136
    assert c.SECOND_TIER * c.LINK_GIGABYTES_PER_S == 448
    assert (c.SECOND_TIER_SWITCHES, c.LINKS, c.NODES * c.SUB_PLANES) == (112, 5376, 336)
    assert c.LINKS == c.SECOND_TIER_SWITCHES * 48  # each of the second tier has a port for every node
    one = resolve(small({"network.fabric": "cloudmatrix384"}))
    assert (one.gpu.scale_up_gpus, one.gpu.nvlink) == (384, 392e9)
    made = cluster("cloudmatrix384", 2, 400.0)
    assert (made.gpus, made.nvswitch_gigabytes_per_s, made.nics) == (768, 392.0, 384)


@pytest.mark.parametrize(
    ("gpus", "job", "used", "paid"),
    [
        # A group of 32 GPUs (tp 4, ep 8), a stage of 256 or 96, one stage. As many parts as fit share a domain.
        (72, {"tp": 4, "pp": 1, "dp": 8, "ep": 8}, 64, 4 * 72),  # two groups of each stage; 8 idle
        (72, {"tp": 4, "pp": 1, "dp": 3, "ep": 8}, 32, 3 * 36),  # 64 do not fill 96: two parts share a domain
        (72, {"tp": 4, "pp": 1, "dp": 1, "ep": 2}, 8, 8),  # nine share it
        (144, {"tp": 4, "pp": 1, "dp": 8, "ep": 8}, 128, 2 * 144),
        (576, {"tp": 4, "pp": 4, "dp": 8, "ep": 8}, 256, 2 * 576),  # two stages of 256 in each
        (24, {"tp": 4, "pp": 1, "dp": 2, "ep": 8}, 16, 4 * 24),  # a group on two domains
        (64, {"tp": 4, "pp": 1, "dp": 8, "ep": 8}, 64, 256),  # nothing idle
    ],
)
def test_who_is_idle_and_paid(gpus, job, used, paid):
    one = resolve(small(sized(gpus) | degrees(**job)))
    assert one.job.gpus_per_server == used
    assert one.fabric.paid_gpus(one.gpu, one.job) == pytest.approx(paid)
    told = idle_spares(one, one.job)
    assert (told is None) == (paid == one.job.gpus)
    group = one.job.tp * one.job.ep
    most = [
        n for n in range(4, gpus + 1, 4) if (n % group == 0 or group % n == 0) and one.job.gpus // one.job.pp % n == 0
    ]
    assert used == max(most)


def test_spares_are_in_the_bill(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text("scale_up_per_gpu = 1000\n[gpus.H100-SXM]\nusd = 30000\n")
    job = degrees(tp=4, pp=1, dp=8, ep=8)
    prices = {"network.prices": str(file), "gpu.name": "H100-SXM"}
    whole, spare = (resolve(small(sized(gpus, **prices) | job)) for gpus in (64, 72))
    one, other = (bill_of(each, each.job, 100.0) for each in (whole, spare))
    assert one.network_usd == cluster_cost("scale-up", 4, 100.0, whole.parts.prices, gpus=64)
    assert other.network_usd / one.network_usd == pytest.approx(72 / 64, rel=1e-3)  # but for the rack's switch
    assert (other.cluster_usd - other.network_usd) / (one.cluster_usd - one.network_usd) == pytest.approx(72 / 64)
    no_price = resolve(small(SCALE_UP))
    assert bill_of(no_price, no_price.job, 100.0).network_usd is None


def sent(job):
    """Bytes of one dispatch of a rank."""
    return Fraction(job.selections) * Fraction(job.dispatch_bytes_per_selection)


def exchanges(case):
    """Seconds of a dispatch by hand, a dispatch being a quarter of what blocks exchange."""
    found = row(case)
    return found["ep_comm_s"] / (4 * 32)


def test_an_all_to_all_in_a_domain_by_hand():
    # 8 ranks of 4 GPUs in a domain: a rank sends an eighth to each of 7 others, over 4 GPUs of 900 or 392 GB/s.
    job = degrees(tp=4, pp=1, dp=2, ep=8)
    for name, rate in (("scale-up", 900), ("cloudmatrix384", 392)):
        case = small({"network.fabric": name} | EVEN | job)
        want = sent(resolve(case).job) * Fraction(7, 8) / (4 * rate * 10**9)
        assert exchanges(case) == pytest.approx(float(want), rel=1e-6)
    halved = small(sized(72) | {"network.scale-up.port_gigabytes_per_s": 25} | EVEN | job)
    assert exchanges(halved) == pytest.approx(2 * exchanges(small(SCALE_UP | EVEN | job)), rel=1e-6)


def test_an_all_to_all_between_domains_by_hand():
    # Domains of 24 of which 16 work: 4 ranks of 4 GPUs in each of two. 4/8 of a rank's bytes leave over its 4 NICs.
    job = degrees(tp=4, pp=1, dp=2, ep=8)
    case = small(sized(24) | EVEN | job)
    group = scenario(case).group
    assert (group.nics, group.nic_use) == (16, "own")
    want = sent(resolve(case).job) * Fraction(1, 2) / (4 * Fraction(NIC))
    assert exchanges(case) == pytest.approx(float(want), rel=1e-6)


def test_what_does_not_go():
    small_domain = sized(2) | degrees(tp=4, pp=1, dp=8, ep=8)
    assert refused(small_domain, small()) == "scale-up needs domains of at least the 4 GPUs of tp, got 2."
    with pytest.raises(Misfit, match="expert-parallel groups of a multiple of the 8 GPUs of tp, got 12"):
        get("scale-up").used_of(resolve(small(SCALE_UP)).server, 12, 12, 8)
    assert "network.scale-up.gpus" in refused({"network.scale-up.gpus": 0}, small())


def test_a_page_says_who_is_idle():
    said, *_ = not_known(cases(small(SCALE_UP), {"network.scale-up.gpus": (72, 64)}))
    assert said == (
        "scale-up: mixtral-8x7b uses 1,024 of 1,152 GPUs in 16 domains of 72; the others are idle but paid for."
    )


def test_the_rack_of_72_gpus_has_its_nvlinks(tmp_path):
    """Price and power of a GB200's rack include them, but not those of other GPUs, or of other domains."""
    job = degrees(tp=4, pp=1, dp=8, ep=8)

    def network(gpu, fabric="nvl72", **more):
        one = resolve(small({"network.fabric": fabric, "gpu.name": gpu} | job | more))
        bill = bill_of(one, one.job, 100.0)
        return bill.network_usd, bill.network_watts

    usd, watts = network("GB200-NVL72")
    file = tmp_path / "prices.toml"
    file.write_text("scale_up_per_gpu = 0\n[watts]\nscale_up_per_gpu = 0\n")
    assert (usd, watts) == network("H100-SXM", **{"network.prices": str(file)})
    assert usd > 0
    assert watts > 0
    file.write_text("scale_up_per_gpu = 10\n[watts]\nscale_up_per_gpu = 1\n")
    own_usd, own_watts = network("GB200-NVL72", **{"network.prices": str(file)})
    assert (own_usd - usd, own_watts - watts) == (pytest.approx(10 * 4 * 72), pytest.approx(4 * 72))
    assert network("H100-SXM") == network("GB200-NVL72", "cloudmatrix384") == (None, None)
