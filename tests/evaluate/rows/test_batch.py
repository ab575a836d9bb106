"""Many cases at once are what one at a time gives: padded, chunked, divided among devices, compiled once."""

import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import Region, all_to_all_time, greedy, simulate
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate import evaluate, grid, iteration_of, sharded
from mfabric_jax.support import programs
from mfabric_jax.support.platforms import compiling_for
from tests.mistakes import check_refused
from tests.small import configured, small

SERVERS = 4
TWO_DEVICES = """
import jax, numpy as np
import tests.conftest
from mfabric_jax.evaluate import evaluate
assert len(jax.local_devices()) == 2
found = evaluate(lambda case: {"twice": 2 * case["x"]}, {"x": np.arange(7.0)}, at_once=4)
assert found.estimate.devices == 2 and found.estimate.at_once == 4
np.testing.assert_array_equal(found.arrays["twice"], 2 * np.arange(7.0))
print("divided")
"""


def cases(count=7):
    """Demand, bandwidth and degrees that all differ."""
    rng = np.random.default_rng(0)
    demand = 1e8 * rng.pareto(1.2, (count, SERVERS, SERVERS))
    return {"demand": demand, "gbps": rng.uniform(100, 800, count), "degree": rng.integers(1, 7, count)}


@eqx.debug.assert_max_traces(max_traces=2)
def seconds(case):
    region = Region(SERVERS, case["gbps"], case["degree"])
    plan = greedy(case["demand"], region)
    return {"seconds": all_to_all_time(region, plan, case["demand"]), "circuits": plan.circuits.count}


def test_it_is_what_one_at_a_time_gives_whatever_the_chunks():
    want = [seconds.__wrapped__(jax.tree.map(lambda x, i=i: jnp.asarray(x[i]), cases())) for i in range(7)]
    done = []
    found = evaluate(seconds, cases(), at_once=3, progress=done.append)
    assert found.estimate.at_once == 3
    assert done == [3, 6, 7]
    for name in ("seconds", "circuits"):
        np.testing.assert_allclose(found.arrays[name], np.stack([one[name] for one in want]), rtol=1e-12)
    again = evaluate(seconds, cases(), at_once=3)
    np.testing.assert_array_equal(again.arrays["seconds"], found.arrays["seconds"])
    whole = evaluate(seconds, cases())  # another chunk is the second program
    np.testing.assert_allclose(whole.arrays["seconds"], found.arrays["seconds"], rtol=1e-12)
    assert [set(one) for one in found.rows()] == [{"gbps", "degree", "seconds"}] * 7
    assert found.rows()[2]["degree"] == cases()["degree"][2]


def test_cases_that_are_cut_on_the_device_are_the_same(monkeypatch):
    def twice(case):
        return {"twice": 2 * case["x"], "drawn": jax.random.normal(case["key"])}

    real = sharded._cut

    keys, done, cut = jax.random.split(jax.random.key(0), 11), [], []
    monkeypatch.setattr(sharded, "_cut", jax.jit(lambda *given: cut.append(given) or real(*given)))
    with compiling_for("gpu"):
        found = evaluate(twice, {"x": np.arange(11.0), "key": keys}, at_once=3, progress=done.append)
    np.testing.assert_array_equal(found.arrays["twice"], 2 * np.arange(11.0))
    np.testing.assert_array_equal(found.arrays["drawn"], jax.vmap(jax.random.normal)(keys))
    assert done == [3, 6, 9, 11]
    evaluate(twice, {"x": np.arange(11.0), "key": keys}, at_once=3)  # on a CPU the host cuts
    assert len(cut) == 1


def test_a_chunk_takes_no_more_than_it_may():
    def large(case):
        return {"sum": jnp.sort(case["x"][None] * jnp.arange(1000.0)[:, None], axis=1).sum()}

    told = []
    x = np.random.default_rng(1).normal(size=(64, 50))
    limit = 16 * 1000 * 50 * 8
    found = evaluate(large, {"x": x}, memory_bytes=limit, before=told.append)
    assert told == [found.estimate]
    assert found.estimate.at_once < 64
    assert found.estimate.device_bytes <= limit
    three = 3 * found.estimate.at_once * (50 + 1) * 8  # cases and results of two chunks in flight and one fetched
    assert found.estimate.device_bytes >= found.estimate.at_once * 1000 * 50 * 8 + three
    np.testing.assert_allclose(found.arrays["sum"], x.sum(1) * np.arange(1000.0).sum(), rtol=1e-9, atol=1e-6)
    assert "64 cases" in str(found.estimate)


