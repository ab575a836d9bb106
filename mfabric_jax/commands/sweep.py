"""`mfabric sweep FILE --out FOLDER`: a design space of cases, of single all-to-alls or of replays."""

import dataclasses
import re
import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import CASE_FILES, Positional, parse
from mfabric_jax.support.progress import pace
from mfabric_jax.support.text_files import read_mapping

SEEN_S = 0.1  # programs that compile faster came from the cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Simulate every case of a design space, and write finished rows to parquet files in a folder.

    Lists of values are axes; [[variants]] are compared; [random] is drawn as often as [sweep] states. The same command
    resumes an interrupted sweep.
    """

    out: str
    """A folder for the rows."""
    shard: str = "1/1"
    """i/n: compute only every n-th file, from the i-th (for job arrays)."""
    engine: str = "local"
    """local, or ray: several processes; the work of a lost process is repeated."""
    workers: int | None = None
    """ray: number of processes (default: one per GPU, or per core)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfFile:
    """A design space of all-to-alls or replays; `evaluate` in its file tells which."""

    file: Annotated[str, Positional("FILE")]
    run: Options


class _Bar:
    """The progress of a sweep on standard error; `now`: the latest state."""

    def __init__(self):
        self.now: Any = None
        self.bar: Any = None
        self.compile_s = 0.0

    def __call__(self, now) -> None:
        if self.bar is None:
            there = (
                f"; {now.files_found:,} files with {now.rows_found:,} cases exist already" if now.files_found else ""
            )
            print(f"sweep: {now.rows:,} cases in {now.files:,} files{there}", file=sys.stderr, flush=True)
            self.bar = shared.bar("sweep", "case", now.rows, now.rows_found, unit_scale=True)
            for fault in now.again:
                self.bar.write(f"sweep: {fault}; it is computed again.", file=sys.stderr)
        elif now.estimate is not None and now.estimate is not self.now.estimate:
            self.compile_s += now.estimate.compile_s
            if now.estimate.compile_s > SEEN_S:
                self.bar.write(f"sweep: {now.estimate}", file=sys.stderr)
        self.bar.update(now.done + now.solved - self.bar.n)
        self.now = now

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def run(cases: Cases, options: Options) -> int:
    """Return the exit status."""
    shard = _shard(options.shard)
    shared.check_cases(cases, misfits=False)
    shared.start_jax(shared.dtype_of(cases), options.device)
    cases = shared.settle(cases, options.device)
    from mfabric_jax.apps.sweep.case_space import CaseSpace

    space = CaseSpace(cases)
    if space.left_out:
        first, *more = space.left_out
        rows, others = sum(space.left_out.values()), f" for {len(more) + 1} reasons, such as" if more else ""
        print(f"sweep: {rows:,} configurations are impossible and left out{others}: {first}", file=sys.stderr)
    return run_space(space, options, shard)


def run_no_cases(words: Sequence[str]) -> int | None:
    """Run a design space of all-to-alls or replays and return the exit status; None if the words are of cases."""
    files = [word for word in words if word.lower().endswith(CASE_FILES) and not word.startswith("--")]
    kinds = [read_mapping(file, "settings of a sweep").get("evaluate", "iteration") for file in files]
    if all(kind == "iteration" for kind in kinds):
        return None
    from mfabric_jax.apps.sweep import read_sweep

    options = parse(OfFile, words, "sweep")
    shard, space = _shard(options.run.shard), read_sweep(options.file)
    shared.start_jax(space.dtype, options.run.device)
    return run_space(space, options.run, shard)


def run_space(config: Any, options: Any, shard: tuple[int, int]) -> int:
    """Write the rows of a design space to its folder, and return the exit status."""
    from mfabric_jax.apps.sweep import sweep

    began, bar = time.perf_counter(), _Bar()
    run_options = {"shard": shard, "engine": options.engine, "workers": options.workers}
    columns = options.columns("sweep", "sweep of replays")
    try:
        files = sweep(config, options.out, **run_options, progress=bar, columns=columns)
    except (InputError, KeyboardInterrupt):
        if bar.now and bar.now.done:
            rows = f"{bar.now.done:,} of {bar.now.rows:,} rows"
            print(f"sweep: {rows} are done; the same command resumes from {options.out}.", file=sys.stderr)
        raise
    finally:
        bar.close()
    took, made = time.perf_counter() - began - bar.compile_s, bar.now.done - bar.now.rows_found
    beside = f" and {bar.compile_s:.1f} s of compiling" if bar.compile_s > SEEN_S else ""
    now = f", {pace(made, took, 'case')}{beside}" if made else ""
    print(f"{bar.now.done:,} configurations in {len(files)} files of {options.out}; {made:,} of them by this run{now}")
    return 0


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
    if not match:
        raise InputError(f"shard must be i/n, such as 1/8, got {text!r}.")
    return int(match[1]), int(match[2])
