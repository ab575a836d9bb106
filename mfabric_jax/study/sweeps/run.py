"""A sweep: shard after shard, each a file as soon as it is ready; what is there already is not computed again."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import mfabric_jax
from mfabric_jax.atomic import check_folder
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.extras import extra
from mfabric_jax.policies import is_function
from mfabric_jax.study._compare import check_dtype
from mfabric_jax.study._provenance import provenance
from mfabric_jax.study.batch import Estimate
from mfabric_jax.study.sweeps import shards
from mfabric_jax.study.sweeps.config import INDEX, Shard, Sweep

ENGINES = ("local", "ray")
LISTED = 1000  # values of a list in a footer
OF_FILES = ("policy", "trace", "prices", "traffic")  # settings that may name a file


class Progress(NamedTuple):
    """What `sweep` tells: rows that are done (`found`: that were there before), of all that are its to do."""

    done: int
    found: int
    rows: int
    estimate: Estimate | None = None


def sweep(
    config: Sweep,
    folder: str | Path,
    *,
    shard: tuple[int, int] = (1, 1),
    engine: str = "local",
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Path]:
    """Rows of every configuration, in files of the folder; returns those of this call's part.

    - `shard` (i, n): only every n-th file, from the i-th: n such calls, on as many machines, make the whole.
    - `engine`: "local": one after the other, each on all devices; "ray": `workers` processes (None: one for each GPU,
      or core), whose work others do again where one is lost.

    The same files come out whatever was interrupted, divided or lost. `InputError` before any compute for a folder of
    another sweep; while it runs for one that is full: what is written stays, and the same call goes on from there.
    """
    check_shard(shard)
    one_of("engine", engine, ENGINES)
    if workers is not None:
        whole("workers", workers)
    check_dtype(config.dtype)
    folder = Path(folder)
    with extra("store", "writing .parquet"):
        import pyarrow  # noqa: F401
    check_folder(folder)
    shards.claim(folder, stated(config))
    mine = config.shards[shard[0] - 1 :: shard[1]]
    paths = {one.number: shards.path_of(folder, one.number) for one in mine}
    todo = [one for one in mine if not paths[one.number].exists()]
    state = _State(mine, todo, progress)
    if engine == "ray":
        from mfabric_jax.study.sweeps.ray_engine import run_on_ray

        run_on_ray(config, folder, todo, workers, state.finished)
    else:
        maker = Maker(config, folder)
        for one in todo:
            maker.make(one, state.told)
            state.finished(one)
    return list(paths.values())


def check_shard(shard: tuple[int, int]) -> None:
    """`InputError` unless 1 <= i <= n."""
    at, many = (whole("shard", part) for part in shard)
    if not 1 <= at <= many:
        raise InputError(f"shard must be i/n with i from 1 to n, got {at}/{many}.")


class _State:
    """What is done, for `progress`."""

    def __init__(self, mine: tuple[Shard, ...], todo: list[Shard], progress: Callable[[Progress], None] | None):
        rows = sum(len(one.rows) for one in mine)
        self.found = rows - sum(len(one.rows) for one in todo)
        self.now, self.progress = Progress(self.found, self.found, rows), progress
        self._tell()

    def told(self, estimate: Estimate) -> None:
        self.now = self.now._replace(estimate=estimate)
        self._tell()

    def finished(self, one: Shard) -> None:
        self.now = self.now._replace(done=self.now.done + len(one.rows))
        self._tell()

    def _tell(self) -> None:
        if self.progress:
            self.progress(self.now)


def stated(config: Sweep) -> dict[str, Any]:
    """The sweep as its folder keeps it: what JSON gives back is equal. The files that it reads are told by content."""
    resolved = {"rows_per_shard": config.rows_per_shard or config.kind.ROWS_PER_SHARD}
    read = {"version": mfabric_jax.__version__, "configurations": config.count, "files": fingerprints(config)}
    return json.loads(json.dumps(dataclasses.asdict(config) | resolved | read))


def _short(sweep: dict[str, Any]) -> dict[str, Any]:
    """A sweep for the footer of every file: long lists stay in the folder's own."""
    lists = {
        name: values if len(values) <= LISTED else f"{len(values)} values in {shards.CONFIG}"
        for name, values in sweep["list"].items()
    }
    return sweep | {"list": lists}


def fingerprints(config: Sweep) -> dict[str, str]:
    """Policies, recordings, prices and knobs that are files, or folders of them, with a digest of what they hold."""
    named = {str(group.code.get(name)) for group in config.groups for name in OF_FILES}
    paths = {name: Path(name.rpartition(":")[0] if is_function(name) else name) for name in named}
    return {name: _digest(path) for name, path in sorted(paths.items()) if path.exists()}


def _digest(path: Path) -> str:
    held = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            held.update(file.relative_to(path.parent).as_posix().encode())
            with file.open("rb") as opened:
                held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]


class Maker:
    """Makes shards; the program of one group is kept for the next shard of it."""

    def __init__(self, config: Sweep, folder: Path):
        self.config, self.folder = config, folder
        self.where, self.stated = provenance(config.dtype), _short(stated(config))
        self.made: tuple[Any, Any] = None, None

    def make(self, one: Shard, before: Callable[[Estimate], None] | None = None) -> Path:
        """Compute and write one."""
        if self.made[0] is not one.group.code:
            self.made = one.group.code, self.config.program(one.group)
        kind, data = self.made[1], self.config.data(one.rows)
        results = kind.rows(data, self.config.full_shard(one.group), before)
        settings = {name: values[one.rows] for name, values in self.config.columns.items()}
        same = {name: np.full(len(one.rows), value, object) for name, value in kind.shown().items()}
        varied = {name: "varies" for name in self.config.columns if kind.SETTINGS[name].data}
        footer = {"command": "sweep", "sweep": self.stated, "group": kind.effective() | varied, "shard": one.number}
        columns = {INDEX: one.rows} | same | settings | results
        return shards.write(shards.path_of(self.folder, one.number), columns, footer | self.where)
