"""Reproduction of the paper's figures: reuse finished ones, run the others, and compare with published numbers.

Each figure runs in its own process, because precision and memory differ, and a failure must not stop the others.
"""

import ast
import contextlib
import functools
import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import mfabric_jax
import mfabric_jax.support.interrupts as interrupts
from mfabric_jax import report
from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.report.rows import read_texts
from mfabric_jax.support import progress
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.extras import extra
from mfabric_jax.support.origin import python
from mfabric_jax.support.platforms import cores

SHOWN = ("figure", "claim", "found", "published", "verdict")
FIGURES = {
    "traffic-shares": "traffic_shares",
    "block-timeline": "block_timeline",
    "expert-load": "expert_load",
    "matrices": "matrices_and_locality",
    "testbed": "testbed",
    "cost": "cost_by_cluster_size",
    "iteration-time": "iteration_time",
    "pareto": "pareto",
    "failures": "failures",
    "scale-up": "scale_up_domains",
    "predictor": "predictor_on_traces",
    "scale": "scale_to_32768",
    "optical-degree": "optical_degree",
    "delay": "reconfiguration_delay",
    "batch-size": "batch_size",
}
ALL = "all"
PACKAGE = "mfabric_jax.experiments"
EXPERIMENT = "from mfabric_jax.commands.experiment import main; sys.exit(main(sys.argv[1:]))"
ROOT = pathlib.Path(mfabric_jax.__file__).parent
_SCRIPT = re.compile(r"^SCRIPT\b", re.MULTILINE)
JOBS = 2
PAUSE_S = 0.05
PATIENCE_S = 10.0  # before an interrupted process is killed


def package() -> ModuleType:
    if PACKAGE in sys.modules:
        return sys.modules[PACKAGE]
    inside, beside = (folder / "experiments" / "__init__.py" for folder in (ROOT, ROOT.parent))
    file = inside if inside.is_file() else beside
    spec = importlib.util.spec_from_file_location(PACKAGE, file, submodule_search_locations=[str(file.parent)])
    if not file.is_file() or spec is None or spec.loader is None:
        raise InputError(
            f"reproduce needs the experiments, but they are neither in {inside.parent} nor in {beside.parent}."
        )
    module = sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def questions() -> dict[str, str]:
    """Return the question of each script by module, without running the scripts."""
    by_module = {}
    for file in sorted(pathlib.Path(*package().__path__).glob("*.py")):
        if _SCRIPT.search(text := file.read_text(encoding="utf-8")):
            try:
                by_module[file.stem] = (ast.get_docstring(ast.parse(text)) or "").split("\n")[0]
            except SyntaxError as error:
                by_module[file.stem] = f"(cannot be read: {error})"
    return by_module


def load(module: str) -> Any:
    if module not in questions():
        raise InputError(f"there is no script {module}.py among the experiments.")
    with extra(ALL, "reproducing figures"):
        return importlib.import_module(f"{PACKAGE}.{module}").SCRIPT


def figure_modules() -> dict[str, str]:
    others = (module for module in questions() if module not in FIGURES.values())
    return FIGURES | {module.replace("_", "-"): module for module in others}


def choose_figures(words: Sequence[str]) -> dict[str, str]:
    """Return the modules of the requested figures; without words, all of the paper's figures."""
    names = figure_modules()
    of_module = {module: name for name, module in names.items()}  # a script may also be requested by its module
    figure_names = [one_of("figure", of_module.get(word, word), [*names, ALL]) for word in words or [ALL]]
    figure_names += FIGURES if ALL in figure_names else []
    return {name: module for name, module in names.items() if name in figure_names}


def listing() -> str:
    texts, names = questions(), figure_modules()
    wide = max(map(len, names))
    lines = {name: f"  {name:<{wide}}  {texts.get(module, '(missing)')}" for name, module in names.items()}
    others = [line for name, line in lines.items() if name not in FIGURES]
    return "\n".join(
        [f"figures of the paper ({ALL}):", *(lines[name] for name in FIGURES), "", "by name only:", *others]
    )


