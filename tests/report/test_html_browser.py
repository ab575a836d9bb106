"""The page in a real browser: quiet, fetching nothing, sorted by a click, readable in both themes, on a phone and on
paper.

A script tries the page, or measures it in a frame, and leaves what it found in the document, which headless Chromium
prints.
"""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

from mfabric_jax import report
from mfabric_jax.report.html.colours import PAPER, contrast
from tests.report import synthetic

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")]

ROWS = synthetic.rows(("fat-tree", "nvl72", "mfabric"), ("llama-moe", "deepseek-r1"))
READ = 4.5  # contrast that text needs (WCAG 2.1, 1.4.3)
HEARD = "<script>window.heard = []; addEventListener('error', (event) => heard.push(event.message));</script>"
TOOLS = """
document.querySelectorAll("details").forEach((one) => { one.open = true; });
const all = (selector) => [...document.querySelectorAll(selector)];
const place = (name) => all("#rows th").findIndex((th) => th.textContent === name);
const click = (name) => all("#rows th button")[place(name)].click();
const cells = (name) => all("#rows tbody tr").map((row) => row.cells[place(name)]);
const values = (name) => cells(name).map((cell) => cell.dataset.sort ?? cell.textContent);
const sorts = () => all("#rows th").map((th) => th.getAttribute("aria-sort"));
const colour = (selector, name) => getComputedStyle(document.querySelector(selector))[name];
"""


