"""Mutations of a good file of every reader: `python -m tests.fuzz_files --count 200 --seed 4613 [--readers ...]`.

Wanted of each: a valid read, or one sentence that names the file and the field or line (exit status 2, `InputError` in
Python); no other exception, no warning, no hang, no lack of memory. Content that is not read but could change a number
is refused or named. Readers run in worker processes, so that a crash costs one mutation.
"""

import argparse
import collections
import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import random
import re
import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tests import fuzz_foreign as fuzz_foreign
from tests import fuzz_mutations
from tests.fuzz_inputs import READERS, Reader

EXAMPLE = next(iter(READERS))
TRIES = 5  # to draw a mutation that was not there before
SECONDS = 240  # of one mutation, before it counts as a hang
MEMORY = 12 << 30  # bytes of a worker
TIMED = re.compile(r"(build|solve|compile|decisions_per|peak_mb)")
NOT_NUMBERS = re.compile(r"(?<![\w.])-?(?:nan|inf)(?![\w.])", re.I)
SAID = re.compile(
    "are not read, though they could change a number|no command writes the columns"
)  # beside the sentence
FAULTS = ("traceback", "status", "warning", "memory", "crash", "hang", "no sentence", "not named", "misread")
DOUBTS = ("unnamed", "not a number", "unread")


class Answer(NamedTuple):
    """What became of a file: `said` on standard error (the sentence of an `InputError`), `result` as text."""

    status: int
    said: str
    result: str


# ---------------------------------------------------------------------------------------------------------- in a worker
def answered(one: Reader, folder: pathlib.Path) -> Answer:
    """What a reader makes of the files in a folder."""
    from mfabric_jax.checks import InputError
    from mfabric_jax.cli import main
    from mfabric_jax.support.unread import Unread

    out, err, status = io.StringIO(), io.StringIO(), 0
    before = set(folder.rglob("*"))
    result: Any = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        os.chdir(folder)
        try:
            if isinstance(one.read, str):
                status = main(one.read.split())
            else:
                result = one.read(folder / one.file)
        except InputError as error:
            status = 2
            print(f"mfabric: {error}", file=sys.stderr)
        except BaseException:
            status = 99
            err.write(traceback.format_exc())
    for warning in told:
        if issubclass(warning.category, Unread):
            print(warning.message, file=err)
        else:
            print(f"Warning: {warning.category.__name__}: {warning.message}", file=err)
    made = [path for path in sorted(set(folder.rglob("*")) - before) if path.suffix in (".csv", ".json", ".html")]
    texts = [json.dumps(result, default=str), out.getvalue(), *(path.read_text() for path in made if path.is_file())]
    return Answer(status, err.getvalue(), "\n".join(texts).replace(str(folder), ""))


def work(pipe: Connection) -> None:
    """Answer files until the pipe closes: (name of the reader, what the file holds or None for the good one)."""
    os.environ["COLUMNS"] = "100"
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    good: dict[str, pathlib.Path] = {}
    with tempfile.TemporaryDirectory() as temporary:
        while True:
            try:
                name, data = pipe.recv()
            except EOFError:
                return
            one = READERS[name]
            if name not in good:
                good[name] = pathlib.Path(temporary) / f"good {len(good)}"
                good[name].mkdir()
                try:
                    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                        one.write(good[name])
                except Exception:
                    pipe.send(Answer(99, traceback.format_exc(), ""))
                    continue
            if data is None:
                pipe.send((good[name] / one.file).read_bytes())
                continue
            folder = pathlib.Path(temporary) / "mutated"
            shutil.copytree(good[name], folder)
            if data:
                (folder / one.file).write_bytes(data[0])
            answer = answered(one, folder)
            os.chdir(temporary)
            shutil.rmtree(folder)
            pipe.send(answer)


class Worker:
    """A process that reads files; another takes its place where it dies or hangs."""

    def __init__(self) -> None:
        self._process, self._pipe = None, None

    def ask(self, name: str, data: Any) -> Any:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=work, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        assert self._pipe is not None
        try:
            self._pipe.send((name, data))
            if self._pipe.poll(SECONDS * (10 if not data else 1)):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            status, self._process = self._process.exitcode, None
            return Answer(97, f"the process ended with {status}", "")
        self._process.kill()
        self._process = None
        return Answer(98, f"no answer in {SECONDS} s", "")


