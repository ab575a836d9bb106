"""Typed access to the fields of a released `config.json`."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax import checks
from mfabric_jax.checks import InputError

NEEDED = object()
Names = str | tuple[str, ...]


class Config:
    """Typed access to the fields of a file. Errors name the field and the file.

    - `read`: the fields that were read, by path of their table.
    - `tied`: whether embedding and head are one matrix, if another table says it; `blocks`: their number, if another
      table says it.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        named: str,
        path: str = "",
        read: dict[str, set[str]] | None = None,
        tied: bool | None = None,
    ):
        self.values, self.named, self.path, self.tied = values, named, path, tied
        self.read = {} if read is None else read
        self.read[path] = set()
        self.names: dict[str, tuple[str, ...]] = {}
        self.blocks: int | None = None

    def rename(self, **names: Names) -> None:
        """State under which other names this layout has some fields."""
        self.names |= {field: (other,) if isinstance(other, str) else other for field, other in names.items()}

    def no_number(self, *fields: str) -> None:
        """Mark as read the fields that change no number in this layout."""
        self.read[self.path].update(fields)

    def not_counted(self, *fields: str) -> None:
        """Mark as not read the fields that say what no number has, so that they are named."""
        self.read[self.path].difference_update(fields)

    def name_of(self, field: str) -> str:
        """Return the name under which the table has a field; the layout's first name for it if the table lacks it."""
        others = self.names.get(field, ())
        some = [name for name in (*others, field) if self.values.get(name) is not None]
        return next(iter(some), (*others, field)[0])

    def has(self, field: str) -> bool:
        return self.values.get(self.name_of(field)) is not None

    def is_list(self, field: str) -> bool:
        return isinstance(self.values.get(self.name_of(field)), list)

    def _value(self, field: str, default: Any) -> Any:
        self.no_number(field)
        value = self.values.get(field)
        if value is None and default is NEEDED:
            raise InputError(f"{self.named} must have the field {field}.")
        return default if value is None else value

    def whole(self, field: str, default: Any = NEEDED, at_least: int = 0) -> int:
        """Return a whole number; `default` if the field is missing or null."""
        name = self.name_of(field)
        return checks.whole(f"{name} of {self.named}", self._value(name, default), at_least=at_least)

    def same(self, field: str, default: Any = NEEDED, at_least: int = 0) -> int:
        """Return a whole number, or that of a list of equal numbers, one for each block."""
        name = self.name_of(field)
        value = self._value(name, default)
        if not isinstance(value, list):
            return checks.whole(f"{name} of {self.named}", value, at_least=at_least)
        numbers = [checks.whole(f"{name} of {self.named}", entry, at_least=at_least) for entry in value]
        if len({*numbers}) != 1:
            got = f"{len({*numbers})} different ones" if numbers else "none"
            raise InputError(f"{name} of {self.named} must be one number for all blocks, got {got}.")
        return numbers[0]

    def flag(self, field: str, default: bool = False) -> bool:
        value = self._value(self.name_of(field), default)
        if not isinstance(value, bool):
            raise InputError(f"{field} of {self.named} must be true or false, got {value!r:.80}.")
        return value

    def word(self, field: str, default: str, allowed: tuple[str, ...]) -> str:
        """Return one of the allowed words. The error proposes no similar word, since similar words mean different
        things."""
        value = self._value(field, default)
        if value not in allowed:
            raise InputError(f"{field} of {self.named} must be {' or '.join(allowed)}, got {value!r:.80}.")
        return value

    def each(self, field: str, allowed: tuple | None = None, further: int = 0) -> list:
        """Return a list, empty if missing: one of `allowed` per block, or places of blocks.

        - `further`: entries for blocks that predict further tokens, which may follow and are left out.
        """
        value, blocks = self._value(field, []), self.blocks or self.whole("num_hidden_layers", at_least=1)
        if not isinstance(value, list):
            raise InputError(f"{field} of {self.named} must be a list, got {value!r:.80}.")
        wrong = [entry for entry in value if (entry not in allowed if allowed else not _is_place(entry, blocks))]
        if wrong or (allowed and value and len(value) not in (blocks, blocks + further)):
            what = f"{blocks} of {', '.join(map(str, allowed))}" if allowed else f"places from 0 to {blocks - 1}"
            raise InputError(f"{field} of {self.named} must be {what}, got {wrong[:3] or len(value)!s:.80}.")
        return value[:blocks] if allowed else value

    def inside(self, field: str) -> "Config":
        value = self._value(field, NEEDED)
        if not isinstance(value, dict):
            raise InputError(f"{field} of {self.named} must be a table, got {value!r:.80}.")
        return Config(value, f"{field} of {self.named}", f"{self.path}.{field}".lstrip("."), self.read)


def _is_place(value: Any, blocks: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < blocks
