"""Serving as it was measured: what was printed, how it becomes seconds, constants from their rows, and the errors."""

import itertools
import math
import tomllib

import numpy as np
import pytest

from mfabric_jax import cli
from mfabric_jax.apps.serving import family
from mfabric_jax.apps.serving import serving_steps as steps
from mfabric_jax.apps.serving.rows import cached_deployment
from mfabric_jax.apps.serving.serving_steps import (
    CALLS,
    measured_facts,
    serving_bands,
    serving_rows,
    serving_summary,
    servings,
)
from mfabric_jax.apps.serving.step import MEASURED_OVER_PREDICTED
from mfabric_jax.checks import InputError
from mfabric_jax.report.served import measured_words
from mfabric_jax.report.serving import kernel_errors_chart
from mfabric_jax.report.tables import servings as table
from mfabric_jax.workload.gpus import GPUS

EVERY = {row.name: row for row in servings()}
FP8, BF16 = 7168 + 4 * 7168 // 128, 2 * 7168  # bytes of a token's vector: a float32 scale for 128 elements


@pytest.fixture(scope="module")
def rows():
    return list(serving_rows(EVERY.values()))


def test_every_row_has_a_source_and_a_gpu_of_the_catalogue():
    assert len(EVERY) == 147
    for row in EVERY.values():
        assert row.source
        assert row.gpu in GPUS
        assert row.measured_s > 0
    assert sum(row.name.startswith("one-sided-") for row in EVERY.values()) == 96 + 2
    assert {row.what for row in EVERY.values()} == {*CALLS, "tpot", "prefill"}


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("deepep-low-latency-16-combine", 195e-6),
        ("one-sided-64-2048-dispatch", 399.2e-6),
        ("deepep-normal-32-dispatch", 4096 * 3.614 * FP8 / 58e9),
        ("deepep-normal-8-combine", 4096 * 5.295 * BF16 / 158e9),  # GPUs are reached inside a server
        ("hybridep-bf16-64-dispatch", 4096 * 5.273 * BF16 / 49.97e9),
        ("sglang-decode-72", 256 / (22282 / 8)),  # requests of a GPU over its tokens/s
        ("deepseek-decode-128", 128 / (18598 / 8)),
        ("sglang-prefill-32-4k", 16384 / (50302 / 8)),
    ],
)
def test_seconds_are_those_that_the_source_prints(name, seconds):
    assert EVERY[name].measured_s == pytest.approx(seconds, rel=1e-12)


