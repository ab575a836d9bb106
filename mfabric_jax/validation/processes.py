"""Commands in processes of their own, some at once."""

import contextlib
import os
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from mfabric_jax.checks import InputError, whole
from mfabric_jax.platforms import cores

JOBS = 2
PAUSE_S = 0.05
PATIENCE_S = 10.0  # with a process that was asked to end


class Ended(NamedTuple):
    """A process that is over: the name of its command, its exit status (negative: the signal), and its seconds."""

    name: str
    status: int
    seconds: float


def checked_jobs(jobs: int | None) -> int:
    """How many processes to run at once; None: two, or one on a single core."""
    if jobs is None:
        return min(JOBS, cores())
    if whole("jobs", jobs) > cores():
        raise InputError(f"jobs must be at most the {cores()} cores of this machine, got {jobs}.")
    return jobs


def each(commands: Mapping[str, Sequence[str]], stem: Callable[[str], pathlib.Path], jobs: int) -> Iterator[Ended]:
    """Run the commands, so many at once; tells each as it ends.

    The output of a command goes to its stem with .txt, its errors to that with .log, which goes away when all went
    well. Commands that still run when the caller stops waiting are interrupted and leave neither file.
    """
    waiting, running, jobs = list(commands.items()), {}, min(jobs, len(commands))
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, command = waiting.pop(0)
                running[name] = _started(command, stem(name), jobs), time.perf_counter()
            over = [name for name, (process, _) in running.items() if process.poll() is not None]
            for name in over:
                process, start = running.pop(name)
                if process.returncode == 0:
                    stem(name).with_suffix(".log").unlink()
                yield Ended(name, process.returncode, time.perf_counter() - start)
            if not over:
                time.sleep(PAUSE_S)
    finally:
        signal.signal(signal.SIGTERM, before)
        _end([process for process, _ in running.values()])
        for name in running:
            for kind in (".txt", ".log"):
                stem(name).with_suffix(kind).unlink()


def _started(command: Sequence[str], stem: pathlib.Path, jobs: int) -> subprocess.Popen:
    """In a process group of its own: an interrupt from the keyboard reaches it through us, once."""
    with stem.with_suffix(".txt").open("wb") as out, stem.with_suffix(".log").open("wb") as log, _interruptible():
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": log}
        return subprocess.Popen(command, **streams, env=_share(jobs) | os.environ, process_group=0)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """What starts here heeds an interrupt though this process may not, as one that a script runs in the background."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _share(jobs: int) -> dict[str, str]:
    """Settings of XLA by which processes share a machine, unless the user has set them.

    Threads: two processes with a thread for every core, waiting for each other's turns, are four times slower than
    with half of the threads each. Memory: of an accelerator no process takes it all.
    """
    threads = str(max(1, cores() // jobs))
    return {"PJRT_NPROC": threads, "NPROC": threads, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if jobs > 1 else {}


def _leave(number: int, frame: Any) -> None:
    """What `timeout` and job schedulers send ends this process alone, unless it takes the others with it."""
    raise SystemExit(128 + number)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    """Interrupt them, so that they end what they have started; then insist."""
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
