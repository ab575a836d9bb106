"""The page in a real browser: quiet, fetching nothing, sorted by a click, readable in both themes."""

import pytest

from mfabric_jax import report
from mfabric_jax.report.html.charts import PAPER, contrast
from tests.report import browser, synthetic

pytestmark = [pytest.mark.slow, pytest.mark.skipif(browser.CHROMIUM is None, reason="no chromium on PATH")]

COMPLAINTS = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
READ = 4.5  # contrast that text needs (WCAG 2.1, 1.4.3)
CELLS = "[...document.querySelectorAll('#rows tbody tr')].map(row => row.cells[{column}].textContent)"
VALUES = "[...document.querySelectorAll('#rows tbody tr')].map(row => row.cells[{column}].dataset.sort ?? null)"


@pytest.fixture(scope="module")
def rows():
    return synthetic.rows(("fat-tree", "nvl72", "mfabric"), ("llama-moe", "deepseek-r1"))


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    pictures = folder / "pictures"
    pictures.mkdir()
    (pictures / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    return report.html_report(rows, {"version": "0.1.0", "part": {"a": 1}}, folder / "page.html", pictures)


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser.browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab, path):
    """The page, freshly loaded by a reader who prefers light."""
    tab.prefer("light")
    tab.open(path)
    yield tab
    tab.value("localStorage.clear()")  # which keeps the theme that a reader chose


def column(page, name):
    heads = page.value("[...document.querySelectorAll('#rows th')].map(th => th.textContent)")
    return heads.index(name)


def click(page, name):
    page.value(f"document.querySelectorAll('#rows th button')[{column(page, name)}].click()")


def sorts(page):
    return page.value("[...document.querySelectorAll('#rows th')].map(th => th.getAttribute('aria-sort'))")


def colour(page, selector, name):
    """A computed colour as #RRGGBB."""
    said = page.value(f"getComputedStyle(document.querySelector({selector!r}))[{name!r}]")
    assert said.startswith("rgb("), said
    return "#" + "".join(f"{int(part):02X}" for part in said[4:-1].split(","))


def test_it_says_nothing_and_fetches_nothing(page, path):
    page.value("document.querySelectorAll('button').forEach(button => button.click())")
    assert page.events(*COMPLAINTS) == []
    asked = [event["request"]["url"] for event in page.events("Network.requestWillBeSent")]
    assert asked[0] == path.as_uri()
    assert all(url.startswith("data:") for url in asked[1:])
    assert page.value("document.images[0].naturalWidth") == 9


def test_an_error_would_be_heard(page):
    page.ask("Runtime.evaluate", expression="setTimeout(() => { throw new Error('x') }); fetch('http://127.0.0.1:9/')")
    page.value("1")
    page.ask("Runtime.evaluate", expression="new Promise(done => setTimeout(done, 50))", awaitPromise=True)
    assert page.events(*COMPLAINTS)


def test_a_click_on_a_header_sorts_and_another_turns_it(page, rows):
    place = column(page, "iteration_s")
    assert set(sorts(page)) == {"none"}
    click(page, "iteration_s")
    assert sorts(page)[place] == "ascending"
    values = list(map(float, page.value(VALUES.format(column=place))))
    assert values == sorted(row["iteration_s"] for row in rows)
    click(page, "iteration_s")
    assert sorts(page)[place] == "descending"
    assert list(map(float, page.value(VALUES.format(column=place)))) == values[::-1]
    click(page, "model")
    assert sorts(page).count("none") == len(sorts(page)) - 1
    assert page.value(CELLS.format(column=column(page, "model"))) == sorted(row["model"] for row in rows)


def test_what_is_missing_comes_last_both_ways(page, rows):
    place, missing = column(page, "network_cost_usd"), sum(row["network_cost_usd"] is None for row in rows)
    for turn in (1, -1):
        click(page, "network_cost_usd")
        values = page.value(VALUES.format(column=place))
        assert values[-missing:] == [None] * missing
        known = list(map(float, values[:-missing]))
        assert known == sorted(known)[::turn]


def test_the_box_filters(page, rows):
    page.value("document.getElementById('filter').focus()")
    page.ask("Input.insertText", text="deepseek MFABRIC")
    left = [row for row in rows if (row["model"], row["fabric"]) == ("deepseek-r1", "mfabric")]
    shown = page.value("[...document.querySelectorAll('#rows tbody tr')].filter(row => row.offsetHeight > 0).length")
    assert shown == len(left) == 4
    assert page.value("document.getElementById('count').textContent") == f"4 of {len(rows)} rows"


def test_both_themes_can_be_read(page):
    for theme in ("light", "dark"):
        page.prefer(theme)
        assert_readable(page, theme)


def assert_readable(page, theme):
    ground = colour(page, "body", "backgroundColor")
    paper = colour(page, ".chart", "backgroundColor")
    assert (contrast(ground, "#FFFFFF") < 3) == (theme == "light")
    assert paper == PAPER[theme].upper()
    texts = [
        ("body", "color", ground),
        ("p.note", "color", ground),
        ("summary", "color", paper),
        (".chart .note", "color", paper),
        (".panel text", "fill", paper),
        ("#rows td", "color", paper),
        ("#rows th button", "color", paper),
        ("#theme", "color", paper),
    ]
    for selector, name, behind in texts:
        assert contrast(colour(page, selector, name), behind) >= READ, selector
    assert contrast(colour(page, ".panel use[style*='#0072b2']", "fill"), paper) >= 3


def test_the_button_turns_the_theme(page):
    light = colour(page, "body", "backgroundColor")
    assert page.value("document.getElementById('theme').textContent") == "Dark theme"
    page.value("document.getElementById('theme').click()")
    dark = colour(page, "body", "backgroundColor")
    assert contrast(light, dark) > 10
    page.prefer("dark", media="print")
    assert colour(page, "body", "backgroundColor") == "#FFFFFF"
    assert contrast(colour(page, "body", "color"), "#FFFFFF") > 10
    assert page.value("document.getElementById('theme').offsetHeight") == 0
    page.prefer("light")
    page.value("document.getElementById('theme').click()")
    assert colour(page, "body", "backgroundColor") == light


def test_a_mark_says_what_it_is_when_pointed_at(page):
    mark = "document.querySelector('.panel .mark')"
    place = page.value(f"{mark}.scrollIntoView({{block: 'center'}}), {mark}.getBoundingClientRect().toJSON()")
    x, y = place["left"] + place["width"] / 2, place["top"] + place["height"] / 2
    assert page.value("document.getElementById('tip').hidden")
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert page.value("document.getElementById('tip').textContent").startswith("Fat-tree, 100 Gbps: ")
    assert page.value("document.getElementById('tip').offsetHeight") > 10


def test_the_page_is_no_wider_than_its_window(page):
    for width in (1366, 600):
        page.ask("Emulation.setDeviceMetricsOverride", width=width, height=768, deviceScaleFactor=1, mobile=False)
        assert page.value("document.documentElement.scrollWidth") <= width
    page.ask("Emulation.clearDeviceMetricsOverride")
