"""Commands killed by SIGKILL in the middle: the same command ends with the bytes of a run that nobody killed."""

import os
import signal
import subprocess
import sys

import pytest

from mfabric_jax.report import read_rows

# Says every piece of work as it is on disk, and dies after so many; then runs the commands, one after the other.
PROCESS = """
import os, signal, sys
from mfabric_jax import cli
from mfabric_jax.report.rows import Kept

lives, add = int(sys.argv[1]), Kept.add

def told(self, rows, number=None):
    global lives
    number = len(self.done) if number is None else number
    add(self, rows, number)
    if self._journal is None:
        return
    lives -= 1
    print(f"work {number} of {os.path.basename(self._journal.name)}", flush=True)
    if not lives:
        os.kill(os.getpid(), signal.SIGKILL)

Kept.add = told
for words in " ".join(sys.argv[2:]).split(" + "):
    assert cli.main(words.split()) == 0
"""
SMALL = "--preset paper --model llama-moe --micro-batches 1 --dp 1 --pp 4 --gpus 64"
COMMANDS = {
    "compare": f"compare {SMALL} --all-columns --nic-gbps 100,400 --fabrics fat-tree,mfabric",
    "failures": f"failures {SMALL} --all-columns --nic-gbps 100 --set failures.kinds=electrical-nic+link",
}


@pytest.fixture
def process():
    """Runs commands; returns the exit status and the work that they did: [(file, number)]."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": os.environ["MFABRIC_TEST_PROGRAMS"]}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def run(lives, *commands):
        words = [sys.executable, "-c", PROCESS, str(lives), " + ".join(commands)]
        ended = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        lines = [line.split() for line in ended.stdout.splitlines() if line.startswith("work ")]
        return ended.returncode, [(file.removesuffix(".journal"), int(number)) for _, number, _, file in lines]

    return run


@pytest.mark.parametrize("command", ["compare", pytest.param("failures", marks=pytest.mark.slow)])
def test_a_kill_costs_the_work_in_hand_and_no_bytes(command, process, tmp_path):
    killed, whole = tmp_path / "killed.csv", tmp_path / "whole.csv"
    start, out = COMMANDS[command], " --out"
    returned, [(_, first)] = process(1, start + f"{out} {killed}")
    assert returned == -signal.SIGKILL
    assert not killed.exists()
    so_far, config = read_rows(killed)
    assert config["complete"] is False
    returned, work = process(0, start + f"{out} {killed}", start + f"{out} {whole}")
    assert returned == 0
    assert sorted(work) == [("killed.csv", 1 - first), ("whole.csv", 0), ("whole.csv", 1)]
    assert killed.read_bytes() == whole.read_bytes()
    configs = [path.with_suffix(".config.json").read_bytes() for path in (killed, whole)]
    assert configs[0] == configs[1]
    assert all(row in read_rows(whole)[0] for row in so_far)
    assert len(list(tmp_path.iterdir())) == 4
