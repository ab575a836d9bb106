"""A program asked for compiles once in a process, and is the same program only if nothing that decides it differs."""

import functools
import threading
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import programs
from mfabric_jax.program_key import key_of

TRACED = []  # a name for every time that a function below was traced


class Pair(NamedTuple):
    left: jax.Array
    right: jax.Array


class Scaled(eqx.Module):
    by: jax.Array
    name: str = eqx.field(static=True)


def added(pair, more=None):
    TRACED.append("added")
    return {"sum": pair.left + pair.right, "more": more}


def times(x, by):
    TRACED.append(f"times {by!r}")
    return x * jnp.asarray(by, x.dtype)


def scaled(it, x):
    TRACED.append(it.name)
    return Scaled(it.by * x, it.name)


def noise(key, n):
    return jax.random.normal(key, (n,)), jax.random.fold_in(key, n)


@pytest.fixture(autouse=True)
def fresh():
    programs.forget()
    TRACED.clear()
    yield
    programs.forget()


def test_results_are_numpy_in_the_trees_of_the_function():
    pair = Pair(np.arange(3.0), jnp.ones(3))
    found = programs.run(added, pair)
    assert type(found["sum"]) is np.ndarray
    assert found["more"] is None
    np.testing.assert_array_equal(found["sum"], [1, 2, 3])
    made = programs.run(scaled, Scaled(np.array([2.0, 3.0]), "twice"), np.array([4.0, 5.0]))
    assert made.name == "twice"
    np.testing.assert_array_equal(made.by, [8, 15])


def test_values_of_arrays_are_data():
    for value in (1.0, 2.0, 5.0):
        assert programs.run(times, np.full(2, value), np.array([2.0, 3.0])).tolist() == [2 * value, 3 * value]
    assert len(TRACED) == 1
    assert programs.counts() == (0, 1)
    assert programs.asked() == ["tests.test_programs.times(float64[2], float64[2])"]


def test_shapes_dtypes_static_values_types_options_and_settings_are_other_programs():
    x = np.ones(2)
    programs.run(times, x, 1)
    programs.run(times, x, 1.0)
    programs.run(times, x, True)
    assert TRACED == ["times 1", "times 1.0", "times True"]
    programs.run(times, x, -0.0)
    programs.run(times, x, 0.0)
    programs.run(times, np.ones(3), 1)
    programs.run(times, np.ones(2, np.float32), 1)
    programs.run(times, x, 1, options={"xla_backend_optimization_level": 0})
    assert len(TRACED) == 8
    with jax.default_matmul_precision("highest"):
        programs.run(times, x, 1)
    assert len(TRACED) == 9
    for name in ("a", "b"):
        programs.run(scaled, Scaled(x, name), x)
    assert TRACED[9:] == ["a", "b"]
    with jax.enable_x64(False):
        assert programs.run(times, x, 1).dtype == np.float32
    assert programs.counts() == (0, 12)


def test_random_keys_are_data():
    for seed in (1, 2):
        key = jax.random.key(seed)
        drawn, folded = programs.run(noise, key, 4)
        np.testing.assert_array_equal(drawn, noise(key, 4)[0])
        assert bool(jnp.all(jax.random.key_data(folded) == jax.random.key_data(jax.random.fold_in(key, 4))))
    assert programs.counts().compiled == 1


@pytest.mark.parametrize("function", [lambda x: x, functools.partial(times, by=2), jnp.ones(2).sum, Scaled.__init__])
def test_a_program_is_a_function_at_the_top_of_its_module(function):
    with pytest.raises(ValueError, match="top of its module"):
        programs.run(function, np.ones(2))


def test_a_program_runs_with_values():
    with pytest.raises(ValueError, match="traced arguments"):
        jax.jit(lambda x: programs.run(times, x, 2))(np.ones(2))


def test_threads_that_ask_at_once_compile_once():
    start, found = threading.Barrier(8), []

    def ask(value):
        start.wait()
        found.append(programs.run(times, np.full(2, value), 3)[0] == 3 * value)

    threads = [threading.Thread(target=ask, args=(float(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 8
    assert TRACED == ["times 3"]
    assert programs.counts().compiled == 1


def test_what_words_cannot_say_sets_programs_apart():
    class Local:
        def __repr__(self):
            return "the same"

    keys = [key_of(added, *jax.tree.flatten((Local(),)), {}) for _ in range(2)]
    assert keys[0].words == keys[1].words
    assert keys[0] != keys[1]
    assert all(key.apart for key in keys)
