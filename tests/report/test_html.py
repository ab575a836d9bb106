"""The page says what its rows say, escapes it and fetches nothing; how it looks was judged by eye."""

import itertools
import json
import math
import re
from html import escape, unescape
from xml.etree import ElementTree

import pytest

from mfabric_jax import report
from mfabric_jax.report.html.axis import axis_of
from mfabric_jax.report.numerals import number
from mfabric_jax.support.measured_errors import ratio_errors
from tests.report import synthetic

EFFECTIVE = {"version": "0.1.0", "commit": "0123456789abcdef+changes", "device": "cpu: cpu", "dtype": "float32"}
EVIL = '<img src="x" onerror=alert(1)>&\'"'


@pytest.fixture
def page(tmp_path):
    """The text of a page of these rows."""

    def written(rows, effective=EFFECTIVE, **named):
        return report.html_report(rows, effective, tmp_path / "page.html", **named).read_text(encoding="utf-8")

    return written


def charts(text, kind="chart"):
    """Title -> markup of a chart; `part`: of a part of a ranking."""
    return {
        unescape(re.search("<h3>(.*?)</h3>", one)[1]): one
        for one in re.findall(f'<section class="{kind}">.*?</section>', text, re.S)
    }


def figures(chart):
    """The panels of a chart, well-formed."""
    return [ElementTree.fromstring(figure) for figure in re.findall(r"<figure.*?</figure>", chart, re.S)]


def tips(chart):
    """What its marks say."""
    every = [mark for figure in figures(chart) for mark in figure.iter() if mark.get("class") == "mark"]
    return [mark.get("title") or mark.find("title").text for mark in every]


def column(table, name):
    """Texts of the cells of a small table."""
    return [unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(f'data-label="{name}">(.*?)</td>', table)]


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
    alike = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text.partition('<dl class="alike">')[2]))
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
    assert "Where the time goes" in text
    assert "1e+308" in plain_words(text)


def test_the_page_names_the_best_and_where_it_was_computed(page):
    rows = synthetic.rows(fabrics=("fat-tree", "mfabric", "nvl72"), models=("llama-moe",), bandwidths=(100, 400))
    said = plain_words(page(rows, EFFECTIVE | {"complete": False}))
    assert f"6 rows of {len(rows[0])} columns." in said
    assert "llama-moe64 GPUs, 8 micro-batches" in said
    # NVL72 is fastest and has no price; for a dollar mFabric does 1 / (time * 4.5), the fat-tree 1 / (time * 11).
    times = {row["fabric"]: row["iteration_s"] for row in rows if row["nic_gbps"] == 100}
    behind, least = 1 - times["mfabric"] * 4.5 / (times["fat-tree"] * 11), min(row["iteration_s"] for row in rows)
    assert (
        "llama-moe: best by performance per dollar of the networkRankingIterations a second for a M$ of network" in said
    )
    assert "mfabric does most for a dollar of the network: " in said
    assert re.search(f"mfabric 100 Gbps.*fat-tree 100 Gbps.*-{behind:.1%}", said)
    assert f"Fastest is nvl72, 400 Gbps: {number(least)} s an iteration." in said
    assert "Not ranked for lack of performance per dollar of the network: nvl72." in said
    assert "with mfabric_jax 0.1.0 (commit 0123456789ab+changes), on cpu: cpu, in float32." in said
    assert "some rows are missing" in said
    assert "some rows are missing" not in plain_words(page(rows))


PARTS = ["Ranking", "Set-up", "Where the time goes", "Cost", "What would change the order"]


def priced(**more):
    return synthetic.whole_clusters(synthetic.rows(models=("llama-moe",), **more))


def test_equal_designs_have_marks_of_their_own_in_small_charts_and_the_key(page):
    """Two equal designs share a grey."""
    first, *_ = priced(bandwidths=(400,), fabrics=("fat-tree",))
    rows = [
        first | {"fabric": name, "nic_gbps": gbps, "usd_per_million_tokens": 0.2 + gbps / 1e6}
        for name in ("fat-tree", "rail-optimized")
        for gbps in (400, 800)
    ]
    text = page(rows)
    drawn = charts(text, "part")["What would change the order"]
    key = re.search('<p class="numbers">.*?</p>', drawn)[0]
    assert re.findall('href="#m([0-9])"', key) == ["0", "1"]
    assert set(re.findall('href="#m([0-9])"', drawn.replace(key, ""))) == {"0", "1"}


