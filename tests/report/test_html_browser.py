"""The page in a real browser: quiet, fetching nothing, sorted by a click, readable in both themes.

A script at its end tries the page and leaves what it found in the document, which headless Chromium prints.
"""

import json
import re
import shutil
import subprocess
from html import unescape

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
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *flags]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(unescape(re.search("<pre>(.*)</pre>", dom, re.S)[1]))


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
        assert words.startswith("Fat-tree, 100 Gbps: ")
        assert height > 10 >= 10 + over
