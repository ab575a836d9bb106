"""The tables say what the rows say, within the width of a terminal."""

import re

import pytest

from mfabric_jax.report import TableColumn, comparison, plain, tables
from mfabric_jax.report.grid import arrange
from mfabric_jax.report.numerals import bytes_unit
from mfabric_jax.report.ranking import are_equal, rankings
from tests.mistakes import check_refused
from tests.report import synthetic


def _line(text, model, name):
    of_model = text[text.index(f"{model}. ") if f"{model}. " in text else 0 :]
    table = of_model[of_model.index("Iteration time [s] by NIC bandwidth") :]
    return next(line for line in table.splitlines() if line.startswith(f"{name}  "))


def test_a_block_per_model_and_a_line_of_times_shares_cost_and_performance_per_fabric():
    text = comparison(synthetic.rows())
    blocks = re.split(r"^(?=[a-z0-9-]+\. (?:Best|Equal) by)", text, flags=re.M)[1:]
    assert [block.split(".")[0] for block in blocks] == list(synthetic.MODELS)
    assert all(re.search("^design .*\n-+\nmfabric, 100 Gbps ", block, re.M) for block in blocks)
    assert max(map(len, text.splitlines())) <= 80
    assert "Simulated: mixtral-8x22b, 1024 GPUs, 8 micro-batches, while GPUs" in text
    # llama-moe on mFabric, scale 1.1: compute .77, tp .055, bubble .11, reconfiguration .022; at 400 Gbps
    # ep = .35 * 1.2 / 4 * 1.1 = .1155 and dp = .022, in all 1.0945 s. 4.5 * 64 * 460 = 0.132 M$.
    # The fat-tree: ep .09625, no reconfiguration, 1.05325 s and 0.324 M$: (1.05325 * 11) / (1.0945 * 4.5) = 2.35.
    cells = _line(text, "llama-moe", "mfabric").split()
    assert cells[3] == "1.09"
    assert cells[5:] == ["70.4%", "10.6%", "7.0%", "2.0%"]
    below = re.search(r"^fabric +bubble .*\n-+\n(?:.*\n)*?mfabric +(.*)$", text.partition("llama-moe. ")[2], re.M)
    assert below[1].split() == ["10.1%", "0.132", "2.35x"]
    times = [synthetic.row("llama-moe", "mfabric", gbps)["iteration_s"] for gbps in synthetic.BANDWIDTHS]
    assert [float(cell) for cell in cells[1:5]] == pytest.approx(times, abs=6e-3)


def test_a_model_that_no_design_can_run_has_its_name_above_its_table():
    rows = [row | {"fits": row["model"] != "llama-moe"} for row in synthetic.rows()]
    text = comparison(rows)
    assert text.index("llama-moe. Not ranked.") < text.index("Simulated: llama-moe")
    assert "Not ranked for lack of GPU memory: 16 rows of llama-moe." in text
    assert _line(text, "llama-moe", "mfabric").split()[3] == "1.09"


def test_what_differs_has_a_line_and_what_is_unknown_a_dash():
    text = comparison(synthetic.both_uses(fabrics=("fat-tree", "mfabric", "nvl72")))
    assert _line(text, "qwen-moe", "mfabric, own") != _line(text, "qwen-moe", "mfabric, pooled")
    assert re.search(r"^nvl72 .* - +-$", text.partition("qwen-moe. ")[2], re.M)
    text = comparison(synthetic.rows(fabrics=("mfabric",), bandwidths=(100, 200)))
    assert "at 200 Gbps" in text  # the nearest to 400
    assert "perf/$" not in text  # without a fat-tree
    assert "fat-tree" not in text
    text = comparison(synthetic.rows(models=["llama-moe"], bandwidths=tuple(range(100, 1300, 100))))
    assert max(map(len, text.splitlines())) <= 80
    assert sum(line.startswith("fat-tree  ") for line in text.splitlines()) == 3  # many bandwidths continue below


def test_tables_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = comparison(synthetic.whole_clusters(synthetic.rows()))
    assert 60 < max(map(len, text.splitlines())) <= 80


