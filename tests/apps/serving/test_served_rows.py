"""Rows of served models: what is read, what is written, what cannot be said, and errors on measured rows."""

import csv
import re

import pytest

from mfabric_jax import cli
from mfabric_jax.apps.serving.clients import client_row
from mfabric_jax.apps.serving.replica import replica, token_seconds
from mfabric_jax.apps.serving.served_rows import NEEDED, hold_left_out, predict_rows, read_served, summarize_served
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.report.serving import served_errors_chart
from mfabric_jax.workload import get_gpu, models
from mfabric_jax.workload.public_models import EXAMPLES, public_model

ROW = {
    **{"model_path": "deepseek-ai/DeepSeek-V3", "system": "h200_sxm", "backend": "sglang", "gemm_quant_mode": "fp8"},
    **{"tp_size": "8.0", "moe_ep_size": "1", "isl": "1024", "osl": "512", "batch_size": "16"},
    **{"silicon_tpot_ms": "20.0", "note": "a user's"},
}


def written(tmp_path, *rows):
    path = tmp_path / "rows.csv"
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(row):
    return next(predict_rows([row]))


# -------------------------------------------------------------------------------------------------------------- rows
def test_a_row_is_the_token_of_its_replica(tmp_path):
    (row,) = predict_rows(read_served(written(tmp_path, ROW)))
    model = replica(models.DEEPSEEK_V3, get_gpu("H200-SXM"), 8, 1, "fp8", engine="sglang")
    expected = 1000 * token_seconds(model, 16, 1024, 512).tpot_s
    assert row["predicted_tpot_ms"] == pytest.approx(expected)
    assert row["error"] == pytest.approx(expected / 20 - 1)
    assert (row["low_ms"], row["high_ms"]) == (pytest.approx(0.86 * expected), pytest.approx(1.24 * expected))
    assert (row["reason"], row["note"]) == ("", "a user's")
    assert list(row)[: len(ROW)] == list(ROW)


def test_a_row_without_a_measurement_has_no_error():
    row = predicted({**ROW, "silicon_tpot_ms": ""})
    assert row["error"] is None
    assert row["predicted_tpot_ms"] > 0


def test_a_stated_format_of_the_cache_replaces_the_usual_one():
    long = {**ROW, "isl": "32768", "batch_size": "64"}
    usual, bf16, fp8 = (predicted({**long, "kvcache_quant_mode": word}) for word in ("", "bfloat16", "fp8"))
    assert usual["predicted_tpot_ms"] == bf16["predicted_tpot_ms"]
    assert fp8["predicted_tpot_ms"] < 0.99 * bf16["predicted_tpot_ms"]


def test_a_catalogue_gpu_and_a_folder_with_a_config(tmp_path):
    config = '{"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 1024, "num_attention_heads": 8,'
    config += ' "num_key_value_heads": 2, "head_dim": 128, "intermediate_size": 4096, "vocab_size": 1000}'
    folder = tmp_path / "dense"
    folder.mkdir()
    (folder / "config.json").write_text(config)
    row = predicted({**ROW, "model_path": str(folder), "system": "B200-HGX", "gemm_quant_mode": "bfloat16"})
    assert row["reason"] == ""
    assert 0 < row["predicted_tpot_ms"] < 5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_path": "some/Model"}, "model 'some/Model' is unknown; allowed: deepseek-ai/DeepSeek-V3"),
        ({"system": "h300"}, "system 'h300' is unknown"),
        ({"backend": "tgi"}, "backend 'tgi' is unknown; allowed: trtllm, sglang, vllm"),
        ({"gemm_quant_mode": "fp6"}, "gemm_quant_mode 'fp6' is unknown"),
        ({"gemm_quant_mode": "nvfp4"}, "weights nvfp4 need a GPU of the Blackwell family, got H200-SXM"),
        ({"tp_size": "eight"}, "tp_size must be a whole number of at least 1, got 'eight'"),
        ({"batch_size": "0"}, "batch_size must be a whole number of at least 1, got 0"),
        ({"osl": "1.5"}, "osl must be a whole number of at least 1, got 1.5"),
        ({"moe_ep_size": "3"}, "ep must divide the tp = 8 GPUs of a replica, got 3"),
        ({"kvcache_quant_mode": "int8"}, "kvcache_quant_mode 'int8' is unknown"),
        ({"dp_size": "2"}, "dp_size must be 1, since GPUs of a replica split attention by heads, got 2"),
        ({"draft_tokens": "3"}, "draft_tokens must be 0, since a replica drafts no tokens, got 3"),
        ({"silicon_tpot_ms": "fast"}, "silicon_tpot_ms must be a number above 0, got 'fast'"),
    ],
)
def test_what_cannot_be_said_has_a_reason(changes, reason):
    row = predicted({**ROW, **changes})
    assert row["reason"].startswith(reason)
    assert row["predicted_tpot_ms"] is row["low_ms"] is row["high_ms"] is row["error"] is None


