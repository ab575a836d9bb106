"""Data flows one way: who may import whom, and what importing the package may need."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import mfabric_jax

ROOT = pathlib.Path(mfabric_jax.__file__).parent
ORDER = (
    *("units", "case", "flows", "tasks", "workload", "traffic", "fabric", "routing", "policies", "timing"),
    "circuit_schedules",
    *("resolving", "evaluate", "simulation", "export", "failures", "cluster", "replay", "sweep", "jobs", "recordings"),
    "measurements",
    "serving",
    *("learning", "report", "validation", "tuning", "commands", "cli"),
)
BESIDE = (
    *("bands", "checks", "columns", "deprecation", "notebooks", "origin", "progress", "atomic", "extras"),
    *("parts", "platforms", "rings", "interrupts"),
    *("text_files", "tuned_file", "unpacking", "unread"),
    *("array_module", "arrays", "host_arrays", "lazily", "loops", "programs"),
)
RANK = {name: rank for rank, name in enumerate(ORDER)} | dict.fromkeys(BESIDE, 0)
WITHOUT_JAX = ("report",)  # nor pyplot, and what draws or stores is imported inside of functions alone
OPTIONAL = ("tqdm", "matplotlib", "altair", "pyarrow", "scipy", "numba", "google", "flatbuffers", "pandas")


def imported(tree, module):
    """(line, absolute name) of everything that a module imports, wherever in it: names from packages in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def against_the_order(source, path):
    """Imports of the module at `path` (inside the package) that point to its right, or to what the order lacks."""
    parts = pathlib.PurePosixPath(path).with_suffix("").parts
    if parts == ("__init__",):
        return
    if parts[0] not in RANK:
        yield f"{path} has no place in the order {' < '.join(ORDER)}"
        return
    tree, module = ast.parse(source), ".".join(["mfabric_jax", *parts])
    at_top = {node.lineno for node in tree.body}
    for line, target in imported(tree, module):
        top, _, rest = target.partition(".")
        other = rest.split(".")[0]
        late = top in OPTIONAL and line in at_top
        if parts[0] in WITHOUT_JAX and (top in ("jax", "jaxlib", "equinox") or "pyplot" in target or late):
            yield f"{path}:{line} imports {target}: {parts[0]} knows rows, not jax; extras inside of functions"
        if top == "mfabric_jax" and other and not other.startswith("__") and RANK.get(other, 99) > RANK[parts[0]]:
            yield f"{path}:{line} imports {target}: {parts[0]} may not depend on {other}"


def test_packages_import_from_their_left_only():
    wrong = []
    for file in sorted(ROOT.rglob("*.py")):
        wrong += against_the_order(file.read_text(), file.relative_to(ROOT).as_posix())
    assert not wrong, "\n".join(wrong)


def test_the_rule_finds_offenders():
    for path, source, wrong in [
        ("flows/a.py", "from mfabric_jax.fabric import Region", True),
        ("flows/a.py", "from mfabric_jax import units, sweep", True),
        ("flows/a.py", "def f():\n    from ..cli import main", True),
        ("flows/a.py", "from mfabric_jax import nowhere", True),
        ("checks.py", "from mfabric_jax import report", True),
        ("export/a.py", "from mfabric_jax.export.b import c\nfrom . import d\nfrom mfabric_jax import flows", False),
        ("report/a.py", "def f():\n    import jax.numpy as jnp", True),
        ("report/a.py", "def f():\n    from matplotlib import pyplot", True),
        ("report/a.py", "from matplotlib.figure import Figure", True),
        ("report/a.py", "def f():\n    from matplotlib.figure import Figure", False),
    ]:
        assert any(against_the_order(source, path)) is wrong, (path, source)


IMPORT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Absent())
import mfabric_jax
assert "mfabric_jax.cli" not in sys.modules and "mfabric_jax.report" not in sys.modules
print(sorted({name.split(".")[0] for name in sys.modules}))
"""


def test_the_package_neither_needs_nor_imports_an_extra():
    # Where scipy is installed jax imports it, so only that it is not needed can be seen.
    for absent in (set(OPTIONAL), {"scipy"}):
        code = f"ABSENT = {absent}\n{IMPORT}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert not set(ast.literal_eval(done.stdout)) & set(OPTIONAL)


WORDS = """
import sys
from mfabric_jax.cli import main
open("table.csv", "w").write("model,iteration_s\\nllama-moe,1.5\\n")
wrong = ("--model", "llama-mo"), ("--gpu", "H1"), ("--fabric", "fat-tre"), ("--ocs", "calien"), ("--gpus", "7")
wrong += ("--policy", "gredy"), ("--set", "traffic.knobs=llama-mo"), ("--transport", "roc"), ("--modell", "llama-moe")
for command in ("compare", "timeline", "failures", "export"):
    out = ("--out", "job.json") if command == "export" else ()
    for words in wrong:
        assert main([command, *words, *out]) == 2, (command, words)
assert main(["sweep", "--model", "llama-mo", "--out", "rows"]) == 2
for words in ("--help", "compare --help", "compare --help circuits", "show --model llama-moe", "show --presets",
              "query table.csv --sort iteration_s", "traffic --model llama-moe --fabric mfabric"):
    try:
        assert not main(words.split()), words
    except SystemExit as left:
        assert not left.code
assert "jax" not in sys.modules
"""


def test_words_and_cases_are_checked_and_shown_without_jax(tmp_path):
    done = subprocess.run([sys.executable, "-c", WORDS], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]


LEAVES = {  # rooms that only some users need, and what outside of them may import them
    "jobs": {"commands/jobs.py"},
    "replay": {"commands/replay.py", "sweep/replays.py"},
    "failures": {"commands/failures.py"},
    "export": {"commands/export.py"},
    "serving": {"commands/serve.py", "commands/serve_said.py", "validation/serving_steps.py"},
    "recordings": {"commands/traces.py", "commands/traces_study.py", "commands/surface.py"},
    "measurements": {"commands/calibrate_nccl.py", "commands/surface.py"},
    "circuit_schedules": {"resolving/resolved.py", "learning/judged_schedules.py"},
    "learning": {"commands/train.py", "commands/evaluate.py", "commands/policies.py"},
    "validation": {"commands/validate.py", "commands/reproduce.py", "commands/experiment.py"},
    "tuning": {"commands/tune.py", "commands/doctor.py"},
}


def test_nothing_but_their_commands_leans_on_leaves():
    leaning = {leaf: set() for leaf in LEAVES}
    for file in sorted(ROOT.rglob("*.py")):
        path = file.relative_to(ROOT)
        module = ".".join(["mfabric_jax", *path.with_suffix("").parts])
        for _, target in imported(ast.parse(file.read_text()), module):
            leaf = target.removeprefix("mfabric_jax.").split(".")[0]
            if target.startswith("mfabric_jax.") and leaf in LEAVES and path.parts[0] != leaf:
                leaning[leaf].add(path.as_posix())
    assert leaning == LEAVES


PLAIN = "compare --model llama-moe --fabric fat-tree,mfabric --nic-gbps 100,400"


def test_a_plain_question_loads_what_it_uses_alone(tmp_path):
    walk = ROOT.parent / "benchmarks" / "walk.py"
    words = [sys.executable, str(walk), *PLAIN.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    modules, functions = map(int, re.findall(r"(\d+) modules loaded, (\d+) functions run", done.stdout)[0])
    assert modules <= 150
    assert functions <= 560
