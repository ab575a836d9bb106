"""One text for a value: in tables, on the page, in its charts, in pictures and in sentences."""

import re

import numpy as np
import pytest

from mfabric_jax import report
from mfabric_jax.report import numerals
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.numerals import number, percent
from mfabric_jax.report.varied import mean_bars
from tests.report import synthetic


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.219, "0.219"),
        (0.21000123, "0.210"),
        (0.1 + 0.2, "0.3"),
        (400.0, "400"),
        (1024, "1024"),
        (12345.678, "12346"),
        (1234567.0, "1234567"),
        (0.0, "0"),
        (0.99999999, "1.00"),
        (-0.0123456, "-0.0123"),
        (2.5e-7, "2.5e-07"),
        (1.23456789e11, "1.23e+11"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (None, "-"),
        (True, "True"),
        ("text", "text"),
    ],
)
def test_a_number_has_three_digits_or_is_exact(value, text):
    assert number(value) == text


def test_a_share_has_a_tenth_of_a_per_cent():
    shares = {0.745: "74.5%", -0.0004: "0.0%", 1234.5: "123450.0%", None: "-", float("nan"): "nan"}
    assert {value: percent(value) for value in shares} == shares
    assert [percent(value, signed=True) for value in (0.1, -0.0004, -0.25)] == ["+10.0%", "+0.0%", "-25.0%"]


def test_a_text_is_within_half_of_its_last_digit():
    for value in 10 ** np.random.default_rng(3).uniform(-9, 12, 2000):
        assert float(number(value)) == pytest.approx(value, rel=5.01e-3)


def drawn_rows():
    """Results of every size, some of them round, by a name."""
    random = np.random.default_rng(7)
    values = [*(10 ** random.uniform(-9, 12, 24)), 0.219, 0.21, 0.2100004, 0.2096, 400.0, 12345.678, 1e9, 1.5e-6]
    return [{"name": f"row{place}", "result": float(value)} for place, value in enumerate(values)]


def test_table_page_and_pictures_print_a_value_alike(tmp_path):
    rows = drawn_rows()
    expected = [number(row["result"]) for row in rows]
    printed = [line.split()[1] for line in report.plain(rows).splitlines()[2:]]
    assert printed == expected
    page = report.html_report(rows, {}, tmp_path / "page.html").read_text()
    body = page[page.index("<tbody>", page.index('id="rows"')) :]
    assert re.findall(r'data-sort="[^"]*">([^<]*)<', body)[: len(rows)] == expected
    bars = page.partition('<div class="bars">')[2].partition("</figure>")[0]
    assert re.findall("<b>(.*?)</b>", bars) == expected
    assert re.findall(r'title="row\d+: ([^"]*)"', bars) == expected
    (axes,) = drawn.figure(mean_bars(rows)).axes
    assert [text.get_text() for text in axes.texts] == expected


def test_ranking_table_and_charts_of_a_comparison_print_a_value_alike(tmp_path):
    rows = synthetic.whole_clusters(synthetic.rows(models=["llama-moe"], bandwidths=[400]))
    text = report.comparison(rows)
    page = report.html_report(rows, {}, tmp_path / "page.html").read_text()
    for row in rows:
        price, seconds = number(row["usd_per_million_tokens"]), number(row["iteration_s"])
        assert text.count(price) >= 2, price  # the ranking and the table of costs
        assert text.count(seconds) >= 2, seconds
        assert f'class="value">${price}<' in page
        assert f'class="value">{seconds} s<' in page


@pytest.mark.parametrize(("low", "high"), [(1e-9, 5e-9), (0.1, 0.35), (900.0, 1234.2), (3e5, 9e5), (1e10, 1e12)])
def test_ticks_of_an_axis_are_numbers_like_others(low, high):

    with paper.look():
        figure = paper.blank(4, 3)
        axes = figure.subplots()
        drawn.scale(axes, "y", [low, high])
        figure.draw_without_rendering()
        ticks = {
            float(tick): text.get_text() for tick, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
        }
    assert ticks
    assert all(text == numerals.number(tick) for tick, text in ticks.items())
    assert len(set(ticks.values())) == len(ticks)
