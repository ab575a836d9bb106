"""Sweeps of replays: each row equals the row of `replay` with the same settings."""

import dataclasses
import functools
import operator
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from mfabric_jax.apps.graphs.replay.replay_paths import DTYPE
from mfabric_jax.apps.graphs.replay.replay_settings import UNREAD, Replay
from mfabric_jax.apps.graphs.replay.replayed import gains, replay_row
from mfabric_jax.apps.graphs.replay.run import replay
from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph
from mfabric_jax.case import Case
from mfabric_jax.case.grid import Setting
from mfabric_jax.case.paths import Leaf, SettingChoice, parts_of, settings
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.sharded import Estimate
from mfabric_jax.support.text_files import cached_by_files

GIVEN = {"ranks": int, "communicators": str, "tflops": float, "memory_gigabytes_per_s": float}
GIVEN |= {"unbounded_bytes": float, "weights": str}  # fields of `Supplied`, with their types in the file of a sweep
SCHEDULES = ("circuits.schedule", "circuits.switches", "circuits.all_stop", "circuits.directed")
OF_CASES = ("gpu.", "network.", "circuits.policy", "circuits.delay_s", "circuits.ocs", *SCHEDULES, "run.seed")
PLAIN = (int, float, str, bool, type(None))


def _kind(setting: Leaf | SettingChoice) -> Any:
    if isinstance(setting, SettingChoice):
        return str
    literal = [part for part in parts_of(setting.kind) if typing.get_origin(part) is Literal]
    kinds = {type(value) for part in literal for value in typing.get_args(part)}
    kinds |= {part if part in PLAIN else str for part in parts_of(setting.kind) if part not in literal}
    return functools.reduce(operator.or_, kinds)


def _settings() -> dict[str, Setting]:
    by_name = {"workload": Setting("", str)} | {name: Setting(None, kind | None) for name, kind in GIVEN.items()}
    by_name |= {"gradient": Setting(False, bool)}
    hints = typing.get_type_hints(Replay)
    for field in dataclasses.fields(Replay):
        kind = str if typing.get_origin(hints[field.name]) is Literal else hints[field.name]
        by_name[field.name] = Setting(field.default, kind, type(field.default) in (int, float))
    for setting in settings().values():
        if setting.path.startswith(OF_CASES) and setting.path not in UNREAD:
            by_name[setting.path] = Setting(None, _kind(setting), setting.traced or setting.path == "run.seed")
    return by_name


class Replays:
    """Replays of one task-graph file on variants of one case."""

    SETTINGS: ClassVar = _settings()
    ROWS_PER_SHARD = 64

    def __init__(self, code: Mapping[str, Any], data: Mapping[str, Any], dtype: str):
        self.code, self.data, self.dtype = {**code}, {**data}, dtype
        if not code["workload"]:
            raise InputError("workload must be the file of a task graph, got none; give it in [fixed].")
        if dtype != DTYPE:
            raise InputError(
                f"dtype of a sweep of replays must be {DTYPE!r}, in which replays are computed, got {dtype!r}."
            )
        self._case_and_settings(data)

    def _case_and_settings(self, data: Mapping[str, Any]) -> tuple[Case, Replay]:
        values = {**self.code, **data}
        of_case = {name: value for name, value in values.items() if name.startswith(OF_CASES) and value is not None}
        own = {field.name: values[field.name] for field in dataclasses.fields(Replay)}
        return Case().with_(of_case), Replay(**own)

    def check(self, data: Mapping[str, np.ndarray]) -> None:
        """Raise `InputError` for settings that `Replay` or a case refuses."""
        for row in {tuple(row.items()): row for row in _rows(data)}.values():
            self._case_and_settings(row)

    def effective(self) -> dict[str, Any]:
        return {name: value for name, value in {**self.code, **self.data}.items() if value is not None}

    def constant_columns(self) -> dict[str, Any]:
        """Return the columns that every row shows, even if they are constant."""
        return {"workload": self.code["workload"]}

    def rows(
        self, data: Mapping[str, np.ndarray], most: int, before: Callable[[Estimate], None] | None = None
    ) -> dict[str, Any]:
        graph = _read(self.code["workload"], **{name: self.code[name] for name in GIVEN})
        results = []
        for row in _rows(data):
            (done,) = replay(graph, *self._case_and_settings(row))
            results.append(replay_row(done, gains(done) if self.code["gradient"] else None))
        return {name: np.array([row[name] for row in results]) for name in results[0] if name not in self.SETTINGS}


def _rows(data: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    return [dict(zip(data, row, strict=True)) for row in zip(*(x.tolist() for x in data.values()), strict=True)]


def _files(workload: str, communicators: str | None = None, weights: str | None = None, **options: Any) -> tuple:
    """The files that a task graph is read from; for a prefix, the folder of its set."""
    path = Path(workload)
    return path if path.exists() else path.parent, communicators, weights


@cached_by_files(_files, maxsize=1)
def _read(workload: str, **options: Any) -> TaskGraph:
    return read_with_remarks(workload, **{name: value for name, value in options.items() if value is not None}).graph
