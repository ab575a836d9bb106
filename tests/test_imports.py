"""Data flows one way: who may import whom, what importing the package may need, and powers of ten in one place."""

import ast
import io
import pathlib
import re
import subprocess
import sys
import tokenize

import pytest

import mfabric_jax

ROOT = pathlib.Path(mfabric_jax.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(file.relative_to(ROOT)) for file in FILES]

ORDER = (
    "units",
    "flows",
    "workload",
    "traffic",
    "fabric",
    "routing",
    "policies",
    "schedule",
    "study",
    "report",
    "reproduce",
    "commands",
    "cli",
)
RANK = {name: place for place, name in enumerate(ORDER)} | dict.fromkeys(("checks", "atomic", "extras"), 0)
WITHOUT_JAX = ("report",)
OPTIONAL = ("tyro", "tqdm", "matplotlib", "pyarrow", "scipy", "msgspec")

POWERS_OF_TEN = {  # with an exponent, outside of units.py and of a constant with a comment
}
COMMENTED_CONSTANT = re.compile(r"[A-Z][A-Z_]* = .*# \S")
FACTORS = (1e9, 1e12, 1.25e8)  # never: these are units


def imported(tree, module):
    """(line, absolute name) of everything that a module imports, wherever in it: names from packages in full."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inside = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*inside, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def module_of(name):
    return ".".join(["mfabric_jax", *pathlib.PurePosixPath(name).with_suffix("").parts])


def against_the_order(source, name):
    """Imports of `name` that point to its right in the order, or to what the order does not know."""
    own = pathlib.PurePosixPath(name).parts[0].removesuffix(".py")
    found = []
    for line, target in imported(ast.parse(source), module_of(name)):
        top, _, rest = target.partition(".")
        other = rest.split(".")[0]
        if top != "mfabric_jax" or own == "__init__" or not other or other.startswith("__"):
            continue
        if other not in RANK or RANK[other] > RANK[own]:
            found.append(f"{name}:{line} imports {target}: {own} may not depend on {other}")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_package_imports_from_its_left_only(name):
    own = pathlib.PurePosixPath(name).parts[0].removesuffix(".py")
    assert own == "__init__" or own in RANK, f"{name} has no place in the order {' < '.join(ORDER)}"
    source = (ROOT / name).read_text()
    assert against_the_order(source, name) == []
    heavy = [t for _, t in imported(ast.parse(source), module_of(name)) if t.split(".")[0] in ("jax", "jaxlib")]
    assert own not in WITHOUT_JAX or not heavy


@pytest.mark.parametrize(
    ("name", "source", "wrong"),
    [
        ("flows/a.py", "from mfabric_jax.fabric import Region", True),
        ("flows/a.py", "import mfabric_jax.fabric.region", True),
        ("flows/a.py", "from mfabric_jax import units, study", True),
        ("flows/a.py", "def f():\n    from ..cli import main", True),
        ("flows/a.py", "from mfabric_jax import nowhere", True),
        ("checks.py", "from mfabric_jax import report", True),
        ("study/a.py", "from mfabric_jax import report", True),
        ("study/a.py", "from mfabric_jax.study.b import c\nfrom . import d\nfrom mfabric_jax import flows", False),
        ("commands/a.py", "from mfabric_jax import cli", True),
        ("reproduce/a.py", "from mfabric_jax.commands import shared", True),
        ("study/a.py", "import mfabric_jax\nimport jax", False),
        ("report/a.py", "from mfabric_jax.checks import InputError", False),
    ],
)
def test_the_rule_finds_offenders(name, source, wrong):
    assert bool(against_the_order(source, name)) is wrong


IMPORT_WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Absent())
import mfabric_jax
assert "mfabric_jax.cli" not in sys.modules and "mfabric_jax.report" not in sys.modules
print(sorted({name.split(".")[0] for name in sys.modules} & ABSENT))
"""


def test_the_package_needs_no_extra():
    code = f"ABSENT = {set(OPTIONAL)}\n{IMPORT_WITHOUT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_the_package_imports_no_extra_where_there_is_one():
    # scipy comes with jax where it is installed, so it is left out here.
    code = "import sys, mfabric_jax; print(sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not set(ast.literal_eval(done.stdout)) & (set(OPTIONAL) - {"scipy"})


def test_public_names_exist():
    for name in mfabric_jax.__all__:
        assert getattr(mfabric_jax, name) is not None
    assert list(mfabric_jax.__all__) == sorted(mfabric_jax.__all__)


def strange_numbers(source, name):
    """Numbers with an exponent that neither the table nor a comment explains."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lower()
        if token.type == tokenize.NUMBER and "e" in text and not text.startswith("0x"):
            explained = COMMENTED_CONSTANT.match(token.line) or (name, text) in POWERS_OF_TEN
            if not explained or float(text) in FACTORS:
                yield f"{name}:{token.start[0]}: {text}"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "units.py"])
def test_powers_of_ten_only_in_units(name):
    assert list(strange_numbers((ROOT / name).read_text(), name)) == [], "conversions belong into units.py"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("x = rate * 1.25e8\n", 1),
        ("GIGA = 1e9  # bytes\n", 1),
        ("TOLERANCE = 1e-4\n", 1),
        ("TOLERANCE = 1e-4  # of a sum of shares\n", 0),
        ("x = 0x1e + 1000\n'1e9 in words'  # 1e9\n", 0),
    ],
)
def test_the_rule_finds_powers_of_ten(source, count):
    assert len(list(strange_numbers(source, "a.py"))) == count
