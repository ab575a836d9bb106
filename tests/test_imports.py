"""Data flows one way: who may import whom, and what importing the package may need."""

import ast
import functools
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import mfabric_jax

ROOT = pathlib.Path(mfabric_jax.__file__).parent
# A room may import those to its left and itself. A folder in a folder is a room of its own where it is named here.
ORDER = (
    *("units", "checks", "support", "case", "flows", "workload", "traffic", "fabric", "routing", "policies", "timing"),
    *(
        "circuit_schedules",
        "evaluate/resolving",
        "evaluate",
        "evaluate/setups",
        "evaluate/rows",
        "apps",
        "report",
        "commands",
        "cli",
    ),
)
RANK = {room: rank for rank, room in enumerate(ORDER)}
# `checks` and `units` are the two files that every room may import, `support` among them.
ALONE = "apps"  # a folder of it may not import another
WITHOUT_JAX = ("report",)  # nor pyplot
# Files of such rooms that import an extra at the top: what draws, and tables of pyarrow. The others load without.
ON_EXTRAS = ("report/drawing/", "report/figures/", "report/parquet_rows.py", "report/queried.py")
OPTIONAL = ("tqdm", "matplotlib", "altair", "pyarrow", "scipy", "numba", "google", "pandas", "networkx", "ray")


