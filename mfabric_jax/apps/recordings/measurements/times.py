"""What a run of a measuring tool printed: a time for every size, and who took part as far as the output says."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from mfabric_jax.checks import InputError, positive, whole

LARGEST = 1 << 26  # bytes of a file
TABLE = re.compile(r"#\s*size\s+count\b|#\s+bytes\s+N\b|# OSU |#bytes\s+#iterations")  # begins a table of any tool


class Timed(NamedTuple):
    """One measured time. `bytes`: of one rank as the tool counts them; `ports.port_share` says what crosses a port."""

    kind: str
    bytes: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run in a file; None: the file does not say it.

    - `program`: what measured, by which runs are fitted apart, as they are by kind, ranks and ranks of a server.
    - `nics`: the tool measures NICs, never a server's inside.
    """

    file: str
    tool: str
    program: str
    times: tuple[Timed, ...]
    ranks: int | None = None
    servers: int | None = None
    nics: bool = False

    def __post_init__(self):
        if not self.times:
            raise InputError(f"{self.file} is output of {self.tool} but holds no measured time; give a whole output.")
        if self.ranks and self.servers and self.ranks % self.servers:
            raise InputError(f"{self.file}: ranks must be a multiple of its {self.servers} servers, got {self.ranks}.")


def timed(where: str, kind: str, size: float, seconds: float) -> Timed:
    """A checked time; `where` names file and line in a mistake."""
    return Timed(kind, positive(f"{where}: bytes", size), positive(f"{where}: seconds", seconds))


def number_in(where: str, field: str, word: str) -> float:
    """The number that a word of a table is. `InputError` for any other word."""
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{where}: {field} must be a number, got {word!r:.80}.") from None


def count_in(where: str, field: str, word: str) -> int:
    """The whole number from 1 on that a word is."""
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise InputError(f"{where}: {field} must be a whole number of at least 1, got {word!r:.80}.")
    return whole(f"{where}: {field}", int(word))


def is_count(word: str) -> bool:
    """Whether a word is digits alone."""
    return word.isascii() and word.isdigit()
