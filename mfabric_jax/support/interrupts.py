"""Ctrl-C in a command: one sentence and exit status 130, wherever it comes; rows so far are kept.

The handler raises `KeyboardInterrupt` in the main thread, where cleaning up keeps the rows, but not under code of C++
that such an exception would abort: it waits until that has returned. Where the exception is lost, as in callbacks of
Python's collector, it is raised again. What lasts too long ends with the process, and a second Ctrl-C ends it at once:
journals of rows are on disk.

This is imported before anything else of a command, so it imports little.
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
UNSAFE = frozenset(("jax", "jaxlib", "numba", "llvmlite", "importlib"))  # have C++ call Python; imports start such
SOON_S = 0.05  # until an interrupt that had to wait, or was dropped, is tried again
PATIENCE_S = 3.0  # of one that has to wait
AGAIN_S = 3.0  # until an interrupt that nobody took is raised again
LAST_S = 15.0  # until the process ends whatever it does
BESIDE: set = set()  # processes that end with this one


class Interrupts:
    """What is known of interrupts of one command.

    - `whole`: the process is of this command alone, so it may end.
    - `asked`: somebody pressed Ctrl-C. `taken`: what follows is its consequence. `over`: the command is.
    """

    def __init__(self, whole: bool):
        self.whole, self.asked, self.taken, self.over = whole, False, False, False
        self._raising = False  # a further time, for the first Ctrl-C
        self._raised_s: float | None = None

    def hear(self, number: int, frame: "FrameType | None") -> None:
        """Handle SIGINT."""
        again, self._raising = self._raising, False
        if again and self.taken:
            return
        if self.whole and (self.over or (self.asked and not again)):
            end()
        if self.whole and not self.asked:
            _thread.start_new_thread(self._watch, ())
        self.asked = True
        if self.whole and _unsafe(frame):
            return
        self._raised_s = time.monotonic()
        raise KeyboardInterrupt

    def raise_again(self) -> None:
        """Raise in the main thread what was lost; called in any thread."""
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

    def lost(self, unraisable) -> None:
        """What Python does with an exception that cannot be raised: another interrupt takes the place of one."""
        if self.asked and issubclass(unraisable.exc_type, KeyboardInterrupt):
            _thread.start_new_thread(self._raise_soon, ())  # not here, where it would be lost, too
        else:
            sys.__unraisablehook__(unraisable)


def _unsafe(frame: "FrameType | None") -> bool:
    """Whether the main thread is at work for a library that an exception from here would abort."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] in UNSAFE:
            return True
        frame = frame.f_back
    return False


NOW: list[Interrupts] = []  # of commands that run, the innermost last


def take() -> None:
    """The interrupt is heard: what follows it, such as a table of the rows so far, is not interrupted again by it."""
    for one in NOW:
        one.taken = True


def end() -> None:
    """End the process, saying why; anything may be under way."""
    for process in BESIDE:
        process.kill()
    try:
        os.write(2, f"{SENTENCE}\n".encode())
    finally:
        os._exit(STATUS)


class listening:
    """Interrupts are heard inside, in the main thread, unless this process ignores them.

    Leaving by any other error after an interrupt is an interrupt: some library made the error of it.
    """

    def __init__(self, whole: bool = False):
        self.interrupts = Interrupts(whole)
        self._before = None

    def __enter__(self) -> Interrupts:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                self._before = signal.signal(signal.SIGINT, self.interrupts.hear)
            except ValueError:  # no main thread
                return self.interrupts
            self._hook, sys.unraisablehook = sys.unraisablehook, self.interrupts.lost
            NOW.append(self.interrupts)
        return self.interrupts

    def __exit__(self, kind, error, trace) -> None:
        if self._before is not None and not self.interrupts.whole:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook = self._hook
            NOW.remove(self.interrupts)
        if self.interrupts.asked and kind is not None and issubclass(kind, Exception):
            raise KeyboardInterrupt from None


# ------------------------------------------------------------------------------------------------------------- process
def whole_process(run: "Callable[[], int]") -> "NoReturn":
    """End this process with the status that `run` returns; an interrupt at any moment ends it with its own."""
    with listening(whole=True) as heard:
        try:
            _check_streams()
            status = run()
        except KeyboardInterrupt:
            status = interrupted()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException:
            status = interrupted() if heard.asked else _told(sys.exc_info())
        heard.over = True
        os._exit(_ended(status, heard))


def _told(error: tuple) -> int:
    """A fault of this program: whoever reports it needs all of it."""
    sys.excepthook(*error)
    return 1


def _ended(status: int, heard: Interrupts) -> int:
    """The status of a process whose command is over, when all that was registered for its end has been done.

    The interpreter does not take itself apart: threads of libraries would run into that, and an interrupt is not heard.
    """
    if not heard.asked:  # else threads may compute for long
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # said before, or closed
            continue
    return interrupted() if heard.asked and status != STATUS else status


def _check_streams() -> None:
    """Standard output and error that are closed go nowhere, and names that are no text are written as their bytes."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")


def interrupted() -> int:
    take()
    say(SENTENCE)
    return STATUS


def say(sentence: str) -> None:
    try:
        print(sentence, file=sys.stderr, flush=True)
    except OSError:
        return  # nobody listens
