"""Your own Equinox modules in files: they come back as they were, by name, and what cannot come back is refused."""

import hashlib
import importlib
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.case import own_code
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import policy_file
from mfabric_jax.routing import Plan
from tests.command_line import mistake
from tests.mistakes import refused

REGION = Region(4, 8.0, 3)
DEMAND = jnp.asarray(np.random.default_rng(0).random((4, 4)), jnp.float32)


class Weighted(eqx.Module):
    """A small policy: scores are a function of each pair's bytes."""

    net: eqx.nn.MLP
    steps: int = eqx.field(static=True)

    def __init__(self, width=3, steps=1, *, key):
        self.net, self.steps = eqx.nn.MLP("scalar", "scalar", width, 1, dtype=jnp.float32, key=key), steps

    def __call__(self, demand, region, *, previous=None, key=None, sharp=1.0):
        scores = jax.nn.softplus(sharp * jax.vmap(jax.vmap(self.net))(demand))
        return Plan(Circuits(policies.round_scores(scores, region)))


class Table(eqx.Module):
    scores: jax.Array
    name: str = "a leaf that is no array"

    def __call__(self, demand, region, *, previous=None, key=None):
        return Plan(Circuits(policies.round_scores(self.scores, region)))


SOURCE = """
import equinox as eqx
import jax.numpy as jnp
from tests.policies.test_own_modules import Table

def blank(servers):
    return Table(jnp.zeros((servers, servers), jnp.float32))
"""


def test_a_module_comes_back_as_it_was_and_is_a_policy_by_its_path(tmp_path):
    policy = Weighted(5, 2, key=jax.random.key(7))
    path = policies.save(tmp_path / "own.policy", policy, {"seed": 7}, settings={"width": 5, "steps": 2})
    again = policies.load(path)
    assert eqx.tree_equal(again.model, policy)
    assert again.configuration == {"seed": 7}
    want = policy(DEMAND, REGION, sharp=2.0).circuits.count
    got = jax.jit(lambda demand: policies.get(str(path), sharp=2.0)(demand, REGION).circuits.count)(DEMAND)
    np.testing.assert_array_equal(got, want)
    assert "it has sharp." in refused(policies.get, str(path), rule="next")


def test_a_function_in_a_file_may_build_the_module(tmp_path):
    (tmp_path / "mine.py").write_text(SOURCE)
    policy = Table(DEMAND)
    build = f"{tmp_path / 'mine.py'}:blank"
    path = policies.save(tmp_path / "own.policy", policy, build=build, settings={"servers": 4})
    np.testing.assert_array_equal(policies.load(path).model.scores, DEMAND)
    (tmp_path / "mine.py").unlink()
    fresh = path.rename(tmp_path / "moved.policy")
    assert "there is no file" in refused(policies.load, fresh)


