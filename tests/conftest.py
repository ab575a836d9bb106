"""Strict numerics for every test: float64 available, no silent promotion of rank or dtype.

Tests need the extra `dev`, which holds all others.
"""

import gc
import os
import pathlib
import signal
import tempfile

import hypothesis
import jax
import jaxtyping
import pytest

# Modules that annotate shapes are checked whenever they are called; the hook comes before the first import of them.
# Numba compiles none of them, and a wrapper around its loops would stop it; other annotations are pyright's to check.
# Checks take 15 % of the time of tests, but two thirds where queues of requests call their tables a million times.
PACKAGE = pathlib.Path(__file__).parents[1] / "mfabric_jax"
UNCHECKED = ("apps/serving/queueing.py",)
WITH_SHAPES = [
    file
    for file in PACKAGE.rglob("*.py")
    if "from jaxtyping import" in file.read_text(encoding="utf-8")
    and file.relative_to(PACKAGE).as_posix() not in UNCHECKED
]
jaxtyping.install_import_hook(
    [".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts) for file in WITH_SHAPES],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",  # an int is a float
)

from mfabric_jax.evaluate.resolving import resolve as resolving  # noqa: E402
from mfabric_jax.support.platforms import OLDER_FUSIONS  # noqa: E402

resolving.USUAL_SEARCH = "recipe"  # a search takes seconds: tests of searches ask for them

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_disable_most_optimizations", True)  # compiling is most of what a test takes

# Half of compiling is the newer generator of code for fusions; the older one computes the same. A quarter of the rest
# is cutting a program into parts that compile side by side, which busy cores cannot use. XLA_FLAGS= keeps both. Later
# versions of XLA have the newer generator alone, and end a process that names the older one.
EMITTERS = "--xla_cpu_use_fusion_emitters=false " * OLDER_FUSIONS
os.environ.setdefault("XLA_FLAGS", f"{EMITTERS}--xla_cpu_parallel_codegen_split_count=1")

os.environ["COLUMNS"] = "200"  # tables are as wide as they like to be

# A shell's background jobs ignore interrupts, and what they start does too: tests interrupt what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(50_000, 20, 100)  # going through all the objects that JAX keeps took a tenth of the time

# A program that one worker has compiled the other reads, and so does every test after programs were dropped.
if "MFABRIC_TEST_PROGRAMS" not in os.environ:  # workers inherit what the first process made
    PROGRAMS = tempfile.TemporaryDirectory(prefix="programs-")
    os.environ["MFABRIC_TEST_PROGRAMS"] = PROGRAMS.name
jax.config.update("jax_compilation_cache_dir", os.environ["MFABRIC_TEST_PROGRAMS"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

hypothesis.settings.register_profile("drawn", deadline=None)  # no timing decides a test
hypothesis.settings.register_profile("steady", deadline=None, derandomize=True, database=None)  # and no luck
hypothesis.settings.load_profile("steady")

# Programs that `mfabric` keeps are for tests alone; tests that read no files have none.
os.environ["MFABRIC_PROGRAMS"] = os.path.join(os.environ["MFABRIC_TEST_PROGRAMS"], "kept")

SHARED = pathlib.Path(os.environ.get("MFABRIC_SHARED", pathlib.Path(__file__).parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real recordings, for the tests that compare with them."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}: set MFABRIC_SHARED to the folder that holds data/")
    return folder


@pytest.fixture(scope="module")
def as_users_have_it():
    """Standard promotion; the rest of the tests are strict about dtypes."""
    from tests.small import as_a_user

    with as_a_user():
        yield


@pytest.fixture
def command_line(monkeypatch):
    """`mfabric` in this process as a user has it: standard promotion, and the settings of the process left alone."""
    from mfabric_jax.commands import shared
    from tests.small import as_a_user

    monkeypatch.setattr(shared, "start_jax", lambda dtype, device: None)
    with as_a_user():
        yield


@pytest.fixture
def never_computes(command_line, monkeypatch):
    """Fails the test where a command solves anything."""

    def compute(*args, **named):
        raise AssertionError("compute began")

    for name in (
        *("evaluate.rows.results.Results.each", "evaluate.example_timeline", "apps.recordings.calibrate.calibrate"),
        *("apps.failures.failures", "evaluate.solve_cluster", "apps.graphs.export.export_iteration"),
        "evaluate.setups.search.SetUpSearch.find",
    ):
        monkeypatch.setattr(f"mfabric_jax.{name}", compute)


def pytest_runtest_setup(item):
    """No test leaves the rest to be compiled with all optimisations."""
    if not jax.config.values["jax_disable_most_optimizations"]:
        jax.config.update("jax_disable_most_optimizations", True)


def pytest_runtest_teardown(item, nextitem):
    """Programs are dropped between folders where they crowd the process."""
    if nextitem is not None and nextitem.path.parent != item.path.parent:
        from mfabric_jax.evaluate.sharded import drop_programs_if_crowded

        drop_programs_if_crowded()
