"""One command line in this process, and what is wrong with how it ended."""

import contextlib
import importlib
import io
import re
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

SLOW_S = 30  # of options that are only checked
ENTRIES = {  # where computing begins: module -> what is asked for there
    "mfabric_jax.simulation.results": ("simulate_each",),
    "mfabric_jax.simulation": ("calibrate", "example_timeline"),
    "mfabric_jax.failures": ("failures",),
    "mfabric_jax.cluster": ("solve_cluster",),
    "mfabric_jax.sweep.run": ("Maker.make", "run_on_ray"),
    "mfabric_jax.learning": ("train", "evaluate_policies", "scoreboard"),
    "mfabric_jax.tuning": ("tune", "doctor"),
    "mfabric_jax.validation": ("predict",),
    "mfabric_jax.validation.paper": ("Reproduction.all",),
    "mfabric_jax.report": ("draw_fabric", "draw_graph"),
    "mfabric_jax.traffic": ("fit",),
}
STRANGE = re.compile(r"(?<![\w./-])(-?nan|-?inf|NaN|Infinity)(?![\w./=-])")
SENTENCE = re.compile(r"mfabric: .*[.?]\n\Z")


class Reached(BaseException):
    """Options were taken: here computing would begin."""


class Slow(BaseException):
    """Options were not checked in time."""


class Verdict(NamedTuple):
    """- `kind`: refused, reached, done; or a fault: traceback, strange, took (a number that
    nothing has), warned, wordy, slow.   - `detail`: of it."""

    kind: str
    detail: str = ""


FAULTS = ("traceback", "strange", "took", "warned", "wordy", "slow", "died")


def stop(*args: Any, **named: Any) -> None:
    """Stands where computing begins."""
    raise Reached


@contextlib.contextmanager
def stopped() -> Iterator[None]:
    """Nothing is computed inside."""
    before = []
    for module, names in ENTRIES.items():
        home = importlib.import_module(module)
        for name in names:
            *inner, last = name.split(".")
            place = getattr(home, inner[0]) if inner else home
            before.append((place, last, getattr(place, last)))
            setattr(place, last, stop)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def _late(*args: Any) -> None:
    raise Slow


def judged(words: Sequence[str], limit_s: float = SLOW_S) -> tuple[Verdict, str]:
    """How `mfabric WORDS` ended, and what it wrote on standard output."""
    from mfabric_jax import cli

    out, err = io.StringIO(), io.StringIO()
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    began = time.monotonic()
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as w,
        ):
            warnings.simplefilter("always")
            status = _status(lambda: cli.main([*words]))
        found = _ended(
            words[0] if words else "", status, out.getvalue(), err.getvalue(), [str(one.message) for one in w]
        )
    except Reached:
        found = Verdict("reached")
    except Slow:
        found = Verdict("slow", f"{time.monotonic() - began:.0f} s")
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        ours = [one for one in traceback.extract_tb(error.__traceback__) if "mfabric_jax" in one.filename]
        place = ours[-1] if ours else place
        at = f"{place.filename.rpartition('mfabric_jax/')[2]}:{place.lineno} {place.name}"
        found = Verdict("traceback", f"{type(error).__name__} at {at}: {str(error)[:120]!r}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return found, out.getvalue()


def _status(call: Callable[[], int]) -> int:
    try:
        return call()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0


def _ended(command: str, status: int, out: str, err: str, warned: list[str]) -> Verdict:
    if status == 2:
        fits = SENTENCE.fullmatch(err) and len(err) < 2000
        return (
            Verdict("refused", err[9:].strip()) if fits else Verdict("wordy", f"{len(err)} characters: {err[:300]!r}")
        )
    if (found := STRANGE.search(out)) and command != "query":  # shows what the file holds
        at = out[: found.start()].count("\n")
        return Verdict("strange", f"{found[0]} in {out.splitlines()[at][:200]!r}")
    if warned:
        return Verdict("warned", warned[0][:200])
    return Verdict("done", f"status {status}")