# ---------------------------------------------------------------------------------------------------- processes
class Ended(NamedTuple):
    name: str  # name of the command
    status: int  # exit status; negative: the signal
    seconds: float


def job_count(jobs: int | None) -> int:
    """Return the number of parallel processes; None: two, or one on a single core."""
    if jobs is None:
        return min(JOBS, cores())
    if whole("jobs", jobs) > cores():
        raise InputError(f"jobs must be at most the {cores()} cores of this machine, got {jobs}.")
    return jobs


def run_each(commands: Mapping[str, Sequence[str]], stem: Callable[[str], pathlib.Path], jobs: int) -> Iterator[Ended]:
    """Run commands, `jobs` at the same time, and yield each when it ends.

    The output of an ended command is in its `stem` with .txt; after a failure, its errors are in .log. Neither file
    exists before that, however this process ends. If the caller stops early, running commands are interrupted.
    """
    waiting, running, jobs = list(commands.items()), {}, min(jobs, len(commands))
    before = signal.signal(signal.SIGTERM, _leave)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name, command = waiting.pop(0)
                running[name] = _Process(command, jobs), time.perf_counter()
            over = [name for name, (process, _) in running.items() if process.over]
            for name in over:
                process, start = running.pop(name)
                process.keep(stem(name))
                yield Ended(name, process.status, time.perf_counter() - start)
            if not over:
                time.sleep(PAUSE_S)
    finally:
        signal.signal(signal.SIGTERM, before)
        _end([process.process for process, _ in running.values()])


