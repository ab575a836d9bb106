"""The page says what its rows say, escapes it and fetches nothing; how it looks was judged by eye."""

import itertools
import json
import math
import re
from html import escape, unescape
from xml.etree import ElementTree

import pytest

from mfabric_jax import report
from mfabric_jax.report import style
from mfabric_jax.report.numerals import number
from tests.report import synthetic

EFFECTIVE = {"version": "0.1.0", "commit": "0123456789abcdef+changes", "device": "cpu: cpu", "dtype": "float32"}
SVG = "{http://www.w3.org/2000/svg}"
EVIL = '<img src="x" onerror=alert(1)>&\'"'


@pytest.fixture
def page(tmp_path):
    """The text of a page of these rows."""

    def written(rows, effective=EFFECTIVE, **named):
        return report.html_report(rows, effective, tmp_path / "page.html", **named).read_text(encoding="utf-8")

    return written


def charts(text):
    """Title -> markup of a chart."""
    return {
        unescape(re.search("<h3>(.*?)</h3>", one)[1]): one
        for one in re.findall('<section class="chart">.*?</section>', text, re.S)
    }


def panels(chart):
    """The pictures of a chart, well-formed."""
    named = f'<svg xmlns="{SVG[1:-1]}" xmlns:xlink="xlink"'
    found = re.findall(r'<svg[^>]*class="panel">.*?</svg>', chart, re.S)
    return [ElementTree.fromstring(svg.replace("<svg", named, 1)) for svg in found]


def tips(chart):
    """What its marks say."""
    return [tip.text for panel in panels(chart) for tip in panel.iter(f"{SVG}title")]


def table(text):
    """Names of columns and cells of rows."""
    found = ElementTree.fromstring(re.search('<table id="rows">.*?</table>', text, re.S)[0].replace(" disabled", ""))
    return ["".join(th.itertext()) for th in found.iter("th")], [list(tr) for tr in found.find("tbody")]


def plain_words(text):
    return unescape(re.sub("<[^>]*>", "", text))


def test_every_row_and_column_of_a_file_is_there(page, tmp_path):
    made = synthetic.both_uses(fabrics=("fat-tree", "mfabric", "nvl72"), models=("llama-moe", "qwen-moe"))
    rows, effective = report.read_rows(report.write_rows(made, tmp_path / "rows.csv", EFFECTIVE))
    text = page(rows, effective)
    names, lines = table(text)
    alike = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert alike == {"routing": "unsplit", "micro_batches": "8", "compute_source": "roofline"}
    assert [name for name in rows[0] if name not in alike] == names
    assert len(lines) == len(rows) == 2 * (3 + 1) * 4
    for row, cells in zip(rows, lines, strict=True):
        for name, cell in zip(names, cells, strict=True):
            if row[name] is None:
                assert cell.text == "-"
            elif isinstance(row[name], str):
                assert cell.text == row[name]
            else:
                assert float(cell.get("data-sort")) == row[name]
                assert float(cell.text) == pytest.approx(row[name], rel=0.02)


def test_numbers_sort_as_numbers_and_what_is_none_is_missing(page):
    _, lines = table(page([{"a": v} for v in (1.5, -2, None, float("inf"), float("nan"))]))
    assert [line[0].get("data-sort") for line in lines] == ["1.5", "-2", None, "Infinity", None]
    rows = [row | {"iteration_s": 2.0} for row in synthetic.rows(models=("qwen-moe",))]
    for at, value in enumerate((1e308, -1e308, 1e-320, math.inf, math.nan)):  # which no chart can place
        rows[at]["iteration_s"] = value
        rows[-at - 1]["network_cost_usd"] = abs(value)
    text = page(rows)
    assert len(charts(text)) == 3
    assert "1e+308" in plain_words(text)


def test_the_summary_names_the_best_and_where_it_was_computed(page):
    rows = synthetic.rows(fabrics=("fat-tree", "mfabric", "nvl72"), models=("llama-moe",), bandwidths=(100, 400))
    said = plain_words(page(rows, EFFECTIVE | {"complete": False}))
    assert f"6 rows of {len(rows[0])} columns." in said
    assert "llama-moe: 64 GPUs, 8 micro-batches" in said
    # NVL72 is fastest and has no price; for a dollar mFabric does 1 / (time * 4.5), the fat-tree 1 / (time * 11).
    times = {row["fabric"]: row["iteration_s"] for row in rows if row["nic_gbps"] == 100}
    behind, least = 1 - times["mfabric"] * 4.5 / (times["fat-tree"] * 11), min(row["iteration_s"] for row in rows)
    assert (
        "llama-moe: best by performance per dollar of the networkBest by performance per dollar of the network: "
        in said
    )
    assert re.search(f"mfabric, 100 Gbps.*fat-tree, 100 Gbps.*-{behind:.1%}", said)
    assert f"Fastest is nvl72, 400 Gbps: {number(least)} s an iteration." in said
    assert "Not ranked for lack of performance per dollar of the network: nvl72." in said
    assert "with mfabric_jax 0.1.0 (commit 0123456789ab+changes), on cpu: cpu, in float32." in said
    assert "some rows are missing" in said
    assert "some rows are missing" not in plain_words(page(rows))