def test_plain_aligns_numbers_right_and_text_left():
    rows = [{"name": "a", "time_s": 0.5, "share": 0.25, "n": 3}, {"name": "long", "time_s": 12.0, "n": 1000}]
    assert plain(rows, ["name", TableColumn("time_s", "time [s]"), TableColumn("share", percent=True), "n"]) == (
        "name  time [s]  share     n\n"
        "---------------------------\n"
        "a          0.5  25.0%     3\n"
        "long      12        -  1000"
    )
    assert plain([], ["name"]) == "name\n----"


def test_what_continues_below_repeats_the_words_that_tell_rows_apart():
    rows = [{"model": "m", "fabric": "f", "kind": k, "aaaaa": 1.25, "bbbbb": 2.5} for k in ("nic", "gpu")]
    assert plain(rows, width=32).splitlines() == [
        "model  fabric  kind  aaaaa",
        "--------------------------",
        "m      f       nic    1.25",
        "m      f       gpu    1.25",
        "",
        "model  fabric  kind  bbbbb",
        "--------------------------",
        "m      f       nic     2.5",
        "m      f       gpu     2.5",
    ]


def test_sizes_have_the_best_unit():
    assert [bytes_unit(v)[0] for v in (2.0, 0.0, 0.05, 2e-6, 2e-9)] == ["GB", "GB", "MB", "kB", "B"]


def test_decimal_points_stand_below_each_other_where_that_costs_little():
    assert plain([{"s": 0.964012}, {"s": 1.165123}, {"s": 12.34012}]).splitlines()[2:] == [" 0.964", " 1.17", "12.3"]
    assert plain([{"s": 0.00012345678}, {"s": 1234.5678}]).splitlines()[2:] == ["0.000123", "    1235"]


def test_three_models_have_a_table_of_conclusions():
    text = comparison(synthetic.rows(models=("qwen-moe", "llama-moe", "mixtral-8x7b")))
    heading, table, *_ = text.split("\n\n")
    assert heading.startswith("Best by ")
    ranked = rankings(synthetic.rows(models=("qwen-moe", "llama-moe", "mixtral-8x7b")), {})
    for line, (model, ranking) in zip(table.splitlines()[2:], ranked.items(), strict=True):
        equal = [
            design.kind
            for design, same in zip(ranking.shown, are_equal(ranking.shown, ranking.column), strict=True)
            if same
        ]
        assert line.split()[0] == model
        assert " = ".join(dict.fromkeys(equal or [ranking.shown[0].kind])) in line
    assert not comparison(synthetic.rows(models=("qwen-moe", "llama-moe"))).startswith("Best by")


def test_numbers_that_tell_rows_apart_are_repeated_below():
    rows = [{"fabric": "fat-tree", "load": load, "seconds": 1.0, "dollars": 2.0} for load in (10, 30)]
    columns = ["fabric", TableColumn("load", apart=True), "seconds", "dollars"]
    _, below = plain(rows, columns, width=25).split("\n\n")
    assert below.splitlines()[0].split() == ["fabric", "load", "dollars"]
    _, below = plain(rows, [column if isinstance(column, str) else column.key for column in columns], width=25).split(
        "\n\n"
    )
    assert below.splitlines()[0].split() == ["fabric", "dollars"]


def test_settings_are_named_only_where_they_tell_series_apart():
    rows = synthetic.rows(models=["llama-moe"])
    assert [s.settings for s in arrange(rows).series] == [()] * 4
    other = [{**row, "policy": "exact"} for row in rows if row["fabric"] == "mfabric"]
    assert [s.settings for s in arrange(rows + other).series][-2:] == [("greedy",), ("exact",)]


