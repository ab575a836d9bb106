"""Progress of a long run: a bar on a terminal, a widget or text in a notebook, elsewhere occasional lines."""

import contextlib
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

FIRST_S = 3.0  # seconds until the first line
EVERY_S = 10.0  # least seconds between later lines
NO_TIME_LEFT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"  # of a bar of tqdm
OVERDUE = 3  # times the usual length, after which the end of the unit at work cannot be known
PART = 0.05  # least pause between lines, as a fraction of the run so far


def bar(
    what: str,
    unit: str,
    total: int | None = None,
    before: int = 0,
    kinds: Sequence[Hashable] | None = None,
    **form: Any,
) -> Any:
    """Return a progress bar.

    - `before`: units that were done before the run began.
    - `kinds`: of every unit; units of one kind take about equally long, except the first, which may compile.

    Return `ProgressLines` if standard error is a file outside notebooks, or without tqdm (extra `cli`).
    """
    if not (in_notebook() or sys.stderr.isatty()):
        return ProgressLines(what, unit, total, before, kinds)
    try:
        from tqdm import auto
    except ModuleNotFoundError:
        return ProgressLines(what, unit, total, before, kinds)
    form = {"bar_format": NO_TIME_LEFT} | form if len(set(kinds or ())) > 1 else form
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
            bars = [state for state in (bar.state() for bar in ProgressLines.shown) if state]
            _say("; ".join([f"{self._what}: at work for {duration(now - self._began)}", *bars[-1:]]))


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
    """A progress bar as lines on standard error: units done, seconds per unit, time left.

    `n`: units done. `shown`: bars of `with` blocks that are not over.
    """

    shown: ClassVar["list[ProgressLines]"] = []

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        before: int = 0,
        kinds: Sequence[Hashable] | None = None,
    ):
        self.what, self.unit, self.total, self.before, self.n = what, unit, total, before, before
        self._began = self._last_line_s = self._last_unit_s = time.monotonic()
        self._kinds, self._words = kinds, ""
        self._seen: set[Hashable] = set()
        self._moments: list[tuple[int, float]] = []  # units done, and when
        self._timed: Counter[Hashable] = Counter()  # units of each kind after its first, and their seconds
        self._timed_s: defaultdict[Hashable, float] = defaultdict(float)

    def __enter__(self) -> "ProgressLines":
        ProgressLines.shown.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        """Lines stay where a bar would vanish."""
        ProgressLines.shown.remove(self)

    def state(self) -> str | None:
        """Return the unit at work, such as "search 3 of 12: fat-tree, 8 min left"; None if it has no name."""
        if not self._words:
            return None
        count = f"{self.unit} {self.n + 1:,}" + (f" of {self.total:,}" if self.total else "")
        left_s = self._left_s()
        return f"{count}: {self._words}" + ("" if left_s is None else f", {duration(left_s)} left")

    def update(self, units: int = 1) -> None:
        """Count `units` more as done."""
        now = time.monotonic()
        if units and self._kinds is not None:
            self._time_kinds(self._kinds[self.n : self.n + units], now - self._last_unit_s)
        self.n += units
        if units:
            self._last_unit_s = now
            self._moments.append((self.n, now))
            self._say_if_due(now)

    def _time_kinds(self, kinds: Sequence[Hashable], seconds: float) -> None:
        for kind in kinds:
            if kind in self._seen:
                self._timed[kind] += 1
                self._timed_s[kind] += seconds / len(kinds)
            self._seen.add(kind)

    def _say_if_due(self, now: float) -> None:
        spoken = self._last_line_s > self._began
        if now - self._last_line_s >= _pause(now - self._began, spoken):
            self._last_line_s = now
            _say(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        done = f"{self.what}: {self.n:,}" + (f" of {self.total:,}" if self.total else "") + " done"
        each = f", {pace(self.n - self.before, seconds, self.unit)}" if self.n > self.before else ""
        left_s = self._left_s()
        left = "" if left_s is None else f", {duration(left_s)} left"
        return f"{done}{each if self._kinds is None else ''}{left}" + (f"; now {self._words}" if self._words else "")

    def _left_s(self) -> float | None:
        """Seconds left; None if nothing is left, or if they cannot be known: no unit like those that are left was
        timed, or the unit at work takes far longer than such units did."""
        if not self.total or self.n >= self.total or (expected := self._expected_s()) is None:
            return None
        unit_s, left_s = expected
        spent_s = time.monotonic() - self._last_unit_s
        return left_s if spent_s <= OVERDUE * unit_s else None

    def _expected_s(self) -> tuple[float, float] | None:
        """Seconds of the unit at work and of all that are left, from the units that were timed.

        Without kinds the later half of the units counts: the first ones may compile.
        """
        if self._kinds is None:
            half = self.before + (self.n - self.before + 1) // 2
            earlier = [(units, moment) for units, moment in self._moments if units <= half]
            if not earlier or earlier[-1][0] == self.n:
                return None
            units, moment = earlier[-1]
            unit_s = (self._last_unit_s - moment) / (self.n - units)
            return unit_s, unit_s * ((self.total or 0) - self.n)
        left = Counter(self._kinds[self.n :])
        if any(not self._timed[kind] for kind in left):
            return None
        each_s = {kind: self._timed_s[kind] / self._timed[kind] for kind in left}
        return each_s[self._kinds[self.n]], sum(count * each_s[kind] for kind, count in left.items())

    def set_postfix_str(self, words: str, refresh: bool = True) -> None:
        """Name what is at work now; the next line shows it. `refresh`: write that line if it is time for one."""
        self._words = words
        if refresh:
            self._say_if_due(time.monotonic())

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