class _Process:
    """A command in its own process group, so that a keyboard interrupt reaches it only through this process. Its output
    is in unnamed files until it ends."""

    def __init__(self, command: Sequence[str], jobs: int):
        self.said = {".txt": tempfile.TemporaryFile(), ".log": tempfile.TemporaryFile()}  # noqa: SIM115
        streams = {"stdin": subprocess.DEVNULL, "stdout": self.said[".txt"], "stderr": self.said[".log"]}
        with _interruptible():
            self.process = subprocess.Popen(command, **streams, env=_share(jobs) | os.environ, process_group=0)
        interrupts.CHILDREN.add(self.process)

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    @property
    def status(self) -> int:
        """The exit status of an ended process; negative: its signal."""
        return self.process.returncode

    def keep(self, stem: pathlib.Path) -> None:
        """Write the output to files next to `stem`. If the command succeeded, remove an older log."""
        interrupts.CHILDREN.discard(self.process)
        for kind, stream in self.said.items():
            file = stem.with_suffix(kind)
            with stream:
                stream.seek(0)
                if kind == ".log" and self.status == 0:
                    file.unlink(missing_ok=True)
                    continue
                with replacing(file) as (part,), part.open("wb") as out:
                    shutil.copyfileobj(stream, out)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let child processes react to an interrupt even if this process, as a background job, ignores it."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _share(jobs: int) -> dict[str, str]:
    """Return XLA settings that share cores and GPU memory between processes; the user's settings take precedence."""
    threads = str(max(1, cores() // jobs))  # two processes with a thread for every core are four times slower
    return {"PJRT_NPROC": threads, "NPROC": threads, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if jobs > 1 else {}


def _leave(number: int, frame: Any) -> None:
    """Handle SIGTERM, which job schedulers send: also end the other processes."""
    raise SystemExit(128 + number)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()


# -------------------------------------------------------------------------------------------------- reproduction
class Reproduction:
    def __init__(self, modules: Mapping[str, str], options):
        self.modules, self.options, self.folder = modules, options, pathlib.Path(options.out)
        self.scripts: dict[str, Any] = {}
        self.verdicts: dict[str, list[dict[str, Any]]] = {}
        self.failed: list[str] = []

    def all(self, jobs: int) -> None:
        """Reuse or run every figure, and print one line for each."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with progress.bar("reproduce", "figure", len(self.modules)) as bar:

            def attempt(name: str, step: Callable[[], str | None]) -> bool:
                """Run one step of a figure. Return True if more steps remain. An error fails only this figure."""
                try:
                    outcome = step()
                except Exception as mistake:
                    self.failed.append(name)
                    kind = "" if isinstance(mistake, InputError) else f"{type(mistake).__name__}: "
                    outcome = f"failed: {kind}{mistake}"
                if outcome is not None:
                    bar.update()
                    bar.write(f"{name}: {outcome}", file=sys.stderr)
                return outcome is None

            left = [name for name in self.modules if attempt(name, functools.partial(self._keep, name))]
            try:
                for ended in run_each({name: self._command(name) for name in left}, self._stem, jobs):
                    attempt(ended.name, functools.partial(self._finish, ended))
            except KeyboardInterrupt:
                bar.write(f"{len(self.verdicts)} of {len(self.modules)} figures are done and kept.", file=sys.stderr)
                raise

    def rows(self) -> list[dict[str, Any]]:
        return [row for name in self.modules for row in self.verdicts.get(name, [])]

    def _keep(self, name: str) -> str | None:
        """Judge the rows that are already in the folder. Return None if there are none to reuse."""
        script = self.scripts[name] = load(self.modules[name])
        if self.options.again:
            return None
        rows = script.kept(script.chosen(self.options.quick, **self._trace_of(script)), self.folder)
        return None if rows is None else self._judge(name, rows, "kept")

    def _finish(self, ended: Ended) -> str:
        if ended.status:
            raise InputError(self._why(ended))
        rows, _ = report.read_rows(self.scripts[ended.name].files(self.folder)[0])
        return self._judge(ended.name, rows, f"{ended.seconds:.0f} s")

    def _judge(self, name: str, rows: list[dict[str, Any]], outcome: str) -> str:
        self.verdicts[name] = [
            {"figure": name, "claim": judged.claim, "found": judged.found}
            | {"published": judged.published or "no number", "verdict": judged.word}
            | {"off": judged.off, "quick": self.options.quick}
            for judged in self.scripts[name].verdicts(rows)
        ]
        return outcome

    def _command(self, name: str) -> list[str]:
        words = ["--out", str(self.folder), *(["--quick"] if self.options.quick else [])]
        for field, value in self._trace_of(self.scripts[name]).items():
            words += [f"--{field}", value]
        return python(EXPERIMENT, self.modules[name], *words)

    def _trace_of(self, script: Any) -> dict[str, str]:
        trace = self.options.trace
        return {} if trace is None or "trace" not in script.config.__dataclass_fields__ else {"trace": trace}

    def _stem(self, name: str) -> pathlib.Path:
        return self.folder / self.scripts[name].name

    def _why(self, ended: Ended) -> str:
        if ended.status < 0:
            return f"its process ended by {signal.Signals(-ended.status).name}."
        log = self._stem(ended.name).with_suffix(".log")
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        if not lines:
            return f"its process ended with status {ended.status}."
        sentence = lines[-1].removeprefix(f"{self.scripts[ended.name].name}: ")
        return sentence if ended.status == 2 else f"{lines[-1]} ({log})"


def with_earlier(rows: list[dict[str, Any]], file: pathlib.Path, names: Collection[str]) -> list[dict[str, Any]]:
    """Return the verdicts, with the file's verdicts on other figures, in the order of the list."""
    try:
        earlier: list[dict[str, Any]] = [*read_texts(file)]
    except InputError:
        earlier = []
    order = list(figure_modules())
    others = [row for row in earlier if row.get("figure") in order and row["figure"] not in names]
    return sorted([*others, *rows], key=lambda row: order.index(row["figure"]))
