"""Warnings about parts of other tools' files that readers ignore although they could change a number."""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator

MOST_NAMED = 12


class Unread(UserWarning):
    """Warning that a part of a file is not read."""


def name_unread(file: str, what: str, names: Iterable[str]) -> None:
    """Warn that `names` in a file are not read, if there are any. `what` says what they are, such as "fields"."""
    every = list(dict.fromkeys(names))
    if not every:
        return
    shown = ", ".join(every[:MOST_NAMED])
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    say_unread(f"{file}: {what} are not read, though they could change a number: {shown}{more}.")


def say_unread(sentence: str) -> None:
    """Warn that a part of a file is not read or has no meaning here."""
    warnings.warn(sentence, Unread, 3)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Print each `Unread` as a line on standard error; other warnings are shown as before."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message, category, filename, lineno, file=None, line=None):
            if issubclass(category, Unread):
                print(f"mfabric: {message}", file=sys.stderr)
            else:
                before(message, category, filename, lineno, file, line)

        warnings.filterwarnings("default", category=Unread)
        warnings.showwarning = show
        yield
