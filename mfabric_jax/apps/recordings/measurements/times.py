"""The output of one run of a measuring tool: a time per size, and ranks and servers if the output states them."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from mfabric_jax.checks import InputError, positive, whole

LARGEST = 1 << 26  # bytes of a file
TABLE = re.compile(r"#\s*size\s+count\b|#\s+bytes\s+N\b|# OSU |#bytes\s+#iterations")  # header of any tool's table


class MeasuredTime(NamedTuple):
    """One measured time. `bytes`: of one rank, as the tool counts them; `ports.port_share` gives the part over a
    port."""

    kind: str
    bytes: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run in a file; None: the file does not state the value.

    - `program`: the measuring program. Each program, kind, number of ranks and ranks per server is fitted separately.
    - `nics`: whether the tool measures NICs, never links inside a server.
    """

    file: str
    tool: str
    program: str
    times: tuple[MeasuredTime, ...]
    ranks: int | None = None
    servers: int | None = None
    nics: bool = False

    def __post_init__(self):
        if not self.times:
            raise InputError(
                f"{self.file} is output of {self.tool} but holds no measured time; give the complete output."
            )
        if self.ranks and self.servers and self.ranks % self.servers:
            raise InputError(f"{self.file}: ranks must be a multiple of its {self.servers} servers, got {self.ranks}.")


def check_time(where: str, kind: str, size: float, seconds: float) -> MeasuredTime:
    """Return a checked time. `where`: file and line, for error messages."""
    return MeasuredTime(kind, positive(f"{where}: bytes", size), positive(f"{where}: seconds", seconds))


def number_in(where: str, field: str, word: str) -> float:
    """Return the number in a word of a table. Raise `InputError` for any other word."""
    try:
        return float(word)
    except ValueError:
        raise InputError(f"{where}: {field} must be a number, got {word!r:.80}.") from None


def count_in(where: str, field: str, word: str) -> int:
    """Return the whole number in a word. Raise `InputError` unless it is at least 1."""
    if not (word.isascii() and word.isdigit() and len(word) < 20):
        raise InputError(f"{where}: {field} must be a whole number of at least 1, got {word!r:.80}.")
    return whole(f"{where}: {field}", int(word))


def is_count(word: str) -> bool:
    """Whether a word consists of digits only."""
    return word.isascii() and word.isdigit()
