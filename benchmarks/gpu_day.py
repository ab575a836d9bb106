"""A day at a machine with a GPU, in minutes: what is right there, how fast it is, and where the time goes.

    python benchmarks/gpu_day.py --minutes 8 [--out gpu_day.md] [--only star greedy] [--batch 65536]

1. Checks: every hot path on the default device, in float32 and float64, beside a CPU in float64.
2. Times: the best of several calls in large batches, compiling apart, launches outside of loops and bytes moved.
3. 10,000 configurations, and the training of a policy.
4. A profile of the slowest path.

A path that fails is a line; the others go on. What is done when the minutes are over is written, and the script ends.
Exit status 1: a path was wrong or failed.
"""

import argparse
import contextlib
import dataclasses
import functools
import glob
import gzip
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "gpu_check"), str(HERE.parent)]

CHECKED = 256  # members of a check
DISTINCT = 64  # regions drawn; larger batches repeat them
CALLS = 5
SPARE_S = 10.0  # before the end: what is done is written
CONFIGURATIONS = 10_000
WORST = {"float32": 2e-4, "float64": 1e-9}  # relative, of seconds and rates
SEARCHED = {"float32": 1e-2, "float64": 1e-6}  # of seconds under what was searched or chosen; ties may differ


@dataclasses.dataclass(frozen=True)
class Path:
    """A hot path: `one` of a member's arrays; `part` of the batch is timed.

    - `searches`: the result is found step by step, and rounding leads elsewhere; `chooses`: it is circuits.
    """

    name: str
    servers: int
    one: Callable[..., Any]
    inputs: Callable[[int, int, Any], tuple]
    part: int = 1
    searches: bool = False
    chooses: bool = False


# ----------------------------------------------------------------------------------------------------------- inputs
@functools.cache
def _drawn(servers: int) -> tuple:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flows import zipf_demand

    from mfabric_jax import Region, greedy

    demand = np.stack([zipf_demand(servers, seed) for seed in range(DISTINCT)])
    with jax.default_device(jax.devices("cpu")[0]):
        region = Region(servers, 100.0)
        count = [np.asarray(greedy(jnp.asarray(each), region, rule="next").circuits.count) for each in demand]
    return demand, np.stack(count)


def regions(servers: int, batch: int, dtype: Any) -> tuple:
    """Demand [B S S], circuits [B S S] and bandwidth [B]."""
    import numpy as np

    demand, count = _drawn(servers)
    shape = (batch, servers, servers)
    return np.resize(demand, shape).astype(dtype), np.resize(count, shape), np.full(batch, 100.0, dtype)


def stars(servers: int, batch: int, dtype: Any) -> tuple:
    """Bytes that circuits leave to packets [B S S], and ports up and down [B S]."""
    import numpy as np

    demand, count, _ = regions(servers, batch, dtype)
    ports = np.full((batch, servers), 25e9, dtype)
    return np.where(count > 0, 0, demand).astype(dtype), ports, ports


def demands(servers: int, batch: int, dtype: Any) -> tuple:
    demand, _, gbps = regions(servers, batch, dtype)
    return demand, gbps


@functools.cache
def _job(stages: int) -> Any:
    from mfabric_jax import Case, resolve

    sizes = {"job.parallel.pp": stages, "job.parallel.gpus": 16 * stages, "job.batch.micro_batches": 4}
    named = {"model.name": "llama-moe", "model.recipe": "none", "network.fabric": "mfabric"}
    return resolve(Case().with_(named | sizes)).job


def all_to_alls(stages: int, batch: int, dtype: Any) -> tuple:
    """Bytes on circuits and packet switches [B P Q L 2] of an iteration, and bytes/s of a NIC [B]."""
    import numpy as np

    from mfabric_jax.timing.passes import places

    shape, rng = (DISTINCT, *places(_job(stages)).present.shape, 2), np.random.default_rng(0)
    drawn = (np.resize(rng.uniform(0, 2e8, shape), (batch, *shape[1:])).astype(dtype) for _ in range(2))
    return *drawn, np.full(batch, 50e9, dtype)


