"""`mfabric serve` from its words to its table and its file."""

import csv
import json
import re
import shlex
from html import unescape

import numpy as np
import pytest

from mfabric_jax.apps.serving import cheapest, rows_within_limits, serve, sizing
from mfabric_jax.apps.serving import rows as serving_rows
from mfabric_jax.apps.serving.rows import cached_deployment, row_of
from mfabric_jax.apps.serving.sizing import MOST_BATCH, with_best_batch
from mfabric_jax.case import Case, cases
from mfabric_jax.checks import InputError
from mfabric_jax.commands import serve_sentences
from mfabric_jax.report.drawing import drawn
from mfabric_jax.report.serving import serving_chart, serving_charts
from tests.command_line import mistake, status

pytestmark = pytest.mark.usefixtures("as_users_have_it")
ALWAYS = ["model", "gpu", "fabric", "nic_gbps", "kernels", "precision", "ep", "tp", "batch", "context"]
ALWAYS += ["overlap", "expert_load", "rank_load_over_mean", "rank_load_over_mean_in_order"]
MEASURED = [
    *("tpot_s", "tpot_limit_s", "tpot_low_s", "tpot_high_s", "overlapped_s", "serial_s"),
    *("ttft_s", "ttft_limit_s", "ttft_high_s", "by"),
    *("tokens_per_s_per_gpu", "tokens_per_s_per_user"),
    *("dispatch_s", "combine_s", "attention_s", "experts_s", "beside_s", "exposed_comm_s", "kv_transfer_s"),
    *("prefill_s", "prefill_low_s", "prefill_high_s", "prefill_tokens_per_s_per_gpu"),
    *("prefill_memory_gb", "prefill_gpu", "prefill_nic_gbps", "prefill_gpu_memory_gb", "prefill_ep", "prefill_tokens"),
    *("prefill_overlap", "prefill_gpus"),
    *("requests", "most_requests", "memory_gb", "gpu_memory_gb", "fits", "batch_limit"),
    *("usd_per_million_tokens", "kj_per_million_tokens", "network_gpus", "network_tiers"),
    *("low_ports_usd", "low_gpus_usd", "high_gpus_usd", "bound_by", "in_time"),
]
WORDS = ("serve", "--model", "deepseek-v3", "--gpu", "H100-SXM", "--nic-gbps", "400")


def case(**settings):
    said = {
        "model.name": "deepseek-v3",
        "network.fabric": "fat-tree",
        "gpu.name": "H100-SXM",
        "network.nic_gbps": 400.0,
    }
    return Case().with_(said | {name.replace("__", "."): value for name, value in settings.items()})


def test_columns_are_always_there():
    assert list(row_of(cached_deployment(case()))) == [*ALWAYS, *MEASURED]


def test_the_command_writes_a_row_for_each_case_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    out = tmp_path / "rows.csv"
    words = *WORDS, "--fabrics", "fat-tree,full-mesh", "--ep", "32,64", "--batch", "64,128", "--context", "1000"
    words = *words, "--all-columns", "--out", str(out)
    assert status(*words) == 0
    said = capsys.readouterr().out
    assert "full-mesh" in said
    assert "Cheapest: deepseek-v3 on " in said
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    assert {(row["fabric"], row["ep"], float(row["batch"])) for row in rows} == {
        (fabric, ep, batch) for fabric in ("fat-tree", "full-mesh") for ep in ("32", "64") for batch in (64.0, 128.0)
    }
    assert set(ALWAYS) <= set(rows[0])
    whole = out.read_text()
    worked, row_now = [], serving_rows.row_of

    def stops(one):
        worked.append(one)
        if len(worked) == 4:
            raise InputError("the third row was the last.")
        return row_now(one)

    monkeypatch.setattr(serving_rows, "row_of", stops)
    assert "the third row was the last" in mistake(capsys, *words)
    assert "rows.csv" in mistake(capsys, *WORDS, "--fabrics", "fat-tree", "--ep", "8", "--out", str(out))  # another run
    assert status(*words) == 0
    assert len(worked) == 4 + 5  # three rows were there
    assert out.read_text() == whole


def test_a_picture_shows_speed_beside_throughput(tmp_path):
    assert status(*WORDS, "--fabrics", "fat-tree", "--ep", "72", "--batch", "16,64", "--figures", str(tmp_path)) == 0
    assert (tmp_path / "serving.png").stat().st_size > 1000