def test_a_comparison_has_its_charts_and_all_of_their_marks(page):
    rows = synthetic.rows(models=("llama-moe", "qwen-moe"), bandwidths=(100, 400))
    drawn = charts(text := page(rows))
    assert page(rows) == text
    titles = ["Iteration time against bandwidth", "Parts of an iteration"]
    assert [*drawn] == [*titles, "Network cost against iteration time"]
    for title, chart in drawn.items():
        stacked = title == "Parts of an iteration"
        assert len(panels(chart)) == 2 * (2 if stacked else 1)  # the other bandwidth is folded
        assert all(f"</span>{style.FABRICS[name].label}" in chart for name in synthetic.FABRICS if not stacked)
        assert len(tips(chart)) == len(rows) if not stacked else 4 * len(rows)


def test_what_rows_lack_is_said_in_a_sentence(page):
    rows = [{k: v for k, v in row.items() if k != "network_cost_usd"} for row in synthetic.rows(models=("qwen-moe",))]
    text = page(rows)
    assert len(charts(text)) == 2
    sentence = "Left out: network cost against iteration time, because no row has a number in column network_cost_usd."
    assert plain_words(text).count(sentence) == plain_words(text).count("Left out") == 1


def test_a_number_that_was_varied_has_a_chart_and_repeats_are_averaged(page):
    place, varied = {"model": "m", "nic_gbps": 400}, itertools.product(("topoopt", "mfabric"), (0.1, 1))
    text = page([place | {"fabric": f, "policy": f[:2], "delay_s": d, "iteration_s": 1.2345 + d} for f, d in varied])
    said = tips(charts(text)["Sensitivity: iteration_s against delay_s"])
    assert len(said) == 4
    assert "mFabric, delay_s 0.1: 1.33" in said[2]
    assert "No charts of a comparison: rows hold two results for m on topoopt" in plain_words(text)
    assert "A line for each fabric." in text


def test_any_rows_have_a_chart(page):
    runs = [{"configuration": n, "policy": "greedy", "degree": n + 2, "bound_s": 1.5, "seconds": 2.5} for n in range(2)]
    cases = [
        ([{"kind": k, "n": n} for k, n in (("x", 3), ("y", 4), ("y", 8))], "n by kind", ["x: 3", "y: 6 (mean"]),
        ([{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 1.0}], "b against a", ["a 1: 2", "a 3: 1"]),
        ([{"b": 2.5}], "b against row", ["row 1: 2.5"]),
        ([{"kind": "x"}, {"kind": "x"}], "Rows by kind", ["x: 2"]),
        ([{"b": None}], "Rows", []),
        ([{"b": -2.0, "kind": "x"}], "b by kind", ["x: -2"]),
        ([{"m": m, "k": k, "slow_down": 0.1} for m in "ab" for k in "cd"], "slow_down by m, k", ["a, c: 0"]),
        (runs, "Sensitivity: seconds against degree", ["degree 2: 2.5", "degree 3: 2.5"]),
    ]
    for rows, title, marks in cases:
        drawn = charts(page(rows, {}))
        said = tips(drawn[title])
        assert all(text.startswith(mark) for text, mark in zip(said, marks, strict=False)), title
        assert not any("configuration" in name for name in drawn)