def test_a_single_own_price_differs(page):
    rows = priced()
    effective = {"resolved": {}, "own_prices": {"own.toml": {"gpus.H100-SXM.usd": [1, 2]}}}
    assert "1 price differs from the usual." in page(rows, effective)


def test_equal_designs_stand_under_a_heading_and_the_others_are_outside(page):
    """Of two fabrics one is 1% and one 50% dearer than the best, and the model's own error is some 5%."""
    first, *_ = priced(bandwidths=(400,), fabrics=("fat-tree",))
    times = {"fat-tree": 1.0, "rail-optimized": 1.01, "mfabric": 1.5}
    rows = [
        first | {"fabric": name, "iteration_s": 2.0 * over, "usd_per_million_tokens": 0.2 * over}
        for name, over in times.items()
    ]
    text = page(rows)
    said = plain_words(text)
    assert "fat-tree and rail-optimized cost the same: $0.2 to $0.202 a million tokens" in said
    assert "These 2 are equal: $0.2 to $0.202 a million tokens. They differ by 1.0% at most, inside the error." in said
    ranks = charts(text, "part")["Ranking"]
    assert re.findall(r'badge (\w+)">(\d)', ranks) == [("equal", "1"), ("equal", "2"), ("behind", "3")]
    assert ranks.index("Outside the error") < ranks.index("mfabric")
    low, high = 1.5 * (1 - ratio_errors().eight_in_ten) - 1, 1.5 * (1 + ratio_errors().eight_in_ten) - 1
    assert f"+50.0%mfabric over the best of the 2 equal designs; with the error {low:+.1%} to {high:+.1%}." in said
    clear = page([row for row in rows if row["fabric"] != "rail-optimized"])
    assert "fat-tree costs least: $0.2 a million tokens" in plain_words(clear)
    assert re.findall(r'badge (\w+)">(\d)', charts(clear, "part")["Ranking"]) == [("best", "1"), ("behind", "2")]


def test_several_jobs_have_a_line_each_and_the_headline_counts_wins(page):
    rows = synthetic.whole_clusters(synthetic.rows(models=("llama-moe", "qwen-moe"), bandwidths=(400,)))
    rows += [row | {"model": "large", "fits": False} for row in rows[:4]]
    text = page(rows)
    cheapest = min(rows[:4], key=lambda row: row["usd_per_million_tokens"])["fabric"]
    head = text.partition("</section>")[0]
    assert re.search(f"{cheapest}.* best(, or equal to the best,)? for both jobs", plain_words(head))
    assert column(head, "job") == ["llama-moe", "qwen-moe"]
    assert [*re.findall('href="#(job.)"', head)] == re.findall('<section id="(job.)"', text) == ["job0", "job1"]
    assert "No design in these rows can run large." in plain_words(text)


def test_a_ranking_has_its_parts_and_lanes_add_up(page):
    text = page(rows := priced(bandwidths=(400,)))
    assert page(rows) == text
    assert [*charts(text, "part")] == PARTS[:4]
    lanes = charts(text, "part")["Where the time goes"]
    assert re.findall('class="label">(.*?)<', lanes)[:5] == ["Compute", "EP", "TP + DP", "Reconfiguration", "Bubble"]
    ranked = sorted(rows, key=lambda row: row["usd_per_million_tokens"])
    seconds = re.findall('class="text">([0-9.]+) ?', lanes)
    for row, line in zip(ranked, [seconds[5 * n : 5 * n + 5] for n in range(len(rows))], strict=True):
        parts = [row["compute_s"], row["ep_comm_s"], row["tp_comm_s"] + row["dp_comm_s"], row["reconfig_s"]]
        assert [float(part) for part in line] == pytest.approx([*parts, row["bubble_s"]], rel=0.01)
    widths = [float(width) for width in re.findall('class="bar"><i[^>]*width:([0-9.]+)%', lanes)]
    longest = max(row["compute_s"] for row in rows)
    assert widths[1] == pytest.approx(100 * ranked[0]["ep_comm_s"] / longest, rel=0.001)
    money = tips(charts(text, "part")["Cost"])
    assert len(money) == 2 * len(rows)
    assert money[0].endswith(
        f"network {number(ranked[0]['network_cost_usd'] / 1e6)} M$ of {number(ranked[0]['cluster_cost_usd'] / 1e6)} M$"
    )


