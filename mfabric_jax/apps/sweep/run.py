"""Run a sweep part by part. Each part is a file; parts that the folder already holds are not computed again."""

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

import mfabric_jax
from mfabric_jax.apps.sweep.case_space import CaseSpace
from mfabric_jax.apps.sweep.design_space import Sweep
from mfabric_jax.case.own_code import allow_code, allowed_code
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.evaluate.problem import check_dtype
from mfabric_jax.evaluate.sharded import Estimate, drop_programs_if_crowded
from mfabric_jax.support.atomic import check_folder
from mfabric_jax.support.columns import Columns
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.parts import MISSING, SweepFolder
from mfabric_jax.support.text_files import digest

ENGINES = ("local", "ray")
MOST_LOST = 3  # workers that one part may crash before the sweep fails
OF_JAX = ("jax_enable_x64", "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


class Progress(NamedTuple):
    """Progress of a `sweep`.

    - `done`: finished rows of all `rows`; `found`: those finished before this call.
    - `again`: why parts are computed again.
    - `files`: files of this call; `files_found`: those that existed before it.
    - `solved`: finished rows of the current file.
    """

    done: int
    rows_found: int
    rows: int
    estimate: Estimate | None = None
    again: tuple[str, ...] = ()
    files: int = 0
    files_found: int = 0
    solved: int = 0


def sweep(
    config: CaseSpace | Sweep,
    folder: str | Path,
    *,
    shard: tuple[int, int] = (1, 1),
    engine: str = "local",
    workers: int | None = None,
    progress: Callable[[Progress], None] | None = None,
    columns: Columns | None = None,
) -> list[Path]:
    """Write the rows of every configuration to files of the folder, and return the files of this shard.

    - `shard` (i, n): compute only every n-th file, from the i-th, so that n machines share a sweep.
    - `engine`: "local" computes parts in sequence, each on all devices; "ray" uses `workers` processes (None: one per
      GPU or core) and repeats lost work.
    - `columns`: declares the detail columns that files leave out; None: files have every column.

    The files do not depend on interruptions or shards; damaged or misplaced files are computed again. Raise InputError
    before the computation if the folder is of another sweep, during it if a file cannot be written, and after it if
    files have vanished. Written files stay, and the same call resumes.
    """
    first, of = (whole("shard", number) for number in shard)
    if first > of:
        raise InputError(f"shard must be i/n with i from 1 to n, got {first}/{of}.")
    one_of("engine", engine, ENGINES)
    if workers is not None:
        whole("workers", workers)
    check_dtype(config.dtype)
    config.check()
    load_extra("store", "writing .parquet", "pyarrow")
    check_folder(folder)
    store = sweep_folder(config, Path(folder), columns)
    claimed = store.claim()
    mine = config.parts[first - 1 :: of]
    faults = {part.number: fault for part in mine if (fault := store.fault(part.number))}
    again = tuple(f"{store.part(number)} {fault}" for number, fault in faults.items() if fault != MISSING)
    todo = [part for part in mine if part.number in faults]
    rows = sum(len(part.rows) for part in mine)
    rows_found = rows - sum(len(part.rows) for part in todo)
    now = Progress(rows_found, rows_found, rows, None, again, len(mine), len(mine) - len(todo))

    def tell(**changes) -> None:
        nonlocal now
        now = now._replace(**changes)
        if progress:
            progress(now)

    def finish_part(part: Any) -> None:
        tell(done=now.done + len(part.rows), solved=0)

    tell()
    maker = Maker(config, store, [] if columns is None else [name for name in columns if columns[name].detail])
    try:
        if engine == "ray":
            run_on_ray(maker, todo, workers, finish_part)
        else:
            for part in todo:
                maker.make(part, lambda estimate: tell(estimate=estimate), lambda rows: tell(solved=now.solved + rows))
                finish_part(part)
    except InputError:
        if claimed:
            store.release()
        raise
    if todo:
        store.claim()
        gone = [store.part(part.number).name for part in mine if store.fault(part.number)]
        if gone:
            why = f"{len(gone)} of {len(mine)} files, {gone[0]} first, were removed or changed while the sweep ran"
            raise InputError(f"{str(folder)!r} is incomplete: {why}; run the same command again.")
    return [store.part(part.number) for part in mine]


def sweep_folder(config: Any, path: Path, columns: Columns | None = None) -> SweepFolder:
    """Return the folder of a sweep, identified by its settings, its version and the contents of its files."""
    read = {name: digest(file) for name, file in config.files().items() if file.exists()}
    made = {
        "version": mfabric_jax.__version__,
        "configurations": config.count,
        "parts": whole("parts", len(config.parts)),
        "all_columns": columns is None,
    }
    return SweepFolder(path, json.loads(json.dumps(config.identity() | made | {"files": read}, default=str)))


class Maker:
    """Makes parts of a sweep. `without`: columns that files leave out."""

    def __init__(self, config: Any, folder: SweepFolder, without: Sequence[str] = ()):
        self.config, self.folder, self.without = config, folder, frozenset(without)

    def make(
        self,
        part: Any,
        before: Callable[[Estimate], None] | None = None,
        solved: Callable[[int], None] | None = None,
    ) -> None:
        """Compute and write one part. `before` is called with the estimate of every program, `solved` with the number
        of rows solved one by one."""
        drop_programs_if_crowded()
        columns, footer = self.config.compute_part(part, before, solved)
        shown = {name: values for name, values in columns.items() if name not in self.without}
        self.folder.write(part.number, shown, footer)


# -- on Ray: every worker is a process that computes parts; parts of a lost worker are computed again


class Worker:
    """A process with the JAX configuration of its parent."""

    def __init__(self, maker: Any, settings: dict[str, Any], code: Sequence[str]):
        allow_code(*code)
        for name, value in settings.items():
            jax.config.update(name, value)
        self.maker = maker

    def make(self, number: int) -> None:
        self.maker.make(self.maker.config.parts[number])


def run_on_ray(maker: Any, todo: Sequence[Any], workers: int | None, on_finished: Callable[[Any], None]) -> None:
    """Compute parts on Ray. Raise InputError if a part crashes several workers or cannot be written."""
    ray = load_extra("cluster", "engine 'ray'", "ray")
    if not todo:
        return
    ours = not ray.is_initialized()
    if ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=workers)
    try:
        gpus = int(ray.cluster_resources().get("GPU", 0))
        remote = ray.remote(num_gpus=1)(Worker) if gpus else ray.remote(num_cpus=1)(Worker)
        many = min(workers or gpus or int(ray.cluster_resources()["CPU"]), len(todo))
        settings = {name: jax.config.values[name] for name in OF_JAX}
        if (device := jax.config.values["jax_default_device"]) is not None:
            settings["jax_default_device"] = device if isinstance(device, str) else device.platform
        _run(ray, lambda: remote.remote(maker, settings, allowed_code()), many, todo, on_finished)
    finally:
        if ours:
            ray.shutdown()


def _run(ray: Any, start: Callable[[], Any], workers: int, todo: Sequence[Any], on_finished: Callable) -> None:
    waiting, running, lost = list(todo), {}, dict.fromkeys((part.number for part in todo), 0)
    idle = [start() for _ in range(workers)]
    while waiting or running:
        while waiting and idle:
            worker, part = idle.pop(), waiting.pop(0)
            running[worker.make.remote(part.number)] = worker, part
        (ready,), _ = ray.wait(list(running), num_returns=1)
        worker, part = running.pop(ready)
        try:
            ray.get(ready)
        except ray.exceptions.RayActorError as error:
            lost[part.number] += 1
            if lost[part.number] >= MOST_LOST:
                why = str(error).splitlines()[0]
                raise InputError(f"file {part.number} crashed {MOST_LOST} workers in a row ({why}).") from error
            waiting.insert(0, part)
            idle.append(start())
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, InputError) else error) from None
        else:
            idle.append(worker)
            on_finished(part)