def test_files_that_are_no_rows_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"must have the columns .*; it lacks batch_size"):
        read_served(written(tmp_path, {name: "1" for name in NEEDED if name != "batch_size"}))
    (tmp_path / "empty.csv").write_text(",".join(NEEDED) + "\n")
    with pytest.raises(InputError, match="must have at least one row below its columns"):
        read_served(tmp_path / "empty.csv")
    with pytest.raises(InputError, match=r"cannot read .*nothing.csv"):
        read_served(tmp_path / "nothing.csv")


# ------------------------------------------------------------------------------------------------------ public names
def test_public_names_and_what_they_stand_for():
    stated = {name: public_model(name) for name in EXAMPLES}
    assert stated["deepseek-ai/DeepSeek-R1"].architecture is stated["deepseek-ai/DeepSeek-V3"].architecture
    billions = {model.architecture.name: round(model.architecture.params() / 1e9) for model in stated.values()}
    assert billions == {"deepseek-v3": 671, "kimi-k2": 1026, "minimax-m2": 229, "qwen3-235b": 235, "gpt-oss-120b": 117}
    assert stated["openai/gpt-oss-120b"].weights == "mxfp4"
    assert public_model("MiniMaxAI/MiniMax-M2.1").architecture.attention.whole_norm
    for name in ("deepseek-ai/DeepSeek-V4", "Qwen/Qwen3-235B", "openai/gpt-oss"):
        with pytest.raises(InputError, match="is unknown"):
            public_model(name)


# -------------------------------------------------------------------------------------------------------------- errors
def line(error, system="h100_sxm", reason="", **more):
    row = {"model_path": "a", "system": system, "backend": "vllm", "error": error, "reason": reason}
    return row | {"silicon_tpot_ms": "10"} | more


def test_errors_by_group_by_hand():
    rows = [line(0.1, peer_tpot_ms="15"), line(-0.3), line(0.2, "b200_sxm"), line(None, reason="why")]
    lines = {(row["by"], row["group"]): row for row in summarize_served(rows)}
    every = lines["all", "all"]
    assert (every["rows"], every["unsaid"], every["peer_rows"]) == (4, 1, 1)
    assert every["median_error"] == pytest.approx(0.2)
    assert every["mean_error"] == pytest.approx(0.2)
    assert every["bias"] == pytest.approx(0)
    assert (every["peer_median"], every["beside_median"]) == (pytest.approx(0.5), pytest.approx(0.1))
    hopper = lines["GPU", "h100_sxm"]
    assert (hopper["rows"], hopper["bias"]) == (3, pytest.approx(-0.1))
    assert lines["model, GPU, engine", "a, b200_sxm, vllm"]["peer_median"] is None


def test_bands_are_made_without_the_group_that_they_hold():
    near, far = [line(0.01 * n) for n in range(11)], [line(error, "b200_sxm") for error in (0.0, 0.05, 0.2)]
    assert hold_left_out(near) is None
    # Measured over predicted: 1 / 1.09 to 1 / 1.01 of the first group hold one of the second; 0.857 to 0.990 of the
    # second, interpolated between 1 / 1.2, 1 / 1.05 and 1, hold all of the first but 1.
    assert hold_left_out([*near, *far]) == pytest.approx((1 + 10) / 14)
    (every,) = [row for row in summarize_served([*near, *far]) if row["by"] == "all"]
    assert every["inside"] == pytest.approx(13 / 14)  # 1 / 1.2 is below 0.86
    assert summarize_served([line(1.0), line(0.0)])[-1]["inside"] == 0.5


