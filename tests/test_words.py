"""Names in the package: one public class name for one thing, no filler words, functions that act are verbs."""

import ast
import collections
import pathlib

import mfabric_jax

ROOT = pathlib.Path(mfabric_jax.__file__).parent
FILLERS = {"one", "told", "said", "asked", "found", "place", "given", "rest", "at"}
FORCED = {"timing/trace.py": {"place"}}  # a key of the segments of a timeline
LOOKED_UP = {"learned", "untrained", "relaxed", "skewed"}  # names of policies and kinds of demand
OF_EVERY_COMMAND = {"Options"}  # `commands/NAME.py` describes its options by a class of this name


def trees():
    for file in sorted(ROOT.rglob("*.py")):
        yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text(encoding="utf-8"))


def bound(tree):
    """Every name that a module binds, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) or (
            isinstance(node, ast.MatchAs | ast.ExceptHandler) and node.name
        ):
            yield node.name, node.lineno


def test_a_public_class_name_stands_for_one_thing():
    homes = collections.defaultdict(list)
    for path, tree in trees():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(path)
    several = {name: paths for name, paths in homes.items() if len(paths) > 1 and name not in OF_EVERY_COMMAND}
    assert not several
    assert len(homes) > 300


def test_filler_words_are_no_names():
    fillers = [
        f"{path}:{line} {name}"
        for path, tree in trees()
        for name, line in bound(tree)
        if name in FILLERS - FORCED.get(path, set())
    ]
    assert not fillers, "\n".join(fillers)
    source = "def f(at):\n    for one in at:\n        rest = one\n"
    assert [name for name, _ in bound(ast.parse(source)) if name in FILLERS] == ["at", "one", "rest"]


NO_VERBS = {  # participles without a verb form of their own, by their whole name
    *("told", "said", "asked", "found", "given", "made", "kept", "built", "left", "sent", "held", "drawn", "known"),
    *("shown", "written", "taken", "chosen", "seen", "laid", "met", "begun", "broken", "spent", "paid", "bound_to"),
}
ADJECTIVES = {  # one word that says how a value is: properties and predicates of values
    *("nested", "shared", "speed", "need", "seed", "feed", "embed", "exceed", "proceed", "red", "bed"),
}


def is_participle(name):
    """Whether a name is one word that ends as a participle does."""
    word = name.strip("_")
    return word in NO_VERBS or ("_" not in word and len(word) > 4 and word.endswith("ed") and word not in ADJECTIVES)


def test_functions_that_act_are_verbs():
    wrong = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and is_participle(node.name) and node.name not in LOOKED_UP
    ]
    assert not wrong, "\n".join(wrong)
    assert [name for name in ("placed", "_told", "place_experts", "seed", "speed") if is_participle(name)] == [
        "placed",
        "_told",
    ]
