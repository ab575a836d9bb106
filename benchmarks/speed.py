"""What plain questions cost: CPU seconds and memory cold and warm, and programs, compile requests and traces.

    make speed                                                 # beside the committed figures of speed.json
    python benchmarks/speed.py small demo --rounds 3           # some of `QUESTIONS`
    python benchmarks/speed.py --against ../old --rounds 3     # another checkout, in turn with this one
    python benchmarks/speed.py --write                         # figures to commit

Cold: with empty caches of programs. Warm: the same command again. Each is a process of its own; CPU seconds are of all
its threads and children, as one who waits pays them, with the start of Python. `BEFORE` is run first, without a clock.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
FIGURES = HERE.with_suffix(".json")
LLAMA = "--model llama-moe --fabric mfabric"
QUESTIONS = {
    "small": "compare --models llama-moe --fabrics fat-tree,mfabric --nic-gbps 100,400",
    "small-joint": "compare --models llama-moe --fabrics fat-tree,mfabric --nic-gbps 100,400 --preset paper "
    "--policy joint --routing relay",
    "demo": "compare --preset usual --out rows.csv --figures pictures",
    "three-by-six": "compare --models mixtral-8x7b,qwen-moe,deepseek-v3 "
    "--fabrics fat-tree,oversub-fat-tree,rail-optimized,topoopt,mfabric,torus --nic-gbps 400",
    "sweep": "sweep space.toml --out rows",
    "timeline": f"timeline {LLAMA} --preset paper",
    "failures": f"failures {LLAMA} --preset paper",
    "replay": "replay iteration.json --fabric fat-tree",
    "traffic": "traffic --model llama-moe",
    "help": "compare --help",
    "typo": "compare --model llama-mo",
    "wrong-option": "compare --modell llama-moe",
    "show": "show --model llama-moe",
    "query": "query table.csv --sort iteration_s --columns model,iteration_s",
    "readme": "README",
}
SPACE = """
model = "llama-moe"
job.parallel.gpus = 256
[network]
fabric = ["fat-tree", "mfabric"]
nic_gbps = [100, 200, 400, 800]
mfabric.optical_degree = [2, 4, 6]
"""
BEFORE = {
    "replay": "export --model llama-moe --fabric fat-tree --preset paper --out iteration.json",
    "query": "compare --model llama-moe --fabric fat-tree --out table.csv",
}
UNCOUNTED = ("help", "typo", "wrong-option", "show", "query")  # JAX, which counts, is not theirs to import
FILLED = "rows.csv", "rows.config.json", "rows", "pictures"  # what a question leaves; else it would go on from there
COUNTS = "programs", "requests", "traces"
COUNTED = """
import json, runpy, sys, collections
from jax import monitoring
counts = collections.Counter()
NAMES = {"jaxpr_trace_duration": "traces", "backend_compile_duration": "requests"}
def timed(event, seconds, **_):
    counts[NAMES.get(event.rsplit("/", 1)[-1], "")] += 1
def happened(event, **_):
    counts["hits"] += event.endswith("/cache_hits")
monitoring.register_event_duration_secs_listener(timed)
monitoring.register_event_listener(happened)
file, target, *words = sys.argv[1:]
sys.argv = ["mfabric", *words]
try:
    if target.endswith(".py"):
        runpy.run_path(target, run_name="__main__")
    else:
        from mfabric_jax import cli
        sys.exit(cli.main(words))  # without words it ends the process
finally:
    counts["programs"] = counts["requests"] - counts.pop("hits", 0)
    counts.pop("", None)
    with open(file, "w") as out:
        json.dump(counts, out)
