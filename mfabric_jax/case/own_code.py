"""Rules for running users' code: it must be stated on the command line or in Python, not only in a file.

Cases, sweeps, jobs, rows and `.policy` files are data, which others may have written. They may name a FILE.py:FUNCTION
or a module. Such code runs only if its file or module is also stated on the command line (in any word, or by `--code`)
or in Python (`policies.allow_code`).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.case.policies import file_of, is_function, split_words
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import read_mapping

FLAG = "--code"
CODE_HELP = "Python files or modules whose code the input files may run; they run no other code"  # in help
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_allowed: set[str] = set()  # resolved paths of files, and names of modules
_commands: list[Sequence[str]] = []  # running commands; only code in their words may run


def allow_code(*code: str | Path) -> None:
    """Allow data files to run code of these Python files and modules: `allow_code("net.py", "mine.networks")`.

    `policies.load`, `load` of a case, `read_jobs` and the like refuse files that name other code.
    """
    for name in code:
        _allowed.add(_resolve_code(str(name)))


def allowed_code() -> tuple[str, ...]:
    """Return the code that may run in this process, so that it can be allowed in another process."""
    return tuple(sorted(_allowed))


@contextlib.contextmanager
def command_line(words: Sequence[str]) -> Iterator[list[str]]:
    """Yield the words without `--code`. Inside the block, only code that the words state may run."""
    other_words, code = _without_flag(words)
    stated = {file for word in other_words for file in _files_in(word)}
    before = set(_allowed)
    _allowed.clear()
    _commands.append(words)
    try:
        allow_code(*code, *stated)
        yield other_words
    finally:
        _commands.pop()
        _allowed.clear()
        _allowed.update(before)


def check_code(code: str, named: str) -> None:
    """Raise InputError unless the Python file or module `code`, which the file `named` names, is allowed."""
    if _resolve_code(code) not in _allowed:
        raise InputError(
            f"{named} names code to run, from {code!r}, but code that only a file names is not run; if you trust it, "
            f"add {FLAG} {code}, or in Python call policies.allow_code({code!r})."
        )


def check_stated(name: str, kind: str) -> None:
    """Apply `check_code` to FILE.py:FUNCTION if a command runs; in Python the caller has stated it."""
    if _commands:
        check_code(file_of(name), f"{kind} {name!r}")


def read_settings(path: str | Path, what: str) -> dict[str, Any]:
    """Read a file whose settings may name code. Raise InputError if that code is not allowed."""
    content = read_mapping(path, what)
    check_data(content, repr(str(path)))
    return content


def check_data(data: Any, named: str) -> None:
    """Apply `check_code` to every text in the content of the file `named`."""
    for text in _texts(data):
        if ".py:" in text and (file := _file_in(text)) is not None:
            check_code(file, f"{named} ({text!r:.80})")


def _texts(data: Any) -> Iterator[str]:
    left = [data]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item


def _file_in(text: str) -> str | None:
    """Return the file of a FILE.py:FUNCTION with or without settings; None for other texts."""
    try:
        return file_of(text) if is_function(text) else None
    except InputError:  # brackets without settings: not the name of a policy
        return None


def _files_in(word: str) -> Iterator[str]:
    """Yield the file of every FILE.py:FUNCTION in a word: alone, in a list, or after an equals sign."""
    for piece in split_words(word):
        parts = piece.split("=")
        for first in range(len(parts)):
            if (file := _file_in("=".join(parts[first:]))) is not None:
                yield file


def _without_flag(words: Sequence[str]) -> tuple[list[str], list[str]]:
    others, code, left = [], [], list(words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag != FLAG:
            others.append(word)
            continue
        if not equals and (not left or left[0].startswith("--")):
            raise InputError(f"option {FLAG} needs Python files or modules after it, such as net.py.")
        code += split_words(value if equals else left.pop(0))
    return others, code


def _resolve_code(code: str) -> str:
    """Return a file by its resolved path, a module by its name. Raise InputError if it is neither."""
    if code.endswith(".py") or "/" in code:
        return str(Path(code).resolve())
    if not MODULE.fullmatch(code):
        raise InputError(f"{FLAG} must be a Python file (FILE.py) or the name of a module, got {code!r:.80}.")
    return code
