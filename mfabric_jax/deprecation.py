"""Names that are to go: the old one works for a minor version more, and warns once; and warnings of ours as lines."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Iterator

from mfabric_jax.support.unread import Unread


class Deprecated(DeprecationWarning):
    """A name of this package that is to go."""


@functools.cache
def deprecated(old: str, new: str) -> None:
    """Warn at the first use in a process that `old` is to go, and what says the same now."""
    warnings.warn(f"{old} is to go in the next minor version; use {new} instead.", Deprecated, stacklevel=2)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """`Deprecated` and `Unread` are lines on standard error inside; other warnings are shown as before."""
    with warnings.catch_warnings():
        before = warnings.showwarning

        def show(message, category, filename, lineno, file=None, line=None):
            if issubclass(category, Deprecated | Unread):
                print(f"mfabric: {message}", file=sys.stderr)
            else:
                before(message, category, filename, lineno, file, line)

        for ours in (Deprecated, Unread):
            warnings.filterwarnings("default", category=ours)
        warnings.showwarning = show
        yield
