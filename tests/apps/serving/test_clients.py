"""A closed loop of clients on one replica: rows, memory by hand, and what is refused."""

import csv
import html
import re

import pytest

from mfabric_jax import cli
from mfabric_jax.apps.serving.clients import client_cases, client_row, client_rows, unknown_prices
from mfabric_jax.apps.serving.deployment import deployment
from mfabric_jax.apps.serving.layer_parts import request_bytes, weight_bytes
from mfabric_jax.apps.serving.replica import first_token_s, replica, token_seconds
from mfabric_jax.case import Case, cases
from mfabric_jax.checks import Misfit
from mfabric_jax.workload import get_gpu, models
from mfabric_jax.workload.mixers import GroupedQuery, Latent, Linear

STATED = {
    **{"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "serving.tp": 8, "serving.prompt": 1024},
    **{"serving.answer": 512, "serving.replica.clients": 16, "serving.replica.engine": "sglang"},
}
CASE = Case().with_(STATED)


def test_a_row_is_the_token_of_its_replica():
    model = replica(models.DEEPSEEK_V3, get_gpu("H200-SXM"), 8, 1, "fp8", engine="sglang")
    seconds = token_seconds(model, 16, 1024, 512)
    row = client_row(CASE)
    assert (row["model"], row["gpu"], row["tp"], row["ep"]) == ("deepseek-v3", "H200-SXM", 8, 1)
    assert (row["tpot_s"], row["step_s"], row["prompts_s"]) == (seconds.tpot_s, seconds.step_s, seconds.prompts_s)
    assert row["ttft_s"] == first_token_s(model, 1024)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(16 / seconds.tpot_s / 8)
    assert row["tokens_per_s_per_user"] == pytest.approx(1 / seconds.tpot_s)
    assert row["memory_gb"] == pytest.approx((weight_bytes(model) + 16 * request_bytes(model, 1536)) / 1e9 + 6)
    assert row["fits"] is True
    assert client_row(CASE.with_({"gpu.name": "H100-SXM"}))["fits"] is False  # 671 GB on 640


def test_dollars_are_those_of_the_pools_without_a_network():
    """Of 8 GPUs in one server, from the price of the pool that decodes on them."""
    row = client_row(CASE)
    pools = deployment(CASE.with_({"serving.ep": 8, "serving.tp": 1}))
    bill = pools.decode.group.bill_on(1).without_network
    usd, _ = bill.per_gpu_second(pools.decode.group.hardware.parts.running, 8)
    assert row["usd_per_million_tokens"] == pytest.approx(1e6 * usd / row["tokens_per_s_per_gpu"])
    assert usd < pools.decode.least_usd
    unpriced = CASE.with_({"gpu.name": "MI300X"})
    assert (client_row(unpriced)["usd_per_million_tokens"] is None) == bool(unknown_prices(cases(unpriced)))


def test_settings_of_the_replica_are_read():
    by_experts = client_row(CASE.with_({"serving.replica.ep": 8}))
    assert by_experts["tpot_s"] != client_row(CASE)["tpot_s"]
    small = client_row(CASE.with_({"serving.replica.cache": "fp8"}))
    # 16 requests of 1,536 tokens cache 576 elements in each of 61 layers, a byte less each.
    saved = 16 * 1536 * 576 * 61 / 1e9
    assert client_row(CASE)["memory_gb"] - small["memory_gb"] == pytest.approx(saved)


def test_hosts_delay_the_first_token_alone():
    plain, delayed = client_row(CASE), client_row(CASE.with_({"serving.replica.first_token_ms": 120.0}))
    assert delayed["ttft_s"] == pytest.approx(plain["ttft_s"] + 0.12)
    assert [name for name in plain if plain[name] != delayed[name]] == ["ttft_s"]


def bytes_of(attention, gpus, requests, **changes):
    facts = {"experts": 4, "top_k": 2, "expert_hidden": 100} | changes
    model = models.Architecture("small", 2, 1000, attention, source="made up", vocab=500, **facts)
    served = replica(model, get_gpu("H100-SXM"), gpus, weights="bf16")
    return weight_bytes(served) + requests * request_bytes(served, 10)


def test_hosts_delay_every_step():
    plain, delayed = client_row(CASE), client_row(CASE.with_({"serving.host_s": 0.019}))
    assert delayed["step_s"] == pytest.approx(plain["step_s"] + 0.019)
    assert delayed["ttft_s"] == pytest.approx(plain["ttft_s"] + 0.019)


def test_limits_compare_the_slow_end_of_the_band():
    plain = client_row(CASE)
    assert (plain["tpot_limit_s"], plain["by"], plain["in_time"]) == (None, "predicted", True)
    between = 1.1 * 1000 * plain["tpot_s"]  # within the band
    late = client_row(CASE.with_({"serving.tpot_ms": between}))
    assert (late["tpot_limit_s"], late["by"], late["in_time"]) == (pytest.approx(between / 1000), "high", False)
    assert client_row(CASE.with_({"serving.tpot_ms": between, "serving.by": "predicted"}))["in_time"]
    assert client_row(CASE.with_({"serving.tpot_ms": 1.25 * 1000 * plain["tpot_s"]}))["in_time"]
    assert not client_row(CASE.with_({"gpu.name": "H100-SXM", "serving.tpot_ms": 1000.0}))["in_time"]  # too large


def test_memory_by_hand():
    # Two blocks. Attention: 1000 x (32 + 2 x 16) + 32 x 1000 parameters; experts 4 x 3 x 1000 x 100; router 1000 x 4;
    # embedding and head 500 x 1000 each.
    group = GroupedQuery(heads=4, kv_heads=2, head_dim=8)
    weights = 2 * (2 * (64_000 + 32_000 + 1_200_000 + 4_000) + 2 * 500_000)
    assert bytes_of(group, 1, 0) == pytest.approx(weights)
    assert bytes_of(group, 2, 0) == pytest.approx(weights / 2)
    # Each of 3 requests caches 10 tokens x 32 elements x 2 bytes in both blocks; GPUs hold a head of two, or one each.
    for gpus, part in ((1, 1), (2, 1 / 2), (4, 1 / 2)):
        assert bytes_of(group, gpus, 3) - bytes_of(group, gpus, 0) == pytest.approx(3 * 2 * 10 * 32 * 2 * part)
    latent = Latent(heads=4, query_rank=0, kv_rank=12, nope_dim=8, rope_dim=4, value_dim=8)
    assert bytes_of(latent, 4, 3) - bytes_of(latent, 4, 0) == pytest.approx(3 * 2 * 10 * 16 * 2)
    linear = Linear(heads=4, head_dim=8)
    assert bytes_of(linear, 4, 3) - bytes_of(linear, 4, 0) == pytest.approx(3 * 2 * 4 * 64 * 4 / 4)


def test_rows_that_differ_in_a_fabric_alone_are_one():
    several = cases(CASE, {"network.fabric": ["fat-tree", "torus"], "serving.replica.clients": [4, 8]})
    assert len(client_cases(several)) == 2
    rows = list(client_rows(several))
    assert [row["serving.replica.clients"] for row in rows] == [4, 8]
    assert rows[0]["tpot_s"] < rows[1]["tpot_s"]
    assert "network.fabric" not in rows[0]
    assert list(client_rows(several, start=1)) == rows[1:]


def test_a_replica_lies_inside_a_server_or_a_domain():
    with pytest.raises(Misfit, match=r"serving\.tp must be at most the 8 GPUs of a server of H200-SXM, got 16"):
        client_row(CASE.with_({"serving.tp": 16}))


def page_words(page):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8"))).split())


def test_the_most_clients_in_time(tmp_path, capsys):
    out, page = tmp_path / "rows.csv", tmp_path / "page.html"
    words = ["serve", "--gpu", "H200-SXM,B200-HGX", "--tp", "8", "--isl", "1024", "--osl", "1024", "--engine", "sglang"]
    words += ["--clients", "16,64,256", "--out", str(out)]
    assert cli.main([*words, "--tpot-ms", "36"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "gpu H200-SXM: of the stated clients, at most 16 are within 36 ms a token at the slow end of the band" in said
    )
    assert "gpu B200-HGX: of the stated clients, at most 64 are within 36 ms" in said
    assert "in time" in said
    assert cli.main(["report", str(out), "--out", str(page)]) == 0
    text = page_words(page)
    assert re.search(r"B200-HGX costs least: \$[\d.]+ a million tokens without a network Best", text)
    assert "Not ranked: 3 rows are not in time." in text
    assert "limit 36 ms" in text
    assert re.search(r"mfabric serve .*--gpu B200-HGX .*--clients 64 .*--tpot-ms 36 ", text)
    assert cli.main([*words[:-2], "--tpot-ms", "10", "--by", "predicted"]) == 0
    assert "no stated number of clients is within 10 ms a token." in " ".join(capsys.readouterr().out.split())
    assert cli.main([*words[:-2], "--by", "predicted"]) == 2


def test_a_fitted_time_of_hosts_is_judged_as_predicted(capsys):
    fitted = "serve", "--gpu", "H200-SXM", "--tp", "8", "--clients", "16", "--set", "serving.host_s=0.014"
    warns = "already contains host time: if you fitted serving.host_s to a measurement, it counts twice"
    for more, expected in (("--tpot-ms", "90"), True), (("--tpot-ms", "90", "--by", "predicted"), False), ((), False):
        assert cli.main([*fitted, *more]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert (warns in said) is expected
        assert "engine: the fastest kernels of all engines, prompts in separate passes; --engine names yours." in said
    pools = *fitted[:3], "--fabric", "fat-tree", "--ep", "16", "--tpot-ms", "200", *fitted[-2:]
    assert cli.main(list(pools)) == 0
    assert warns in " ".join(capsys.readouterr().out.split())


def test_the_command_prints_and_writes(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    words = ["--model", "deepseek-v3", "--gpu", "H200-SXM", "--tp", "8", "--clients", "4,16", "--out", str(out)]
    assert cli.main(["serve", *words, "--isl", "1024", "--osl", "512", "--engine", "sglang"]) == 0
    said = capsys.readouterr().out
    assert all(
        line.startswith("clients ") for line in said.splitlines() if "tpot [ms]" in line or "first pass [ms]" in line
    )
    assert max(map(len, said.splitlines()[:4])) <= 80
    assert "without a network" in said
    tpot_ms, low, high = re.search(r"^ *4 .* ([\d.]+) +([\d.]+) to ([\d.]+)", said, re.MULTILINE).groups()
    assert float(low) == pytest.approx(0.86 * float(tpot_ms), rel=0.01)
    assert float(high) == pytest.approx(1.24 * float(tpot_ms), rel=0.01)
    assert (
        "tokens/s/GPU: clients / tpot; a measured rate is lower, since it contains the wait for first tokens." in said
    )
    assert "band: of tpot; it holds 8 of 10 measured rows." in said
    rows = list(csv.DictReader(out.open()))
    assert [row["serving.replica.clients"] for row in rows] == ["4", "16"]
    assert float(rows[1]["tpot_s"]) == pytest.approx(client_row(CASE)["tpot_s"])
    assert "prompts_s" not in rows[0]
    assert float(rows[1]["usd_per_million_tokens"]) == pytest.approx(client_row(CASE)["usd_per_million_tokens"])
    page = tmp_path / "page.html"
    assert cli.main(["report", str(out), "--out", str(page)]) == 0
    text = page_words(page)
    assert "one replica of 8" in text
    assert "a million tokens without a network; no limit was stated" in text
    assert "without a network: a replica lies inside a server" in text
    assert not re.search(r"NICs of|Network: arXiv|network 2025| on  ?costs|no limit\b(?! was)", text)
    assert "First pass" in text
    assert "first token [ms]" not in text
    for more, words in (
        (("--clients", "4", "--ep", "8"), "serving.ep is not read by serve --clients; the GPUs by which a replica's"),
        (
            ("--clients", "4", "--ttft-ms", "2000"),
            "ttft_ms is not read by serve --clients; --clients gives the first pass",
        ),
        (("--clients", "4", "--fabric", "torus"), "network.fabric is not read by serve --clients"),
        (("--clients", "4", "--figures", "a"), "figures do not show serve --clients"),
        (
            (
                "--engine",
                "vllm",
            ),
            "serving.replica.engine is read only with --clients, got 'vllm'",
        ),
    ):
        assert cli.main(["serve", *more]) == 2
        assert words in capsys.readouterr().err
