"""Prefill on other GPUs and NICs than decoding: beside two separate runs, and by hand."""

import pytest

from mfabric_jax.apps.serving import deployment, serve
from mfabric_jax.apps.serving.kinds import prefill_case, relative_price
from mfabric_jax.apps.serving.rows import effective
from mfabric_jax.case import Case, cases
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.support.unread import Unread
from mfabric_jax.workload import get_gpu
from tests.command_line import mistake

BASE = {
    **{"model.name": "deepseek-v3", "network.fabric": "fat-tree", "serving.batch": 32.0, "serving.prompt": 3000},
    **{"serving.ep": 32, "serving.prefill.ep": 16, "serving.answer": 500},
}
H20, H200 = "H20-SXM", "H200-SXM"
OF_DECODING = "tpot_s", "tokens_per_s_per_gpu", "dispatch_s", "combine_s", "attention_s", "experts_s", "memory_gb"
OF_PREFILL = "prefill_s", "prefill_low_s", "prefill_tokens_per_s_per_gpu", "prefill_memory_gb"


def case_on(gpu, nic_gbps=400.0, **settings):
    changes = {"gpu.name": gpu, "network.nic_gbps": nic_gbps}
    return Case().with_(BASE | changes | {f"serving.{name}": value for name, value in settings.items()})


def row_on(*args, **settings):
    return next(serve(case_on(*args, **settings)))


def usd_per_s(row):
    """Dollars a second of a GPU, both of whose pools are of one kind and of the sizes of `BASE`."""
    return row["usd_per_million_tokens"] / 1e6 * row["tokens_per_s_per_gpu"] / (1 + row["prefill_gpus"])


def first_step_s(case):
    deployed = deployment(case)
    return float(deployed.decoding(deployed.numbers).step.step_s)


def test_two_kinds_have_the_seconds_and_dollars_of_two_runs():
    mixed = row_on(H20, **{"prefill.gpu": H200, "prefill.nic_gbps": 200.0})
    decodes, prefills = row_on(H20), row_on(H200, 200.0)
    assert {name: mixed[name] for name in OF_DECODING} == {name: decodes[name] for name in OF_DECODING}
    assert {name: mixed[name] for name in OF_PREFILL} == {name: prefills[name] for name in OF_PREFILL}
    assert prefills["prefill_s"] < 0.6 * decodes["prefill_s"]  # an H20 has 0.15 of the FLOPs
    share = mixed["tokens_per_s_per_gpu"] / 500 * 3000 / prefills["prefill_tokens_per_s_per_gpu"]
    assert mixed["prefill_gpus"] == pytest.approx(share)
    usd = 1e6 * (usd_per_s(decodes) + share * usd_per_s(prefills)) / mixed["tokens_per_s_per_gpu"]
    assert mixed["usd_per_million_tokens"] == pytest.approx(usd)
    # a prompt's cache in bf16: 61 layers of 576 latents, over the slower NIC at 0.925 of its rate
    assert mixed["kv_transfer_s"] == pytest.approx(61 * 3000 * 576 * 2 / (0.925 * 200e9 / 8))
    step_s = {gpu: first_step_s(case_on(gpu)) for gpu in (H20, H200)}
    assert mixed["ttft_s"] == pytest.approx(prefills["ttft_s"] + step_s[H20] - step_s[H200])
    assert (mixed["prefill_gpu"], mixed["prefill_nic_gbps"], mixed["prefill_gpu_memory_gb"]) == (H200, 200.0, 141.0)


def test_the_same_kind_stated_changes_nothing():
    usual = row_on(H200)
    assert row_on(H200, **{"prefill.gpu": H200, "prefill.nic_gbps": 400.0}) == usual


