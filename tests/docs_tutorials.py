"""Pages of docs/tutorials: what their programs say, print and draw.

A program is made of cells: `# %%` begins code, `# %% [markdown]` comments that are text of the page. Every program runs
by itself (`python docs/tutorials/NAME.py`). A picture in the text, such as `![Prices](pictures/prices.png)`, is a file
that the code above it made; it is kept as docs/tutorials/images/NAME-prices.png.

`python -m tests.docs_tutorials` runs all programs, or those named behind it, each in a folder of its own, and compares
what they print with their pages, numbers to three digits; with `--write` it writes pages and pictures again.
"""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

from tests.docs_tables import ROOT

FOLDER = ROOT / "docs" / "tutorials"
MARK = "# %%"
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
APART = 0.005  # of a number: three digits


class Cell(NamedTuple):
    """Code, or text of the page."""

    code: bool
    lines: str


def programs() -> list[str]:
    """Names of the tutorials."""
    return sorted(file.stem for file in FOLDER.glob("*.py"))


def source(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text(encoding="utf-8")


def cells(program: str) -> list[Cell]:
    """The cells of a program, in order."""
    first, *rest = program.split(MARK)
    assert not first.strip(), f"a tutorial begins with {MARK}, got {first!r}"
    found = []
    for cell in rest:
        kind, _, body = cell.partition("\n")
        if code := kind.strip() != "[markdown]":
            assert not kind.strip(), f"{MARK}{kind} is no cell: {MARK} or {MARK} [markdown]"
        text = body.strip("\n") if code else "\n".join(line[2:] for line in body.strip("\n").splitlines())
        found.append(Cell(code, text))
    return found


def run_cells(program: str) -> list[str]:
    """What every cell of code prints, in this process and folder."""
    names, printed = {"__name__": "__main__"}, []
    for number, cell in enumerate(cells(program)):
        if cell.code:
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(cell.lines, f"cell {number}", "exec"), names)
            printed.append(out.getvalue())
    return printed


def ran(name: str, folder: pathlib.Path) -> list[str]:
    """The same in a process of its own, as a user runs it, in that folder."""
    command = [sys.executable, "-m", "tests.docs_tutorials", "--cells", str(FOLDER / f"{name}.py")]
    places = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    given = {"cwd": folder, "env": os.environ | {"PYTHONPATH": places, "MFABRIC_PROGRAMS": str(folder / "programs")}}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
    assert not done.returncode, f"{name}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def page(name: str, printed: list[str]) -> str:
    """The page of a program that prints this."""
    left = iter(printed)
    parts = []
    for cell in cells(source(name)):
        parts.append(shown(name, cell))
        if cell.code and (said := next(left).rstrip()):
            parts.append(f"```text\n{said}\n```")
    parts += [f"The program: [{name}.py]({name}.py)."]
    return "\n\n".join(parts) + "\n"


def shown(name: str, cell: Cell) -> str:
    """A cell on its page, without what it prints."""
    if cell.code:
        return f"```python\n{cell.lines}\n```"
    return PICTURE.sub(lambda found: f"![{found[1]}]({kept(name, found[2])})", cell.lines)


def kept(name: str, picture: str) -> str:
    return f"images/{name}-{pathlib.PurePosixPath(picture).name}"


def pictures(name: str) -> dict[str, str]:
    """Files that a program makes for its page, and where the page has them."""
    texts = [cell.lines for cell in cells(source(name)) if not cell.code]
    return {found[2]: kept(name, found[2]) for text in texts for found in PICTURE.finditer(text)}


def alike(one: str, other: str) -> bool:
    """Whether texts are the same but for digits behind the third of numbers, and how columns stand."""
    if NUMBER.sub("#", re.sub(r"[ -]+", " ", one)) != NUMBER.sub("#", re.sub(r"[ -]+", " ", other)):
        return False
    pairs = zip(map(float, NUMBER.findall(one)), map(float, NUMBER.findall(other)), strict=True)
    return all(abs(a - b) <= APART * max(a, b) for a, b in pairs)


def differences(name: str, printed: list[str]) -> list[str]:
    """Lines of the page that are not what the program makes now."""
    now, before = (text.splitlines() for text in (page(name, printed), committed(name)))
    wrong = [f"{name}: {b!r} is now {a!r}" for a, b in zip(now, before, strict=False) if not alike(a, b)]
    return wrong + ([f"{name}: {len(before)} lines are now {len(now)}"] if len(now) != len(before) else [])


def committed(name: str) -> str:
    file = FOLDER / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.exists() else ""


def main(words: list[str]) -> int:
    """Says which pages are not what their programs make, or writes them."""
    if words[0:1] == ["--cells"]:
        print(json.dumps(run_cells(pathlib.Path(words[1]).read_text(encoding="utf-8"))))
        return 0
    status = 0
    for name in [word for word in words if word != "--write"] or programs():
        with tempfile.TemporaryDirectory() as folder:
            printed = ran(name, pathlib.Path(folder))
            if "--write" not in words:
                wrong = differences(name, printed)
                print("\n".join(wrong) or f"{name} is what its program makes")
                status |= bool(wrong)
                continue
            for made, place in pictures(name).items():
                (FOLDER / place).parent.mkdir(exist_ok=True)
                shutil.copyfile(pathlib.Path(folder, made), FOLDER / place)
            (FOLDER / f"{name}.md").write_text(page(name, printed), encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