"""


def asked(name: str, root: Path, folder: Path, *, warm: bool) -> dict[str, Any]:
    """Figures of one question, asked in `folder` of the checkout `root`."""
    cache = folder / "cache"
    if not warm:
        shutil.rmtree(cache, ignore_errors=True)
    for left in FILLED:
        path = folder / left
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    (folder / "space.toml").write_text(SPACE)
    (folder / "readme.py").write_text(re.search(r"```python\n(.*?)```", (root / "README.md").read_text(), re.S)[1])
    environment = {**os.environ, "PYTHONPATH": str(root), "XDG_CACHE_HOME": str(cache)}
    environment["NUMBA_CACHE_DIR"] = str(cache / "numba")
    for kept in ("JAX_COMPILATION_CACHE_DIR", "MFABRIC_PROGRAMS", "PYTHONDONTWRITEBYTECODE"):
        environment.pop(kept, None)
    words = QUESTIONS[name].split()
    start = ["-m", "mfabric_jax.cli", *words]
    if name not in UNCOUNTED:
        start = ["-c", COUNTED, "counts.json", *(["readme.py"] if name == "readme" else ["mfabric", *words])]
    (folder / "counts.json").unlink(missing_ok=True)
    began = time.perf_counter()
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen([sys.executable, *start], cwd=folder, env=environment, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
    wall, code = time.perf_counter() - began, os.waitstatus_to_exitcode(status)
    if code not in (0, 2):
        raise SystemExit(f"{name}: exit status {code}\n{(folder / 'said.txt').read_text()[-2000:]}")
    counts = json.loads((folder / "counts.json").read_text()) if name not in UNCOUNTED else {}
    found = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "peak_gb": used.ru_maxrss / 1e6}
    return found | {count: counts.get(count, 0) for count in COUNTS if name not in UNCOUNTED}


def measured(names: list[str], roots: list[Path], rounds: int) -> dict[str, Any]:
    """Medians of all rounds: [checkout][question][cold or warm]; checkouts take turns."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        for name in names:
            for number, root in enumerate(roots):
                folder = Path(home) / f"{name}-{number}"
                folder.mkdir()
                if name in BEFORE:
                    _prepare(BEFORE[name].split(), root, folder)
            for turn in range(rounds):
                for number, root in enumerate(roots):
                    for warm in (False, True):
                        figures = asked(name, root, Path(home) / f"{name}-{number}", warm=warm)
                        kinds = found.setdefault(str(root), {}).setdefault(name, {})
                        kinds.setdefault("warm" if warm else "cold", []).append(figures)
                        told = ", ".join(f"{what} {value:.4g}" for what, value in figures.items())
                        print(f"{root.name} {name} {'warm' if warm else 'cold'} {turn + 1}: {told}", file=sys.stderr)
    return {
        root: {name: {kind: _median(each) for kind, each in kinds.items()} for name, kinds in of.items()}
        for root, of in found.items()
    }


def _prepare(words: list[str], root: Path, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, "-m", "mfabric_jax.cli", *words], cwd=folder, env=environment, check=True)


def _median(each: list[dict[str, Any]]) -> dict[str, Any]:
    return {what: round(statistics.median(one[what] for one in each), 3) for what in each[0]}


def table(found: dict[str, Any], names: list[str]) -> str:
    """One line for each question and source of figures."""
    lines = [f"{'':14}{'':12}{'cold s':>8}{'warm s':>8}{'wall':>8}{'wall':>8}{'GB':>6}{'programs':>10}"
             f"{'requests':>10}{'traces':>8}{'warm':>6}"]  # fmt: skip
    for name in names:
        for source, of in found.items():
            if name not in of:
                continue
            cold, warm = of[name]["cold"], of[name]["warm"]
            counted = (cold, "programs", 10), (cold, "requests", 10), (cold, "traces", 8), (warm, "traces", 6)
            counts = "".join(f"{one.get(what, ''):>{wide}}" for one, what, wide in counted)
            lines.append(
                f"{name:14}{Path(source).name[:11]:12}{cold['cpu_s']:8.2f}{warm['cpu_s']:8.2f}{cold['wall_s']:8.2f}"
                f"{warm['wall_s']:8.2f}{max(cold['peak_gb'], warm['peak_gb']):6.2f}{counts}"
            )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print beside what was committed or another checkout."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("questions", nargs="*", default=[], help=", ".join(QUESTIONS))
    words.add_argument("--rounds", type=int, default=1)
    words.add_argument("--against", type=Path, help="another checkout")
    words.add_argument("--write", action="store_true", help="put the figures into speed.json")
    given = words.parse_args()
    names = given.questions or list(QUESTIONS)
    roots = [path.resolve() for path in (given.against, HERE.parents[1]) if path is not None]
    found = measured(names, roots, given.rounds)
    kept = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    shown = {"committed": kept} | found if given.against is None else found
    print(table(shown, names))
    if given.write:
        FIGURES.write_text(json.dumps(kept | found[str(roots[-1])], indent=1) + "\n")


if __name__ == "__main__":
    main()
