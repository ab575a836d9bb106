"""Long runs: a sign of life while one thing takes long, and an interrupt that compiled code does not hide."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

EVERY_S = 10.0


@contextlib.contextmanager
def telling(tell: Callable[[float], None], every_s: float = EVERY_S) -> Iterator[None]:
    """While the block runs, `tell` is called with the seconds so far, every so many of them."""
    over, began = threading.Event(), time.monotonic()

    def beat() -> None:
        while not over.wait(every_s):
            tell(time.monotonic() - began)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """`KeyboardInterrupt` for an interrupt inside of a compiled program, of which JAX makes an error of its own."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number, frame) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield
    except Exception:
        if heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)