def test_an_axis_of_any_setting_tells_series_apart():
    rows = [row for row in synthetic.rows(models=["llama-moe"]) if row["fabric"] == "mfabric"]
    two = [row | {"circuits.delay_s": delay} for row in rows for delay in (0.001, 0.025)]
    assert [s.settings for s in arrange(two).series] == [("delay_s 0.001",), ("delay_s 0.025",)]
    assert "mfabric, delay_s 0.025" in comparison(two)
    sizes = [row | {"gpus": gpus} for row in rows for gpus in (256, 512)]
    assert [s.settings for s in arrange(sizes).series] == [("gpus 256",), ("gpus 512",)]
    many = [row | {"circuits.delay_s": 0.001 * step, "iteration_s": 1.0 + step} for row in rows for step in range(13)]
    check_refused("two results for llama-moe on mfabric", comparison, many)


def seeded_rows(delays, seeds=5):
    """Rows of a fabric whose labels are wide, for several delays and seeds."""
    (base,) = (row for row in synthetic.rows(models=["llama-moe"], bandwidths=(400,)) if row["fabric"] == "mfabric")
    settings = {"circuits.reconfigure": "on-demand", "policy": "mine.py:a_long_name"}
    others = [base | {"circuits.reconfigure": "pays", "policy": "greedy", "circuits.delay_s": 0.0, "run.seed": 0}]
    return others + [
        base | settings | {"circuits.delay_s": delay, "run.seed": seed, "iteration_s": 1.0 + seed}
        for delay in delays
        for seed in range(seeds)
    ]


def test_seeds_are_averaged_and_wide_labels_are_printed_once():
    rows = seeded_rows((0.0, 0.025))
    grid = arrange(rows)
    assert grid.seeds == 5
    assert [grid.value("llama-moe", series, 400, "iteration_s") for series in grid.series][1:] == [3.0, 3.0]
    text = comparison(rows)
    assert "; means over 5 seeds" in " ".join(text.split())
    assert "seed 0" not in text
    names = re.findall(r"^ *\d  mfabric, mine.py:a_long_name, reconfigure on-demand, delay_s [\d.]+$", text, re.M)
    assert len(names) == 2
    assert max(map(len, text.partition("Iteration time")[2].splitlines())) <= 80


def test_means_have_the_digits_that_their_errors_support():
    rows = [{"mean": 1.00032, "ci": 0.00012}, {"mean": 12.3456, "ci": 3.0}, {"mean": 0.5, "ci": None}]
    cells = plain(rows, [TableColumn("mean", error="ci")]).split()[2:]
    assert cells == ["1.0003", "12.3", "0.5"]


def test_many_lines_are_cut_and_say_where_the_others_are(monkeypatch):
    monkeypatch.setattr(tables, "_MOST_LINES", 4)
    rows = seeded_rows((0.0, 0.001, 0.01, 0.025, 0.1))
    assert "2 more lines not shown; mfabric query rows.csv reads them." in comparison(rows, "rows.csv")
    assert "2 more lines not shown; --out FILE writes them." in comparison(rows)
    assert "more lines" not in comparison(rows[:11])


def test_every_marked_column_is_repeated_below_however_wide():
    rows = [{"a": "x" * 12, "b": "y" * 12, "load": load, "first": 1.0, "second": 2.0} for load in (10, 30)]
    columns = [*(TableColumn(name, apart=True) for name in ("a", "b", "load")), "first", "second"]
    for part in plain(rows, columns, width=40).split("\n\n"):
        assert part.split()[:3] == ["a", "b", "load"]


def test_configurations_of_a_sweep_that_say_the_same_are_one_series():
    rows = [{**row, "configuration": number} for number, row in enumerate(synthetic.rows(models=["llama-moe"]))]
    again = [{**rows[0], "configuration": len(rows)}]
    assert arrange(rows + again).cells == arrange(rows).cells
    slower = [{**again[0], "iteration_s": 9.0}]
    check_refused("two results for llama-moe on fat-tree at 100 Gbps", comparison, rows + slower)


def test_a_heading_says_how_many_servers_regions_have():
    rows = [{**row, "region_servers": 2} for row in synthetic.rows(models=["llama-moe"])]
    assert ", regions of 2 servers, 8 micro-batches, " in " ".join(comparison(rows).split())
    inside = [{**row, "region_servers": 1} if row["fabric"] == "fat-tree" else row for row in rows]
    assert ", regions of 1 and 2 servers, " in " ".join(comparison(inside).split())