def test_within_a_time_the_batch_is_the_best_that_fits(monkeypatch):
    asked = case(serving__ep=72, serving__context=2000.0, serving__tpot_ms=50.0, serving__by="predicted")
    found = with_best_batch(cached_deployment(asked))
    batch = float(found.case.serving.batch)
    assert 1 < batch < MOST_BATCH

    def row(tokens):
        return row_of(cached_deployment(case(serving__ep=72, serving__context=2000.0, serving__batch=float(tokens))))

    assert row(batch)["tpot_s"] <= 0.05
    assert row(batch)["fits"]
    best = row(batch)["tokens_per_s_per_gpu"]
    for other in (*range(1, int(batch), 13), int(batch) + 1, int(batch) + 20):
        if (there := row(other))["tpot_s"] <= 0.05 and there["fits"]:
            assert there["tokens_per_s_per_gpu"] <= best
    (given,) = serve(asked)
    assert given["batch"] == batch
    monkeypatch.setattr(sizing, "TOGETHER", 7)
    assert with_best_batch(cached_deployment(asked)) == found
    late = with_best_batch(cached_deployment(case(serving__tpot_ms=0.1)))
    assert float(late.case.serving.batch) == 1


def test_numbers_are_not_worked_out_again_for_other_batches():
    rows = list(serve([case(serving__batch=b) for b in (1.0, 64.0)]))
    alone = [row_of(cached_deployment(case(serving__batch=b))) for b in (1.0, 64.0)]
    assert rows == alone
    assert rows[0]["tpot_s"] < rows[1]["tpot_s"]


def test_costs_are_of_both_pools():
    """Dollars and joules of a GPU in a second, times GPUs that prefill beside it, over its tokens a second."""
    served = cached_deployment(case(serving__ep=72))
    row, (dollars, joules) = row_of(served), served.per_gpu()[0]
    pools = 1 + row["prefill_gpus"]
    assert row["usd_per_million_tokens"] == pytest.approx(1e6 * dollars * pools / row["tokens_per_s_per_gpu"])
    assert row["kj_per_million_tokens"] == pytest.approx(1e3 * joules * pools / row["tokens_per_s_per_gpu"])
    # an answer of 1,024 tokens needs a prompt of 4,096, which takes a pass of 16,384 so many GPU seconds
    each = row["tokens_per_s_per_gpu"] / 1024 * 4096 / row["prefill_tokens_per_s_per_gpu"]
    assert row["prefill_gpus"] == pytest.approx(each)
    cached = row_of(cached_deployment(case(serving__ep=72, serving__prefill__cached=0.5)))
    assert cached["prefill_gpus"] == pytest.approx(each / 2)


def test_uneven_experts_slow_a_step_and_placement_helps():
    even, placed, plain = (
        row_of(cached_deployment(case(serving__ep=16, **changes)))
        for changes in (
            {},
            {"serving__experts": "measured"},
            {"serving__experts": "measured", "serving__eplb": False},
        )
    )
    assert even["experts_s"] < placed["experts_s"] < plain["experts_s"]
    assert even["dispatch_s"] <= placed["dispatch_s"] <= plain["dispatch_s"]


def test_what_binds_a_step():
    bound = {
        "network": case(serving__ep=64, serving__context=100.0, network__nic_gbps=100.0),
        "latency": case(serving__ep=64, serving__batch=1.0, serving__kernels="nccl", serving__overlap=False),
        "attention": case(serving__ep=64, serving__context=4096.0, serving__batch=64.0, network__nic_gbps=800.0),
        "experts": case(serving__ep=16, serving__batch=32.0, serving__context=100.0, network__nic_gbps=800.0),
        "memory": case(serving__ep=8, serving__batch=512.0, serving__context=60000.0),
    }
    found = {name: row_of(cached_deployment(one)) for name, one in bound.items()}
    assert {name: row["bound_by"] for name, row in found.items()} == {name: name for name in bound}
    assert not found["memory"]["fits"]
    assert np.isfinite(found["memory"]["tpot_s"])


def test_the_band_holds_the_step_also_where_one_micro_batch_is_quicker(capsys):
    """Few tokens on few GPUs: two micro-batches read all weights of experts twice."""
    row = row_of(cached_deployment(case(serving__ep=16, serving__batch=4.0)))
    assert row["serial_s"] < row["tpot_s"] == row["overlapped_s"]
    assert row["tpot_low_s"] <= row["serial_s"]
    assert row["tpot_s"] < row["tpot_high_s"]
    assert status(*WORDS, "--fabric", "fat-tree", "--ep", "16,64", "--batch", "4") == 0
    assert "2 of 2 rows are faster" in capsys.readouterr().out
    assert status(*WORDS, "--fabric", "fat-tree", "--ep", "64", "--batch", "128") == 0
    assert "quicker:" not in capsys.readouterr().out


