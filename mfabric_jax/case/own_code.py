"""Which code of yours may run: what a command line or Python states, never what only a file names.

Cases, sweeps, jobs, rows and `.policy` files are data, which others may have written. They may name a FILE.py:FUNCTION
or a module; it runs only if the same file or module is stated on the command line (in any word, or by `--code`) or in
Python (`policies.allow_code`).
"""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.case.policies import divided, file_of, is_function
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import read_mapping

FLAG = "--code"
SAID = "Python files or modules whose code the files given here may run; they run no other"  # in help
MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_allowed: set[str] = set()  # resolved paths of files, and names of modules
_commands: list[Sequence[str]] = []  # that run: their words state all that may run


def allow_code(*code: str | Path) -> None:
    """Let files of data run code of these Python files and modules: `allow_code("net.py", "mine.networks")`.

    `policies.load`, `load` of a case, `read_jobs` and the like refuse what names other code.
    """
    for one in code:
        _allowed.add(_known(str(one)))


def allowed_code() -> tuple[str, ...]:
    """What may run here, to allow it in another process."""
    return tuple(sorted(_allowed))


@contextlib.contextmanager
def command_line(words: Sequence[str]) -> Iterator[list[str]]:
    """The words without `--code`; until the end of the block, code runs only if these words state it."""
    rest, code = _without_flag(words)
    stated = {file for word in rest for file in _files_in(word)}
    before = set(_allowed)
    _allowed.clear()
    _commands.append(words)
    try:
        allow_code(*code, *stated)
        yield rest
    finally:
        _commands.pop()
        _allowed.clear()
        _allowed.update(before)


def check_code(code: str, named: str) -> None:
    """`InputError` unless the Python file or module `code`, which the file `named` asks for, is allowed."""
    if _known(code) not in _allowed:
        raise InputError(
            f"{named} names code to run, of {code!r}, and files run none unless it is stated; if you trust that code, "
            f"add {FLAG} {code}, in Python policies.allow_code({code!r})."
        )


def check_stated(name: str, kind: str) -> None:
    """`check_code` of FILE.py:FUNCTION where a command runs; in Python the caller states it."""
    if _commands:
        check_code(file_of(name), f"{kind} {name!r}")


def read_settings(path: str | Path, what: str) -> dict[str, Any]:
    """`read_mapping` of a file whose settings may name code; `InputError` where that is not allowed."""
    found = read_mapping(path, what)
    check_data(found, repr(str(path)))
    return found


def check_data(data: Any, named: str) -> None:
    """`check_code` of every text in the content of the file `named`."""
    for text in _texts(data):
        if ".py:" in text and (file := _file_in(text)) is not None:
            check_code(file, f"{named} ({text!r:.80})")


def _texts(data: Any) -> Iterator[str]:
    left = [data]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list | tuple):
            left += one


def _file_in(text: str) -> str | None:
    """The file of FILE.py:FUNCTION, with settings or without; None for another text."""
    try:
        return file_of(text) if is_function(text) else None
    except InputError:  # brackets that hold no settings: no name of a policy
        return None


def _files_in(word: str) -> Iterator[str]:
    """Files of every FILE.py:FUNCTION in a word: alone, in a list, or behind an equals sign."""
    for one in divided(word):
        parts = one.split("=")
        for first in range(len(parts)):
            if (file := _file_in("=".join(parts[first:]))) is not None:
                yield file


def _without_flag(words: Sequence[str]) -> tuple[list[str], list[str]]:
    rest, code, left = [], [], list(words)
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag != FLAG:
            rest.append(word)
            continue
        if not equals and (not left or left[0].startswith("--")):
            raise InputError(f"option {FLAG} needs Python files or modules behind it, such as net.py.")
        code += divided(value if equals else left.pop(0))
    return rest, code


def _known(code: str) -> str:
    """A file by its resolved path, a module by its name. `InputError` for what is neither."""
    if code.endswith(".py") or "/" in code:
        return str(Path(code).resolve())
    if not MODULE.fullmatch(code):
        raise InputError(f"{FLAG} must be a Python file (FILE.py) or the name of a module, got {code!r:.80}.")
    return code
