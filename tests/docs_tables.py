"""Tables of the documentation that commands make: a `sh` block, a comment that says what the cells are, the table.

    ```sh
    mfabric compare --models llama-moe --fabrics fat-tree,mfabric --nic-gbps 400 --schedule zb-v
    ```

    <!-- cells: {schedule} | {iteration_s:.2f} of fabric=fat-tree | {bubble_s above first:.1f} % of fabric=mfabric -->

    | `--schedule` | fat-tree | mfabric |
    |---|---|---|
    | zb-v | 7.67 | 0.0 % |

The comment stands for one row of the table. `{schedule}` is text of the page, which chooses among the rows (`--out`) of
all commands in the block; what is no column there is an option of the row's command. `{iteration_s:.2f}` is a number of
the one row that is left, `above first` how many percent it is above that of the table's first row.

`python -m tests.docs_tables` compares all such tables, or those of the pages named behind it, with what their commands
give now, and with `--write` writes their numbers again.
"""

import csv
import os
import pathlib
import re
import shlex
import string
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)
NAMED = re.compile(r"# ([\w.-]+\.\w+)\n")
MARK = "<!-- cells:"
TABLE = re.compile(
    r"^```sh\n(?P<block>(?:(?!```).*\n)+)```\n\n"
    rf"{MARK}(?P<cells>(?:(?!-->)[\s\S])*)-->\n\n"
    r"(?:\|.*\n){2}(?P<body>(?:\|.*\n)+)",
    re.M,
)
ABOVE = " above first"
NUMBER = r"([-+]?\d[\d,]*(?:\.\d+)?)"
ROUNDING = 1e-5  # of a number in single precision

Row = dict[str, str]


def lines(block: str) -> list[list[str]]:
    """The words of every command of a sh block; comments left out, continued lines joined."""
    every = (shlex.split(line, comments=True) for line in block.replace("\\\n", " ").splitlines())
    return [words for words in every if words]


class Cell(NamedTuple):
    """One column of a table: literal text and fields in turn, and what its row has beside what the page chooses."""

    parts: list[tuple[str, str | None, str]]  # text, then a field (None: no more) and its format (empty: chooses)
    of: Row

    def read(self, text: str) -> list[str] | None:
        """What stands in its fields; None: it is not like this."""
        pattern = ""
        for literal, field, form in self.parts:
            pattern += re.escape(literal) + ("" if field is None else NUMBER if form else "(.+?)")
        found = re.fullmatch(pattern, text)
        return found and list(found.groups())

    @property
    def fields(self) -> list[tuple[str, str]]:
        return [(field, form) for _, field, form in self.parts if field is not None]


def cell_of(text: str) -> Cell:
    """From the comment."""
    template, _, chosen = text.strip().partition(" of ")
    parts = [(literal, field, form or "") for literal, field, form, _ in string.Formatter().parse(template)]
    return Cell(parts, dict(pair.strip().split("=", 1) for pair in chosen.split(",") if pair.strip()))


class Table(NamedTuple):
    """A table on a page, by the words of the page."""

    page: str
    commands: list[list[str]]
    cells: list[Cell]
    body: list[list[str]]
    span: tuple[int, int]  # where the body stands


def tables(page: str, text: str) -> Iterator[Table]:
    """Those of a page that commands make."""
    for found in TABLE.finditer(text):
        cells = [cell_of(cell) for cell in " ".join(found["cells"].split()).split("|")]
        body = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in found["body"].splitlines()]
        yield Table(page, lines(found["block"]), cells, body, found.span("body"))


def made(commands: list[list[str]], text: str) -> list[Row]:
    """The rows that the commands of a page write, as a user runs them, with the options of each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for _, block in BLOCK.findall(text):
            if file := NAMED.match(block):
                pathlib.Path(folder, file[1]).write_text(block, encoding="utf-8")
        for number, (program, *words) in enumerate(commands):
            assert program == "mfabric", f"tables are made by mfabric, got {program!r}"
            out = pathlib.Path(folder, f"rows-{number}.csv")
            command = [sys.executable, "-m", "mfabric_jax.cli", *words, "--all-columns", "--out", str(out)]
            places = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            given = {"cwd": folder, "env": os.environ | {"PYTHONPATH": places}}
            done = subprocess.run(command, capture_output=True, text=True, check=False, **given)
            assert not done.returncode, f"mfabric {shlex.join(words)}: {done.stderr}"
            with out.open(encoding="utf-8", newline="") as file:
                rows += [options(words) | row for row in csv.DictReader(file)]
    return rows


def options(words: list[str]) -> Row:
    """Those of a command, named like columns."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {word[2:].replace("-", "_"): value for word, value in pairs if word.startswith("--")}


