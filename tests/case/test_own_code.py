"""Files are data: code that only a file names never runs; what a command line or Python states does."""

import ast
import json
import pathlib

import pytest

import mfabric_jax
from mfabric_jax.case import Case, load, own_code
from mfabric_jax.policies import allow_code, get
from tests.command_line import mistake, status
from tests.mistakes import refused

SOURCE = """
import pathlib
from mfabric_jax.policies import greedy

pathlib.Path(__file__).with_name("ran").touch()

def f(demand, region, *, previous=None, key=None, power=1.0):
    return greedy(demand**power, region)
"""

pytestmark = pytest.mark.usefixtures("command_line")


def mark(folder):
    """The name of a policy in a file of others, which leaves a mark when it runs."""
    (folder / "theirs.py").write_text(SOURCE)
    return f"{folder}/theirs.py:f"


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """Nothing is allowed."""
    monkeypatch.setattr(own_code, "_allowed", set())
    return mark(tmp_path)


def written(folder, content, name="case.json"):
    (folder / name).write_text(json.dumps(content))
    return str(folder / name)


REGION = {"model": "llama-moe", "network": {"fabric": "mfabric"}}
SETTINGS = {  # where a file may name code, NAME standing for it
    "policy": REGION | {"circuits.policy": "NAME"},
    "one of several": REGION | {"circuits": {"policy": ["greedy", "NAME(power=[1.0, 2.0])"]}},
    "schedule": REGION | {"circuits.schedule": "NAME"},
    "variant": REGION | {"variants": [{"name": "a", "circuits.policy": "NAME"}, {"name": "b"}]},
    "drawn": REGION | {"random": {"circuits.policy": {"of": ["greedy", "NAME"]}}, "sweep": {"draws": 2}},
}


def no_reader_runs(read, content, folder):
    """Neither reading a file that names code nor what is said of it runs the code."""
    theirs = mark(folder)
    path = written(folder, json.loads(json.dumps(content).replace("NAME", theirs)))
    said = refused(read, path)
    assert said.startswith(repr(path))
    assert "names code to run" in said
    assert f"add --code {folder}/theirs.py, or in Python call policies.allow_code(" in said
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("where", SETTINGS)
def test_no_reader_takes_code_that_its_file_names(where, theirs, tmp_path):
    no_reader_runs(load, SETTINGS[where], tmp_path)


def test_a_file_may_name_what_python_allows_or_the_command_line_states(theirs, tmp_path, capsys):
    path = written(tmp_path, {"model": "llama-moe", "circuits.policy": theirs})
    compare = ["compare", path, "--fabric", "mfabric", "--gpus", "64", "--ep", "16", "--draws", "1"]
    said = mistake(capsys, *compare)
    assert repr(path) in said
    assert f"names code to run, from '{tmp_path}/theirs.py'" in said
    assert not (tmp_path / "ran").exists()
    for words in ([f"--code={tmp_path}/theirs.py"], ["--code", f"other,{tmp_path}/../{tmp_path.name}/theirs.py"]):
        assert status("show", path, *words) == 0, words
    assert status(*compare, "--set", f"circuits.policy={theirs}(power=2.0)") == 0  # the word states the file
    assert (tmp_path / "ran").exists()
    assert "names code to run" in refused(load, path)  # a command allows nothing beyond its end
    allow_code(tmp_path / "theirs.py")
    assert load(path).circuits.policy == theirs


def test_python_states_code_by_its_strings(theirs, tmp_path):
    assert Case().with_({"circuits.policy": theirs}).circuits.policy == theirs
    assert get(theirs).__name__ == "f"


def test_in_a_command_code_runs_only_if_its_words_state_it(theirs, tmp_path):
    with own_code.command_line(["--policy", "greedy"]):
        assert "names code to run" in refused(get, theirs)
    assert not (tmp_path / "ran").exists()
    with own_code.command_line([f"--policies=greedy,{theirs}(power=2)"]) as rest:
        assert rest == [f"--policies=greedy,{theirs}(power=2)"]
        get(theirs)


@pytest.mark.parametrize(
    ("words", "rest", "files"),
    [
        (["a.toml", "--code", "x.py,pkg.net", "--draws", "1"], ["a.toml", "--draws", "1"], {"x.py", "pkg.net"}),
        (["--code=x.py", "--code=y.py"], [], {"x.py", "y.py"}),
        (
            ["--set", "a.b=x.py:f"],
            ["--set", "a.b=x.py:f"],
            {"a.b=x.py", "x.py"},
        ),
        (["--policy", "greedy(rule=next),x.py:f(a=[1,2]),b=c.py:g"], None, {"x.py", "b=c.py", "c.py"}),
        (["--policy", "x.py", "--out", "y.py", "--set", "model.name=m.json"], None, set()),
    ],
)
def test_words_state_files_and_modules(words, rest, files):
    with own_code.command_line(words) as left:
        assert left == (words if rest is None else rest)
        found = {str(pathlib.Path(one).resolve()) if one.endswith(".py") else one for one in files}
        assert set(own_code.allowed_code()) == found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--code"], "option --code needs Python files or modules after it"),
        (["--code", "--draws"], "option --code needs Python files"),
        (["--code", "os system"], "--code must be a Python file (FILE.py) or the name of a module, got 'os system'"),
    ],
)
def test_mistakes_of_the_flag_are_answered(words, said, capsys):
    assert said in mistake(capsys, "show", *words)


LOADERS = {  # who may load, run or unpickle what is named elsewhere: docs/formats.md lists them with their guards
    *(
        "__init__.py",
        "support/lazily.py",
        "commands/__init__.py",
        "fabric/registry.py",
        "circuit_schedules/registry.py",
    ),
    *("apps/sweep/design_space.py", "traffic/recording.py", "commands/reproduction.py", "support/origin.py"),
    *("policies/own.py", "policies/own_modules.py", "apps/recordings/arrays.py"),
    "report/drawing_process.py",
}
CALLS = ("import_module", "exec_module", "__import__", "exec", "eval", "run_path", "run_module", "Popen")
MODULES = ("pickle", "marshal", "shelve", "subprocess", "runpy", "yaml", "dill", "joblib")


def test_everything_that_can_run_named_code_is_known():
    root, found = pathlib.Path(mfabric_jax.__file__).parent, set()
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", getattr(called, "id", None))
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if name in CALLS or {module.partition(".")[0] for module in modules} & set(MODULES):
                found.add(file.relative_to(root).as_posix())
    assert found == LOADERS
