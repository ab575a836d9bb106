"""What a wheel and an sdist are made of, and that workflows can be read; building and installing: test_release.py."""

import fnmatch
import importlib.util
import pathlib
import re
import tomllib

import pytest

from mfabric_jax.support import extras

ROOT = pathlib.Path(__file__).parents[1]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WHEEL, SDIST = (CONFIG["tool"]["hatch"]["build"]["targets"][name] for name in ("wheel", "sdist"))
EXTRAS = CONFIG["project"]["optional-dependencies"]
LOADED = ("*.py", "*/py.typed", "*.toml", "*.json", "*.policy", "*.css", "*.js", "*/NOTICE", "*/expert_shares.npz")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def files(folder):
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return [path.relative_to(ROOT).as_posix() for path in paths]


def test_the_wheel_holds_no_tests_and_no_data_that_nobody_loads():
    assert WHEEL["only-include"] == ["mfabric_jax", "experiments"]
    inside = [file for folder in WHEEL["only-include"] for file in files(folder)]
    inside = [file for file in inside if not any(fnmatch.fnmatch(file, out) for out in WHEEL["exclude"])]
    assert [file for file in inside if not any(fnmatch.fnmatch(file, kind) for kind in LOADED)] == []
    assert [file for file in inside if "test" in pathlib.PurePosixPath(file).name.split("_")] == []
    assert {"mfabric_jax/py.typed", "mfabric_jax/traffic/data/NOTICE"} < set(inside)
    sources = "".join((ROOT / file).read_text(encoding="utf-8") for file in inside if file.endswith(".py"))
    for file in (file for file in inside if file.endswith((".npz", ".policy", ".css", ".js"))):
        assert pathlib.PurePosixPath(file).stem in sources, f"nobody loads {file}"


def test_the_sdist_holds_licence_notice_and_citation():
    assert {"LICENSE", "CITATION.cff", "CHANGELOG.md", "tests", "docs"} < set(SDIST["include"])
    for file in CONFIG["project"]["license-files"]:
        assert (ROOT / file).is_file()
        assert file.split("/")[0] in SDIST["include"]


def test_extras_are_those_that_sentences_name():
    named = {extra: sorted(re.match(r"[\w-]+", one)[0] for one in EXTRAS[extra]) for extra in extras.PACKAGES}
    assert named == {extra: sorted(packages) for extra, packages in extras.PACKAGES.items()}
    inside = set(re.search(r"\[(.*)\]", EXTRAS["all"][0])[1].split(","))
    assert inside == set(extras.PACKAGES) - {"cluster"}  # Ray is large


def test_every_dependency_has_a_lowest_version_that_is_installed_once():
    """benchmarks/installs.py installs these."""
    spec = importlib.util.spec_from_file_location("installs", ROOT / "benchmarks" / "installs.py")
    installs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installs)
    pinned = {one.partition("==")[0] for one in installs.lowest()}
    needed = [*CONFIG["project"]["dependencies"], *(one for extra in extras.PACKAGES for one in EXTRAS[extra])]
    assert {re.match(r"[\w-]+", one)[0] for one in needed} - pinned == {"ray"}
    assert set(installs.EXTRAS) == set(extras.PACKAGES)
    assert "simulate" in installs.first_example()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_runs_what_there_is(file):
    """Actions at a version, least rights, a limit of time, targets of the Makefile, scripts that are there."""
    text = file.read_text(encoding="utf-8")
    assert re.search(r"^permissions:\n  contents: read$", text, re.M)
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    for used in re.findall(r"uses: (\S+)", text):
        assert (ROOT / used).is_file() if used.startswith("./") else re.search(r"@(v\d+|release/v1)$", used), used
    for script in re.findall(r"python (\S+\.py)", text):
        assert (ROOT / script).is_file(), script
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    for target in re.findall(r"run: make ([\w-]+)", text):
        assert target in targets, f"the Makefile has no target {target}"


def test_there_is_a_workflow_for_tests_wheels_docs_and_releases():
    assert [file.stem for file in WORKFLOWS] == ["docs", "release", "tests", "wheels"]