def test_what_varies_and_quoted_prices_have_small_charts(page):
    quotes = {"low_ports_usd": 0.9, "low_gpus_usd": 0.5}
    rows = priced(bandwidths=(100, 400))
    for row in rows:
        parts = quotes if row["fabric"] == "mfabric" else dict.fromkeys(quotes, 1.0)
        row |= {name: row["usd_per_million_tokens"] * part for name, part in parts.items()}
    chart = charts(page(rows), "part")[PARTS[4]]
    quoted, bandwidth = figures(chart)
    assert [figure.find("figcaption").text for figure in (quoted, bandwidth)] == ["Quoted prices", "NIC bandwidth"]
    labels = [text.text for text in quoted.iter("text") if text.get("class") == "middle"]
    assert labels == ["today", "ports low", "GPUs low"]
    said = tips(chart)
    assert len(said) == 4 * 3 + 4 * 2
    for row in rows:
        value = f"NIC bandwidth {row['nic_gbps']}: ${number(row['usd_per_million_tokens'])}"
        assert any(f" {row['fabric']}, {value}" in tip for tip in said)
    usd = [[row[name] for name in ("usd_per_million_tokens", *quotes)] for row in rows]
    best = [min(usd[number : number + 2]) for number in range(0, len(usd), 2)]  # of both bandwidths of a fabric
    over = [100 * (own / min(every) - 1) for every in zip(*best, strict=True) for own in every]
    ticks = [float(text.text) for text in quoted.iter("text") if text.get("class") == "end"]
    assert max(over) / 2 < max(ticks) <= 1.07 * max(over)
    heights = sorted(100 - float(mark.get("y")[:-1]) for mark in quoted.iter("use"))
    assert heights == pytest.approx(sorted(100 * own / (1.07 * max(over)) for own in over), abs=0.1)
    ends = [text.text for text in bandwidth.iter("text") if text.get("dx") == "10"]
    assert sorted(", ".join(ends).split(", ")) == ["1", "2", "3", "4"]


def test_a_small_chart_has_the_best_of_all_other_settings(page):
    rows = [
        {"model": "m", "fabric": fabric, "nic_gbps": gbps, "delay_s": delay, "iteration_s": slow * delay + 40 / gbps}
        for fabric, slow in (("fat-tree", 1.0), ("mfabric", 1.5))
        for gbps in (100, 400)
        for delay in (2.0, 3.0)
    ]
    said = tips(charts(page(rows), "part")[PARTS[4]])
    assert "1 fat-tree, NIC bandwidth 100: 2.4 s" in said  # 2 + 40 / 100, at the shorter delay
    assert "2 mfabric, delay 3: 4.6 s" in said  # 4.5 + 40 / 400, at the larger bandwidth


def test_axes_by_hand():
    across = axis_of([100, 200, 400, 800], exact=True)
    assert (across.logarithmic, list(across.ticks)) == (True, [100, 200, 400, 800])
    assert [across.share(x) for x in across.ticks] == pytest.approx([(0.07 + n / 3) / 1.14 for n in range(4)])
    up = axis_of([0.0, 9.5])
    assert (up.logarithmic, list(up.ticks), up.share(0), up.share(9.5)) == (
        False,
        [0, 5, 10],
        0,
        pytest.approx(1 / 1.07),
    )
    assert [axis_of([2.0, 3.0]).share(y) for y in (2.0, 2.5, 3.0)] == pytest.approx([0.07 / 1.14, 0.5, 1.07 / 1.14])
    assert list(axis_of([1e-7, 1e9]).ticks) == [1e-8, 1e-4, 1, 1e4, 1e8]  # at most 6 of 19 decades
    assert axis_of([5.0]).share(5.0) == 0.5


def test_dollars_of_failures_are_added_up_by_fabric(page):
    """Hours of all kinds are lost, a spare server serves all of them, and of every kind of part there is a spare."""
    kinds = [("gpu", 100.0, 40.0, None), ("spine", 50.0, None, 7.0), ("server", 25.0, 60.0, None)]
    rows = [
        {"model": "m", "fabric": fabric, "failure": kind, "slow_down": 0.1, "usd_per_million_tokens": 0.2}
        | {"lost_usd_per_month": lost, "spare_usd_per_month": spare, "spare_part_usd_per_month": part}
        for fabric in ("fat-tree", "mfabric")
        for kind, lost, spare, part in kinds
    ]
    text = page(rows)
    assert "$175 + $67" in text  # 100 + 50 + 25, and 60 + 7
    assert "best by" not in text
    assert "slow_down by fabric, failure" in charts(text)