def test_what_keeps_the_batch_from_being_larger():
    """Memory, or the next token would be late; nothing where the batch is stated."""
    assert row_of(cached_deployment(case()))["batch_limit"] is None
    full, late = (row_of(with_best_batch(cached_deployment(case(serving__tpot_ms=limit)))) for limit in (1000.0, 45.0))
    assert (full["batch_limit"], late["batch_limit"]) == ("memory", "time")
    assert full["requests"] <= full["most_requests"] < full["requests"] + 2
    assert late["requests"] + 2 < late["most_requests"]


def test_settings_that_differ_tell_rows_apart(capsys):
    """Each format of weights has rows, a best one and a panel of its own; the prompt too."""
    asked = cases(
        case(serving__ep=64, serving__tpot_ms=50.0),
        {"serving.formats.weights": ["fp8", "bf16"], "serving.prompt": [99, 999]},
    )
    rows = list(serve(asked))
    found = {(row["serving.formats.weights"], row["serving.prompt"]) for row in rows}
    assert found == {("fp8", 99), ("fp8", 999), ("bf16", 99), ("bf16", 999)}
    titles = [panel.title for panel in serving_chart(rows).panels]
    assert len(titles) == len(set(titles)) == 4
    assert all(title.startswith("deepseek-v3 on H100-SXM, serving.") for title in titles)
    words = *WORDS, "--fabric", "fat-tree", "--tpot-ms", "50", "--set", "serving.formats.weights=fp8,bf16"
    assert status(*words, "--all-columns") == 0
    said = capsys.readouterr().out
    for weights in ("fp8", "bf16"):
        assert said.count(f"deepseek-v3 on fat-tree, serving.formats.weights {weights}: most tokens/s/GPU") == 1


def test_prefill_that_does_not_fit_is_said(capsys):
    row = row_of(cached_deployment(case(serving__ep=64, serving__batch=32.0, serving__prefill__ep=8)))
    assert row["requests"] < row["most_requests"]
    assert row["prefill_memory_gb"] > row["gpu_memory_gb"]
    assert (row["fits"], row["bound_by"]) == (False, "memory")
    words = *WORDS, "--fabric", "fat-tree", "--ep", "64", "--batch", "32"
    assert status(*words, "--set", "serving.prefill.ep=8") == 0
    said = capsys.readouterr().out
    assert "raise serving.prefill.ep above 8" in said
    assert "Cheapest" not in said
    assert status(*words) == 0
    assert "serving.prefill.ep above" not in capsys.readouterr().out


