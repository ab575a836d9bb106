"""A sweep: part after part, each in its file as soon as it is ready; a part that is there is not computed again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mfabric_jax
from mfabric_jax.atomic import check_folder
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.extras import extra
from mfabric_jax.parts import MISSING, SweepFolder
from mfabric_jax.simulation.batch import Estimate, drop_programs_if_crowded
from mfabric_jax.simulation.scenario import check_dtype
from mfabric_jax.sweep.case_space import CaseSpace
from mfabric_jax.sweep.design_space import Sweep
from mfabric_jax.sweep.ray_engine import run_on_ray

ENGINES = ("local", "ray")


class Progress(NamedTuple):
    """What `sweep` tells: rows that are done (`found`: that were there before), of all that are its to do.

    - `again`: a sentence for every part that was there but is made again.
    """

    done: int
    found: int
    rows: int
    estimate: Estimate | None = None
    again: tuple[str, ...] = ()


def sweep(
    config: CaseSpace | Sweep,
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

    The same files come out whatever was interrupted, divided or lost; files that are damaged or misplaced are made
    again. `InputError` before any compute for a folder of another sweep, while it runs for one that is full, and at the
    end for files that went while it ran: what is written stays, and the same call goes on from there.
    """
    first, of = (whole("shard", number) for number in shard)
    if first > of:
        raise InputError(f"shard must be i/n with i from 1 to n, got {first}/{of}.")
    one_of("engine", engine, ENGINES)
    if workers is not None:
        whole("workers", workers)
    check_dtype(config.dtype)
    config.check()
    with extra("store", "writing .parquet"):
        import pyarrow  # noqa: F401
    check_folder(folder)
    place = sweep_folder(config, Path(folder))
    claimed = place.claim()
    mine = config.parts[first - 1 :: of]
    faults = {part.number: fault for part in mine if (fault := place.fault(part.number))}
    again = tuple(f"{place.part(number)} {fault}" for number, fault in faults.items() if fault != MISSING)
    todo = [part for part in mine if part.number in faults]
    rows = sum(len(part.rows) for part in mine)
    found = rows - sum(len(part.rows) for part in todo)
    now = Progress(found, found, rows, None, again)

    def tell(**changes) -> None:
        nonlocal now
        now = now._replace(**changes)
        if progress:
            progress(now)

    def finished(part: Any) -> None:
        tell(done=now.done + len(part.rows))

    tell()
    maker = Maker(config, place)
    try:
        if engine == "ray":
            run_on_ray(maker, todo, workers, finished)
        else:
            for part in todo:
                maker.make(part, lambda estimate: tell(estimate=estimate))
                finished(part)
    except InputError:
        if claimed:
            place.release()
        raise
    if todo:
        place.claim()
        gone = [place.part(part.number).name for part in mine if place.fault(part.number)]
        if gone:
            why = f"{len(gone)} of {len(mine)} files, {gone[0]} first, were removed or changed while the sweep ran"
            raise InputError(f"{str(folder)!r} is not whole: {why}; run it again, which makes them again.")
    return [place.part(part.number) for part in mine]


def sweep_folder(config: Any, path: Path) -> SweepFolder:
    """The folder for a sweep: other settings, another version, or another content of a file make another sweep."""
    read = {name: _fingerprint(file) for name, file in config.files().items() if file.exists()}
    made = {
        "version": mfabric_jax.__version__,
        "configurations": config.count,
        "parts": whole("parts", len(config.parts)),
    }
    return SweepFolder(path, json.loads(json.dumps(config.described() | made | {"files": read}, default=str)))


def _fingerprint(path: Path) -> str:
    """Of what a file holds, or a folder of files."""
    held = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            held.update(file.relative_to(path.parent).as_posix().encode())
            with file.open("rb") as opened:
                held.update(hashlib.file_digest(opened, "sha256").digest())
    return held.hexdigest()[:16]


class Maker:
    """Computes and writes parts."""

    def __init__(self, config: Any, folder: SweepFolder):
        self.config, self.folder = config, folder

    def make(self, part: Any, before: Callable[[Estimate], None] | None = None) -> None:
        """One part; `before` is told the estimate of every program."""
        drop_programs_if_crowded()
        columns, footer = self.config.made(part, before)
        self.folder.write(part.number, columns, footer)
