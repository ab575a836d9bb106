"""What a file of another tool says and its reader leaves out, though it could change a number: named, never dropped."""

import warnings
from collections.abc import Iterable

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
