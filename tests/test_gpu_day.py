"""The script for a machine with a GPU, run dry: on a CPU, a path and a few members; what fails, and the end of time."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def run(folder, *words):
    """Status, what is printed, and the file."""
    out = folder / "day.md"
    command = [sys.executable, "benchmarks/gpu_day.py", "--members", "3", "--batch", "4", "--out", str(out), *words]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=300)
    return done.returncode, done.stdout, out.read_text(encoding="utf-8")


def test_a_path_is_checked_timed_and_profiled(tmp_path):
    status, printed, written = run(tmp_path, "--only", "rates")
    assert status == 0, printed
    assert printed == written
    assert written.startswith("# cpu (cpu), jax ")
    checks = [line for line in written.splitlines() if line.endswith("| right |")]
    assert [check.split(" | ")[1] for check in checks] == ["float32", "float64"]
    times = written[written.index("## Times") :].splitlines()[4]
    assert times.startswith("| rates | 4 | ")
    assert "Where the time of rates goes" in written
    assert "failed" not in written


def test_what_is_done_is_written_when_the_time_is_over(tmp_path):
    _, printed, written = run(tmp_path, "--minutes", "0.01")
    assert printed == written
    assert written.endswith("The time is over; what is missing was not reached.\n")
