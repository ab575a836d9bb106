"""How far a long run is: a bar on a terminal, a widget or text in a notebook, elsewhere a line now and then."""

import contextlib
import sys
import threading
import time
from typing import Any

EVERY_S = 10.0  # from one line to the next, and at least this part of the time since the run began:
PART = 0.05


def bar(what: str, unit: str, total: int | None = None, found: int = 0, **form: Any) -> Any:
    """A progress bar; `found`: how many units there are before the run begins. `Lines` where standard error is a file
    and no notebook, and without tqdm (extra `cli`)."""
    if not (in_notebook() or sys.stderr.isatty()):
        return Lines(what, unit, total, found)
    try:
        from tqdm import auto
    except ModuleNotFoundError:
        return Lines(what, unit, total, found)
    return auto.tqdm(desc=what, unit=unit, total=total, initial=found, file=sys.stderr, **form)


class Alive:
    """That a command is at work, as a line on standard error whenever nothing else has said so for long."""

    said = 0.0  # when a line was last written, by any of them

    def __init__(self, what: str):
        self._what, self._over = what, threading.Event()
        self._began = Alive.said = time.monotonic()

    def __enter__(self) -> "Alive":
        threading.Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()

    def _tell(self) -> None:
        while not self._over.wait(1.0):
            self.look()

    def look(self) -> None:
        """A line, if it is time for one."""
        now = time.monotonic()
        if now - Alive.said >= _pause(now - self._began) and not _shown():
            _say(f"{self._what}: at work for {duration(now - self._began)}")


def _pause(seconds: float) -> float:
    """From one line to the next, so long after the begin."""
    return max(EVERY_S, PART * seconds)


def _say(line: str) -> None:
    Alive.said = time.monotonic()
    with contextlib.suppress(OSError):  # nobody reads it: the run goes on
        print(line, file=sys.stderr, flush=True)


def _shown() -> bool:
    """Whether a bar is on the screen, which moves by itself."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return any(not one.disable for one in list(getattr(tqdm, "_instances", ())))


class Lines(contextlib.AbstractContextManager):
    """What is asked of a bar, as lines on standard error: units done, seconds a unit, time that is left.

    `n`: units that are done.
    """

    def __init__(self, what: str, unit: str, total: int | None = None, found: int = 0):
        self.what, self.unit, self.total, self.found, self.n = what, unit, total, found, found
        self._began = self._said = time.monotonic()

    def __exit__(self, *error: Any) -> None:
        """A bar goes here; lines stay."""

    def update(self, units: int = 1) -> None:
        """So many more units are done."""
        self.n += units
        now = time.monotonic()
        if units and now - self._said >= _pause(now - self._began):
            self._said = now
            _say(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        each = seconds / max(self.n - self.found, 1)
        done = f"{self.what}: {self.n:,}" + (f" of {self.total:,}" if self.total else "")
        left = f", {duration(each * (self.total - self.n))} left" if self.total and self.n < self.total else ""
        return f"{done} done, {pace(self.n - self.found, seconds, self.unit)}{left}"

    def set_postfix_str(self, words: str) -> None:
        """Words that a bar shows."""

    def set_postfix(self, numbers: Any, refresh: bool = True) -> None:
        """Numbers that a bar shows."""

    def write(self, line: str, file: Any = None) -> None:
        """A line that a bar leaves alone."""
        print(line, file=file, flush=True)

    def close(self) -> None:
        """The bar goes."""


def pace(units: int, seconds: float, unit: str) -> str:
    """How fast it goes: "12 cases a second", "5.8 s a case"."""
    each = seconds / max(units, 1)
    if not 0 < each < 1:
        return f"{each:,.3g} s a {unit}"
    return f"{1 / each:,.0f} {unit}s a second" if each < 0.1 else f"{1 / each:.1f} {unit}s a second"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever are few: "40 s", "16 min", "3.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
