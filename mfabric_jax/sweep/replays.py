"""Replays of a sweep: a row is that of `replay` with the same settings."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.replay._replay import effective_replay, replay
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.replay.replayed import gains, replay_row
from mfabric_jax.simulation.batch import Estimate
from mfabric_jax.study.fields import allowed_types, choices, hints
from mfabric_jax.sweep.axes import Setting
from mfabric_jax.tasks.formats.files import LeftOut
from mfabric_jax.tasks.formats.registry import read_with_remarks
from mfabric_jax.tasks.graph import TaskGraph

KINDS = (int, float, str)  # that a file of a sweep has
GIVEN = {
    name: next(kind for kind in KINDS if kind in allowed_types(hint)) | None for name, hint in hints(LeftOut).items()
}
ONE_OF_MANY = {"fabric": "fabrics", "nic_gbps": "nic_gbps"}  # in a sweep one value
LEFT_OPEN = {"optical_degree": int, "electrical_nics": int}  # None stands for what others imply


def _settings() -> dict[str, Setting]:
    """Those of `Replay`, with one fabric and one bandwidth, the graph's file and what it leaves out."""
    found = {"workload": Setting("", str)} | {name: Setting(None, kind) for name, kind in GIVEN.items()}
    found |= {"gradient": Setting(False, bool)}
    for field in dataclasses.fields(Replay):
        hint, default = hints(Replay)[field.name], field.default
        if values := choices(hint):
            hint = type(values[0])
        found[field.name] = Setting(default, str if field.name == "policy" else hint, type(default) in (int, float))
    for name, kind in LEFT_OPEN.items():
        found[name] = Setting(None, kind | None, True)
    for one, many in ONE_OF_MANY.items():
        (default,) = found.pop(many).default
        found[one] = Setting(default, type(default), type(default) is float)
    del found["dtype"]
    return found


class Replays:
    """Replays of one file on one fabric."""

    SETTINGS: ClassVar = _settings()
    ROWS_PER_SHARD = 64

    def __init__(self, code: Mapping[str, Any], data: Mapping[str, Any], dtype: str):
        self.code, self.data, self.dtype = {**code}, {**data}, dtype
        if not code["workload"]:
            raise InputError("workload must be the file of a graph of tasks, got none; give it in [fixed].")
        self._config(data)

    def _config(self, data: Mapping[str, Any]) -> Replay:
        given = {**self.code, **data}
        own = {name: value for name, value in given.items() if name not in (*GIVEN, "workload", "gradient")}
        for one, many in ONE_OF_MANY.items():
            own[many] = (own.pop(one),)
        return Replay(**own, dtype=self.dtype)  # type: ignore[arg-type]

    @staticmethod
    def resolved(code: dict[str, Any], given: set[str]) -> dict[str, Any]:
        """Settings as they are."""
        return code

    def check(self, data: Mapping[str, np.ndarray]) -> None:
        """`InputError` for settings that `Replay` refuses."""
        for row in {tuple(row.items()): row for row in _rows(data)}.values():
            self._config(row)

    def effective(self) -> dict[str, Any]:
        """The configuration of what does not vary."""
        return self.code | effective_replay(self._config(self.data))

    def shown(self) -> dict[str, Any]:
        """What every row says though it may not vary."""
        return {name: self.code[name] for name in ("workload", "fabric")} | {"nic_gbps": self.data["nic_gbps"]}

    def rows(
        self, data: Mapping[str, np.ndarray], most: int, before: Callable[[Estimate], None] | None = None
    ) -> dict[str, Any]:
        """Columns of results [N]."""
        graph = _read(self.code["workload"], **{name: self.code[name] for name in GIVEN})
        found = []
        for row in _rows(data):
            (done,) = replay(graph, self._config(row))
            found.append(replay_row(done, gains(done) if self.code["gradient"] else None))
        return {name: np.array([row[name] for row in found]) for name in found[0] if name not in self.SETTINGS}


def _rows(data: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    return [dict(zip(data, row, strict=True)) for row in zip(*(x.tolist() for x in data.values()), strict=True)]


@functools.lru_cache(maxsize=1)
def _read(workload: str, **given: Any) -> TaskGraph:
    return read_with_remarks(workload, **{name: value for name, value in given.items() if value is not None}).graph
