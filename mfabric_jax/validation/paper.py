"""The figures of the paper: keep what is done, run the rest, and put what was published beside what came out."""

import functools
import pathlib
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mfabric_jax import report
from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra
from mfabric_jax.report.rows import read_texts
from mfabric_jax.validation import processes, scripts

SHOWN = ("figure", "claim", "found", "published", "verdict")


class Reproduction:
    """Figures on their way: the scripts loaded, verdicts so far, and which figures failed."""

    def __init__(self, modules: Mapping[str, str], options):
        self.modules, self.options, self.folder = modules, options, pathlib.Path(options.out)
        self.scripts: dict[str, Any] = {}
        self.verdicts: dict[str, list[dict[str, Any]]] = {}
        self.failed: list[str] = []

    def all(self, jobs: int) -> None:
        """Keep or run every figure; a line for each as it is done."""
        with extra("cli", "reproducing figures"):
            from tqdm import tqdm

        self.folder.mkdir(parents=True, exist_ok=True)
        with tqdm(total=len(self.modules), desc="reproduce", unit="figure", file=sys.stderr, disable=None) as bar:

            def attempt(name: str, step: Callable[[], str | None]) -> bool:
                """A step of one figure: whether there is more to do. What goes wrong is this figure's alone."""
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
                for ended in processes.each({name: self._command(name) for name in left}, self._stem, jobs):
                    attempt(ended.name, functools.partial(self._finish, ended))
            except KeyboardInterrupt:
                bar.write(f"{len(self.verdicts)} of {len(self.modules)} figures are done and kept.", file=sys.stderr)
                raise

    def rows(self) -> list[dict[str, Any]]:
        """A row for each claim, in the order of the figures."""
        return [row for name in self.modules for row in self.verdicts.get(name, [])]

    def _keep(self, name: str) -> str | None:
        """Judge what the folder holds already; None: it has to be run."""
        script = self.scripts[name] = scripts.load(self.modules[name])
        if self.options.again:
            return None
        rows = script.kept(script.chosen(self.options.quick, **self._trace_of(script)), self.folder)
        return None if rows is None else self._judged(name, rows, "kept")

    def _finish(self, ended: processes.Ended) -> str:
        """Judge what a process has left in the folder."""
        if ended.status:
            raise InputError(self._why(ended))
        rows, _ = report.read_rows(self.scripts[ended.name].files(self.folder)[0])
        return self._judged(ended.name, rows, f"{ended.seconds:.0f} s")

    def _judged(self, name: str, rows: list[dict[str, Any]], outcome: str) -> str:
        """Take the verdicts on its rows."""
        self.verdicts[name] = [
            dict(zip(SHOWN, (name, one.claim, one.found, one.published or "no number", one.word), strict=True))
            | {"off": one.off, "quick": self.options.quick}
            for one in self.scripts[name].verdicts(rows)
        ]
        return outcome

    def _command(self, name: str) -> list[str]:
        """What runs a figure."""
        words = ["--out", str(self.folder), *(["--quick"] if self.options.quick else [])]
        for field, value in self._trace_of(self.scripts[name]).items():
            words += [f"--{field}", value]
        return [sys.executable, "-m", "mfabric_jax.commands.experiment", self.modules[name], *words]

    def _trace_of(self, script: Any) -> dict[str, str]:
        """The recording, for a script that reads one."""
        trace = self.options.trace
        return {} if trace is None or "trace" not in script.config.__dataclass_fields__ else {"trace": trace}

    def _stem(self, name: str) -> pathlib.Path:
        """Where a figure's files are, without what tells them apart."""
        return self.folder / self.scripts[name].name

    def _why(self, ended: processes.Ended) -> str:
        """The last thing that a process said, or how it ended."""
        if ended.status < 0:
            return f"its process ended by {signal.Signals(-ended.status).name}."
        log = self._stem(ended.name).with_suffix(".log")
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
        if not lines:
            return f"its process ended with status {ended.status}."
        sentence = lines[-1].removeprefix(f"{self.scripts[ended.name].name}: ")
        return sentence if ended.status == 2 else f"{lines[-1]} ({log})"


def with_earlier(rows: list[dict[str, Any]], file: pathlib.Path, asked: Collection[str]) -> list[dict[str, Any]]:
    """The verdicts, and those that the file has on figures that were not asked for now, word for word; in the order of
    the list."""
    try:
        earlier: list[dict[str, Any]] = [*read_texts(file)]
    except InputError:
        earlier = []
    order = list(scripts.known())
    known = [row for row in earlier if row.get("figure") in order and row["figure"] not in asked]
    return sorted([*known, *rows], key=lambda row: order.index(row["figure"]))