@pytest.mark.slow
def test_cases_are_divided_among_devices():
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, env=env, timeout=300)
    assert done.stdout.strip() == "divided", done.stderr


def test_any_tree_is_a_case_keys_are_data_and_a_grid_is_every_combination():
    regions = jax.vmap(lambda gbps: Region(2, gbps, 1, 1.0))(jnp.asarray([100.0, 200.0]))
    keys = jax.random.split(jax.random.key(0), 2)
    found = evaluate(lambda case: {"Bps": case[0].nic_Bps, "drawn": jax.random.uniform(case[1])}, (regions, keys))
    np.testing.assert_array_equal(found.arrays["drawn"], jax.vmap(jax.random.uniform)(keys))
    assert found.rows() == [{"Bps": b, "drawn": d} for b, d in zip([12.5e9, 25e9], found.arrays["drawn"], strict=True)]
    made = grid(a=[1, 2], b=np.eye(2), c=["x", "y"])
    np.testing.assert_array_equal(made["a"], [1, 1, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(made["b"][:4], [[1, 0], [1, 0], [0, 1], [0, 1]])
    assert list(made["c"]) == ["x", "y"] * 4
    with jax.default_device(jax.devices("cpu")[0]):  # devices of the kind that was asked for
        assert sharded.local_devices() == jax.local_devices(backend="cpu")


def test_equal_constants_of_other_kinds_are_other_programs():
    def chosen(constant, case):
        return {"of": jnp.where(case["x"] > 0, constant, constant)}

    def signed(zero, case):
        return {"sign": jnp.copysign(case["x"], zero)}

    x = {"x": np.ones(2)}
    found = [evaluate(jax.tree_util.Partial(chosen, one), x).arrays["of"].dtype.kind for one in (1, 1.0, True, 1)]
    assert found == ["i", "f", "b", "i"]
    signs = [evaluate(jax.tree_util.Partial(signed, zero), x).arrays["sign"][0] for zero in (0.0, -0.0)]
    assert signs == [1, -1]


def test_a_function_with_more_arrays_than_may_be_is_soon_alone():
    traced = []

    def weighted(table, case):
        traced.append(table)
        return {"sum": (table * case["x"]).sum()}

    large = jax.tree_util.Partial(weighted, np.ones(50_000))
    found = evaluate(large, {"x": np.arange(64.0)}, memory_bytes=399_000)
    np.testing.assert_allclose(found.arrays["sum"], 50_000 * np.arange(64.0))
    assert found.estimate.at_once == 1
    assert len(traced) <= 7


def test_mistakes_are_sentences():
    def added(constant, case):
        return {"sum": case["x"] + constant}

    for function, x, sentence in (
        (added, [2**31], r"cases\['x'\] must fit int32, got 2147483648; jax_enable_x64 allows more"),
        (added, [1.0, 1e300], r"cases\['x'\] must fit float32, got 1e\+300"),
        (added, ["a"], r"cases\['x'\] must hold numbers, got <U1"),
        (added, [1.0, None], r"cases\['x'\] must hold numbers, got object"),
        (lambda _, case: case["x"], [1.0], "function must give a dict of arrays, got"),
        (lambda _, case: {"a": {"b": case["x"]}}, [1.0], "function must give a dict of arrays, got"),
    ):
        with configured(jax_enable_x64=False), pytest.raises(InputError, match=sentence):
            evaluate(jax.tree_util.Partial(function, 1), {"x": np.asarray(x)})
    function, numbers = iteration_of(small())
    misspelt = {path: np.asarray([value]) for path, value in numbers.items()} | {"network.nic_gpbs": np.ones(1)}
    check_refused("number of a case 'network.nic_gpbs' is unknown", evaluate, function, misspelt)


@pytest.mark.skipif(not sharded.MAPS.exists(), reason="only Linux says how many memory maps there are")
def test_programs_are_dropped_before_they_crowd_the_process(monkeypatch):
    # Many comparisons in one process ended in a crash of XLA, at Linux's limit of memory maps.
    dropped = []
    DOUBLED.clear()
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(1))
    for crowded, expected in ((1e9, 0), (0, 1)):
        monkeypatch.setattr(sharded, "CROWDED", crowded)
        dropped.clear()
        programs.run(doubled, np.ones(2))
        simulate(small({"network.fabric": "fat-tree"})).rows()
        programs.run(doubled, np.ones(2))
        assert (len(dropped), len(DOUBLED)) == (expected, 1 + expected)


DOUBLED = []  # what was traced


def doubled(x):
    DOUBLED.append(x)
    return 2 * x
