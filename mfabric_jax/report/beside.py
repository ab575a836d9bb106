"""Pictures drawn by another process: it loads what draws while this one computes."""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

Draw = Callable[..., "Future[Any]"]


@contextlib.contextmanager
def drawing() -> Iterator[Draw]:
    """`draw(function, *arguments)` of functions that draw; its result is there when the other process is done."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_calmly) as pool:
        pool.submit(_load)
        yield pool.submit


def _calmly() -> None:
    """An interrupt is for the process that computes, which ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _load() -> None:
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
