"""The command line in this process, as a shell sees it."""

import csv
import re

from mfabric_jax import cli


def status(*words):
    """Exit status."""
    try:
        return cli.main([*map(str, words)])
    except SystemExit as end:
        return end.code or 0


def mistake(capsys, *words):
    """The sentence: status 2, nothing on standard output, one line on standard error beside progress."""
    assert status(*words) == 2, words
    output = capsys.readouterr()
    assert output.out == "", words
    said = re.sub(r"^[\w-]+: [\d,]+ of [\d,]+ done.*\n", "", output.err, flags=re.MULTILINE)  # of a busy machine
    assert said.count("\n") == 1, said
    assert said.startswith("mfabric: "), said
    assert said.endswith(".\n"), said
    return said.removeprefix("mfabric: ").strip()


def header(path):
    """The columns of a file of rows."""
    with path.open() as file:
        return next(csv.reader(file))


def line_of(output, *words):
    """The words behind these in the one printed line that begins with them."""
    (line,) = [line.split() for line in output.splitlines() if line.split()[: len(words)] == list(words)]
    return line[len(words) :]
