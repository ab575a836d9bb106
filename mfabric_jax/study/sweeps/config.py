"""A design space as its file says it, checked before any compute."""

import dataclasses
import functools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, distinct, one_of, whole
from mfabric_jax.study.settings import DTYPES
from mfabric_jax.study.sweeps import axes
from mfabric_jax.study.sweeps.exchanges import Exchanges
from mfabric_jax.study.sweeps.iterations import Iterations
from mfabric_jax.study.sweeps.settings import check_setting

KINDS: dict[str, Any] = {"iteration": Iterations, "all-to-all": Exchanges}
LOADERS = {".toml": tomllib.loads, ".json": json.loads}
INDEX = "configuration"


class Group(NamedTuple):
    """Configurations that one program runs: `code`, what they have in common; `rows` [N]: which they are."""

    code: dict[str, Any]
    rows: np.ndarray


class Shard(NamedTuple):
    """Part of a group, one file of rows."""

    number: int
    group: Group
    rows: np.ndarray


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A design space.

    - `evaluate`: "iteration": a whole training iteration, with the settings of `Compare` (`model` and `fabric` for
      `models` and `fabrics`, one value each) and `sample`; "all-to-all": one all-to-all of a region.
    - `fixed`: settings of all configurations; the others keep their defaults.
    - `grid`: every combination of the values.   - `list`: values read side by side.   - `random`: a range
      (`low`, `high`, `scale` linear or log, `whole`) or a choice (`of`), drawn `draws` times for every combination.
    - `rows_per_shard`: of a file; None: 1,024 iterations or 8,192 all-to-alls.
    """

    evaluate: str = "iteration"
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    grid: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    list: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    random: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    draws: int = None  # type: ignore[assignment]
    draw_seed: int = 0
    rows_per_shard: int | None = None
    dtype: str = "float32"

    def __post_init__(self):
        one_of("evaluate", self.evaluate, KINDS)
        one_of("dtype", self.dtype, DTYPES)
        for table in ("fixed", "grid", "list", "random"):
            if not isinstance(getattr(self, table), Mapping):
                raise InputError(f"{table} must be a table of settings, got {getattr(self, table)!r}.")
        if self.draws is None:
            object.__setattr__(self, "draws", 1)
        elif not self.random:
            raise InputError("draws is how often the axes of [random] are drawn, but there is none.")
        whole("draws", self.draws)
        whole("draw_seed", self.draw_seed, at_least=0)
        if self.rows_per_shard is not None:
            whole("rows_per_shard", self.rows_per_shard)
        axes.check_axes(self.grid, self.list, self.random)
        self._check_names()
        self._check_values()

    def _check_names(self) -> None:
        settings = self.kind.SETTINGS
        tables = {"fixed": self.fixed, "grid": self.grid, "list": self.list, "random": self.random}
        every = [name for table in tables.values() for name in table]
        if len(set(every)) < len(every):
            twice = next(name for name in every if every.count(name) > 1)
            raise InputError(f"setting {twice!r} must be in one of [fixed], [grid], [list] and [random], got it twice.")
        for where, table in tables.items():
            for name, value in table.items():
                one_of(f"setting of [{where}]", name, settings)
                for one in self._values(where, value):
                    check_setting(where, name, one, settings)

    @staticmethod
    def _values(where: str, value: Any) -> tuple:
        if where == "fixed":
            return (value,)
        if where == "random":
            return tuple(value["of"]) if "of" in value else tuple(axes.columns({}, {}, {"": value}, 1, 0)[""].tolist())
        return tuple(value)

    def _check_values(self) -> None:
        """Every program's configuration, and the ends of what is data."""
        for group in self.groups:
            self.program(group).check(self.data(group.rows))

    @property
    def kind(self) -> Any:
        """What is evaluated."""
        return KINDS[self.evaluate]

    def program(self, group: Group) -> Any:
        """What evaluates a group."""
        first = {name: values.tolist()[0] for name, values in self.data(group.rows[:1]).items()}
        return self.kind(group.code, first, self.dtype)

    @property
    def count(self) -> int:
        """Configurations."""
        return axes.count(self.grid, self.list, self.draws)

    @functools.cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """What varies [N], axis by axis."""
        settings = self.kind.SETTINGS
        found = axes.columns(self.grid, self.list, self.random, self.draws, self.draw_seed)
        return {name: _as(settings[name].type, values) for name, values in found.items()}

    def data(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """What is data in one program [N], of these configurations: what varies, and the rest as it is fixed."""
        varied, settings = self.columns, self.kind.SETTINGS
        found = {}
        for name, setting in settings.items():
            if setting.data:
                fixed = self.fixed.get(name, setting.default)
                found[name] = varied[name][rows] if name in varied else np.full(len(rows), fixed)
        return found

    @functools.cached_property
    def groups(self) -> tuple[Group, ...]:
        """The configurations by what is code, in order of first appearance."""
        settings, varied = self.kind.SETTINGS, self.columns
        code = {name: self.fixed.get(name, s.default) for name, s in settings.items() if not s.data}
        code = self.kind.resolved(code, {*self.fixed, *varied})
        several = [name for name in varied if not settings[name].data]
        if not several:
            return (Group(code, np.arange(self.count)),)
        members: dict[tuple, Any] = {}
        for row, key in enumerate(zip(*(varied[name].tolist() for name in several), strict=True)):
            members.setdefault(key, []).append(row)
        return tuple(
            Group(code | dict(zip(several, key, strict=True)), np.asarray(rows)) for key, rows in members.items()
        )

    @functools.cached_property
    def shards(self) -> tuple[Shard, ...]:
        """All of them, numbered."""
        parts = [
            (group, group.rows[at : at + self.full_shard(group)])
            for group in self.groups
            for at in range(0, len(group.rows), self.full_shard(group))
        ]
        return tuple(Shard(number, group, rows) for number, (group, rows) in enumerate(parts))

    def full_shard(self, group: Group) -> int:
        """Rows of its files but the last."""
        return min(self.rows_per_shard or self.kind.ROWS_PER_SHARD, len(group.rows))


def _as(hint: Any, values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64) if hint is float and values.dtype.kind in "iu" else values


def read_sweep(path: str | Path) -> Sweep:
    """The design space of a .toml or .json file. `InputError` for a file that cannot be read and for unknown keys."""
    path = Path(path)
    loads = LOADERS[one_of(f"sweep {str(path)!r}: extension", path.suffix, LOADERS)]
    try:
        given = loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"cannot read {str(path)!r} ({why}); give a .toml or .json file.") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} is not {path.suffix[1:].upper()} ({error}).") from None
    if not isinstance(given, dict):
        raise InputError(f"{str(path)!r} must hold a table of settings, got {given!r}.")
    known = distinct("fields", [field.name for field in dataclasses.fields(Sweep)])
    for name in given:
        one_of("sweep setting", name, known)
    return Sweep(**given)