def dom(folder, path, *flags):
    """The document after its scripts have run."""
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *flags]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def found(folder, script, *flags):
    """What a script returns that runs at the end of a page of ROWS, and the errors on the way."""
    pictures = folder / "pictures"
    pictures.mkdir(exist_ok=True)
    (pictures / "a.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>')
    path = report.html_report(ROWS, {"version": "0.1.0", "part": {"a": 1}}, folder / "page.html", pictures)
    ending = f"{TOOLS} addEventListener('load', () => {{ const answer = (() => {{ {script} }})(); "
    ending += "document.body.innerHTML = `<pre></pre>`; "
    ending += "document.querySelector('pre').textContent = JSON.stringify([answer, heard]); });"
    text = path.read_text(encoding="utf-8").replace("<head>", f"<head>{HEARD}")
    path.write_text(text.replace("</body>", f"<script>{ending}</script></body>"), encoding="utf-8")
    return json.loads(unescape(re.search("<pre>(.*)</pre>", dom(folder, path, *flags), re.S)[1]))


def hexadecimal(said):
    """rgb(1, 2, 3) as #010203."""
    assert said.startswith("rgb("), said
    return "#" + "".join(f"{int(part):02x}" for part in said[4:-1].split(","))


def test_it_says_nothing_and_fetches_nothing_and_the_box_filters(tmp_path):
    script = "all('button').forEach((button) => button.click()); const names = performance.getEntriesByType('resource')"
    script += ".map((entry) => entry.name); const width = document.images[0].naturalWidth;"
    script += "const box = document.getElementById('filter'); box.value = 'deepseek MFABRIC'; "
    script += "box.dispatchEvent(new Event('input')); const shown = (row) => row.offsetHeight; "
    script += "const left = all('#rows tbody tr').filter(shown).length; "
    script += "return [names, width, left, document.getElementById('count').textContent];"
    (fetched, width, left, count), heard = found(tmp_path, script)
    assert all(name.startswith("data:") for name in fetched)
    assert (width, heard) == (9, [])
    assert (left, count) == (4, f"4 of {len(ROWS)} rows")
    assert found(tmp_path, "dispatchEvent(new ErrorEvent('error', {message: 'x'})); return 1;") == [1, ["x"]]


def test_a_click_on_a_header_sorts_and_another_turns_it_and_what_is_missing_comes_last(tmp_path):
    names = ["iteration_s", "iteration_s", "network_cost_usd", "network_cost_usd", "model"]
    script = f"return {json.dumps(names)}.map((name) => {{ click(name); return [values(name), sorts()[place(name)], "
    script += "sorts().filter((sort) => sort !== 'none').length]; });"
    clicks, _ = found(tmp_path, script)
    assert [turn for _, turn, _ in clicks] == [*("ascending", "descending") * 2, "ascending"]
    assert {sorted_columns for *_, sorted_columns in clicks} == {1}
    up, down = ([float(value) for value in click[0]] for click in clicks[:2])
    assert up == sorted(row["iteration_s"] for row in ROWS) == down[::-1]
    missing = sum(row["network_cost_usd"] is None for row in ROWS)
    for (priced, *_), step in zip(clicks[2:4], (1, -1), strict=True):
        assert priced[-missing:] == ["-"] * missing
        assert [float(v) for v in priced[:-missing]] == sorted(map(float, priced[:-missing]))[::step]
    assert clicks[4][0] == sorted(row["model"] for row in ROWS)


def test_both_themes_can_be_read_and_the_button_turns_them(tmp_path):
    texts = ["body", "p.note", "#rows td", "#rows th button", "#theme", "summary", ".chart .note"]
    script = f"""
    const look = () => [colour("body", "backgroundColor"), colour(".chart", "backgroundColor"),
        {json.dumps(texts)}.map((selector) => colour(selector, "color")), colour(".panel text", "fill"),
        colour(".panel use[style*='#0072b2']", "fill"), document.getElementById("theme").textContent];
    const before = look();
    document.getElementById("theme").click();
    const turned = look();
    for (const sheet of document.styleSheets) for (const rule of sheet.cssRules)
        if (rule.media?.mediaText === "print") rule.media.mediaText = "all";
    return [before, turned, [colour("body", "backgroundColor"), colour("body", "color"), colour("#theme", "display")]];
    """
    (light, dark, printed), _ = found(tmp_path, script)
    for theme, (ground, paper, inks, label, mark, button) in (("light", light), ("dark", dark)):
        ground, paper = hexadecimal(ground), hexadecimal(paper)
        assert paper == PAPER[theme]
        assert (contrast(ground, "#ffffff") < 3) == (theme == "light")
        for ink, behind in zip([*inks, label], [ground] * 2 + [paper] * 6, strict=True):
            assert contrast(hexadecimal(ink), behind) >= READ
        assert contrast(hexadecimal(mark), paper) >= 3
        assert button == ("Dark theme" if theme == "light" else "Light theme")
    assert hexadecimal(printed[0]) == "#ffffff"
    assert contrast(hexadecimal(printed[1]), "#ffffff") > 10
    assert printed[2] == "none"


def test_a_mark_says_what_it_is_when_pointed_at_and_the_page_fits_its_window(tmp_path):
    script = "const tip = document.getElementById('tip'), before = tip.hidden; document.querySelector('.panel .mark')"
    script += ".dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); const page = document.documentElement;"
    script += "return [before, tip.hidden, tip.textContent, tip.offsetHeight, page.scrollWidth - page.clientWidth];"
    for width in (1366, 600):
        (before, after, words, height, over), _ = found(tmp_path, script, f"--window-size={width},768")
        assert (before, after) == (True, False)
        assert words.startswith("1 mfabric, NIC bandwidth 100: ")
        assert height > 10 >= 10 + over


# ------------------------------------------------------------------------------------------------------------ layout
MEASURE = """
const view = page.defaultView, wide = page.documentElement.clientWidth;
const skipped = (element) => element.closest(".scroll, pre, script, style, title");
const texts = [], walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const holder = node.parentElement, range = page.createRange();
    if (!node.textContent.trim() || skipped(holder)) continue;
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
        if (box.width > 0.5) texts.push({text: node.textContent.trim(), holder, box});
}
const scale = (element) => element.getScreenCTM?.()?.a ?? 1;
const size = ({holder}) => parseFloat(view.getComputedStyle(holder).fontSize) * scale(holder);
const small = texts.filter((own) => size(own) < LEAST).map((own) => own.text);
const outside = texts.filter(({box}) => box.left < -0.5 || box.right > wide + 0.5).map((own) => own.text);
const clips = (element) => view.getComputedStyle(element).overflowX !== "visible" && !skipped(element);
const clipped = [...page.body.querySelectorAll("*")]
    .filter((element) => clips(element) && element.scrollWidth > element.clientWidth + 1 && !element.ownerSVGElement)
    .map((element) => element.className || element.tagName);
const overlaps = [];
texts.sort((own, other) => own.box.top - other.box.top);
texts.forEach((own, index) => {
    for (const other of texts.slice(index + 1)) {
        if (other.box.top > own.box.bottom - 3) break;
        const shared = Math.min(own.box.right, other.box.right) - Math.max(own.box.left, other.box.left);
        if (shared > 1 && own.holder !== other.holder) overlaps.push(`${own.text} | ${other.text}`);
    }
});
const seen = (colour) => !/rgba\\(.*, 0\\)|transparent/.test(colour);
const ground = (element) => {
    for (let own = element; own; own = own.parentElement) {
        const colour = view.getComputedStyle(own).backgroundColor;
        if (seen(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
};
const ink = (element) => view.getComputedStyle(element)[element.ownerSVGElement ? "fill" : "color"];
const inks = [...new Set(texts.map(({holder}) => `${ink(holder)} | ${ground(holder)}`))];
const marks = [...page.querySelectorAll(".dot, .bar i, .reach")];
const paints = [...new Set(marks.map((mark) =>
    `${view.getComputedStyle(mark).backgroundColor} | ${ground(mark.parentElement)}`))];
const over = page.documentElement.scrollWidth - wide;
return {texts: texts.length, small, outside, clipped, overlaps, inks, paints, over};
"""
PRINTED = """
for (const sheet of page.styleSheets) for (const rule of sheet.cssRules)
    if (rule.media) rule.media.mediaText = rule.media.mediaText === "print" ? "all" : "not all";
"""
LEAST = 11  # pixels of the smallest text
PAPER_WIDTH = 687  # pixels of A4 between the margins of page.css: 210 mm less 2 x 14, at 96 to the inch
TABLE_WIDTH = 1032  # of A4 on its side: 297 mm less 2 x 12


def measured(folder, text, width, theme="light", before="", opened=True):
    """What MEASURE finds on a page in a frame of a width; `before`: a script that runs first."""
    text = text.replace('<html lang="en">', f'<html lang="en" data-theme="{theme}">')
    opening = "for (const own of page.querySelectorAll('details')) own.open = true;" if opened else ""
    script = f"const page = document.querySelector('iframe').contentDocument; {opening} {before} {MEASURE}"
    outer = f"<!DOCTYPE html><body><iframe style='width:{width}px;height:900px;border:0' srcdoc=\"{escape(text)}\">"
    outer += f"</iframe><script>addEventListener('load', () => {{ const answer = (() => {{ {script} }})(); "
    outer += "document.body.innerHTML = '<pre></pre>'; "
    outer += "document.querySelector('pre').textContent = JSON.stringify(answer); });</script>"
    path = folder / "outer.html"
    path.write_text(outer.replace("LEAST", str(LEAST)), encoding="utf-8")
    said = dom(folder, path, "--window-size=1400,900")
    return json.loads(unescape(re.search("<pre>(.*)</pre>", said, re.S)[1]))


def check_layout(answer):
    assert answer["texts"] > 40
    faults = {name: answer[name] for name in ("small", "outside", "clipped", "overlaps") if answer[name]}
    assert (faults, answer["over"]) == ({}, 0)


def wide_rows():
    """Rows of two jobs with prices at three quotes, and designs of which some are equal."""
    rows = synthetic.whole_clusters(
        synthetic.rows(("fat-tree", "rail-optimized", "mfabric"), ("llama-moe", "qwen-moe"))
    )
    quotes = {"low_ports_usd": 0.95, "low_gpus_usd": 0.8}
    own = {"variant": "as published", "ocs": "glimmerglass-s80", "policy": "greedy", "dispatch": "per-server"}
    return [
        row
        | {name: row["usd_per_million_tokens"] * part for name, part in quotes.items()}
        | (own if row["fabric"] == "mfabric" else {"variant": "own NICs", "ocs": "none", "dispatch": "per-expert"})
        for row in rows
    ]


SERVED = [
    {"model": "m", "gpu": "H100-SXM", "fabric": fabric, "nic_gbps": 400.0, "ep": 8, "tpot_limit_s": None, "fits": True}
    | {"batch": n, "tpot_s": n / 1e3, "tokens_per_s_per_user": 1e3 / n}
    | {"tokens_per_s_per_gpu": each * n, "usd_per_million_tokens": 1 / (each * n)}
    for fabric, each in (("fat-tree", 3.0), ("torus", 2.0))
    for n in (4.0, 8.0, 16.0)
]
NAMED = [{"policy": f"policy-with-a-long-name-{n}", "demand": "skewed", "found": 1 / (n + 1)} for n in range(12)]
PAGES = {"compared": wide_rows(), "served": SERVED, "named": NAMED}
EFFECTIVE = {"version": "0.1.0", "resolved": {"gpu.name": "H100-SXM", "failures.rates": None}}


@pytest.fixture(params=PAGES)
def text(request, tmp_path):
    """The text of a page of rows that can be ranked, of serving, and of any names."""
    command = "mfabric report a-rather-long-name-of-a-file-of-rows.csv --out report.html"
    path = report.html_report(PAGES[request.param], EFFECTIVE, tmp_path / "page.html", command=command)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [360, 900, 901, 1280])
