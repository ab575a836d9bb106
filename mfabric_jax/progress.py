"""Progress bars: on standard error of a terminal, as a widget or text in a notebook."""

import sys
from typing import Any


def bar(what: str, unit: str, total: int | None = None, found: int = 0, **form: Any) -> Any:
    """A progress bar; `found`: how many units there are before the run begins. Hidden where standard error is a file
    and no notebook, and without tqdm (extra `cli`)."""
    try:
        import tqdm
        import tqdm.auto
    except ModuleNotFoundError:
        return NoBar(found)
    hidden = False if in_notebook() else None
    return tqdm.auto.tqdm(desc=what, unit=unit, total=total, initial=found, file=sys.stderr, disable=hidden, **form)


class NoBar:
    """What is asked of a bar, where there is none. `n`: units that are done."""

    def __init__(self, found: int = 0):
        self.n = found

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def update(self, units: int = 1) -> None:
        """So many more units are done."""
        self.n += units

    def set_postfix_str(self, words: str) -> None:
        """Words that a bar shows."""

    def write(self, line: str, file: Any = None) -> None:
        """A line that a bar leaves alone."""
        print(line, file=file)

    def close(self) -> None:
        """The bar goes."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
