"""The rules of the house, read from the source: sizes, names, powers of ten, who may ask which fabric it is."""

import ast
import io
import pathlib
import re
import tokenize

import mfabric_jax
from mfabric_jax import fabric

ROOT = pathlib.Path(mfabric_jax.__file__).parents[1]
SOURCES = {
    file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
    for folder in ("mfabric_jax", "experiments", "tests")
    for file in sorted((ROOT / folder).rglob("*.py"))
}
PACKAGE = {path: source for path, source in SOURCES.items() if path.startswith("mfabric_jax/")}
TREES = {path: ast.parse(source) for path, source in SOURCES.items() if not path.startswith("tests/")}


def test_no_file_is_above_800_lines():
    assert {path: lines for path, source in SOURCES.items() if (lines := source.count("\n")) > 800} == {}


def test_the_formatter_formats_everything():
    skip = "fmt: " + "skip"
    assert [path for path, source in SOURCES.items() if skip in source] == []


def test_nothing_writes_into_frozen_classes():
    """What is open is filled before a class is made; arrays alone are stored as checks have read them."""
    assert [path for path, source in PACKAGE.items() if "object.__" + "setattr__" in source] == [
        "mfabric_jax/support/host_arrays.py"
    ]


NO_FABRIC = {
    "CircuitTable",
    "Circuits",
    "Prices",
    "CircuitSchedule",
}  # classes in fabric/ that code elsewhere may ask for


def fabric_classes():
    """Names of the classes that are defined in fabric/."""
    inside = [tree for path, tree in TREES.items() if path.startswith("mfabric_jax/fabric/")]
    classes = [node.name for tree in inside for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return set(classes) - NO_FABRIC


def asks_which_fabric(tree, classes, names):
    """Lines that tell fabrics apart: by `isinstance` or a class pattern, by a comparison with a name, or by a table."""

    def any_of(node, known):
        parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        words = (getattr(part, "id", getattr(part, "attr", getattr(part, "value", None))) for part in parts)
        return any(isinstance(word, str) and word in known for word in words)

    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]) if any_of(kind, classes):
                yield node.lineno
            case ast.MatchClass(cls=kind) if any_of(kind, classes):
                yield kind.lineno
            case ast.MatchValue(value=value) if any_of(value, names):
                yield value.lineno
            case ast.Compare(left=left, comparators=right):
                if any(any_of(side, classes | names) for side in (left, *right)):
                    yield node.lineno
            case ast.Dict(keys=keys):
                if sum(any_of(key, classes | names) for key in keys if key is not None) > 1:
                    yield node.lineno


def test_only_fabrics_know_which_fabric_they_are():
    names, classes = set(fabric.NAMES), fabric_classes()
    wrong = [
        f"{path}:{line}"
        for path in PACKAGE
        if not path.startswith(("mfabric_jax/fabric/", "mfabric_jax/case/"))
        for line in asks_which_fabric(TREES[path], classes, names)
    ]
    assert wrong == [], "ask the fabric instead: a method or a field of its own"


def test_the_rule_finds_questions_about_fabrics():
    for source, count in [
        ("isinstance(one, Region)", 1),
        ("isinstance(one, Plan)", 0),
        ("one.name == 'mfabric'", 1),
        ("KINDS = {'nvl72': 1, 'mfabric': 2}", 1),
        ("fabric = 'mfabric'\nrow = {'mfabric': 1, **others}", 0),
        ("match one:\n    case Region():\n        x = 1\n    case 'nvl72':\n        x = 2", 2),
    ]:
        got = list(asks_which_fabric(ast.parse(source), {"Region"}, {"nvl72", "mfabric"}))
        assert len(got) == count, source


COMMENTED_CONSTANT = re.compile(r"[A-Z][A-Z_]* = .*# \S")
FACTORS = (1e9, 1e12, 1.25e8)  # never: these are units


def strange_numbers(source, path):
    """Numbers with an exponent that no comment explains."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lower()
        if token.type == tokenize.NUMBER and "e" in text and not text.startswith("0x"):
            explained = COMMENTED_CONSTANT.match(token.line)
            if not explained or float(text) in FACTORS:
                yield f"{path}:{token.start[0]}: {text}"


def test_powers_of_ten_stand_only_in_units():
    others = {path: source for path, source in PACKAGE.items() if path != "mfabric_jax/units.py"}
    assert [number for path, source in others.items() for number in strange_numbers(source, path)] == []


def test_the_rule_finds_powers_of_ten():
    for source, count in [
        ("x = rate * 1.25e8\n", 1),
        ("TOLERANCE = 1e-4\n", 1),
        ("TOLERANCE = 1e-4  # of a sum of shares\n", 0),
        ("x = 0x1e + 1000\n'1e9 in words'  # 1e9\n", 0),
    ]:
        assert len(list(strange_numbers(source, "a.py"))) == count, source


SECOND_WAYS = {"covers", "Program", "Given", "Scenario", "Settings", "_Waves", "_Walks", "dce_jaxpr", "FEW"}


def test_an_iteration_is_evaluated_in_one_way():
    """No name of what chose between two ways, and no module that held one of them."""
    found = {}
    for path, tree in TREES.items():
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
        top = [node for node in tree.body if isinstance(node, ast.Assign)]
        defined |= {target.id for node in top for target in node.targets if isinstance(target, ast.Name)}
        defined |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if path.startswith("mfabric_jax/") and (again := defined & SECOND_WAYS):
            found[path] = again
    assert found == {}
    gone = (
        "timing/on_host",
        "timing/switching",
        "timing/exchange",
        "simulation/on_host",
        "program_key",
        "program_store",
    )
    assert [name for name in gone if f"mfabric_jax/{name}.py" in PACKAGE] == []