def test_a_gpu_that_prefills_has_its_data_sheet_and_not_the_settings_of_the_other():
    case = case_on(H20, **{"prefill.gpu": H200}).with_({"gpu.memory_gigabytes": 50.0, "gpu.usd": 1.0})
    pools = deployment(case)
    assert pools.decode.gpu_bytes == 50e9
    assert pools.prefill.group.gpu == get_gpu(H200)
    same = deployment(case.with_({"serving.prefill.gpu": H20}))
    assert same.prefill.gpu_bytes == 50e9
    assert prefill_case(case_on(H20)) == case_on(H20)


def test_whether_prompts_fit_is_asked_of_the_gpu_that_prefills():
    small = {"gpu.memory_gigabytes": 80.0}
    tight = case_on(H20, **{"prefill.ep": 8}).with_(small)
    roomy = case_on(H20, **{"prefill.ep": 8, "prefill.gpu": H200}).with_(small)
    assert (deployment(tight).prefill_fits, deployment(roomy).prefill_fits) == (False, True)


def test_gpus_of_a_kind_count_alike_and_two_kinds_by_their_price():
    one = deployment(case_on(H200))
    assert relative_price(one.decode, one.prefill) == 1.0
    two = deployment(case_on(H20, **{"prefill.gpu": H200}))
    assert relative_price(two.decode, two.prefill) == pytest.approx(usd_per_s(row_on(H200)) / usd_per_s(row_on(H20)))
    unpriced = deployment(case_on("GB300-NVL72", **{"prefill.gpu": H200}))
    assert relative_price(unpriced.decode, unpriced.prefill) == 1.0


def test_a_load_runs_on_both_kinds():
    loaded = {"load.rate": 30.0, "load.requests": 300, "load.decode_groups": 2, "load.prefill_groups": 2}
    mixed = row_on(H20, **{"prefill.gpu": H200, "prefill.nic_gbps": 100.0}, **loaded)
    alone = row_on(H20, **loaded)
    assert mixed["load_ttft_p50_s"] < alone["load_ttft_p50_s"]
    assert mixed["load_kv_p50_s"] >= mixed["kv_transfer_s"] > 3.9 * alone["kv_transfer_s"]
    rate = mixed["load_tokens_per_s"]
    of_gpu = [  # 96 NICs need two tiers of 64-port switches
        usd_per_s(next(serve(case_on(*kind).with_({"network.tiers": 2})))) for kind in ((H20,), (H200, 100.0))
    ]
    usd = 1e6 * (64 * of_gpu[0] + 32 * of_gpu[1]) / rate
    assert mixed["load_usd_per_million_tokens"] == pytest.approx(usd)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"prefill.gpu": "H201"}, InputError, "H201"),
        ({"prefill.gpu": H20, "prefill.ep": 12}, Misfit, r"serving\.prefill\.ep must fill servers of 8"),
        ({"prefill.gpu": "B200-HGX", "formats.weights": "nvfp4"}, InputError, "Blackwell family, got H200"),
    ],
)
def test_a_kind_that_does_not_fit_is_refused(settings, error, words):
    with pytest.raises(error, match=words):
        deployment(case_on(H200, **settings))


def test_a_nic_without_bandwidth_is_refused():
    with pytest.raises(InputError, match=r"serving\.prefill\.nic_gbps"):
        case_on(H200, **{"prefill.nic_gbps": 0.0})


def test_clients_of_a_replica_have_no_second_kind(capsys):
    said = mistake(capsys, "serve", "--clients", "4", "--set", f"serving.prefill.gpu={H20}")
    assert "serving.prefill.gpu" in said


def test_prices_of_gpus_of_neither_pool_are_named(tmp_path, recwarn):
    own = tmp_path / "own.toml"
    own.write_text("gpus.mine.usd = 1000\n")
    gpu = tmp_path / "mine.toml"
    gpu.write_text('like = "H200-SXM"\nname = "mine"\n')
    case = Case().with_({"model.name": "deepseek-v3", "gpu.name": "H20-SXM", "network.prices": str(own)})
    effective(cases(case.with_({"serving.prefill.gpu": str(gpu)})))
    assert not recwarn.list
    with pytest.warns(Unread, match="GPUs of no case .*: mine[.]"):
        effective(cases(case))
