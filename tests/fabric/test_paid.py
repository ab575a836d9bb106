"""What a group pays of servers and domains that it does not fill: by hand, in training."""

from fractions import Fraction

import pytest

from mfabric_jax import Case, resolve
from mfabric_jax.evaluate.rows.costs import bill_of
from mfabric_jax.evaluate.rows.results import not_known
from mfabric_jax.fabric import get
from mfabric_jax.workload.gpus import get_gpu
from tests.small import cases, small

FREE = "scale_up_per_gpu = 0\nco_packaged_per_gpu = 0\n[watts]\nscale_up_per_gpu = 0\nco_packaged_per_gpu = 0\n"


def priced(folder):
    """What makes cases in which only parts that have a price count."""
    (folder / "free.toml").write_text(FREE)

    def of(fabric, **more):
        usual = {"gpu.name": "H100-SXM", "model.name": "deepseek-v3", "network.prices": str(folder / "free.toml")}
        return Case().with_(usual | {"network.fabric": fabric} | more)

    return of


def paid_by_hand(built, working, group):
    """GPUs that a group pays for: as many groups as fit share what is built equally; a larger one is cut into parts."""
    part = group
    while part > working or group % part:
        part -= 1
    return Fraction(group, part) * Fraction(built, working // part)


@pytest.mark.parametrize(
    ("built", "working", "group", "paid"),
    [(8, 8, 1, 1), (72, 72, 8, 8), (72, 72, 32, 36), (72, 72, 64, 72), (72, 64, 8, 9), (72, 64, 64, 72), (8, 8, 3, 4)],
)
def test_parts_that_fit_share_equally(built, working, group, paid):
    assert paid_by_hand(built, working, group) == paid
    gpu = get_gpu("H100-SXM")
    if built == 72:
        on = get("scale-up" if working == 72 else "nvl72")
        assert on.physical_gpus(gpu) * on.share_of(gpu, group) == pytest.approx(paid)


def test_training_on_nvl72_pays_its_idle_gpus(tmp_path):
    prices = priced(tmp_path)("nvl72").network.prices
    one = resolve(small({"network.fabric": "nvl72", "gpu.name": "H100-SXM", "network.prices": prices}))
    assert (one.job.gpus, one.job.gpus_per_server) == (1024, 64)
    found = bill_of(one, one.job, 400.0)
    three_tiers = 1499 + 5 * 1090 + 6 * 659 + 3 * 150
    assert found.network_usd == pytest.approx(16 * 72 * three_tiers)
    (said,) = [line for line in not_known(cases(small({"network.fabric": "nvl72"}))) if "idle" in line]
    assert said.startswith("nvl72: mixtral-8x7b uses 1,024 of 1,152 GPUs in 16 domains of 72; the others are idle")
