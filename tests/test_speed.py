"""How many programs a command compiles, and how often JAX traces: they decide how long a first answer takes."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def benchmark():
    spec = importlib.util.spec_from_file_location("speed", ROOT / "benchmarks" / "speed.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


@pytest.mark.parametrize(
    ("question", "programs", "requests", "traces"),
    [("small", 2, 2, 2), pytest.param("demo", 10, 10, 10, marks=pytest.mark.slow)],
)
def test_few_programs_the_first_time_and_none_compiled_after(question, programs, requests, traces, tmp_path):
    speed = benchmark()
    cold = speed.asked(question, ROOT, tmp_path, warm=False)
    warm = speed.asked(question, ROOT, tmp_path, warm=True)
    assert cold["programs"] <= programs
    assert cold["requests"] <= requests
    assert cold["traces"] <= traces + programs  # of each function, and of the call of what was exported
    assert warm["programs"] == 0
    assert warm["requests"] <= programs  # each is loaded
    assert warm["traces"] <= programs  # by a call of what was exported