def iteration(optical, packets, nic_Bps):
    """Seconds of an iteration whose circuits change where they carry more than packet switches."""
    from mfabric_jax.timing import iterate
    from mfabric_jax.timing.iteration import FabricRates
    from mfabric_jax.timing.passes import Exchanges
    from mfabric_jax.workload.compute import BlockSeconds

    job, inside = _job(len(optical)), 0 * optical[..., 0]
    loads = Exchanges(optical, packets, inside, optical > packets, inside > 0, None, inside.sum())
    rates = FabricRates(nic_Bps, 4 * nic_Bps, 4 * nic_Bps, delay_s=1e-3)
    return iterate(job, rates, loads, BlockSeconds(1e-3, 2e-3, 2e-3)).iteration_s


# ------------------------------------------------------------------------------------------------------------ paths
def hot_paths() -> list[Path]:
    import jax
    import jax.numpy as jnp

    from mfabric_jax import Circuits, Region, all_to_all_time, policies
    from mfabric_jax.flows import completion_times, max_min_rates, star_completion, star_rates
    from mfabric_jax.flows.star import as_problem
    from mfabric_jax.routing import Plan, relay_shares

    def seconds(demand, count, gbps, routing):
        region, circuits = Region(len(demand), gbps), Circuits(count)
        if routing != "relay":
            return all_to_all_time(region, circuits, demand, routing=routing)
        return all_to_all_time(region, Plan(circuits, relay_shares(region, circuits, demand)), demand, routing=routing)

    def slope(demand, count, gbps):
        return jax.grad(lambda gbps: seconds(demand, count, gbps, "unsplit"))(gbps)

    def problem(size, up, down):
        return as_problem(jnp.stack([up, down]), jnp.zeros((2, 0), up.dtype))

    def choose(demand, gbps, policy):
        return policy(demand, Region(len(demand), gbps)).circuits.count

    named = {name: policies.get(name, **rest) for name, rest in POLICIES.items()}
    return [
        *(Path(f"star, {size} servers", size, star_completion, stars) for size in (8, 16, 32, 64)),
        Path("rates", 16, star_rates, stars),
        Path("unsplit", 16, functools.partial(seconds, routing="unsplit"), regions),
        Path("split", 16, functools.partial(seconds, routing="split"), regions, 16),
        Path("relay", 16, functools.partial(seconds, routing="relay"), regions, 16, searches=True),
        Path("gradient", 8, slope, regions, 16),
        Path("general", 8, lambda *star: completion_times(problem(*star), star[0].reshape(-1)).finish, stars, 64),
        Path("max-min", 8, lambda *star: max_min_rates(problem(*star)).rate, stars, 16),
        Path("iteration", 4, iteration, all_to_alls, 16),
        *(
            Path(name, 16, functools.partial(choose, policy=policy), demands, PARTS[name], chooses=True)
            for name, policy in named.items()
        ),
    ]


POLICIES: dict[str, dict[str, Any]] = {"greedy": {}, "learned": {"share_steps": 0}, "joint": {}}
PARTS = {"greedy": 16, "learned": 16, "joint": 1024}


# ----------------------------------------------------------------------------------------------------------- checks
def check(path: Path, dtype: str, members: int) -> tuple[float, float]:
    """The largest relative difference from a CPU in float64, and what is allowed."""
    import jax
    import numpy as np

    given = path.inputs(path.servers, members, np.float64)
    cpu, device = jax.devices("cpu")[0], jax.devices()[0]
    right = _run(path, given, cpu)
    found = _run(path, tuple(x.astype(dtype) if x.dtype == np.float64 else x for x in given), device)
    if path.chooses:
        right, found = (_mean_seconds(count, given, cpu) for count in (right, found))
    whole = np.maximum(np.abs(right), 1e-12 * np.abs(right).max(initial=0) + 1e-300)
    apart = np.where(np.isfinite(right) | np.isfinite(found), np.abs(found - right) / whole, 0.0)
    return float(np.max(apart, initial=0)), (SEARCHED if path.searches or path.chooses else WORST)[dtype]


def _run(path: Path, given: tuple, device: Any) -> Any:
    import jax
    import numpy as np

    with jax.enable_x64(True), jax.default_device(device):
        return np.asarray(jax.jit(jax.vmap(path.one))(*jax.device_put(given, device)), np.float64)