# ----------------------------------------------------------------------------------------------------------- judgements
def judged(one: Reader, told: fuzz_mutations.Mutation, answer: Answer, usual: Answer) -> str:
    """What is wrong with an answer, in a word; "" for a good one."""
    said = answer.said
    if answer.status in (97, 98):
        return "crash" if answer.status == 97 else "hang"
    if answer.status == 99 or "Traceback" in said or "Exception ignored" in said:
        return "traceback"
    if "more memory than there is" in said:
        return "memory"
    if re.search(r"\w*Warning\b", said):
        return "warning"
    if answer.status == 2:
        return no_sentence(one, said)
    if answer.status not in (0, 1):
        return "status"
    same = plain(answer.result) == plain(usual.result)
    if told.kind in ("name", "unknown") and told.name not in one.free and told.old not in one.free:
        if same and told.name.lower().replace("-", "_") == told.old.lower().replace("-", "_"):
            return ""
        if told.name.isdigit() and told.old.isdigit():
            return ""
        if not any(word and word in said + answer.result and word not in usual.said for word in (told.name, told.old)):
            return "unnamed" if same else "misread"
    if len(NOT_NUMBERS.findall(answer.result)) > len(NOT_NUMBERS.findall(usual.result)):
        return "not a number"
    if told.kind == "value" and same and told.name not in one.free and told.old not in one.free:
        return "" if told.name and told.name in said else "unread"
    return ""


def no_sentence(one: Reader, said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("mfabric: ") and not SAID.search(line)]
    if len(lines) != 1 or not lines[0].rstrip().endswith((".", ")")):
        return "no sentence"
    path = pathlib.Path(one.file)
    return (
        "" if any(name in lines[0] for name in (path.stem.split(".")[0], *path.parts[:-1], *one.also)) else "not named"
    )


def plain(result: str) -> str:
    """Without columns of measured times."""
    kept = []
    for block in result.split("\n"):
        kept.append(re.sub(r"\d+\.\d+ s\b", "", block) if TIMED.search(block) else block)
    return "\n".join(kept)


# ------------------------------------------------------------------------------------------------------------- the fuzz
def fuzzed(name: str, count: int, seed: int, worker: Worker, shown: int) -> collections.Counter:
    one, draw = READERS[name], random.Random(f"{seed} {name}")
    good = worker.ask(name, None)
    usual = worker.ask(name, ())
    if isinstance(good, Answer) or usual.status not in (0, 1):
        print(f"--- {name}: the good file is not read: {good if isinstance(good, Answer) else usual}", flush=True)
        return collections.Counter(status=1)
    found, printed, seen = collections.Counter(), collections.Counter(), {good}
    for number in range(TRIES * count):
        told = mutation(one, good, draw)
        if told.data in seen:
            continue
        if len(seen) > count:
            break
        seen.add(told.data)
        answer = worker.ask(name, (told.data,))
        fault = judged(one, told, answer, usual)
        found[fault or ("refused" if answer.status == 2 else "read")] += 1
        printed[fault] += 1
        if fault in (FAULTS if shown >= 0 else (*FAULTS, *DOUBTS)) and printed[fault] <= abs(shown):
            last = " | ".join(answer.said.strip().splitlines()[-3:])[:500]
            print(f"--- {name}, {number}: {fault}: {told.what} -> {answer.status} {last}", flush=True)
    print(f"{name}: {dict(found)}", flush=True)
    return found


def mutation(one: Reader, good: bytes, draw: random.Random) -> fuzz_mutations.Mutation:
    if one.through is not None and draw.random() < 0.7:
        return one.through(good, draw)
    return fuzz_mutations.mutated(good, one.form, draw)


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--count", type=int, default=200, help="of mutations for every reader")
    asked.add_argument("--seed", type=int, default=4613)
    asked.add_argument("--readers", nargs="*", default=[""], help=f"parts of names, such as {EXAMPLE!r}")
    asked.add_argument(
        "--shown", type=int, default=6, help="of each kind of fault of a reader; below 0: of doubts, too"
    )
    options = asked.parse_args()
    names = [name for name in READERS if any(part in name for part in options.readers)]
    worker, every = Worker(), collections.Counter()
    for name in names:
        every += fuzzed(name, options.count, options.seed, worker, options.shown)
    print(f"{len(names)} readers, seed {options.seed}: {dict(every)}", flush=True)
    return 1 if any(every[fault] for fault in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