def test_what_a_person_wrote_is_escaped(page, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a&<b>.svg").write_text("<svg/>")
    place = {"model": EVIL, "fabric": EVIL, "nic_gbps": 400, EVIL: EVIL}
    rows = [row | place for row in synthetic.rows(models=("llama-moe",), fabrics=("mfabric",), bandwidths=(400,))]
    rows += [row | {"fabric": "other", EVIL: "x"} for row in rows]
    text = page(rows, {EVIL: EVIL, "part": {EVIL: [EVIL]}}, pictures=tmp_path / "pictures", title=EVIL)
    assert not re.search('<img src="x"|onerror=alert\\(1\\)>', text)
    assert text.count(escape(EVIL)) > 10
    assert "a&amp;&lt;b&gt;.svg</figcaption>" in text
    for chart in charts(text).values():
        assert panels(chart)  # well-formed


def test_nothing_is_fetched(page, tmp_path):
    (tmp_path / "heat.png").write_bytes(b"\x89PNG")
    text = page(synthetic.rows(models=("qwen-moe",)), pictures=tmp_path)
    fetching = r"""(?:src|href|action|poster|srcset)\s*=\s*["']?([^"'\s>]*)|url\(([^)]*)|@import (\S+)"""
    sources = [next(filter(None, found)) for found in re.findall(fetching, text)]
    assert [source for source in sources if not source.startswith("#")] == ["data:image/png;base64,iVBORw=="]
    assert not re.search("<(link|iframe|object|embed|base)|fetch\\(|XMLHttpRequest|import\\(|http://|https://", text)
    assert "Sensitivity" not in text


def test_the_whole_configuration_is_there_folded(page):
    effective = {"models": ["a", "b"], "trace": None, "eps_waits": False, "workloads": {"m": {"gpus": 64}}, "empty": {}}
    folded = re.search('<details class="configuration">.*<pre>(.*)</pre></details>', page([{"a": 1}], effective), re.S)
    assert json.loads(unescape(folded[1])) == effective
    assert "No configuration is stored" in page([{"a": 1}], {})


def test_a_design_space_is_a_cloud_of_points_and_a_very_large_one_keeps_its_front(page):
    points = [("mfabric", 2, 3.0, 1e6), ("mfabric", 4, 2.0, 2e6), ("mfabric", 6, 2.5, 3e6)]
    points += [("fat-tree", 2, 1.0, 9e6), ("nvl72", 2, 1.0, None)]
    rows = [
        {"configuration": number, "model": "m", "fabric": fabric, "nic_gbps": 400.0, "optical_degree": degree}
        | {"iteration_s": seconds, "network_cost_usd": dollars}
        for number, (fabric, degree, seconds, dollars) in enumerate(points)
    ]
    chart = charts(page(rows))["Network cost against iteration time"]
    assert tips(chart) == [
        "configuration 2, fabric mfabric, optical_degree 6: 2.5 s, 3 M$",
        "configuration 0, fabric mfabric, optical_degree 2: 3 s, 1 M$",
        "configuration 1, fabric mfabric, optical_degree 4: 2 s, 2 M$",
        "configuration 3, fabric fat-tree, optical_degree 2: 1 s, 9 M$",
    ]
    assert "Fat-tree" in plain_words(chart)
    place = {"fabric": "mfabric", "nic_gbps": 400.0, "network_cost_usd": 1e6}
    large = page([place | {"configuration": n, "iteration_s": 1.0 + n / 1000} for n in range(4000)])
    chart = charts(large)["Network cost against iteration time"]
    assert "2,666 of 4,000 points are left out: slow ones, and some of many behind the front" in plain_words(chart)
    assert any(tip.endswith(": 1 s, 1 M$") for tip in tips(chart))


def test_a_page_of_many_series_shows_the_best_of_every_fabric_and_gpu_and_folds_the_rest(page):
    one = synthetic.whole_clusters(synthetic.rows(fabrics=("fat-tree", "mfabric"), models=("llama-moe",)))
    rows = [
        row
        | {"gpu.name": gpu, "delay_s": delay, "network.paths": f"way {delay}"}
        | {name: row[name] * delay for name in ("iteration_s", "usd_per_million_tokens")}
        for gpu in ("H100-SXM", "B200-HGX")
        for delay in (1.0, 1.1, 1.2, 1.3)
        for row in one
    ]
    effective = {"own_prices": {"a/own.toml": {"ocs_port": [300, 520]}}}
    text = page(rows, effective)
    summary = text.partition("<h2>Charts</h2>")[0]
    best = re.findall("<td>(.*?)</td>", summary)
    for fabric, gpu in itertools.product(("fat-tree", "mfabric"), ("H100-SXM", "B200-HGX")):
        assert any(design.startswith(fabric) and gpu in design for design in best)
    assert "Prices of own.toml: ocs_port 300 (usually 520)." in plain_words(summary)
    assert "Charts show 6 of 16 series: the best of each fabric and GPU first, by the lowest usd_per" in plain_words(
        text
    )
    (chart,) = (chart for title, chart in charts(text).items() if title == "Price of tokens against bandwidth")
    assert len(tips(chart)) == 6 * 4
    summaries = re.findall("<summary>(.*?)</summary>", text)
    assert any(said.startswith("More charts: ") for said in summaries)
    assert any(said.startswith("64 rows, ") for said in summaries)


def test_answers_stand_before_everything_else(page):
    text = page([{"a": 1}], answers={f"How {EVIL}?": ["So.", EVIL]})
    assert EVIL not in text
    assert f"<h2>{escape(f'How {EVIL}?')}</h2><ul><li>So.</li><li>{escape(EVIL)}</li></ul>" in text
    assert text.index("<li>So.</li>") < text.index("<h2>Summary</h2>")


def test_rows_of_serving_have_charts_of_throughput_and_cost(page):
    alike = {"model": "m", "gpu": "g", "nic_gbps": 400.0, "ep": 8, "tpot_limit_s": None, "fits": True}
    rows = [
        alike
        | {"fabric": fabric, "batch": n, "tpot_s": n / 1e3, "tokens_per_s_per_user": 1e3 / n}
        | {"tokens_per_s_per_gpu": each * n, "usd_per_million_tokens": 1 / (each * n)}
        for fabric, each in (("fat-tree", 3.0), ("torus", 2.0))
        for n in (4.0, 8.0, 16.0)
    ]
    drawn = charts(page(rows))
    assert [title for title in drawn if title.startswith("Serving")] == [
        "Serving: throughput by speed, of set-ups that fit",
        "Serving: cost by speed, of set-ups that fit",
    ]
    assert not any("nic_gbps" in title for title in drawn)
