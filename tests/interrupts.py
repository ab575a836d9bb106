"""Interrupts of whole commands at random moments: `python -m tests.interrupts --count 50 --seed 1`.

Every command runs in a separate process group, as a terminal starts it, and gets one SIGINT at a moment drawn between
the command's first own line of code and its end. Wanted of each: exit status 130, and one sentence on standard error.
"""

import argparse
import collections
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

SMALL = "--preset paper --model llama-moe --micro-batches 1 --dp 1 --pp 4 --gpus 64"
SWEPT = 'model = "llama-moe"\nnetwork.fabric = ["fat-tree", "mfabric"]\nnetwork.nic_gbps = [100, 200, 400]\n'
COMMANDS = {
    "compare": f"compare {SMALL} --nic-gbps 100,400 --fabrics fat-tree,mfabric --out rows.csv",
    "sweep": "sweep sweep.toml --out swept",
    "serve": "serve --model deepseek-v3 --fabrics fat-tree,mfabric --ep 64 --batch 16,32 --out served.csv",
    "train": "train --out trained --steps 8 --batch 2 --width 6 --depth 1 --sizes 4 --log-every 4 --checkpoint-every 4",
}
BEGIN_S = 0.15  # of a process, until Python has started and hears
WRONG = re.compile(r"Traceback|Exception ignored|Fatal Python|terminate called|\*\*\* ")
WAIT_S = 300


def started(words, folder):
    (folder / "sweep.toml").write_text(SWEPT)
    words = [sys.executable, "-m", "mfabric_jax.cli", *words.split()]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(words, cwd=folder, text=True, start_new_session=True, **pipes)


def interrupted(words, after_s):
    """What one interrupt came to, in a word, and what was said; None where the command ended before it."""
    with tempfile.TemporaryDirectory() as name:
        process = started(words, pathlib.Path(name))
        try:
            process.wait(after_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
        else:
            return None, ""
        began = time.monotonic()
        try:
            _, said = process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "hangs", process.communicate()[1]
        return judged(process.returncode, said), f"{time.monotonic() - began:.1f} s later\n{said}"


def judged(status, said):
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    if WRONG.search(said):
        return "traceback"
    if status != 130:
        return "lost" if status == 0 else f"status {status}"
    return "good" if "interrupted" in said.strip().rpartition("\n")[2] else "no sentence"


def lasts_s(words):
    """Seconds of the command, once its programs are there."""
    for _ in range(2):
        with tempfile.TemporaryDirectory() as name:
            began = time.monotonic()
            process = started(words, pathlib.Path(name))
            said = process.communicate()[1]
            assert process.returncode == 0, said
    return time.monotonic() - began


def interrupts_of(command, count, seed):
    """What the interrupts of a command came to: {outcome: how many}."""
    draw, words = random.Random(f"{seed} {command}"), COMMANDS[command]
    whole_s, found = lasts_s(words), collections.Counter()
    while found.total() < count:
        after_s = draw.uniform(BEGIN_S, whole_s)
        outcome, said = interrupted(words, after_s)
        if outcome is not None:
            found[outcome] += 1
        if outcome not in (None, "good"):
            print(f"--- {command} after {after_s:.2f} s: {outcome}, {said}", flush=True)
    print(f"{command}, {whole_s:.1f} s: {dict(found)}", flush=True)
    return found


def main():
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=50, help="of interrupts of every command")
    asked.add_argument("--seed", type=int, default=1)
    asked.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    options = asked.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored, by children, too
    every = [interrupts_of(command, options.count, options.seed) for command in options.commands]
    return 0 if all(set(found) == {"good"} for found in every) else 1


if __name__ == "__main__":
    sys.exit(main())
