"""Takes away what launchers and log collectors put before every line of a tool's output.

mpirun --tag-output (`[1,0]<stdout>:`), srun --label (`0: `), kubectl logs --timestamps, docker compose, journals: what
stands before a line with which a table begins is a prefix, and so is what has the same form before another line, with
other numbers and words.
"""

import re

from mfabric_jax.apps.recordings.measurements.times import TABLE

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PARTS = re.compile(r"(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z]+)|(?P<space>\s+)|(?P<sign>.)")
FORMS = {"number": r"\d+(?:\.\d+)?", "word": "[A-Za-z]+", "space": r"\s+"}


def without_prefixes(text: str) -> str:
    """The text without the prefixes of its lines; their number stays."""
    lines = COLOURS.sub("", text).splitlines()
    forms = dict.fromkeys(form for line in lines if (form := _form(line)))
    prefix = re.compile("|".join(forms))  # without a form it matches nothing, and nothing is taken away
    return "\n".join(prefix.sub("", line, count=1) for line in lines)


def _form(line: str) -> str:
    """A pattern of what stands before the beginning of a table; empty where nothing does."""
    table = TABLE.search(line)
    before = line[: table.start()].strip() if table else ""
    parts = (FORMS.get(str(part.lastgroup)) or re.escape(part[0]) for part in PARTS.finditer(before))
    return rf"^\s*{''.join(parts)}(?:\s|(?<=[^\w\s]))" if before else ""
