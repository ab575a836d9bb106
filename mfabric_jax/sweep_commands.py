"""`mfabric sweep` and `mfabric query`, once their options are read."""

import pathlib
import re
import sys
import time

from mfabric_jax import commands
from mfabric_jax.checks import InputError, whole

SHOWN = 20                                 # rows of a table on the screen
SEEN_S = 0.1                               # programs that took less to compile were there


class _Bar:
    """The progress of a sweep on standard error; `now` is the last that was told."""

    def __init__(self, total: int):
        from mfabric_jax import study

        self.now, self.bar, self.told, self.compile_s = study.Progress(0, 0, total), None, None, 0.0

    def __call__(self, now) -> None:
        from tqdm import tqdm

        if self.bar is None:
            form = {"desc": "sweep", "unit": "cfg", "unit_scale": True, "file": sys.stderr, "disable": None}
            self.bar = tqdm(total=now.rows, initial=now.found, **form)
        if now.estimate is not None and now.estimate is not self.told:
            self.told = now.estimate
            self.compile_s += now.estimate.compile_s
            if now.estimate.compile_s > SEEN_S:
                self.bar.write(f"sweep: {now.estimate}", file=sys.stderr)
        self.bar.update(now.done - self.now.done if self.now.done else now.done - now.found)
        self.now = now

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def run_sweep(options) -> int:
    """`mfabric sweep CONFIG --out FOLDER`"""
    from mfabric_jax import study

    config, shard = study.read_sweep(options.config), _shard(options.shard)
    commands.start_jax(config.dtype, options.device)
    began, bar = time.perf_counter(), _Bar(config.count)
    given = {"shard": shard, "engine": options.engine, "workers": options.workers}
    try:
        files = study.sweep(config, options.out, **given, progress=bar)
    except (InputError, KeyboardInterrupt):
        if bar.now.done:
            there = f"{bar.now.done:,} of {bar.now.rows:,} rows are in {options.out}"
            print(f"sweep: {there}; the same command goes on from there.", file=sys.stderr)
        raise
    finally:
        bar.close()
    took, made = time.perf_counter() - began - bar.compile_s, bar.now.done - bar.now.found
    print(f"{bar.now.done:,} configurations in {len(files)} files of {options.out}; {made:,} of them now", end="")
    print(f", {made / took:,.0f} a second beside {bar.compile_s:.1f} s of compiling" if made else "")
    return 0


def _shard(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if not found:
        raise InputError(f"shard must be i/n, such as 1/8, got {text!r}.")
    return int(found[1]), int(found[2])


def _alike(rows: list[dict], name: str) -> bool:
    return all(row[name] == rows[0][name] for row in rows)


def run_query(options) -> int:
    """`mfabric query PATH ...`"""
    from mfabric_jax import report
    from mfabric_jax.report.query import COUNT

    if options.limit is not None:
        whole("limit", options.limit)
    commands.check_outputs(options.out, None)
    asked = report.Asked(
        where=commands.listed_words(options.where or ""),
        by=commands.listed_words(options.by or ""),
        measures=commands.listed_words(options.measures or ""),
        pareto=commands.listed_words(options.pareto or ""),
        sort=options.sort,
        columns=commands.listed_words(options.columns or ""),
        limit=options.limit,
    )
    rows, config = report.query(options.paths, asked)
    if not rows:
        print("no row fulfils this")
    else:
        shared = [name for name in rows[0] if len(rows) > 1 and _alike(rows, name)]
        same = {name: rows[0][name] for name in shared if not (asked.by and name == COUNT)}
        same = same if len(same) < len(rows[0]) else {}
        if same:
            said = (f"{name} {v:.4g}" if isinstance(v, float) else f"{name} {v}" for name, v in same.items())
            print(f"in every row: {', '.join(said)}\n")
        print(report.plain(rows[:SHOWN], [name for name in rows[0] if name not in same]))
        if len(rows) > SHOWN:
            print(f"... {len(rows) - SHOWN:,} more rows" + ("" if options.out else "; --out writes them all"))
    if options.out is not None:
        about = {"command": "query", "paths": [str(pathlib.Path(path)) for path in options.paths]} | asked._asdict()
        print(report.write_rows(rows, options.out, about | {"of": config}), file=sys.stderr)
    return 0
