"""Remove the prefixes that launchers and log collectors put before every line of a tool's output.

Examples are mpirun --tag-output (`[1,0]<stdout>:`), srun --label (`0: `), kubectl logs --timestamps, docker compose and
journals. Text before the header of a table is a prefix. So is text of the same form, with other numbers and words, at
the start of any other line.
"""

import re

from mfabric_jax.apps.recordings.measurements.times import TABLE

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PARTS = re.compile(r"(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z]+)|(?P<space>\s+)|(?P<sign>.)")
FORMS = {"number": r"\d+(?:\.\d+)?", "word": "[A-Za-z]+", "space": r"\s+"}


def without_prefixes(text: str) -> str:
    """Return the text without the prefixes of its lines; the number of lines stays the same."""
    lines = COLOURS.sub("", text).splitlines()
    forms = dict.fromkeys(form for line in lines if (form := _form(line)))
    prefix = re.compile("|".join(forms))  # without forms it matches the empty string, so nothing is removed
    return "\n".join(prefix.sub("", line, count=1) for line in lines)


def _form(line: str) -> str:
    """A pattern for the text before a table's header; empty if there is none."""
    table = TABLE.search(line)
    before = line[: table.start()].strip() if table else ""
    parts = (FORMS.get(str(part.lastgroup)) or re.escape(part[0]) for part in PARTS.finditer(before))
    return rf"^\s*{''.join(parts)}(?:\s|(?<=[^\w\s]))" if before else ""
