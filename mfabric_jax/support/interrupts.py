"""Ctrl-C always ends a command with one sentence and exit status 130; rows so far are kept.

The handler raises `KeyboardInterrupt` in the main thread, where cleaning up keeps the rows. If C++ code runs, which the
exception would abort, the handler waits until that code returns. If the exception is lost, as in callbacks of Python's
garbage collector, it is raised again. The process ends if that takes too long, or on a second Ctrl-C: journals of rows
are already on disk.

A command imports this module first, so it imports little.
"""

import _thread
import atexit
import os
import signal
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import NoReturn

STATUS = 130
SENTENCE = "mfabric: interrupted."
UNSAFE = frozenset(("jax", "jaxlib", "numba", "llvmlite", "importlib"))  # their C++ calls Python, or imports load them
SOON_S = 0.05  # until a delayed or lost interrupt is raised again
PATIENCE_S = 3.0  # until the process ends if an interrupt could not be raised
AGAIN_S = 3.0  # until an interrupt that no code handled is raised again
LAST_S = 15.0  # until the process ends in any case
CHILDREN: set = set()  # processes that end with this one


class Interrupts:
    """State of the interrupts of one command.

    - `whole`: the process belongs to this command alone, so it may end.
    - `requested`: Ctrl-C was pressed. `taken`: it is being handled. `over`: the command has ended.
    """

    def __init__(self, whole: bool):
        self.whole, self.requested, self.taken, self.over = whole, False, False, False
        self._raising = False  # the next signal repeats the first Ctrl-C
        self._raised_s: float | None = None

    def hear(self, number: int, frame: "FrameType | None") -> None:
        """Handle SIGINT."""
        again, self._raising = self._raising, False
        if again and self.taken:
            return
        if self.whole and (self.over or (self.requested and not again)):
            end()
        if self.whole and not self.requested:
            _thread.start_new_thread(self._watch, ())
        self.requested = True
        if self.whole and _unsafe(frame):
            return
        self._raised_s = time.monotonic()
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise a lost interrupt again in the main thread; any thread may call this."""
        self._raising = True
        _thread.interrupt_main()

    def _raise_soon(self) -> None:
        time.sleep(SOON_S)
        self.raise_again()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self.taken:
            time.sleep(SOON_S)
            now = time.monotonic()
            if now - began > LAST_S or (self._raised_s is None and now - began > PATIENCE_S):
                end()
            if self._raised_s is None or now - self._raised_s > AGAIN_S:
                self.raise_again()

    def hear_unraisable(self, unraisable) -> None:
        """Handle an exception that Python could not raise; a lost interrupt is raised again."""
        if self.requested and issubclass(unraisable.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(self._raise_soon, ())  # raised here, it would be lost again
        else:
            sys.__unraisablehook__(unraisable)


def _unsafe(frame: "FrameType | None") -> bool:
    """Return whether the main thread runs under a library that an exception would abort."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in UNSAFE:
            return True
        frame = frame.f_back
    return False


NOW: list[Interrupts] = []  # of running commands, innermost last


def take() -> None:
    """Mark interrupts as handled, so that they do not interrupt what follows, such as a table of the rows so far."""
    for interrupts in NOW:
        interrupts.taken = True


def end() -> None:
    """Print the reason and end the process, whatever it is doing."""
    for process in CHILDREN:
        process.kill()
    try:
        os.write(2, f"{SENTENCE}\n".encode())
    finally:
        os._exit(STATUS)


class listening:
    """Context manager that handles interrupts in the main thread, unless the process ignores them.

    An error that leaves the block after an interrupt becomes an interrupt: some library converted it.
    """

    def __init__(self, whole: bool = False):
        self.interrupts = Interrupts(whole)
        self._before = None

    def __enter__(self) -> Interrupts:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                self._before = signal.signal(signal.SIGINT, self.interrupts.hear)
            except ValueError:  # not in the main thread
                return self.interrupts
            self._hook, sys.unraisablehook = sys.unraisablehook, self.interrupts.hear_unraisable
            NOW.append(self.interrupts)
        return self.interrupts

    def __exit__(self, kind, error, trace) -> None:
        if self._before is not None and not self.interrupts.whole:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook
            NOW.remove(self.interrupts)
        if self.interrupts.requested and kind is not None and issubclass(kind, Exception):
            raise KeyboardInterrupt from None


# ------------------------------------------------------------------------------------------------------------- process
def whole_process(run: "Callable[[], int]") -> "NoReturn":
    """Call `run` and end this process with the status that it returns, or with `STATUS` after an interrupt."""
    with listening(whole=True) as heard:
        try:
            _check_streams()
            status = run()
        except KeyboardInterrupt:
            status = report_interrupt()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            status = report_interrupt() if heard.requested else _report_fault(sys.exc_info())
        heard.over = True
        os._exit(_finish(status, heard))


def _report_fault(error: tuple) -> int:
    """Print the whole traceback: the program has a fault, and a report needs it."""
    sys.excepthook(*error)
    return 1


def _finish(status: int, heard: Interrupts) -> int:
    """Join threads, run exit handlers, flush streams, and return the exit status.

    The interpreter is not finalised: threads of libraries could crash, and interrupts would be lost.
    """
    if not heard.requested:  # after an interrupt, threads may compute for long
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # reported before, or closed
            continue
    return report_interrupt() if heard.requested and status != STATUS else status


def _check_streams() -> None:
    """Redirect closed standard streams to the null device, and escape names that are not text."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


def report_interrupt() -> int:
    take()
    say(SENTENCE)
    return STATUS


def say(sentence: str) -> None:
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        return  # the stream is closed
