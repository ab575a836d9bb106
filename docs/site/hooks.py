"""What MkDocs does not do by itself: pages that are made, and links that work on a forge and on the site.

- `changelog.md`, `contributing.md` and `benchmarks.md` are pages of the root folder; their links are turned.
- A line ending with `<!-- made: NAME -->` is reference: settings, columns, public names (tests/docs_reference.py).
- The README opens `index.md`, the site's home, in place of its title.
- `command_line.md` holds what every command says of itself, `python/` a page of docstrings for every public package.
- A setting in code, such as `network.nic_gbps`, leads to its row in `case.md`.
"""

import contextlib
import io
import os
import posixpath
import re
import sys
from pathlib import Path
from types import ModuleType

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
os.environ["COLUMNS"] = "92"  # of the helps

from mfabric_jax.case.paths import settings  # noqa: E402
from mfabric_jax.cli import main  # noqa: E402
from mfabric_jax.commands import COMMANDS  # noqa: E402
from tests.docs_reference import WITHOUT_DOCSTRING, exported, made_again, packages  # noqa: E402

OUTSIDE = {  # pages of the root folder by their name on the site
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "benchmarks.md": "benchmarks/RESULTS.md",
}
ON_SITE = {place: f"docs/{page}" for page, place in OUTSIDE.items()} | {"README.md": "docs/index.md"}
BOOST = {"case.md": 2, "changelog.md": 0.2, "benchmarks.md": 0.5}  # in answers of the search
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"(!\[[^\]]*\])\(([^)\s]+)\)")
FENCED = re.compile(r"^(```.*?^```$)", re.M | re.S)
CELL = re.compile(r"<td.*?</td>", re.S)
ROW = re.compile(r"<tr>\n<td><code>([a-z][\w.-]+)</code>")
CODE = re.compile(r"(<(?:a|h\d|pre)\b.*?</(?:a|h\d|pre)>)|<code>([a-z]+\.[\w.-]+)</code>", re.S)


def on_config(config):
    """Anchors as a forge has them, and the public packages in the navigation."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    (reference,) = (section["Reference"] for section in config.nav if "Reference" in section)
    (python,) = (entry for entry in reference if "Python" in entry)
    python["Python"] = [{module.__name__: page_of(module)} for module in packages()]
    return config


def page_of(module):
    return f"python/{module.__name__.rpartition('.')[2]}.md"


def on_files(files, config):
    made = {"command_line.md": command_line()}
    made |= {page: (ROOT / place).read_text(encoding="utf-8") for page, place in OUTSIDE.items()}
    made |= {page_of(module): docstrings(module) for module in packages()}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Reference in its places, the README at home, and links to what the site names otherwise or does not have."""
    if page.parent is None:  # alone in its tab
        page.meta["hide"] = ["navigation"]
    page.meta["search"] = {"boost": BOOST.get(page.file.src_uri, 1)}
    home = posixpath.dirname(OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    text = turned(made_again(markdown), home, page, files)
    if page.file.src_uri != "index.md":
        return text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    return turned(readme, "", page, files) + text.partition("\n")[2]


def turned(markdown, home, page, files):
    """Links of a page that lies in the folder `home` of the repository, as the site has them."""

    def target(link):
        path, mark, heading = link.partition("#")
        if "://" in link or not path:
            return link
        place = posixpath.normpath(posixpath.join(home, path))
        place = ON_SITE.get(place, place)
        known = place.startswith("docs/") and files.get_file_from_path(place.removeprefix("docs/"))
        start = posixpath.dirname(f"docs/{page.file.src_uri}")
        return posixpath.relpath(place, start) + mark + heading if known else None

    def link(found):
        place = target(found[2])
        text = title(found[2], home) if found[1].endswith(".md") else found[1]
        return f"[{text}]({place})" if place else text

    parts = FENCED.split(markdown)  # every second one is a block of code
    for number in range(0, len(parts), 2):
        parts[number] = IMAGE.sub(lambda found: f"{found[1]}({target(found[2]) or found[2]})", parts[number])
        parts[number] = LINK.sub(link, parts[number])
    return "".join(parts)


def title(link, home):
    """What a page is called, where the text of a link is the name of its file."""
    file = ROOT / home / link.partition("#")[0]
    return file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") if file.is_file() else link


def command_line():
    """A table of the commands, then a heading and the help of each."""
    lines = ["# Command line", "", "What every command says under `--help`. What cases hold: [every setting]"]
    lines[-1] += "(case.md#every-setting); what a status means: [exit statuses](api.md#command-line)."
    lines += ["", "| command | |", "|---|---|"]
    lines += [f"| [`mfabric {name}`](#mfabric-{name}) | {what} |" for name, what in COMMANDS.items()]
    for name, what in COMMANDS.items():
        lines += ["", f"## mfabric {name}", "", f"{what[0].upper()}{what[1:]}.", ""]
        lines += ["```text", said(name, "--help"), "```"]
    return "\n".join(lines)


def said(*words):
    """What a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main([*words])
    assert out.getvalue(), f"mfabric {' '.join(words)} says nothing"
    return out.getvalue().rstrip()


def docstrings(module):
    """The page of one package: what it is for, then every public name."""
    first, _, rest = (module.__doc__ or "").partition("\n\n")
    lines = [f"# {module.__name__}", "", first, "", rest.strip(), ""]
    for name in sorted(exported(module), key=lambda name: (name.lower(), name)):
        path = f"{module.__name__}.{name}"
        if path in WITHOUT_DOCSTRING:
            lines += [f"## `{name}` {{#{path}}}", "", WITHOUT_DOCSTRING[path], ""]
        else:
            lines += [f"::: {defined(module, name)}", ""]
    return "\n".join(lines)


def defined(module, name):
    """Where a name is read from: its package, or, where a module is called alike or it comes from above, its module."""
    folder, thing = Path(module.__file__).parent, getattr(module, name)
    alike = (folder / name).is_dir() or (folder / f"{name}.py").is_file()
    elsewhere = not getattr(thing, "__module__", module.__name__).startswith(f"{module.__name__}.")
    own = (alike or (elsewhere and module.__name__ == "mfabric_jax.timing")) and not isinstance(thing, ModuleType)
    return f"{thing.__module__}.{thing.__qualname__}" if own else f"{module.__name__}.{name}"


def on_page_content(html, page, config, files):
    """Rows of settings get anchors, settings elsewhere lead there."""
    known = settings()
    html = CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)  # the backslash is for Markdown alone
    if page.file.src_uri == "case.md":
        html = ROW.sub(lambda row: row[0].replace("<tr>", f'<tr id="{row[1]}">') if row[1] in known else row[0], html)
    case = files.get_file_from_path("case.md").url_relative_to(page.file)

    def code(found):
        path = found[2]
        return f'<a href="{case}#{path}"><code>{path}</code></a>' if path in known else found[0]

    return CODE.sub(code, html)