def test_a_model_is_named_after_the_folder_of_its_file(tmp_path, capsys):
    folder = tmp_path / "Mine"
    folder.mkdir()
    facts = {"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
    facts |= {"num_key_value_heads": 4, "head_dim": 64, "num_experts": 16, "num_experts_per_tok": 4}
    facts |= {"moe_intermediate_size": 512, "intermediate_size": 2048, "vocab_size": 32000}
    facts |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")
    assert status("serve", "--model", folder / "config.json", "--fabric", "fat-tree", "--ep", 8, "--batch", 8) == 0
    said = capsys.readouterr().out
    assert "\n\nMine, H100-SXM, 400 Gbps a NIC, 4,096 tokens of context, deepep-low-latency\n" in said
    assert "Mine on fat-tree, ep 8, batch 8, at " in said


def test_a_load_that_is_not_steady_is_said(capsys):
    words = *WORDS, "--fabric", "fat-tree", "--ep", "64", "--batch", "32", "--answer", "200", "--rate", "40"
    assert status(*words, "--set", "serving.load.requests=300") == 0
    said = capsys.readouterr().out
    assert "the load is too short: " in said
    (enough,) = re.findall(r"raise serving\.load\.requests to ([\d,]+)\.", said)
    assert 300 < int(enough.replace(",", "")) < 4000
    assert status(*words, "--set", f"serving.load.requests={enough.replace(',', '')}") == 0
    said = capsys.readouterr().out
    assert "the load is too short" not in said
    assert "do not keep up" not in said
    assert status(*words[:-1], "4000", "--set", "serving.load.requests=40000") == 0
    said = capsys.readouterr().out
    assert "the pools do not keep up" in said
    crowded = *words[:-1], "4000", "--set", "serving.load.requests=40000"
    assert "raise serving.load.decode_groups and serving.load.prefill_groups, or lower the load" in said
    assert "at the slow end" not in said
    assert status(*crowded, "--set", "serving.load.prefill_groups=900") == 0
    assert "raise serving.load.decode_groups, or" in capsys.readouterr().out
    assert status(*crowded, "--by", "high") == 0
    assert re.search(r"GPUs prefill in full passes, at the slow end of the band\.", capsys.readouterr().out)


def test_every_load_has_its_cheapest_row(capsys):
    words = *WORDS, "--fabric", "fat-tree,full-mesh", "--ep", "16", "--batch", "16", "--rate", "4,8"
    assert status(*words, "--set", "serving.load.requests=300") == 0
    said = " ".join(capsys.readouterr().out.split())
    for rate in (4.0, 8.0):
        assert re.search(
            rf"Cheapest, but [a-z ]+: deepseek-v3 on [a-z- ]+, serving.load.rate {rate}, ep 16, batch 16, at ", said
        )
    assert said.count("Cheapest") == 2
    assert said.count("deepseek-v3 on fat-tree, serving.load.rate") >= 2
    assert "lack the links that carry caches from prefill to decode groups: full-mesh." in said.partition(" fabric ")[0]
    assert status(*WORDS, "--fabric", "fat-tree", "--ep", "16", "--batch", "16") == 0
    assert "the dollars lack" not in capsys.readouterr().out
    assert status(*WORDS, "--fabric", "full-mesh", "--ep", "16", "--batch", "16") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Cheapest: deepseek-v3 on full-mesh, " in said
    assert " full-mesh: the dollars lack the links that carry caches from prefill to decode groups." in said


def test_a_load_says_how_full_the_pools_are_and_that_a_log_is_short(tmp_path, capsys):
    log = tmp_path / "log.csv"
    lines = [f"{i / 40},1000,60" for i in range(200)]
    log.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *lines]), encoding="utf-8")
    words = *WORDS, "--fabric", "fat-tree", "--ep", "64", "--batch", "32", "--arrivals", log
    assert status(*words, "--set", "serving.load.ttft_ms=5000") == 0
    said = capsys.readouterr().out
    assert re.search(r"the load is 2,400 tokens/s of answers \([\d.]+ requests/s arrived after the warm-up\), ", said)
    assert re.search(r"the load is too short: 3\.9\d* s are counted after the warm-up, ", said)
    (enough,) = re.findall(r"raise serving\.load\.repeat to (\d+), because the log has no more requests\.", said)
    assert "  $/M\n" in said
    assert status(*words, "--set", f"serving.load.repeat={enough}") == 0
    assert "the load is too short" not in capsys.readouterr().out


def test_under_a_load_the_first_table_is_at_the_context_of_its_requests(tmp_path, capsys):
    loaded = {"serving__ep": 16, "serving__batch": 16.0, "serving__prompt": 3000, "serving__answer": 700}
    arrive = {"serving__load__rate": 5.0, "serving__load__requests": 300}
    (row,), (alone,) = (list(serve(case(**loaded, **more))) for more in (arrive, {"serving__context": 3000 + 700 / 2}))
    assert row["context"] == 3350
    quotes = {name for name in alone if name.startswith(("low_", "high_"))}  # of the dollars at the load
    assert {name: row[name] for name in alone if name not in quotes} == {
        name: value for name, value in alone.items() if name not in quotes
    }
    (found,) = serve(case(**loaded, **arrive, serving__tpot_ms=50.0))
    assert found["in_slo"] >= 0.99
    assert found["tpot_high_s"] <= 0.05
    log = tmp_path / "log.csv"
    lines = [f"{i / 40},{1000 + 200 * (i % 2)},60" for i in range(200)]
    log.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *lines]), encoding="utf-8")
    words = *WORDS, "--fabric", "fat-tree", "--ep", "16", "--batch", "16"
    assert status(*words, "--arrivals", log) == 0
    assert "1,130 tokens of context" in capsys.readouterr().out  # (1000 + 1200) / 2 + 60 / 2
    said = mistake(capsys, *words, "--arrivals", str(log), "--context", "2000")
    assert "serving.context is read only where no load has its own" in said
    assert "got 2000.0" in said
    assert "got 2000.0" in mistake(capsys, *words, "--rate", "4", "--prompt", "100", "--context", "2000")
    assert status(*words, "--rate", "4", "--context", "2000", "--set", "serving.load.requests=300") == 0
    assert "2,512 tokens of context" in capsys.readouterr().out  # the default of --prompt, and half of 1,024


