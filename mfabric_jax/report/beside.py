"""Pictures drawn by another process: it loads what draws while this one computes."""

import contextlib
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.origin import python

SERVE = "from mfabric_jax.report.beside import serve; serve()"


class Beside:
    """A process that draws; what it cannot do is done here."""

    def __init__(self) -> None:
        self._asked: list[tuple[Callable[..., Any], tuple]] = []
        self._process: subprocess.Popen | None = None
        with contextlib.suppress(OSError, TypeError):  # no room for a process, no path to Python
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            # A session of its own: an interrupt is for the process that computes.
            self._process = subprocess.Popen(python(SERVE), **pipes, start_new_session=True)

    def draw(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Ask for `function(*arguments)`, a function at the top of a module."""
        self._asked.append((function, arguments))
        with self._or_stop():
            if self._process is not None:
                pickle.dump((function, arguments), self._process.stdin)  # type: ignore[arg-type]
                self._process.stdin.flush()  # type: ignore[union-attr]

    def results(self) -> list[Any]:
        """Of everything that was asked for, in order; what a function raised is raised here."""
        return [self._result(function, arguments) for function, arguments in self._asked]

    def _result(self, function: Callable[..., Any], arguments: tuple) -> Any:
        with self._or_stop():
            if self._process is not None:
                result, error = pickle.load(self._process.stdout)  # type: ignore[arg-type]
                if error is None:
                    return result
                self.stop()  # it is raised again where somebody sees it
        return function(*arguments)

    @contextlib.contextmanager
    def _or_stop(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, pickle.PickleError, ImportError, AttributeError):  # the process is gone, or strange
            self.stop()

    def stop(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def drawing() -> Iterator[Beside]:
    """A process that draws, until the end of the block."""
    beside = Beside()
    try:
        yield beside
    finally:
        beside.stop()


def called(name: str, *arguments: Any) -> Any:
    """What MODULE:FUNCTION gives: `draw` of it leaves to the other process what the module loads."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def serve() -> None:
    """Draw what the other process asks for, until it has nothing more to ask."""
    asked, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what functions print is no answer
    with contextlib.suppress(ImportError, InputError):
        importlib.import_module("mfabric_jax.report.figures")
    while True:
        try:
            function, arguments = pickle.load(asked)
        except EOFError:
            return
        try:
            answer = function(*arguments), None
        except Exception as error:
            answer = None, repr(error)
        pickle.dump(answer, answers)
        answers.flush()
