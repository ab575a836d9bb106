"""Progress of a long run: a bar on a terminal, a widget or text in a notebook, elsewhere occasional lines."""

import contextlib
import sys
import threading
import time
from typing import Any

FIRST_S = 3.0  # seconds until the first line
EVERY_S = 10.0  # least seconds between later lines
PART = 0.05  # least pause between lines, as a fraction of the run so far


def bar(what: str, unit: str, total: int | None = None, before: int = 0, **form: Any) -> Any:
    """Return a progress bar; `before`: units that were done before the run began.

    Return `ProgressLines` if standard error is a file outside notebooks, or without tqdm (extra `cli`).
    """
    if not (in_notebook() or sys.stderr.isatty()):
        return ProgressLines(what, unit, total, before)
    try:
        from tqdm import auto
    except ModuleNotFoundError:
        return ProgressLines(what, unit, total, before)
    return auto.tqdm(desc=what, unit=unit, total=total, initial=before, file=sys.stderr, **form)


class Alive:
    """Context manager that writes a line on standard error if nothing else has shown progress for long."""

    last_line_s = 0.0  # time of the last line of any instance

    def __init__(self, what: str):
        self._what, self._over = what, threading.Event()
        self._began = Alive.last_line_s = time.monotonic()

    def __enter__(self) -> "Alive":
        threading.Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()

    def _tell(self) -> None:
        while not self._over.wait(1.0):
            self.look()

    def look(self) -> None:
        """Write a line if it is time for one."""
        now = time.monotonic()
        if now - Alive.last_line_s >= _pause(now - self._began, Alive.last_line_s > self._began) and not _has_bar():
            _say(f"{self._what}: at work for {duration(now - self._began)}")


def _pause(seconds: float, spoken: bool) -> float:
    """Return the seconds until the next line, this long after the start; `spoken`: whether there was one before."""
    return max(EVERY_S, PART * seconds) if spoken else FIRST_S


def _say(line: str) -> None:
    Alive.last_line_s = time.monotonic()
    with contextlib.suppress(OSError):  # nobody reads the lines: the run goes on
        print(line, file=sys.stderr, flush=True)


def _has_bar() -> bool:
    """Return whether a tqdm bar is on the screen, which shows progress itself."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return any(not instance.disable for instance in list(getattr(tqdm, "_instances", ())))


class ProgressLines(contextlib.AbstractContextManager):
    """A progress bar as lines on standard error: units done, seconds per unit, time left. `n`: units done."""

    def __init__(self, what: str, unit: str, total: int | None = None, before: int = 0):
        self.what, self.unit, self.total, self.before, self.n = what, unit, total, before, before
        self._began = self._last_line_s = time.monotonic()

    def __exit__(self, *error: Any) -> None:
        """Do nothing: lines stay where a bar would vanish."""

    def update(self, units: int = 1) -> None:
        """Count `units` more as done."""
        self.n += units
        now = time.monotonic()
        spoken = self._last_line_s > self._began
        if units and now - self._last_line_s >= _pause(now - self._began, spoken):
            self._last_line_s = now
            _say(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        each = seconds / max(self.n - self.before, 1)
        done = f"{self.what}: {self.n:,}" + (f" of {self.total:,}" if self.total else "")
        left = f", {duration(each * (self.total - self.n))} left" if self.total and self.n < self.total else ""
        return f"{done} done, {pace(self.n - self.before, seconds, self.unit)}{left}"

    def set_postfix_str(self, words: str) -> None:
        """Ignore words that a bar would show."""

    def set_postfix(self, numbers: Any, refresh: bool = True) -> None:
        """Ignore numbers that a bar would show."""

    def write(self, line: str, file: Any = None) -> None:
        """Print a line, which a bar would keep apart from itself."""
        print(line, file=file, flush=True)

    def close(self) -> None:
        """Do nothing: there is no bar to remove."""


def pace(units: int, seconds: float, unit: str) -> str:
    """Return the pace: "12 cases a second" or "5.8 s a case"."""
    each = seconds / max(units, 1)
    if not 0 < each < 1:
        return f"{each:,.3g} s a {unit}"
    return f"{1 / each:,.0f} {unit}s a second" if each < 0.1 else f"{1 / each:.1f} {unit}s a second"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours: "40 s", "16 min", "3.2 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
