"""The site: its navigation, its gallery, its tutorials, and every link of what `make docs` builds."""

import html.parser
import importlib
import os
import re
import shutil
import subprocess
import sys
import urllib.parse

import pytest

from mfabric_jax import cli, commands
from mfabric_jax.commands.words import parse, read
from tests import docs_tutorials
from tests.docs_tables import ROOT, lines

CHROMIUM = shutil.which("chromium")
DOCS = ROOT / "docs"
MADE = {"command_line.md", "changelog.md", "contributing.md", "benchmarks.md"}  # by docs/site/hooks.py
GALLERY = (DOCS / "gallery.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"([\s\S]*?)^```sh\n([\s\S]*?)^```", re.M)  # a command, behind the pictures that it makes
PICTURE = re.compile(r"^!\[[^\]]+\]\(images/([\w-]+)\.png\)$", re.M)
FIGURES = {
    f"{name}.png": made.replace("NAME", name) for text, made in BLOCK.findall(GALLERY) for name in PICTURE.findall(text)
}


def in_navigation():
    """Pages that mkdocs.yml names; what has no extension is a folder of made pages."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"^ +- [^:]+: (\S+\.md)$", text, re.M)


def test_the_navigation_names_every_page_once():
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(in_navigation()) == sorted([*pages, *MADE])


def test_every_image_is_in_the_gallery_with_its_command():
    assert sorted(FIGURES) == sorted(file.name for file in (DOCS / "images").iterdir())


@pytest.mark.parametrize("image", FIGURES)
def test_commands_of_the_gallery_are_understood(image, monkeypatch):
    monkeypatch.chdir(ROOT)
    for program, *words in lines(FIGURES[image]):
        if program == "mfabric":
            command = commands_of(words)
            module = commands.load_command(command)
            understood = read if command in commands.OF_CASES else asked
            understood(command, words[len(command.split()) :], module.Options)
        else:
            assert (program, words[0]) == ("python", "-m"), program
            importlib.import_module(words[1]).SCRIPT._options(words[2:])


def commands_of(words):
    assert words[0] in commands.COMMANDS, words
    both = " ".join(words[:2])
    return both if both in commands.TWO_WORDS else words[0]


def asked(command, words, options):
    return parse(options, words, command)


@pytest.mark.slow
@pytest.mark.parametrize("image", [image for image, block in FIGURES.items() if block.startswith("mfabric draw ")])
def test_fabrics_are_drawn_by_their_commands(image, monkeypatch, tmp_path):
    """As large as they stand there, which differs where another cluster is drawn, or in another way."""
    from matplotlib.image import imread

    monkeypatch.chdir(tmp_path)
    ((_, *words),) = lines(FIGURES[image])
    assert not cli.main(words)
    drawn, shown = imread(tmp_path / image), imread(DOCS / "images" / image)
    assert drawn.shape[:2] == pytest.approx(shown.shape[:2], rel=0.02)


# ------------------------------------------------------------------------------------------------------------ tutorials
@pytest.mark.parametrize("name", docs_tutorials.programs())
def test_pages_hold_the_programs(name):
    page = docs_tutorials.committed(name)
    for cell in docs_tutorials.cells(docs_tutorials.source(name)):
        assert docs_tutorials.shown(name, cell) in page, "python -m tests.docs_tutorials --write"
    for picture in docs_tutorials.pictures(name).values():
        assert (docs_tutorials.FOLDER / picture).is_file()
    assert docs_tutorials.source(name).count("\n") <= 80


@pytest.mark.slow
@pytest.mark.parametrize("name", docs_tutorials.programs())
def test_pages_hold_what_the_programs_print(name, tmp_path):
    assert docs_tutorials.differences(name, docs_tutorials.ran(name, tmp_path)) == []
    assert all((tmp_path / picture).stat().st_size > 0 for picture in docs_tutorials.pictures(name))


def test_texts_are_alike_to_three_digits():
    for one, other, same in [
        ("a 1.002 s", "a  1.001 s", True),
        ("a 1.02 s", "a 1.01 s", False),
        ("5 GPUs", "5 gpus", False),
        ("1e-05, 2", "1.001e-05, 2", True),
        ("1, 2", "1", False),
    ]:
        assert docs_tutorials.alike(one, other) is same, (one, other)


# ------------------------------------------------------------------------------------------------------------- the site
class Page(html.parser.HTMLParser):
    """Links and anchors of a page, and what it would fetch."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.fetched = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("a", "area") and "href" in given:
            self.links.add(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.add(given.get("href", ""))
        elif tag in ("script", "img", "iframe", "source") and "src" in given:
            self.fetched.add(given["src"])


def broken(site):
    """Links, anchors and files of pages that lead nowhere, or out to the network while a page is shown."""
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in site.rglob("*.html") if file.name != "404.html"}
    for file, page in pages.items():
        for link in page.links | page.fetched:
            scheme, host, path, _, anchor = urllib.parse.urlsplit(link)
            if scheme or host:
                if link in page.fetched:
                    yield f"{file.relative_to(site)} fetches {link}"
                continue
            target = (file.parent / urllib.parse.unquote(path)).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                yield f"{file.relative_to(site)}: {link}"
            elif target in pages and anchor and urllib.parse.unquote(anchor) not in pages[target].anchors:
                yield f"{file.relative_to(site)}: {link} has no such anchor"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built strictly: warnings end it."""
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    pytest.importorskip("mkdocstrings", reason="needs the extra docs")
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_the_site_has_every_page_and_no_broken_link(site):
    from tests.docs_reference import packages

    pages = {file.relative_to(site).with_suffix(".md").as_posix() for file in site.rglob("*.html")}
    made = {f"python/{module.__name__.rpartition('.')[2]}.md" for module in packages()}
    assert pages == {*in_navigation(), *made, "404.md"}
    assert list(broken(site)) == []
    assert 'id="network.nic_gbps"' in (site / "case.html").read_text(encoding="utf-8")
    assert "max_min_rates" in (site / "python" / "flows.html").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_the_search_finds_a_setting_on_a_page_that_is_opened_as_a_file(site, tmp_path):
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
    asked = f"{(site / 'index.html').as_uri()}?q=oversubscription"
    done = subprocess.run([*command, asked], capture_output=True, text=True, timeout=120, check=True)
    assert "case.html?h=oversubscription#network" in done.stdout


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h2 id="here"></h2><a href="#here"></a><a href="b.html#there"></a><a href="c.html"></a>'
        '<a href="https://a.org"></a><script src="https://a.org/x.js"></script><img src="b.html">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here"></a>')
    assert sorted(broken(tmp_path)) == [
        "a.html fetches https://a.org/x.js",
        "a.html: b.html#there has no such anchor",
        "a.html: c.html",
    ]