def reached(experts, groups):
    """Groups that 8 experts lie on, if all sets of 8 are equally likely."""
    return groups * (1 - math.comb(experts - experts // groups, 8) / math.comb(experts, 8))


def reached_of_best(servers, best=4, tokens=20_000):
    """Servers that a token's 8 best experts of 256 lie on, of the `best` servers by their best expert."""
    score = np.abs(np.random.default_rng(0).standard_normal((tokens, servers, 256 // servers)))
    chosen = np.argsort(-score.max(2), axis=1)[:, :best]
    among = np.take_along_axis(score, chosen[:, :, None], 1).reshape(tokens, -1)
    server = np.argpartition(-among, 8, axis=1)[:, :8] // (256 // servers)
    return float(np.mean([len(set(one)) for one in server.tolist()]))


def test_servers_reached_are_those_of_each_benchmark():
    tables = tomllib.loads((steps.resources.files("mfabric_jax.apps.serving") / "serving.toml").read_text("utf-8"))
    calls = tables["calls"]
    assert calls["deepep-normal"]["reached"] == pytest.approx(
        {"8": reached(256, 8), "16": reached(256, 2), "32": reached(256, 4), "64": reached_of_best(8)}, abs=0.01
    )
    assert calls["deepep-v2"]["reached"] == pytest.approx({"16": reached(256, 2), "32": reached(256, 4)}, abs=0.001)
    uniform = {"16": reached(128, 2), "32": reached(256, 4), "64": reached(512, 8)}  # 8 experts a GPU
    assert calls["hybridep"]["reached"] == pytest.approx(uniform, abs=0.001)
    assert calls["hybridep-bf16"]["reached"] == calls["hybridep"]["reached"]


# ---------------------------------------------------------------------------------------------------------- constants
def test_latency_of_deepep_is_what_its_two_largest_rows_leave():
    """CX7: 64 KiB pages at 370 Gbps, 8 KiB pages at 320: seconds are linear in bytes between them."""
    per_byte = (65536 / 46.25e9 - 8192 / 40e9) / (65536 - 8192)
    message = 8192 / 40e9 - 8192 * per_byte
    call = family("deepep-low-latency").dispatch
    assert call.nic == pytest.approx(1 / per_byte / 50e9, abs=0.0005)
    assert call.nic_message_s == pytest.approx(message, abs=0.05e-9)
    copies = 128 * 8 * (1 - 1 / 256)
    bytes_s = [copies * (size / (call.nic * 50e9) + call.nic_message_s) for size in (FP8 + 16, BF16)]
    alphas = np.arange(0, 40e-6, 1e-6)
    misses = sum(np.log((one + alphas) / seen) ** 2 for one, seen in zip(bytes_s, (194e-6, 360e-6), strict=True))
    assert call.alpha_s == pytest.approx(alphas[misses.argmin()])
    left = (77e-6 - call.alpha_s) / (128 * 7) - (FP8 + 16) / (0.8 * 200e9)
    assert call.nvlink_message_s == pytest.approx(left, abs=0.5e-9)


def one_sided(constants, ep, tokens):
    """Seconds of a call with constants (alpha, floor, peer, part of 900 GB/s)."""
    alpha, floor, peer, part = constants
    return np.maximum(alpha + peer * ep + tokens * 8 * (1 - 1 / ep) * BF16 / (part * 900e9), floor)


@pytest.mark.parametrize("what", CALLS)
def test_one_sided_constants_are_least_squares_of_their_two_columns(what):
    seen = {ep: [EVERY[f"one-sided-{ep}-{2**n}-{what}"].measured_s for n in range(12)] for ep in (16, 32)}
    tokens = 2.0 ** np.arange(12)

    def miss(constants):
        return sum((np.log(one_sided(constants, ep, tokens) / times) ** 2).sum() for ep, times in seen.items())

    call = getattr(family("nvlink-one-sided"), what)
    best = start = np.array([call.alpha_s, call.floor_s, call.peer_s, call.nvlink])
    step = 0.02 * start
    while step[0] > 0.001 * start[0]:
        around = [best + step * np.array(move) for move in itertools.product((-1, 0, 1), repeat=4)]
        nearer = min(around, key=miss)
        best, step = (nearer, step) if miss(nearer) < miss(best) - 1e-12 else (best, step / 2)
    assert miss(start) <= 1.15 * miss(best)
    assert start == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("name", ["deepep-normal-8", "deepep-v2-16", "hybridep-16", "hybridep-32"])
def test_constants_give_back_the_rows_that_they_are_from(rows, name):
    errors = [row["error"] for row in rows if row["row"].startswith(f"{name}-")]
    assert len(errors) == 2
    assert np.abs(errors).max() < 0.03


# ------------------------------------------------------------------------------------------------------------- errors
def test_errors_are_within_what_was_asked(rows):
    summary = {line["kernels"]: line for line in serving_summary(rows)}
    assert summary["all"]["rows"] == 58
    assert summary["all"]["mean_error"] < 0.05
    assert abs(summary["all"]["worst_error"]) < 0.15
    assert all(line["mean_error"] < 0.08 for line in summary.values())


def test_the_band_is_made_of_the_rows_and_holds_them(rows):
    timed = [row for row in rows if row["what"] not in CALLS]
    for row in timed:
        assert row["low_s"] <= row["predicted_s"] <= row["high_s"]
        assert row["high_s"] / row["predicted_s"] == pytest.approx(MEASURED_OVER_PREDICTED[row["what"]][1])
        assert row["inside"]
    tpot, prefill = serving_bands(rows)
    assert (tpot["rows"], tpot["inside"], prefill["rows"], prefill["inside"]) == (3, 3, 5, 5)


def test_rows_that_gave_a_constant_or_are_latency_alone_are_not_counted(rows):
    for row in rows:
        assert row["counted"] is (row["batch"] >= 32 and not row["constant"])
        assert row["error"] == row["predicted_s"] / row["measured_s"] - 1
    lines = {row["row"]: row for row in rows}
    assert lines["one-sided-16-2048-combine"]["constant"]
    assert lines["deepep-low-latency-8-dispatch"]["constant"]
    assert not lines["deepep-low-latency-8-combine"]["constant"]
    worse = [row | {"error": 9.0} if row["constant"] or row["batch"] < 32 else row for row in rows]
    assert serving_summary(worse) == serving_summary(rows)


def test_what_sgl_ran_fits_its_memory():
    for name in ("sglang-decode-72", "sglang-decode-72-drafts", "deepseek-decode-128"):
        deployed = cached_deployment(EVERY[name].case)
        assert float(deployed.decoding(deployed.numbers).requests) <= deployed.most_requests(deployed.numbers.context)


# ------------------------------------------------------------------------------------------------------- the command
def test_a_benchmark_stands_for_its_rows():
    assert [row.name for row in servings(["deepep-v2,sglang-decode-72"])] == [
        *("deepep-v2-16-dispatch", "deepep-v2-16-combine", "deepep-v2-32-dispatch", "deepep-v2-32-combine"),
        "sglang-decode-72",
    ]
    with pytest.raises(InputError, match="row 'deepep-v3' is unknown"):
        servings(["deepep-v3"])


def test_the_table_and_the_pictures_show_every_row(rows):
    said = table(rows, serving_summary(rows), serving_bands(rows))
    assert all(row["row"] in said for row in rows)
    dispatch, combine = kernel_errors_chart(rows).panels
    shown = sum(len(curve.points) for panel in (dispatch, combine) for curve in panel.curves)
    assert shown == sum(row["what"] in CALLS for row in rows)
    hollow = {curve.look.label for curve in combine.curves if curve.look.hollow}
    assert hollow == {"deepep-low-latency-rdma", "deepep-normal", "deepep-v2", "hybridep", "nvlink-one-sided"}


def test_the_command_writes_rows_and_pictures(tmp_path, capsys):
    words = ["validate", "serving", "deepep-v2", "sglang-decode-72", "--out", str(tmp_path / "rows.csv")]
    assert cli.main([*words, "--figures", str(tmp_path)]) == 0
    assert "deepep-v2-32-combine" in capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text().count("\n") == 6
    assert (tmp_path / "calls.png").stat().st_size > 1000
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_what_serve_says_of_measured_steps_is_what_the_rows_say(rows):
    for what, said in MEASURED_OVER_PREDICTED.items():
        over = [row["measured_s"] / row["predicted_s"] for row in rows if row["what"] == what]
        assert (round(min(over), 2), round(max(over), 2)) == said


def test_the_band_names_what_was_measured_and_what_was_not():
    row = {"gpu": "B200-HGX", "prefill_gpu": "H800-SXM", "model": "m", "ep": 8, "usd_per_million_tokens": 1.0}
    row |= {"by": "high", "tpot_limit_s": None, "ttft_limit_s": None, "fits": True, "tokens_per_s_per_gpu": 1.0}
    said = measured_words(measured_facts(), [row], [row])
    assert "8 steps and passes were measured, on H100-SXM and H800-SXM: decoding at ep 72 and 128, prefill at" in said
    assert said.endswith("; B200-HGX and decoding at ep 8 were not measured.")
    known = [row | {"gpu": "H100-SXM", "ep": 72}]
    assert measured_words(measured_facts(), known, known).endswith("prefill at ep 32.")
