"""Odd command lines and damaged files: no traceback, no silent nonsense.

    python -m benchmarks.fuzz.run --lines 5000 --files 2000 --real 40 --seed 0

Each case ends in a verdict (`judge.py`); faults are printed with the words that show them again. Cases run in a process
of their own, bounded in memory and time, which is started anew where one takes it down.
"""

import argparse
import collections
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MEMORY = 8 << 30  # bytes of address space of the process
HUNG_S = 120
ROOT = Path(__file__).parents[2]


def work(kind: str, count: int, seed: int, start: int) -> None:
    """The cases from `start` on: a line of JSON for each."""
    from benchmarks.fuzz import files, judge, lines, seeds

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    fresh = Path(tempfile.mkdtemp(prefix="fuzz-seeds-"))
    seeds.make_seeds(fresh)
    names = sorted(file.relative_to(fresh).as_posix() for file in fresh.rglob("*") if file.is_file())
    found = {"lines": lines.command_lines, "real": lambda n, s, _: lines.real_lines(n, s)}
    cases = found[kind](count, seed, names) if kind in found else [[]] * count
    readable = [name for name in names if name in seeds.READERS]
    place = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for number in range(start, count):
        print(json.dumps({"case": number}), file=channel)
        shutil.rmtree(place)
        shutil.copytree(fresh, place)
        os.chdir(place)
        words, said = cases[number], ""
        if kind == "files":
            rng = random.Random(f"{seed}/{number}")
            name = rng.choice(readable)
            said = f"{name}: {files.mutate(rng, place / name)}"
            words = rng.choice(seeds.READERS[name]).split()
        print(json.dumps({"words": [word[:400] for word in words], "said": said}), file=channel)
        if kind == "real":
            verdict, _ = judge.judged(words, 90)
        else:
            with judge.stopped():
                verdict, _ = judge.judged(words)
        if kind == "lines" and verdict.kind in ("reached", "done") and (odd := lines.numbers_that_nothing_has(words)):
            verdict = judge.Verdict("took", odd[0][:60])
        print(json.dumps({"verdict": verdict}), file=channel)


def drive(kind: str, count: int, seed: int) -> list[tuple[str, str, str]]:
    """(verdict, its detail, the case) of all cases."""
    results: list[tuple[str, str, str]] = []
    last = {"words": [], "said": ""}
    while len(results) < count:
        words = [
            sys.executable,
            "-m",
            "benchmarks.fuzz.run",
            "--work",
            kind,
            "--count",
            str(count),
            "--seed",
            str(seed),
        ]
        words += ["--start", str(len(results))]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MFABRIC_TUNED": "/nonexistent/tuned.json"}
        environment |= {"JAX_PLATFORMS": "cpu", "PYTHONFAULTHANDLER": "1"}
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as one:
            assert one.stdout
            os.set_blocking(one.stdout.fileno(), True)
            for line in _lines_in_time(one):
                told = json.loads(line)
                if "verdict" in told:
                    results.append((*told["verdict"], _shown(last)))
                elif "words" in told:
                    last = told
        if not last["words"]:
            raise SystemExit("the process of the cases does not start; see --work")
        if len(results) < count:
            results.append(("died", f"status {one.returncode}", _shown(last)))
    return results


def _lines_in_time(process: subprocess.Popen):
    """Its lines; it is killed where the next one takes too long."""
    import threading

    timer = threading.Timer(HUNG_S, process.kill)
    timer.start()
    assert process.stdout
    for line in process.stdout:
        timer.cancel()
        timer = threading.Timer(HUNG_S, process.kill)
        timer.start()
        yield line
    timer.cancel()


def _shown(told: dict) -> str:
    words = " ".join(repr(word) if not word.isascii() or " " in word or not word else word for word in told["words"])
    return f"{words:.140}" + (f"   [{told['said']}]" if told["said"] else "")


def report(kind: str, results: list[tuple[str, str, str]], took_s: float, out: Path | None) -> int:
    """Counts of the verdicts, and the faults; returns how many."""
    from benchmarks.fuzz.judge import FAULTS

    counts = collections.Counter(verdict for verdict, _, _ in results)
    print(f"{kind}: {len(results):,} in {took_s:.0f} s: {dict(counts.most_common())}")
    faults = [one for one in results if one[0] in FAULTS]
    groups = collections.defaultdict(list)
    for verdict, detail, case in faults:
        groups[f"{verdict}: {detail.partition(': ')[0] if verdict == 'traceback' else detail[:60]}"].append(
            (detail, case)
        )
    for name, cases in sorted(groups.items(), key=lambda item: -len(item[1])):
        print(f"  {len(cases):4} x {name}")
        for detail, case in cases[:2]:
            print(f"         {case}\n           {detail[:200]}")
    if out is not None:
        with out.open("a", encoding="utf-8") as opened:
            opened.writelines(json.dumps([kind, *one]) + "\n" for one in results)
    return len(faults)


def main() -> int:
    """Returns the exit status: 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("lines", 5000), ("files", 2000), ("real", 40), ("seed", 0), ("count", 0), ("start", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--work")
    parser.add_argument("--out", type=Path, help="every verdict to a .jsonl file")
    options = parser.parse_args()
    if options.work:
        work(options.work, options.count, options.seed, options.start)
        return 0
    faults = 0
    for kind in ("lines", "files", "real"):
        began = time.monotonic()
        results = drive(kind, getattr(options, kind), options.seed)
        faults += report(kind, results, time.monotonic() - began, options.out)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