FREE = "tpot_limit_s", "in_slo_limit", "batch_limit"  # of a search within --tpot-ms


@pytest.mark.parametrize("load", ["", "--rate 20 --prompt 900 --answer 60 --set serving.load.requests=400"])
def test_the_options_of_the_best_row_repeat_it(load, tmp_path, capsys):
    free = FREE if load else (*FREE, "by")
    words = "serve", "--model", "mixtral-8x7b", "--gpu", "H200-SXM", "--fabric", "fat-tree", *load.split()
    assert status(*words, "--tpot-ms", "30", "--out", tmp_path / "search.csv", "--all-columns") == 0
    assert "with ep " in capsys.readouterr().out
    assert status(*words, "--tpot-ms", "30") == 0
    printed = capsys.readouterr().out.splitlines()
    (command,) = [line for line in printed if line.startswith("mfabric serve ")]
    options = shlex.split(command)[1:]
    size = options[options.index("--ep") + 1]
    assert status(*options, "--out", tmp_path / "again.csv", "--all-columns") == 0
    assert status("report", tmp_path / "search.csv", "--out", tmp_path / "page.html") == 0
    assert command in unescape((tmp_path / "page.html").read_text(encoding="utf-8"))
    with (tmp_path / "search.csv").open() as found, (tmp_path / "again.csv").open() as repeated:
        (again,), rows = (
            csv.DictReader(repeated),
            [row for row in csv.DictReader(found) if row["ep"] == size],
        )
    assert {name: value for name, value in again.items() if name not in free} in [
        {name: value for name, value in row.items() if name in again and name not in free} for row in rows
    ]


USELESS = [
    ("--batch 8 --tpot-ms 50", "serving.batch is read only without --tpot-ms, which chooses the batch, got 8.0."),
    (
        "--set serving.load.repeat=3",
        "load.repeat is read only where requests arrive (--rate or --arrivals), got 3.",
    ),
    (
        "--rate 3 --set serving.load.unit=s",
        "serving.load.unit is read only for a log of requests (--arrivals), got 's'.",
    ),
    ("--rate 3 --set serving.load.block=16", "serving.load.block is read only for a log of requests (--arrivals)"),
    ("--set serving.load.tpot_ms=3", "serving.load.tpot_ms is read only where requests arrive"),
    ("--rate 3 --set serving.load.keep=0.9", "serving.load.keep is read only with a time limit (--tpot-ms)"),
    ("--by high", "serving.by is read only with a time limit (--tpot-ms), got 'high'."),
    (
        "--set serving.split.micro_batches=2",
        "split.micro_batches is read only with serving.split.attention_gpus",
    ),
    (
        "--set serving.eplb=false --set serving.redundant_experts=0",
        "serving.eplb is read only where serving.experts is not balanced or experts have copies, got False.",
    ),
    ("--trace t.npy", "traffic.trace.path is read only with --set serving.experts=trace, got 't.npy'."),
    ("--set traffic.source=generated", "traffic.source is read only where serving.experts is trace or generated, got "),
    ("--set traffic.drawn=2", "traffic.drawn is not read by serve; leave it out."),
]


@pytest.mark.parametrize(("words", "sentence"), USELESS)
def test_settings_without_a_use_are_refused(capsys, words, sentence):
    assert sentence in mistake(capsys, *WORDS, "--fabric", "fat-tree", *words.split())


def test_prices_that_lack_are_named_and_the_fabric_that_takes_a_rack(tmp_path, capsys):
    words = *WORDS[:3], "--gpu", "H200-SXM", "--fabric", "nvl72", "--batch", 8
    assert status(*words, "--ep", 64) == 0
    said = capsys.readouterr().out
    assert "give scale_up_per_gpu, dollars per GPU, in the prices." in said
    prices = tmp_path / "prices.toml"
    prices.write_text("scale_up_per_gpu = 0\n")
    assert status(*words, "--ep", 64, "--set", f"network.prices={prices}") == 0
    said = capsys.readouterr().out
    assert "give scale_up_per_gpu" not in said
    assert "nvl72 has no power: the power of a network part is unknown; give it in [watts]" in said
    prices = tmp_path / "both.toml"
    prices.write_text("scale_up_per_gpu = 0\n[watts]\nscale_up_per_gpu = 0\n")
    assert status(*words, "--ep", 64, "--set", f"network.prices={prices}") == 0
    assert "nvl72 has no" not in capsys.readouterr().out
    assert mistake(capsys, *words, "--ep", 72).endswith("got 72; scale-up takes 72 in one domain.")
    assert mistake(capsys, *words, "--ep", 144).endswith("a multiple of 64, got 144.")


