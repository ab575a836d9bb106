"""Progress bars: on standard error of a terminal, as a widget or text in a notebook."""

import sys
from typing import Any


def bar(what: str, unit: str, total: int | None = None, found: int = 0, **form: Any) -> Any:
    """A progress bar; `found`: how many units there are before the run begins. Hidden where standard error is a file
    and no notebook. `ModuleNotFoundError` without tqdm."""
    import tqdm  # where it lacks, it is what the error names
    import tqdm.auto

    hidden = False if in_notebook() else None
    return tqdm.auto.tqdm(desc=what, unit=unit, total=total, initial=found, file=sys.stderr, disable=hidden, **form)


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})