def _mean_seconds(count: Any, given: tuple, cpu: Any) -> Any:
    """Mean time of all-to-alls under chosen circuits, on a CPU in float64."""
    import jax
    import numpy as np

    from mfabric_jax import Circuits, Region, all_to_all_time

    def seconds(demand, gbps, count):
        return all_to_all_time(Region(len(demand), gbps), Circuits(count), demand)

    with jax.enable_x64(True), jax.default_device(cpu):
        return np.asarray([np.mean(jax.jit(jax.vmap(seconds))(*given, count.astype(np.int32)))])


# ------------------------------------------------------------------------------------------------------------ times
def timed(path: Path, batch: int) -> dict[str, Any]:
    """Of float32, whose best call counts."""
    import jax
    import numpy as np
    from compiled import FREE, INSTRUCTION, moved_in
    from flows import best_of, compiled

    many = max(batch // path.part, 1)
    given = jax.device_put(path.inputs(path.servers, many, np.float32))
    program, compile_s = compiled(jax.vmap(path.one), *given)
    run_s = best_of(program, *given, repeat=CALLS)[1]
    text = program.as_text()
    kinds = [match[3] for match in filter(None, map(INSTRUCTION.match, text[text.index("\nENTRY") :].splitlines()))]
    return {
        **{"path": path.name, "batch": many, "compile s": compile_s, "ms a call": 1e3 * run_s},
        **{"per s": many / run_s, "launches": sum(kind not in FREE for kind in kinds)},
        "MB outside loops": moved_in(text).moved / 1e6,
    }


def configurations() -> dict[str, Any]:
    """Many cases of a small job on mfabric, warm: bandwidths x delays."""
    import numpy as np

    from mfabric_jax import Case, cases, simulate

    case = Case().with_({"model.name": "llama-moe", "model.recipe": "none", "network.fabric": "mfabric"})
    case = case.with_({"job.parallel.gpus": 64, "run.iterations": 1, "job.batch.micro_batches": 4, "run.draws": 1})
    each = round(CONFIGURATIONS**0.5)
    axes = {"network.nic_gbps": np.linspace(100, 800, each).tolist()}
    axes |= {"circuits.delay_s": np.geomspace(1e-6, 1e-2, each).tolist()}
    asked, took = cases(case, axes), []
    for _ in range(2):
        began = time.perf_counter()
        rows = simulate(asked).rows()
        took.append(time.perf_counter() - began)
    return {"path": "configurations", "batch": len(rows), "compile s": took[0] - took[1], **_a_call(took[1], len(rows))}


def training(batch: int) -> dict[str, Any]:
    """A step of training a network on a batch of demands of 8 servers."""
    import jax
    from flows import best_of, compiled
    from paths import training_step

    from mfabric_jax.apps.learning.training import TrainingSettings, lessons

    config = TrainingSettings(sizes=(8,), batch=max(batch // 256, 1))
    pool = jax.numpy.asarray(regions(8, DISTINCT, "float32")[0] / 1e9)
    lesson, (arrays, step) = lessons(jax.random.key(0), pool, config, 8), training_step(config)
    program, compile_s = compiled(step, arrays, lesson, jax.numpy.int32(0))
    run_s = best_of(program, arrays, lesson, jax.numpy.int32(0), repeat=CALLS)[1]
    return {"path": "training step", "batch": config.batch, "compile s": compile_s, **_a_call(run_s, config.batch)}


def _a_call(run_s: float, many: int) -> dict[str, Any]:
    return {"ms a call": 1e3 * run_s, "per s": many / run_s}


def profile(path: Path, batch: int) -> list[dict[str, Any]]:
    """The longest events of one call on the device."""
    import jax
    import numpy as np

    given = jax.device_put(path.inputs(path.servers, max(batch // path.part, 1), np.float32))
    program = jax.jit(jax.vmap(path.one))
    jax.block_until_ready(program(*given))
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(program(*given))
        (file,) = glob.glob(f"{folder}/**/*.trace.json.gz", recursive=True)
        with gzip.open(file, "rt") as opened:
            events = json.load(opened)["traceEvents"]
    spent: dict[str, float] = {}
    for event in events:
        if event.get("ph") == "X" and not event["name"].startswith("$"):
            spent[event["name"]] = spent.get(event["name"], 0.0) + event.get("dur", 0.0)
    longest = sorted(spent.items(), key=lambda item: -item[1])[:8]
    return [{"event": name[:80], "ms": micros / 1e3} for name, micros in longest]


# ----------------------------------------------------------------------------------------------------------- report
class Report:
    """Lines so far; written once, by whoever comes first: the end of the work or that of the time."""

    def __init__(self, out: str | None):
        self.out, self.lines, self.wrong, self.lock, self.written = out, [], 0, threading.Lock(), False

    def say(self, line: str) -> None:
        with self.lock:
            if not self.written:
                self.lines.append(line)
                print(line, flush=True)

    def row(self, row: dict[str, Any]) -> None:
        cells = (f"{value:,.3g}" if isinstance(value, float) else str(value) for value in row.values())
        self.say(f"| {' | '.join(cells)} |")

    def heading(self, title: str, columns: tuple[str, ...]) -> None:
        self.say(f"\n## {title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")

    @contextlib.contextmanager
    def surviving(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.wrong += 1
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            self.say(f"| {what} | failed: {reason[:160]} |")

    def close(self) -> int:
        with self.lock:
            if not self.written:
                self.written = True
                if self.out is not None:
                    pathlib.Path(self.out).write_text("\n".join([*self.lines, ""]), encoding="utf-8")
        return 1 if self.wrong else 0


CHECKS = ("path", "dtype", "largest difference", "allowed", "")
TIMES = ("path", "batch", "compile s", "ms a call", "per s", "launches", "MB outside loops")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="after which what is done is written")
    parser.add_argument("--batch", type=int, default=1 << 16, help="members in a call; of slow paths a part")
    parser.add_argument("--members", type=int, default=CHECKED, help="members of a check")
    parser.add_argument("--only", nargs="+", help="how the names of paths begin")
    parser.add_argument("--out", help="a Markdown file")
    asked = parser.parse_args()
    report = Report(asked.out)
    ends = threading.Timer(max(60 * asked.minutes - SPARE_S, 1.0), lambda: _end(report))
    ends.daemon = True
    ends.start()
    _work(asked, report)
    ends.cancel()
    return report.close()


def _end(report: Report) -> None:
    """A program that compiles does not hear of the end: the process does."""
    report.say("\nThe time is over; what is missing was not reached.")
    status = report.close()
    os._exit(status)


def _work(asked: argparse.Namespace, report: Report) -> None:
    import jax

    from mfabric_jax.support.platforms import record_loops

    record_loops()  # as the command line runs programs
    device = jax.devices()[0]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib"))
    report.say(f"# {device.device_kind} ({device.platform}), {versions}, batches of {asked.batch:,}")
    paths = [path for path in hot_paths() if not asked.only or path.name.startswith(tuple(asked.only))]
    report.heading("Beside a CPU in float64", CHECKS)
    for path in paths:
        for dtype in WORST:
            with report.surviving(f"{path.name} | {dtype}"):
                apart, allowed = check(path, dtype, asked.members)
                right = apart <= allowed
                report.wrong += not right
                values = (path.name, dtype, apart, allowed, "right" if right else "WRONG")
                report.row(dict(zip(CHECKS, values, strict=True)))
    report.heading("Times, float32", TIMES)
    slowest: tuple[float, Path | None] = (0.0, None)
    for path in paths:
        with report.surviving(path.name):
            row = timed(path, asked.batch)
            report.row(row)
            slowest = max(slowest, (row["ms a call"], path), key=lambda each: each[0])
    if not asked.only:
        for name, whole in (("configurations", configurations), ("training", lambda: training(asked.batch))):
            with report.surviving(name):
                report.row(whole() | {"launches": "", "MB outside loops": ""})
    if slowest[1] is not None:
        report.heading(f"Where the time of {slowest[1].name} goes", ("event", "ms"))
        with report.surviving("profile"):
            for row in profile(slowest[1], asked.batch):
                report.row(row)


if __name__ == "__main__":
    sys.exit(main())