def test_the_measured_over_the_predicted_is_said_and_both_trees_alike(capsys):
    words = *WORDS, "--fabric", "fat-tree,oversub-fat-tree", "--ep", 32, "--tpot-ms", 60
    assert status(*words, "--set", "network.oversubscription=2") == 0
    said = capsys.readouterr().out
    assert (
        "band: at its fast end kernels are fast and hide all communication; its slow end is the prediction times the "
        "largest ratio measured. Measured steps took 1.06 to 1.35 times their prediction, prefill passes 1.02 to 1.28 "
        "times. Rows are" in said
    )
    assert "Rows are in time at the slow end (--by predicted uses the prediction)" in said
    assert (
        "network.oversubscription 2 applies to fat-tree too and makes it the same network as oversub-fat-tree" in said
    )
    assert status(*words, "--by", "predicted") == 0
    said = capsys.readouterr().out
    assert "at the slow end" not in said
    assert "Rows are in time by their prediction" in said
    assert "makes it the same network as" not in said


def test_the_picture_of_a_search_is_by_size():
    alike = {"model": "m", "gpu": "g", "fabric": "fat-tree", "fits": True, "by": "predicted", "tpot_limit_s": 0.05}
    sizes = ((8, 0.0499, 900.0), (16, 0.05, 800.0), (32, 0.0498, 1000.0), (64, 0.06, 2000.0))
    names = "ep", "tpot_s", "tokens_per_s_per_gpu"
    rows = [alike | dict(zip(names, size, strict=True)) | {"usd_per_million_tokens": None} for size in sizes]
    rows = [row | {"tokens_per_s_per_user": 1 / row["tpot_s"]} for row in rows]
    (panel,) = serving_chart(rows).panels
    assert (panel.columns, panel.curves[0].points) == (["8", "16", "32"], [(0, 900.0), (1, 800.0), (2, 1000.0)])
    several = [row | {"tpot_limit_s": row["tpot_s"]} for row in rows]
    (panel,) = serving_chart(several).panels
    assert not panel.columns
    assert [y for _, y in panel.curves[0].points] == [2000.0, 1000.0]
    priced = serving_charts([row | {"usd_per_million_tokens": 1000 / row["tokens_per_s_per_gpu"]} for row in several])
    assert [y for _, y in priced[1].panels[0].curves[0].points] == [0.5, 1.0]


def test_circuits_of_a_plain_question_suit_even_demand(tmp_path):
    """8 servers of mfabric: a NIC carries 7 copies of a token; under greedy, which serves few peers, it carries 12."""
    out = tmp_path / "rows.csv"
    words = (
        "serve",
        "--gpu",
        "H200-SXM",
        "--fabric",
        "mfabric,fat-tree",
        "--ep",
        64,
        "--tpot-ms",
        50,
        "--by",
        "predicted",
    )
    assert status(*words, "--out", out) == 0
    with out.open(encoding="utf-8") as opened:
        usual, tree = (float(row["tokens_per_s_per_gpu"]) for row in csv.DictReader(opened))
    assert usual == pytest.approx(tree, rel=0.01)
    stated = {"gpu.name": "H200-SXM", "network.fabric": "mfabric", "model.name": "deepseek-v3"}
    (in_python,) = serve(Case().with_(stated | {"serving.ep": 64, "serving.tpot_ms": 50, "serving.by": "predicted"}))
    assert in_python["tokens_per_s_per_gpu"] == pytest.approx(usual, rel=1e-6)
    assert status(*words, "--policy", "greedy", "--routing", "unsplit", "--out", tmp_path / "greedy.csv") == 0
    with (tmp_path / "greedy.csv").open(encoding="utf-8") as opened:
        greedy, _ = (float(row["tokens_per_s_per_gpu"]) for row in csv.DictReader(opened))
    assert greedy < 0.99 * usual


