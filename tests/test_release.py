"""A release as users get it: sdist, a wheel made of it, installed where nothing else is, away from the checkout."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

import mfabric_jax
from mfabric_jax import cli
from mfabric_jax.commands import reproduction as paper
from mfabric_jax.report import read_rows

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[1]
NAME = f"mfabric_jax-{mfabric_jax.__version__}"
AT_TOP = {"mfabric_jax", "experiments", "benchmarks", "tests", "docs", "pyproject.toml", "PKG-INFO", ".gitignore"}
AT_TOP |= {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CITATION.cff", "LICENSE", "Makefile", "mkdocs.yml"}
ABOUT = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
ABOUT |= {"licenses/mfabric_jax/traffic/data/NOTICE"}
COMPARE = "compare --models llama-moe --fabrics fat-tree,mfabric --nic-gbps 100 --preset paper --micro-batches 1"
COMPARE = (*COMPARE.split(), "--set", "run.dtype=float64", "--out")


def run(*words, **how):
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=600, **how)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of the sdist and of the wheel that was made of it."""
    folder = tmp_path_factory.mktemp("built")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def sources(folder):
    """Paths of all files of a folder of the checkout, but for caches."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths}


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as file:
        return set(file.namelist())


def test_the_sdist_holds_the_checkout_and_nothing_else(built):
    with tarfile.open(built / f"{NAME}.tar.gz") as file:
        names = {member.name.removeprefix(NAME + "/") for member in file.getmembers() if member.isfile()}
    assert {name.partition("/")[0] for name in names} == AT_TOP
    for folder in ("mfabric_jax", "experiments", "tests", "docs"):
        assert {name for name in names if name.startswith(folder + "/")} == sources(folder)


def test_the_wheel_holds_the_package_with_its_experiments_and_nothing_else(wheel):
    package = {name for name in wheel if name.startswith("mfabric_jax/")}
    scripts = {name for name in sources("experiments") if name.endswith(".py")}
    assert package == sources("mfabric_jax") | {f"mfabric_jax/{name}" for name in scripts}
    assert {"mfabric_jax/py.typed", "mfabric_jax/traffic/data/NOTICE"} <= package
    assert wheel - package == {f"{NAME}.dist-info/{name}" for name in ABOUT}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """`mfabric` of an environment that holds nothing but the wheel with [all], in another folder, as a user has it."""
    folder = tmp_path_factory.mktemp("installed")
    made = run(sys.executable, "-m", "venv", "--without-pip", folder / "venv")
    assert made.returncode == 0, made.stderr
    pip = (sys.executable, "-m", "pip", "--python", folder / "venv" / "bin" / "python", "--disable-pip-version-check")
    install = (*pip, "install", "--quiet", "--no-compile", "--retries", "1")
    found = run(*install, f"{built / NAME}-py3-none-any.whl[all]", cwd=folder)
    if found.returncode != 0 and run(*install, "--dry-run", "--ignore-installed", "--no-deps", "tqdm").returncode != 0:
        pytest.skip("no package index can be reached, from which to install what the wheel needs")
    assert found.returncode == 0, found.stderr
    ours = ("PYTHON", "XLA_", "JAX_", "MFABRIC_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env |= {"XDG_CACHE_HOME": str(folder / "cache"), "JAX_PLATFORMS": "cpu"}

    def mfabric(*words):
        done = run(folder / "venv" / "bin" / "mfabric", *words, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return mfabric, folder


def test_a_comparison_is_that_of_the_checkout(installed, tmp_path, command_line):
    mfabric, folder = installed
    assert mfabric("--version").startswith(f"mfabric {mfabric_jax.__version__} (installed, Python ")
    table = mfabric(*COMPARE, "rows.csv")
    with contextlib.redirect_stdout(None):
        assert cli.main([*COMPARE, str(tmp_path / "rows.csv")]) == 0
    (got, how), (want, here) = read_rows(folder / "rows.csv"), read_rows(tmp_path / "rows.csv")
    assert [(row["fabric"], row["nic_gbps"]) for row in got] == [("fat-tree", 100.0), ("mfabric", 100.0)]
    for row, same in zip(got, want, strict=True):
        assert list(row) == list(same)
        assert row == {name: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for name, v in same.items()}
    apart = {"commit", "jax", "jaxlib", "device"}
    assert how["commit"] is None  # no checkout was in reach
    assert {name: how[name] for name in how if name not in apart} == {n: here[n] for n in here if n not in apart}
    for fabric in ("fat-tree", "mfabric"):
        assert fabric in table


def test_the_figures_of_the_paper_are_drawn_from_what_is_installed(installed):
    mfabric, folder = installed
    assert mfabric("reproduce", "--list") == f"{paper.listing()}\n"
    assert "reproduced" in mfabric("reproduce", "traffic-shares", "--quick", "--out", "results")
    rows, _ = read_rows(folder / "results" / "verdicts.csv")
    assert {row["figure"] for row in rows} == {"traffic-shares"}