def test_what_cannot_be_built_again_is_refused(tmp_path):
    class Local(Weighted):
        pass

    save, policy = policies.save, Weighted(5, key=jax.random.key(0))
    for given, options, said in (
        (policies.greedy, {}, "policy must be an Equinox module that can be called, got function."),
        (eqx.nn.Identity, {}, "policy must be an Equinox module that can be called"),
        (Local(key=jax.random.key(0)), {}, "build must be the FILE.py:FUNCTION or MODULE:NAME that makes a Local"),
        (policy, {}, "policy must have the arrays that 'tests.policies.test_own_modules:Weighted' builds with "),
        (policy, {"settings": {"girth": 5}}, "raised "),
        (policy, {"settings": {"width": jnp.ones(2)}}, "must be valid JSON"),
        (policy, {"build": "no_such_module:thing"}, "that exists, got 'no_such_module:thing'"),
        (policy, {"build": "mfabric_jax.units:nothing"}, "that exists, got"),
    ):
        assert said in refused(save, tmp_path / "none.policy", given, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("field", ["build", "settings"])
def test_a_file_that_lacks_what_builds_is_refused(tmp_path, field):
    path = policies.save(tmp_path / "own.policy", Weighted(key=jax.random.key(0)))
    path.write_bytes(path.read_bytes().replace(f'"{field}"'.encode(), b'"other"', 1))
    assert "lacks what a policy of kind 'module' needs" in refused(policies.load, path)


def test_the_class_of_a_file_builds_what_was_imported_from_it(tmp_path, monkeypatch):
    (tmp_path / "tables.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    policy = importlib.import_module("tables").Table(DEMAND)
    build = f"{tmp_path / 'tables.py'}:blank"
    path = policies.save(tmp_path / "own.policy", policy, build=build, settings={"servers": 4})
    np.testing.assert_array_equal(policies.load(path).model.scores, DEMAND)


def of_others(path, build, settings):
    """A policy file with its own header."""
    line = {policy_file.NAMED: policy_file.VERSION, "kind": "module", "build": build, "settings": settings}
    line |= {"configuration": {}, "digest": hashlib.sha256(b"").hexdigest()}
    path.write_text(json.dumps(line) + "\n")
    return str(path)


RUNS = """
import pathlib

pathlib.Path(__file__).with_name("imported").touch()

def blank(word=""):
    pathlib.Path(__file__).with_name("called").touch()
"""


@pytest.mark.parametrize(
    ("build", "settings", "code"),
    [
        ("os:system", {"command": "touch {folder}/called"}, "os"),
        ("pathlib:Path.touch", {"self": "{folder}/called"}, "pathlib"),
        ("subprocess:run", {"args": ["touch", "{folder}/called"]}, "subprocess"),
        ("{folder}/theirs.py:blank", {"word": "x"}, "{folder}/theirs.py"),
        ("theirs:blank", {}, "theirs"),
        ("tests.policies.test_own_modules:Weighted", {}, "tests.policies.test_own_modules"),
    ],
)
def test_a_policy_file_of_others_neither_imports_nor_calls_what_it_names(
    build, settings, code, tmp_path, monkeypatch, capsys, command_line
):
    monkeypatch.setattr(own_code, "_allowed", set())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs.py").write_text(RUNS)
    build, settings, code = json.loads(json.dumps([build, settings, code]).replace("{folder}", str(tmp_path)))
    path = of_others(tmp_path / "theirs.policy", build, settings)
    want = f"{path!r} names code to run, from {code!r}, but code that only a file names is not run"
    for call in (policies.load, policies.get):
        assert refused(call, path).startswith(want)
    region = ["--model", "llama-moe", "--gpus", "64", "--ep", "16", "--fabric", "mfabric", "--policy"]
    for words in (
        ["compare", *region, path],
        ["evaluate", "--policies", path, "--sizes", "4"],
        ["policies", "bench", "--policies", path],
        ["train", "--start", path, "--out", tmp_path / "run"],
    ):
        assert mistake(capsys, *words).startswith(want), words
    assert not {"imported", "called"} & {file.name for file in tmp_path.iterdir()}


def test_code_that_is_stated_builds_a_policy_of_others(tmp_path, monkeypatch):
    path = policies.save(tmp_path / "own.policy", Weighted(key=jax.random.key(0)))
    monkeypatch.setattr(own_code, "_allowed", set())
    assert "names code to run, from 'tests.policies.test_own_modules'" in refused(policies.load, path)
    policies.allow_code("tests.policies.test_own_modules")
    assert policies.load(path).model.steps == 1
    monkeypatch.setattr(own_code, "_allowed", set())
    assert "names code to run" in refused(policies.load, path)  # what was read before is asked again


@pytest.mark.parametrize(
    "build", ["tests.policies.test_own_modules:importlib.import_module", "tests:policies.os.system"]
)
def test_an_allowed_module_is_no_way_to_another(build, tmp_path, monkeypatch):
    monkeypatch.setattr(own_code, "_allowed", {build.partition(":")[0]})
    said = refused(policies.load, of_others(tmp_path / "theirs.policy", build, {"name": "antigravity"}))
    wanted = "name a class or function of its own module", "be FILE.py:FUNCTION"
    assert any(f": build must {one}" in said for one in wanted)