REFUSED = [
    ("--fabric full-mesh --set network.oversubscription=3", "network.oversubscription must be auto or 1 on full-mesh"),
    ("--fabric fat-tree --set network.radix=5", "network.radix must be even"),
    (
        "--fabric fat-tree --set network.rails.speeds=1+1+1+1+1+1+1+0.5",
        "network.rails.speeds must be empty for serving, got [1.0, 1.0",
    ),
    ("--fabric fat-tree,torus --set network.paths=ecmp", "network.paths must be spray for serving, got ecmp."),
    ("--fabric mfabric --set circuits.delay_s=1", "circuits.delay_s is not read by serve; leave it out."),
    ("--fabric fat-tree,twisted-torus", "network.fabric twisted-torus needs"),
    ("--fabric fat-tree --ep 32,36", "serving.ep must fill servers of 8 GPUs on fat-tree: a multiple of 8, got 36."),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED)
def test_what_a_fabric_refuses_is_refused_before_any_row(capsys, monkeypatch, words, sentence):
    monkeypatch.setattr(serving_rows, "row_of", lambda deployed: pytest.fail("a row was worked out"))
    assert sentence in mistake(capsys, *WORDS, *words.split())


def test_the_cheapest_row_is_sought_among_all_rows(capsys):
    """Of sizes, the one that decodes the most on a fabric may cost more than a smaller one elsewhere."""
    dear = {"usd_per_million_tokens": 0.3, "tokens_per_s_per_gpu": 9.0}
    row = row_of(cached_deployment(case(serving__ep=32, serving__batch=8.0))) | dear
    least = row | {"usd_per_million_tokens": 0.1, "tokens_per_s_per_gpu": 1.0, "ep": 8}
    said = next(serve_sentences.conclusions([row, least]))
    assert said.startswith("Cheapest: ")
    assert "ep 8" in said
    assert "0.1 $" in said


def test_equal_dollars_go_to_the_sooner_tokens_under_a_load_and_to_more_tokens_without():
    plain = {"load_requests": None, "usd_per_million_tokens": 1.0}
    slow, quick, dear = (
        plain | {"tokens_per_s_per_gpu": tokens, "usd_per_million_tokens": usd}
        for tokens, usd in ((5.0, 1.0), (6.0, 1.0009), (9.0, 1.0011))
    )
    assert cheapest([slow, quick, dear]) is quick
    early, late, slow = (
        {"load_requests": 9, "load_ttft_p99_s": ttft, "load_tpot_p99_s": tpot, "load_usd_per_million_tokens": 1.0}
        for ttft, tpot in ((1.4, 0.04), (2.0, 0.03), (1.4, 0.05))
    )
    assert cheapest([late, slow, early]) is early


def test_each_time_limit_has_its_answer_and_its_column(capsys):
    assert status(*WORDS, "--fabric", "fat-tree", "--ep", "32", "--tpot-ms", "100,50") == 0
    said = " ".join(capsys.readouterr().out.split()).replace("fat- tree", "fat-tree")
    slow, fast = re.findall(r"Cheapest in time: deepseek-v3 on fat-tree, limit (\d+) ms, ep 32, batch (\d+), at", said)
    assert (slow[0], fast[0]) == ("100", "50")
    assert int(slow[1]) > int(fast[1])
    assert re.search(r"fabric limit \[ms\] ep batch .* fat-tree 100 32 \d+ .* fat-tree 50 32 ", said)


