"""Draw pictures in a second process, which loads matplotlib while this one computes."""

import contextlib
import importlib
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from mfabric_jax.checks import InputError
from mfabric_jax.support.origin import python

SERVE = "from mfabric_jax.report.drawing_process import serve; serve()"


class DrawingProcess:
    """A process that draws; if it fails, this process draws instead."""

    def __init__(self) -> None:
        self._requests: list[tuple[Callable[..., Any], tuple]] = []
        self._process: subprocess.Popen | None = None
        with contextlib.suppress(OSError, TypeError):  # no memory for a process, or no path to Python
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            # Its own session, so that Ctrl-C reaches only the process that computes.
            self._process = subprocess.Popen(python(SERVE), **pipes, start_new_session=True)

    def draw(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Request `function(*arguments)`; the function must be at the top level of a module."""
        self._requests.append((function, arguments))
        with self._or_stop():
            if self._process is not None:
                pickle.dump((function, arguments), self._process.stdin)  # type: ignore[arg-type]
                self._process.stdin.flush()  # type: ignore[union-attr]

    def results(self) -> list[Any]:
        """Return the results of all requests, in order; raise what a function raised."""
        return [self._result(function, arguments) for function, arguments in self._requests]

    def _result(self, function: Callable[..., Any], arguments: tuple) -> Any:
        with self._or_stop():
            if self._process is not None:
                result, error = pickle.load(self._process.stdout)  # type: ignore[arg-type]
                if error is None:
                    return result
                self.stop()  # running the function here raises its error again
        return function(*arguments)

    @contextlib.contextmanager
    def _or_stop(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, pickle.PickleError, ImportError, AttributeError):  # it ended or is out of step
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
def drawing() -> Iterator[DrawingProcess]:
    """Yield a process that draws; it is stopped at the end of the block."""
    process = DrawingProcess()
    try:
        yield process
    finally:
        process.stop()


def call_by_name(name: str, *arguments: Any) -> Any:
    """Call MODULE:FUNCTION; passed to `draw`, it lets the other process import the module."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)(*arguments)


def serve() -> None:
    """Answer the requests of the parent process until it closes the pipe."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # keep what functions print out of the answers
    with contextlib.suppress(ImportError, InputError):
        importlib.import_module("mfabric_jax.report.figures")
    while True:
        try:
            function, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = function(*arguments), None
        except Exception as error:
            answer = None, repr(error)
        pickle.dump(answer, answers)
        answers.flush()