def filled(table: Table, rows: list[Row]) -> Iterator[list[list[float | str]]]:
    """What the fields of every cell are, row by row: text of the page, and numbers of rows."""
    first: dict[tuple[int, str], float] = {}
    for line in table.body:
        assert len(line) == len(table.cells), f"{table.page}: {len(line)} cells for {len(table.cells)}: {line}"
        texts = [cell.read(text) for cell, text in zip(table.cells, line, strict=True)]
        for cell, text, found in zip(table.cells, line, texts, strict=True):
            assert found is not None, f"{table.page}: {text!r} is not like {cell.parts}"
        pairs = [list(zip(cell.fields, found, strict=True)) for cell, found in zip(table.cells, texts, strict=True)]
        chosen = {field: text.strip("`") for pair in pairs for (field, form), text in pair if not form}
        values: list[list[float | str]] = []
        for number, (cell, pair) in enumerate(zip(table.cells, pairs, strict=True)):
            values.append([])
            for (field, form), text in pair:
                if not form:
                    values[-1].append(text)
                    continue
                column = field.removesuffix(ABOVE)
                value = float(the_row(table, rows, chosen | cell.of)[column])
                usual = first.setdefault((number, column), value)
                values[-1].append(100 * (value / usual - 1) if field.endswith(ABOVE) else value)
        yield values


def the_row(table: Table, rows: list[Row], chosen: Row) -> Row:
    """The only row with these values."""
    found = [row for row in rows if all(same(row.get(name), value) for name, value in chosen.items())]
    assert len(found) == 1, f"{table.page}: {len(found)} of {len(rows)} rows have {chosen}; there must be one"
    return found[0]


def same(one: Any, other: str) -> bool:
    """Texts, or numbers however they are written."""
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return one == other


def wrong(table: Table, rows: list[Row]) -> list[str]:
    """Every number that is not what rows have, at the precision that is printed."""
    found = []
    for line, values in zip(table.body, filled(table, rows), strict=True):
        for cell, text, each in zip(table.cells, line, values, strict=True):
            for (field, form), printed, value in zip(cell.fields, cell.read(text) or [], each, strict=True):
                if isinstance(value, float) and not rounds_to(value, printed):
                    found.append(f"{table.page}: {line[0]}: {field} is {value:{form}}, the page has {printed}")
    return found


def rounds_to(value: float, printed: str) -> bool:
    """Whether this is the number that is printed."""
    step = 10.0 ** -len(printed.partition(".")[2])
    return abs(float(printed.replace(",", "")) - value) <= step * (0.5 + 1e-9) + ROUNDING * abs(value)


def written(table: Table, rows: list[Row]) -> str:
    """The body with the numbers of rows."""
    body = ""
    for values in filled(table, rows):
        cells = []
        for cell, each in zip(table.cells, values, strict=True):
            left = iter(each)
            whole = (text + ("" if field is None else format(next(left), form)) for text, field, form in cell.parts)
            cells.append("".join(whole))
        body += f"| {' | '.join(cells)} |\n"
    return body


def main(words: list[str]) -> int:
    """Says what is wrong, or writes it again."""
    status = 0
    for page in PAGES:
        if (names := {*words} - {"--write"}) and page.stem not in names:
            continue
        text = page.read_text(encoding="utf-8")
        for table in reversed(list(tables(page.stem, text))):  # from behind: places before stay what they are
            rows = made(table.commands, text)
            for line in wrong(table, rows):
                print(line)
                status = 1
            begin, end = table.span
            text = text[:begin] + written(table, rows) + text[end:]
        if "--write" in words:
            page.write_text(text, encoding="utf-8")
    return 0 if "--write" in words else status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