def module_of(path):
    parts = pathlib.PurePosixPath(path).with_suffix("").parts
    return ".".join(["mfabric_jax", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def module_file(name):
    """Inside the package, as if the name were of a folder, or of a file of its module."""
    parts = name.split(".")[1:]
    return next((file for file in ON_EXTRAS if file == "/".join(parts[:2]) + ".py"), "/".join(parts) + "/")


def imported(tree, path):
    """(line, absolute name) of everything that a module imports, wherever in it: names from packages in full."""
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = ["mfabric_jax", *package][: len(package) + 2 - node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


class Source(NamedTuple):
    """What a module imports, the lines where it does so inside of functions, and those of its own statements."""

    imports: list
    inside: list
    at_top: set


def read(source, path=""):
    tree = ast.parse(source)
    return Source(list(imported(tree, path)), inside_of_functions(tree), {node.lineno for node in tree.body})


@functools.cache
def modules():
    """Every module of the package, by its path in it."""
    files = {file.relative_to(ROOT).as_posix(): file for file in sorted(ROOT.rglob("*.py"))}
    return {path: read(file.read_text(encoding="utf-8"), path) for path, file in files.items()}


def room_of(module):
    """The room of a module or of a name in it; None for the package itself."""
    parts = module.split(".")[1:]
    return next((room for room in ("/".join(parts[:2]), parts[0]) if room in RANK), parts[0]) if parts else None


def against_the_order(source, path):
    """Imports of the module at `path` (inside the package) that point to its right, to another app, or to no room."""
    room = room_of(module_of(path))
    if room is None:
        return
    if room not in RANK:
        yield f"{path} has no place in the order {' < '.join(ORDER)}"
        return
    for line, target in source.imports:
        top, _, rest = target.partition(".")
        if room in WITHOUT_JAX and (top in ("jax", "jaxlib", "equinox") or "pyplot" in target):
            yield f"{path}:{line} imports {target}: {room} knows rows, not jax"
        extra = top in OPTIONAL or module_file(target).startswith(ON_EXTRAS)
        if room in WITHOUT_JAX and extra and line in source.at_top and not path.startswith(ON_EXTRAS):
            yield f"{path}:{line} imports {target}: it loads without extras"
        if top != "mfabric_jax" or not rest or rest.startswith("__"):
            continue
        other = room_of(target)
        lazily = room == other.partition("/")[0] and path == f"{room}/__init__.py"  # what a package shows of its own
        if RANK.get(other, 99) > RANK[room] and not lazily:
            yield f"{path}:{line} imports {target}: {room} may not depend on {other}"
        if room == other == ALONE and path.split("/")[1:2] != rest.split(".")[1:2]:
            yield f"{path}:{line} imports {target}: an app may not depend on another"


def test_packages_import_from_their_left_only():
    wrong = []
    for path, source in modules().items():
        wrong += against_the_order(source, path)
    assert not wrong, "\n".join(wrong)


def test_the_rule_finds_offenders():
    for path, source, wrong in [
        ("flows/a.py", "from mfabric_jax.fabric import Region", True),
        ("flows/a.py", "from mfabric_jax import units, apps", True),
        ("flows/a.py", "def f():\n    from ..cli import main", True),
        ("flows/a.py", "from mfabric_jax import nowhere", True),
        ("checks.py", "from mfabric_jax import report", True),
        ("evaluate/a.py", "from mfabric_jax.evaluate.rows.rows import columns_of", True),
        ("evaluate/rows/a.py", "from mfabric_jax.evaluate.a import b", False),
        ("evaluate/__init__.py", "from mfabric_jax.evaluate.rows.rows import columns_of", False),
        ("apps/sweep/a.py", "from mfabric_jax.apps.serving.rows import known", True),
        (
            "apps/sweep/a.py",
            "from mfabric_jax.apps.sweep.b import c\nfrom . import d\nfrom mfabric_jax import flows",
            False,
        ),
        ("report/a.py", "def f():\n    import jax.numpy as jnp", True),
        ("report/a.py", "def f():\n    from matplotlib import pyplot", True),
        ("report/a.py", "from matplotlib.figure import Figure", True),
        ("report/a.py", "from mfabric_jax.report.drawing.paper import look", True),
        ("report/a.py", "from mfabric_jax.report import queried", True),
        ("report/a.py", "from mfabric_jax.report.queried import half_width", True),
        ("report/drawing/a.py", "from matplotlib.figure import Figure", False),
        ("report/drawing/a.py", "from matplotlib import pyplot", True),
        ("report/html/a.py", "from mfabric_jax.report.drawing.paper import look", True),
    ]:
        assert any(against_the_order(read(source, path), path)) is wrong, (path, source)


def circles(imports):
    """Modules that import each other, directly or through others; `imports`: names by module."""
    reached = {}

    def reach(module):
        if module not in reached:
            reached[module], ahead = set(), [module]
            while ahead:
                new = imports.get(ahead.pop(), set()) - reached[module]
                reached[module] |= new
                ahead += new
        return reached[module]

    return sorted(module for module in imports if module in reach(module))


def test_no_module_imports_itself_through_others():
    # Packages show what is in them.
    names = {module_of(path): path for path in modules() if not path.endswith("__init__.py")}
    imports = {}
    for name, path in names.items():
        targets = {target for _, target in modules()[path].imports}
        imports[name] = {each for target in targets for each in (target, target.rpartition(".")[0]) if each in names}
    assert circles(imports) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]


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


REPORT = """
import importlib, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name.split(".")[0])

sys.meta_path.insert(0, Absent())
for name in PLAIN:
    importlib.import_module(name)
from mfabric_jax import report
from mfabric_jax.checks import InputError
assert report.html_report
for ask, extra in (
    (lambda: report.draw_fabric, "plot"),
    (lambda: report.save_all, "plot"),
    (lambda: importlib.import_module("mfabric_jax.report.figures.timelines"), "plot"),
    (lambda: report.query(["rows.csv"], report.QueryOptions()), "store"),
    (lambda: report.write_rows([{"x": 1}], "rows.parquet", {}), "store"),
    (lambda: report.read_rows("rows.parquet"), "store"),
):
    try:
        ask()
    except InputError as sentence:
        assert f"run pip install 'mfabric-jax[{extra}]'" in str(sentence), sentence
    else:
        raise AssertionError(extra)
"""


def test_reports_load_without_extras_and_what_draws_or_stores_says_which_it_needs(tmp_path):
    files = [file.relative_to(ROOT).as_posix() for file in sorted((ROOT / "report").rglob("*.py"))]
    plain = [module_of(path) for path in files if not path.startswith(ON_EXTRAS)]
    assert len(plain) > 10
    code = f"ABSENT = {set(OPTIONAL) - {'scipy', 'numba'}}\nPLAIN = {plain}\n{REPORT}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.iterdir())


# Imports stand at the top of files. Inside of functions they are in `cli` and `commands`, and in so many more:
INSIDE = {
    "__init__.py": 1,  # the package's names, by the names of their files
    "case/grid.py": 1,  # NumPy, which is slow to load; words are checked without it
    "checks.py": 2,
    "support/loops.py": 2,  # numba, when the first loop is called
    "support/origin.py": 1,  # whether JAX can be had, in words
    "support/progress.py": 1,  # tqdm, an extra without which lines are written
}


def inside_of_functions(tree):
    """Lines of imports inside of functions."""
    lines, ahead = [], [(tree, False)]
    while ahead:
        node, inside = ahead.pop()
        if inside and isinstance(node, (ast.Import, ast.ImportFrom)):
            lines.append(node.lineno)
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        ahead += [(child, inside) for child in ast.iter_child_nodes(node)]
    return sorted(lines)


def test_imports_stand_at_the_top():
    found = {}
    for path, source in modules().items():
        if path != "cli.py" and not path.startswith("commands/"):
            found[path] = source.inside
    more = {path: lines for path, lines in found.items() if len(lines) > INSIDE.get(path, 0)}
    assert not more, f"these lines import inside of functions: {more}"
    assert len(found) > 200
    source = "import a\nif a:\n    import b\ndef f():\n    import c\n    def g():\n        from d import e\n"
    assert read(source).inside == [5, 7]


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


APPS = {  # what outside of an app may import it: its commands
    "failures": {"buy", "failures"},
    "graphs": {"export", "jobs", "replay", "traffic"},
    "learning": {"evaluate", "policies", "policies_regimes", "train"},
    "purchase": {"buy"},
    "recordings": {"calibrate", "calibrate_nccl", "traces", "traces_study"},
    "serving": {"serve", "serve_sentences", "validate"},
    "setups": {"setup"},
    "sweep": {"rerun", "sweep"},
    "validation": {"validate"},
}


def test_nothing_but_their_commands_leans_on_apps():
    leaning = {app: set() for app in APPS}
    for path, source in modules().items():
        for _, target in source.imports:
            parts = target.split(".")
            if parts[:2] == ["mfabric_jax", "apps"] and len(parts) > 2 and not path.startswith("apps/"):
                leaning[parts[2]].add(path.removeprefix("commands/").removesuffix(".py"))
    assert leaning == APPS


HERE = pathlib.Path(__file__).parent


def apps_in(source):
    """(line, app) of every import of an app or of its tests, and of every name of an app in a text."""
    if not re.search("apps|commands", source):
        return
    tree = ast.parse(source)
    texts = [(one.lineno, one.value) for one in ast.walk(tree) if isinstance(one, ast.Constant)]
    for line, target in [*imported(tree, ""), *((line, text) for line, text in texts if isinstance(text, str))]:
        parts = target.split(".")
        if parts[1:2] == ["apps"] and parts[0] in ("mfabric_jax", "tests") and parts[2:3] != ["together"]:
            yield from ((line, app) for app in parts[2:3])
        if parts[:2] == ["mfabric_jax", "commands"] and len(parts) > 2:
            yield from ((line, app) for app, commands in APPS.items() if parts[2] in commands)


def against_the_apps(source, path):
    """Lines of the test at `path` (inside of `tests`) that need an app which the test is not about."""
    room, *rest = path.split("/")
    if rest and path.split("/")[:2] != ["apps", "together"]:
        own = rest[0] if room == "apps" else None
        yield from (f"{path}:{line} needs the app {app}" for line, app in apps_in(source) if app != own)


def test_tests_of_an_app_go_with_it_and_no_others_need_it():
    """But for `apps/together`, what several must agree on, and the files on top, of the whole product."""
    files = sorted(HERE.rglob("*.py"))
    wrong = [line for file in files for line in against_the_apps(file.read_text(), file.relative_to(HERE).as_posix())]
    assert not wrong, "\n".join(wrong)
    for path, source, found in [
        ("fabric/test_a.py", "def test():\n    from mfabric_jax.apps.failures import failures", True),
        ("fabric/test_a.py", "from mfabric_jax.apps import serving", True),
        ("fabric/test_a.py", "from tests.apps.sweep.test_b import rows", True),
        ("fabric/test_a.py", "files('mfabric_jax.apps.serving')", True),
        ("fabric/test_a.py", "from mfabric_jax.fabric import apps", False),
        ("fabric/test_a.py", "from mfabric_jax.commands.rerun import cases_of", True),
        ("fabric/test_a.py", "from mfabric_jax.commands.compare import run", False),
        ("apps/sweep/test_a.py", "from mfabric_jax.apps.serving import known", True),
        ("apps/sweep/test_a.py", "from mfabric_jax.apps.sweep import sweep", False),
        ("apps/together/test_a.py", "from mfabric_jax.apps.sweep import sweep", False),
        ("test_a.py", "from mfabric_jax.apps.sweep import sweep", False),
    ]:
        assert any(against_the_apps(source, path)) is found, (path, source)


PLAIN = "compare --model llama-moe --fabric fat-tree,mfabric --nic-gbps 100,400"


def test_a_plain_question_loads_what_it_uses_alone(tmp_path):
    walk = ROOT.parent / "benchmarks" / "walk.py"
    words = [sys.executable, str(walk), *PLAIN.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = re.findall(r"(\d+) modules loaded, (\d+) of the core; (\d+) functions run, (\d+) of the core", done.stdout)
    modules, of_core, functions, in_core = map(int, counts[0])
    assert modules <= 152
    assert of_core <= 115
    assert functions <= 610  # those of the progress line, too, where a machine is slow
    assert in_core <= 465