def test_texts_are_large_enough_and_nothing_overlaps_is_clipped_or_too_wide(text, width, tmp_path):
    check_layout(measured(tmp_path, text, width))


def test_every_text_and_mark_can_be_read_in_both_themes(text, tmp_path):
    for theme in ("light", "dark"):
        answer = measured(tmp_path, text, 1280, theme)
        for kind, least in (("inks", READ), ("paints", 3)):
            pairs = [tuple(map(hexadecimal, pair.split(" | "))) for pair in answer[kind]]
            assert {pair for pair in pairs if contrast(*pair) < least} == set(), (theme, kind)
        assert len(answer["inks"]) > 3


def test_the_printed_page_fits_the_paper(text, tmp_path):
    check_layout(measured(tmp_path, text, PAPER_WIDTH, before=PRINTED, opened=False))
    assert measured(tmp_path, text, TABLE_WIDTH, before=PRINTED)["over"] == 0  # the table of rows, opened
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    printed = tmp_path / "page.pdf"
    dom(tmp_path, tmp_path / "page.html", "--no-pdf-header-footer", f"--print-to-pdf={printed}")
    data = printed.read_bytes()
    assert len(re.findall(rb"/Type /Page\b", data)) > 0
    sizes = {tuple(round(float(end)) for end in box.split()) for box in re.findall(rb"/MediaBox \[([0-9. ]+)\]", data)}
    assert sizes <= {(0, 0, 595, 842), (0, 0, 842, 595)}  # A4 in points


FAULTS = [
    ("small", ".note { font-size: 9px !important; }"),
    ("outside", ".verdict { white-space: nowrap; }"),
    ("overlaps", ".value { position: relative; left: -150px; }"),
    ("clipped", ".name { overflow: hidden; white-space: nowrap; width: 40px; }"),
]


@pytest.mark.parametrize(("fault", "rule"), FAULTS)
def test_a_fault_of_the_style_is_noticed(fault, rule, tmp_path):
    path = report.html_report(PAGES["compared"], EFFECTIVE, tmp_path / "page.html")
    text = path.read_text(encoding="utf-8").replace("</style>", f"{rule}</style>", 1)
    assert measured(tmp_path, text, 360)[fault]