def test_the_cheapest_under_a_load_says_what_the_load_does_not_show(capsys):
    words = *WORDS[:3], "--gpu", "H200-SXM", "--nic-gbps", "400", "--fabric", "fat-tree,rail-only", "--ep", "8"
    words = *words, "--rate", "20", "--answer", "100", "--tpot-ms", "90", "--set", "serving.prefill.ep=8"
    predicted = *words, "--by", "predicted"
    assert status(*predicted, "--set", "serving.load.requests=30") == 0
    said = " ".join(capsys.readouterr().out.split()).replace("fat- tree", "fat-tree")
    assert said.startswith("Cheapest, but the load is too short to show a steady state: deepseek-v3 on fat-tree, ep 8")
    assert "Equal in every printed digit: rail-only." in said
    assert "Under the load, as predicted; decode, prefill: GPUs of both pools" in said
    alone = "EP 8 fits into one server; the network carries only caches (busiest NIC "
    assert alone in said
    assert "Take the simplest network; slower NICs may do" in said
    assert "deepseek-v3 on fat-tree, ep 8: its network is priced as a 1-tier tree for 16 GPUs, both pools." in said
    assert status(*words, "--set", "serving.load.requests=2000") == 0
    said = " ".join(capsys.readouterr().out.split()).replace("fat- tree", "fat-tree")
    assert said.startswith("Cheapest in time: deepseek-v3 on fat-tree, ep 8")
    assert "$ a million answer tokens" in said
    assert "Under the load, at the slow end of the band; decode, prefill: GPUs of both pools" in said
    upto, percent = map(
        float, re.search(r"stay in time up to ([\d.]+) requests/s, ([\d.]+) % above yours", said).groups()
    )
    assert upto == pytest.approx(20 * (1 + percent / 100), rel=0.01)
    assert said.count("stay in time up to") == 1
    assert status("serve", "--fabric", "fat-tree,full-mesh", "--ep", "16", "--batch", "8") == 0
    assert "fits into one server" not in capsys.readouterr().out


def test_pools_that_a_load_exceeds_are_not_called_too_small_for_the_memory(capsys):
    words = *WORDS, "--fabric", "fat-tree", "--ep", "64", "--batch", "32", "--answer", "200", "--rate", "4000"
    assert status(*words, "--set", "serving.load.requests=4000") == 0
    assert capsys.readouterr().out.startswith("deepseek-v3: no row fits the memory and keeps up with the load.")


def test_the_table_shows_what_decides_and_every_column_on_request(capsys):
    words = "serve", "--gpu", "MI300X,H20-SXM,H200-SXM", "--fabric", "fat-tree", "--ep", "64", "--tpot-ms", "50"
    assert status(*words) == 0
    said = capsys.readouterr().out
    head = next(line for line in said.splitlines() if line.startswith("fabric "))
    assert head.split("  ")[-1] == "$/M"
    assert "dispatch [us]" not in said
    assert "prefill_gpu" not in said
    assert "MI300X: kernel times are fitted to public tables (the fastest engine), and" in said
    assert "H20-SXM: kernel times are wide estimates" in said
    assert "H200-SXM: " not in said
    assert status(*words, "--all-columns") == 0
    assert "dispatch [us]" in capsys.readouterr().out


def test_many_sizes_have_an_axis_of_numbers_and_panels_share_their_scales():
    alike = {"model": "m", "fabric": "fat-tree", "fits": True, "in_time": True, "tpot_limit_s": 0.05}
    alike |= {"tokens_per_s_per_user": 20.0, "usd_per_million_tokens": None}
    rows = [
        alike | {"gpu": gpu, "ep": 4 * count, "tokens_per_s_per_gpu": each + count}
        for gpu, each in (("a", 10.0), ("b", 500.0))
        for count in range(1, 81)
    ]
    panels = serving_chart(rows).panels
    assert [len(panel.columns) for panel in panels] == [0, 0]
    assert [panel.curves[0].points[0] for panel in panels] == [(4, 11.0), (4, 501.0)]
    figure = drawn.figure(serving_chart(rows))
    first, second = (axes for axes in figure.axes if axes.get_title(loc="left"))
    assert (first.get_yscale(), first.get_xscale()) == (second.get_yscale(), second.get_xscale())
    assert (first.get_ylim(), first.get_xlim()) == (second.get_ylim(), second.get_xlim())
    left, right = first.get_xlim()
    assert sum(left <= tick <= right for tick in first.get_xticks()) < 16
    few = serving_chart([row for row in rows if row["ep"] <= 16]).panels
    assert few[0].columns == ["4", "8", "12", "16"]
    assert few[0].reach == few[1].reach


def test_rows_state_whether_they_are_in_time():
    (early,), (late,) = (list(serve(case(serving__tpot_ms=limit, serving__ep=32))) for limit in (500.0, 1.0))
    assert (early["in_time"], late["in_time"]) == (True, False)
    assert rows_within_limits([early, late]) == [early]


def test_domains_are_said_to_be_bought_whole(capsys):
    assert status("serve", "--gpu", "GB200-NVL72", "--fabric", "nvl72,fat-tree", "--ep", 16, "--batch", 32) == 0
    said = capsys.readouterr().out
    assert said.count("nvl72: GPUs come in domains of 72, 64 of them at work. Dollars count the share") == 1
    assert "fat-tree: GPUs come" not in said
