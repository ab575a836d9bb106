"""What a file of another tool says and its reader leaves out, though it could change a number: named, never dropped."""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator

MOST_NAMED = 12


class Unread(UserWarning):
    """A part of a file that is not read."""


def name_unread(file: str, what: str, names: Iterable[str]) -> None:
    """Warn that a file (quoted) has these fields, or what they are, which are not read; nothing for no names."""
    every = list(dict.fromkeys(names))
    if not every:
        return
    shown = ", ".join(every[:MOST_NAMED])
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    say_unread(f"{file}: {what} are not read, though they could change a number: {shown}{more}.")


def say_unread(sentence: str) -> None:
    """Warn that a part of a file is not read, or has no meaning here."""
    warnings.warn(sentence, Unread, 3)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Print `Unread` as a line on standard error; show other warnings as before."""
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