def test_the_command_writes_every_row(tmp_path, capsys):
    path, out = written(tmp_path, ROW, {**ROW, "dp_size": "2"}), tmp_path / "errors.csv"
    words = ["--rows", str(path), "--out", str(out), "--figures", str(tmp_path)]
    assert cli.main(["validate", "serving", *words]) == 0
    assert (tmp_path / "served.png").stat().st_size > 1000
    text = capsys.readouterr().out
    assert "by model, GPU, engine" in text
    assert "1 rows: dp_size must be 1" in text
    assert "not predicted" in text
    rows = list(csv.DictReader(out.open()))
    assert [bool(row["predicted_tpot_ms"]) for row in rows] == [True, False]
    assert rows[1]["reason"].startswith("dp_size")
    assert "No measured time lies above its band, and bands contain host time: plan without serving.host_s." in text
    assert cli.main(["validate", "training", "--rows", str(path)]) == 2
    assert cli.main(["validate", "serving", "deepep-v2", "--rows", str(path)]) == 2


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_slow_measurement_says_how_to_plan_with_it(tmp_path, capsys, engine):
    """The time of hosts that it prints gives the measured time in `serve --clients`."""
    slow, quick = {**ROW, "backend": engine, "silicon_tpot_ms": "45"}, {**ROW, "silicon_tpot_ms": "5"}
    path, out = written(tmp_path, slow, quick), tmp_path / "errors.csv"
    assert cli.main(["validate", "serving", "--rows", str(path), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    (said,) = [words for words in text.splitlines() if "unexplained" in words]
    over, host_s = re.search(r"45 ms is ([\d.]+) times the prediction.*serving\.host_s=([\d.]+) ", said).groups()
    assert said.endswith(" --tpot-ms LIMIT --by predicted.")
    assert "for --clients with that engine; the bands of pools already contain host time" in text
    first, second = csv.DictReader(out.open())
    assert float(over) == pytest.approx(45 / float(first["predicted_tpot_ms"]), rel=0.01)
    assert float(first["unexplained_s"]) == pytest.approx(float(host_s), rel=0.01)
    assert second["unexplained_s"] == ""
    stated = {"serving.tp": 8, "serving.prompt": 1024, "serving.answer": 512, "serving.replica.clients": 16}
    case = Case().with_(
        {"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "serving.replica.engine": engine} | stated
    )
    assert client_row(case.with_({"serving.host_s": float(host_s)}))["tpot_s"] == pytest.approx(0.045, rel=0.01)
    assert "bands made" not in text.lower()  # of two rows


def test_the_picture_shows_every_row_with_an_error():
    rows = [{**ROW, "error": 0.1}, {**ROW, "backend": "vllm", "error": -0.2}, {**ROW, "error": None}]
    chart = served_errors_chart(rows)
    assert [panel.title for panel in chart.panels] == ["sglang", "vllm"]
    assert [panel.points for panel in chart.panels] == [[(20.0, pytest.approx(10))], [(20.0, pytest.approx(-20))]]
    with pytest.raises(InputError, match="needs a row with a measurement, got none"):
        served_errors_chart(rows[2:])


def test_measured_rows_are_within_what_was_asked(shared_data):
    path = shared_data / "kernels" / "serving_rows.csv"
    if not path.is_file():
        pytest.skip(f"no measured rows at {path}")
    every = summarize_served(list(predict_rows(read_served(path))))[-1]
    assert every["unsaid"] <= 0.05 * every["rows"]
    assert every["median_error"] <= 0.10
    assert every["mean_error"] <= 0.15
    assert abs(every["bias"]) <= 0.04
    assert every["beside_median"] < every["peer_median"]
    assert every["beside_mean"] < every["peer_mean"]