def test_assumptions_and_the_command_stand_on_the_page(page):
    resolved = {"circuits.delay_s": 0.025, "network.link_delay_s": 1e-6, "gpu.name": "H100-SXM", "failures.rates": None}
    rows = [row | {"traffic": "uniform"} for row in priced()]
    text = page(rows, {"resolved": resolved}, command="mfabric report 'my rows.csv' --out page.html")
    said = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text.partition("What was assumed")[2]))
    assert said["Traffic"] == "uniform"
    assert said["Circuits"] == "chosen by greedy, 25 ms each"
    assert said["Network"] == "NICs of 100, 200, 400 and 800 Gbps, 1 us a link"
    assert said["Failures"] == "Nothing fails in these rows."
    resolved |= {"failures.rates": "own/r.toml", "failures.checkpoint_interval_s": 3600.0, "failures.restart_s": 600.0}
    rates = {"own/r.toml": {"gpu": 20.0, "optical-nic": 0.3}}
    said = dict(re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page(rows, {"resolved": resolved, "rates": rates})))
    assert said["Failures"] == (
        "r.toml, per million hours of a part: gpu 20, optical-nic 0.3; checkpoint every 60 min, restart 10 min"
    )
    assert "mfabric report &#x27;my rows.csv&#x27; --out page.html</code>" in text
    head = plain_words(text.partition("</section>")[0])
    comparison = f"{ratio_errors().eight_in_ten:.1%}"
    assert f"The model's own error on H100-SXM{comparison} between designs" in head
    assert "H100-SXM steps took " in head
    assert f"8 of 10 measured ratios of two steps are within {comparison}." in head
    assert "Prices ofnetwork 2025, GPU November 2026" in head  # parts.toml, by hand


def test_what_rows_lack_is_said_in_a_sentence(page):
    rows = [{k: v for k, v in row.items() if k != "network_cost_usd"} for row in synthetic.rows(models=("qwen-moe",))]
    text = page(rows)
    sentence = "Left out: network cost against iteration time, because no row has a number in column network_cost_usd."
    assert plain_words(text).count(sentence) == plain_words(text).count("Left out") == 1


def test_a_number_that_was_varied_has_a_chart_and_repeats_are_averaged(page):
    varied = itertools.product(("topoopt", "mfabric"), (0.1, 1), (0, 1))
    text = page(
        [
            {"model": "m", "nic_gbps": 400, "fabric": f, "delay_s": d, "sample": n, "iteration_s": 1.2345 + d + n}
            for f, d, n in varied
        ]
    )
    said = tips(charts(text, "part")[PARTS[4]])
    assert len(said) == 4
    assert said[-1] == "1 topoopt, delay 1: 2.73 s\n2 mfabric, delay 1: 2.73 s"


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
    ]
    assert tips(charts(page(runs, {}), "part")[PARTS[4]]) == [
        "1 degree 2, degree 2: 2.5 s",
        "1 degree 2, degree 3: 2.5 s",
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
    for chart in [*charts(text).values(), *charts(text, "part").values()]:
        assert ElementTree.fromstring(chart.replace("<wbr>", ""))  # well-formed


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
    best = re.findall('class="who"><b>(.*?)</b>', charts(text, "part")["Ranking"])
    kinds = itertools.product(("fat-tree", "mfabric"), ("H100-SXM", "B200-HGX"))
    assert sorted(best) == sorted(f"{fabric}, {gpu}" for fabric, gpu in kinds)
    assert "Prices of own.toml: ocs_port 300 (usually 520)." in plain_words(text)
    assert "Charts show 6 of 16 series: the best of each fabric and GPU first, by the lowest usd_per" in plain_words(
        text
    )
    assert len(tips(charts(text)["Whole-cluster cost against iteration time"])) == 6 * 4
    summaries = re.findall("<summary>(.*?)</summary>", text)
    assert any(said.startswith("More charts: ") for said in summaries)
    assert any(said.startswith("64 rows, ") for said in summaries)


def test_answers_stand_before_everything_else(page):
    text = page([{"a": 1}], answers={f"How {EVIL}?": ["So.", EVIL]})
    assert EVIL not in text
    heading = f'<h2>{escape(f"How {EVIL}?")}</h2><div class="part">'
    assert f"{heading}<ul><li>So.</li><li>{escape(EVIL)}</li></ul>" in text
    assert text.index("<li>So.</li>") < text.index("<h2>Charts</h2>")
    assert '<p class="verdict">Buy &lt;this&gt;</p>' in page([{"a": 1}], verdict="Buy <this>")


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
