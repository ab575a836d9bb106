"""`python -m tests.golden.write [NAME ...]` writes golden rows again, each command in a process of its own."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.golden import table, written


def run_apart(words: list[str]) -> None:
    """As a user runs it."""
    subprocess.run([sys.executable, "-m", "mfabric_jax.cli", *words], check=True, stdout=subprocess.DEVNULL)


def main(names: list[str]) -> None:
    """Says what is different from what was kept."""
    every = table()
    for name in names or every:
        one = every[name]
        with tempfile.TemporaryDirectory() as folder:
            rows = one.made(run_apart, Path(folder))
        said = one.differences(rows) if one.file.exists() else ["all rows are new"]
        one.file.write_text(written(rows), encoding="utf-8")
        print(f"{name}: {len(rows)} rows, {len(said)} differences", *said, sep="\n  ", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
