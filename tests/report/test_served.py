"""Rows of serving on the page: the best of each bandwidth, equal speeds, groups inside servers, what was measured."""

import re
from html import unescape

import pytest

from mfabric_jax import report
from mfabric_jax.report.ranking import designs, rankings
from mfabric_jax.report.serving import serving_charts

GPU = "B200-HGX"
USD = {  # of fabric, Gbps and group size
    **{("fat-tree", 200.0, 8): 0.258, ("fat-tree", 200.0, 32): 0.645},
    **{("fat-tree", 400.0, 8): 0.281, ("fat-tree", 400.0, 32): 0.702},
    **{("mfabric", 200.0, 8): 0.252, ("mfabric", 200.0, 32): 0.629},
    **{("mfabric", 400.0, 8): 0.261, ("mfabric", 400.0, 32): 0.652},
}
EFFECTIVE = {
    "resolved": {"gpu.name": GPU},
    "measured_steps": {
        "tpot": {"steps": 3, "gpus": ["H100-SXM", "H800-SXM"], "ep": [72, 128]},
        "prefill": {"steps": 5, "gpus": ["H800-SXM"], "ep": [32]},
    },
}


def served(fabric, gbps, ep, usd, **changes):
    batch = 179.0 if ep == 8 else 92.0 if gbps == 400.0 else 49.0  # equal at both bandwidths inside a server
    row = {"model": "m", "gpu": GPU, "fabric": fabric, "nic_gbps": gbps, "ep": ep, "batch": batch, "prefill_ep": 8}
    row |= {"tpot_s": 0.03, "tpot_limit_s": 0.05, "tokens_per_s_per_user": 33.0, "tokens_per_s_per_gpu": 900.0}
    row |= {"fits": True, "in_time": True, "by": "high", "kv_busiest_nic": 0.17, "load_ttft_p99_s": 0.8}
    row |= {"load_decode_gpus": ep, "load_prefill_gpus": 8, "prefill_gpus": 0.3, "prefill_overlap": True}
    return row | {"usd_per_million_tokens": usd, "load_usd_per_million_tokens": usd} | changes


ROWS = [served(*key, usd) for key, usd in USD.items()]


def page_of(rows, tmp_path, effective=EFFECTIVE):
    text = report.html_report(rows, effective, tmp_path / "page.html").read_text(encoding="utf-8")
    return unescape(text)


def test_the_chart_of_bandwidths_has_the_best_size_at_each(tmp_path):
    """Rows of one size that differ in bandwidth alone are two designs; the page drew 0.652 $ at 400 Gbps."""
    tips = re.findall(r"(\S+), NIC bandwidth (\d+): \$([\d.]+)", page_of(ROWS, tmp_path))
    best = {(fabric, float(gbps), float(usd)) for fabric, gbps, usd in tips}
    assert best == {(fabric, gbps, usd) for (fabric, gbps, ep), usd in USD.items() if ep == 8}


def test_a_picture_by_size_has_one_point_for_each_size():
    (_, by_usd) = serving_charts(ROWS)
    (panel,) = by_usd.panels
    assert [[y for _, y in curve.points] for curve in panel.curves] == [[0.258, 0.645], [0.252, 0.629]]
    assert by_usd.note == "Each point has the best of all NIC bandwidths in the rows."
    assert serving_charts([row for row in ROWS if row["nic_gbps"] == 200.0])[1].note == ""


def test_designs_of_equal_speed_differ_by_the_price_of_their_network_alone():
    (ranking,) = rankings([row for row in ROWS if row["ep"] == 8], {}).values()
    assert ranking.conclusion.endswith(
        "mfabric, 200 Gbps. Next is fat-tree, 200 Gbps, +2.4%: same speed, dearer by its network's price alone."
    )
    sure = "The error of +2.4%: none by the model itself, as the times are equal"
    assert f"{sure}; the prices of these parts have one quote each." in ranking.remarks


def test_quotes_that_reverse_an_order_make_designs_equal():
    cheap, dear = served("mfabric", 400.0, 8, 0.25, low_ports_usd=0.245), served("fat-tree", 400.0, 8, 0.255)
    for low, equal in ((0.24, True), (0.25, False)):
        (ranking,) = rankings([cheap, dear | {"low_ports_usd": low}], {}).values()
        assert ranking.conclusion.startswith("Equal by") == equal
        assert ("Same speed; prices differ by +2.0%" in ranking.conclusion) == equal
        assert ("same speed, dearer by its network's price alone" in ranking.conclusion) != equal
        assert any("at other quoted prices" in remark for remark in ranking.remarks)


def error_of_second(*rows):
    (ranking,) = rankings([*rows], {}).values()
    best, other = ranking.shown
    return other.over(best, ranking.column).by["quotes"]


def test_a_gpu_with_one_price_is_compared_with_the_range_of_the_other():
    """The range of the one GPU was dropped if the other has none; those of different GPUs vary apart."""
    quoted = {"low_gpus_usd": 0.2, "high_gpus_usd": 0.3}
    best, other = served("fat-tree", 400.0, 8, 0.25, **quoted), served("fat-tree", 400.0, 8, 0.4, gpu="H200-SXM")
    assert error_of_second(best, other) == pytest.approx((0.4 / 0.3, 0.4 / 0.2))
    both = other | {"low_gpus_usd": 0.38, "high_gpus_usd": 0.42}
    assert error_of_second(best, both) == pytest.approx((0.38 / 0.3, 0.42 / 0.2))
    same = served("rail-only", 400.0, 8, 0.26, low_gpus_usd=0.21, high_gpus_usd=0.31)
    assert error_of_second(best, same) == pytest.approx((0.31 / 0.3, 0.21 / 0.2))


def test_a_headline_names_no_design_that_is_best_for_one_job_alone(tmp_path):
    usd = {("a", "fat-tree"): 0.2, ("a", "mfabric"): 0.4, ("b", "fat-tree"): 0.4, ("b", "mfabric"): 0.2}
    rows = [served(fabric, 400.0, 8, value, model=model) for (model, fabric), value in usd.items()]
    assert '<p class="verdict">The best design differs from job to job</p>' in page_of(rows, tmp_path)


@pytest.mark.parametrize("order", [1, -1])
def test_of_equal_dollars_the_sooner_first_token_leads(order):
    late = served("fat-tree", 400.0, 8, 0.25, load_ttft_p99_s=1.992)
    early = served("rail-only", 200.0, 8, 0.25 * (1 + 1e-15), load_ttft_p99_s=1.408)
    ((_, every),) = designs([late, early][::order], {}).values()
    assert [design.settings["fabric"] for design in every] == ["rail-only", "fat-tree"]


def test_the_page_says_what_fits_into_a_server_and_what_was_measured(tmp_path):
    text = page_of(ROWS, tmp_path)
    inside = "EP 8 fits into one server; the network carries only caches (busiest NIC 17.0% of the time)."
    assert f"{inside} Take the simplest network; slower NICs may do (--nic-gbps 100,200,400)." in text
    measured = "8 steps and passes were measured, on H100-SXM and H800-SXM: decoding at ep 72 and 128, prefill at ep 32"
    assert f"{measured}; B200-HGX and decoding at ep 8 were not measured." in text
    across = [row for row in ROWS if row["ep"] == 32]
    assert "fits into one server" not in page_of(across, tmp_path)
    assert "steps and passes were measured" not in page_of(across, tmp_path, {})
