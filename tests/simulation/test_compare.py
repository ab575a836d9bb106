"""Rows: what they hold, that they repeat, and how they depend on what is asked for."""

import importlib
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax import cases, load, resolve, simulate
from mfabric_jax.case.paths import flat
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.failures.iterations import failures_of
from mfabric_jax.policies import topoopt
from mfabric_jax.report import remarks
from mfabric_jax.resolving.settings import CALIBRATED
from mfabric_jax.simulation._timeline import examples
from mfabric_jax.simulation.results import commit, effective
from mfabric_jax.timing import exchanges, iterate, rates_of
from mfabric_jax.workload import block_seconds, get_gpu
from tests.mistakes import check_refused
from tests.small import MODEL, configured, row, rows, scenario, several, small

module = importlib.import_module("mfabric_jax.simulation.solving")
pytestmark = pytest.mark.usefixtures("as_users_have_it")
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")
CONTRACT = ["model", "fabric", "policy", "nic_gbps", "gpus", "iteration_s", "network_cost_usd", "perf_per_dollar"]
FABRICS = ("mfabric", "oversub-fat-tree", "rail-optimized", "fat-tree")
BANDWIDTHS = (400.0, 100.0)
EACH = several({}, {"network.fabric": FABRICS, "network.nic_gbps": BANDWIDTHS})
SKEWED = {"traffic.generated.skew": 1.5}
TREE = {"network.fabric": "fat-tree"}


def test_what_rows_hold():
    assert [(one["fabric"], one["nic_gbps"]) for one in rows(EACH)] == list(itertools.product(FABRICS, BANDWIDTHS))
    for one in rows(EACH):
        assert set(one) >= {*CONTRACT, *PARTS}
        unknown = {"circuit_changes", "switch_turns", "turns_over_allowed"}
        assert {name for name, value in one.items() if value is None} <= unknown
        assert all(isinstance(value, str | int | float | None) for value in one.values())
        communication = one["tp_comm_s"] + one["ep_comm_s"] + one["dp_comm_s"]
        np.testing.assert_allclose(communication, one["exposed_comm_s"], rtol=1e-9)
        np.testing.assert_allclose(one["ep_share"], one["ep_comm_s"] / one["iteration_s"], rtol=1e-12)
        assert (one["model"], one["gpus"], one["micro_batches"], one["dtype"]) == (MODEL, 1024, 2, "float64")
        assert one["compute_source"] == "A100-80GB-SXM at 50% of peak, not calibrated"
        optical = one["fabric"] == "mfabric"
        assert (one["policy"] == "greedy") is optical
        assert (one["nic_use"] == "pooled") is optical
        dollar_seconds = one["iteration_s"] * one["network_cost_usd"]
        np.testing.assert_allclose(one["perf_per_dollar"], 1 / dollar_seconds, rtol=1e-12)


def test_utilisation_is_the_rate_times_the_part_that_computes():
    """One stage, no head, no step: all its computation is the model's, at the rate."""
    degrees = {f"job.parallel.{name}": degree for name, degree in (("tp", 4), ("pp", 1), ("ep", 8), ("dp", 8))}
    given = TREE | degrees | {"compute.efficiency": 0.4}
    one = row(small(given))
    assert one["mfu"] == pytest.approx(0.4 * one["compute_s"] / one["iteration_s"], rel=1e-9)
    again = row(small(given | {"job.recompute": "block"}))
    assert again["mfu"] * again["iteration_s"] == pytest.approx(one["mfu"] * one["iteration_s"], rel=1e-12)
    assert again["mfu"] < 0.4 * again["compute_s"] / again["iteration_s"]


def test_a_row_says_its_job():
    one = row(small({"network.fabric": "fat-tree", "gpu.name": "H100-SXM", "job.precision": "fp8"}))
    assert [one[name] for name in ("gpus", "dp", "tp", "pp", "ep", "micro_batches", "micro_batch")] == [
        1024, 8, 4, 4, 8, 2, 8,
    ]  # fmt: off
    assert one["tokens_per_iteration"] == 2 * 8 * one["sequence"] * 8 * 8
    assert one["tokens_per_iteration"] == pytest.approx(one["tokens_per_s"] * one["iteration_s"])
    assert (one["precision"], one["compute_precision"]) == ("fp8", "fp8")  # as DeepSeek-V3 has it


def test_calibrated_rates_above_the_peak_are_not_paid_for():
    one = row(small(TREE | {"compute.calibrated": "paper"}, "llama-moe"))
    assert one["achieved_over_peak"] == CALIBRATED["paper"]["llama-moe"].efficiency > 1
    assert [one[name] for name in ("usd_per_million_tokens", "joules_per_million_tokens")] == [None, None]
    assert one["perf_per_cluster_dollar"] is None
    assert one["cluster_cost_usd"] > 0
    (warning,) = [line for line in remarks([one]) if "peak" in line]
    assert warning.startswith("Warning: computation is faster than the peak of the GPU that is priced (llama-moe 272%")
    can = row(small(TREE, "llama-moe"))
    assert can["usd_per_million_tokens"] > 0
    assert can["mfu"] < can["achieved_over_peak"] == 0.5


def test_rows_come_in_the_order_of_cases_and_repeat():
    heard, models = [], (MODEL, "llama-moe")
    asked = cases(small(TREE), {"model.name": models})
    got = simulate(asked).rows(progress=lambda one: heard.append((one.workload.model, one.fabric.name)))
    assert tuple(one["model"] for one in got) == models
    assert sorted(heard) == sorted((model, "fat-tree") for model in models)  # told as they are done
    axes = {"network.fabric": ("fat-tree", "mfabric")}
    assert simulate(several({}, axes), workers=1).rows() == list(rows(several({}, axes)))
    other = rows(several({"run.seed": 1}, axes))
    for a, b in zip(rows(several({}, axes)), other, strict=True):
        assert a["ep_comm_s"] != b["ep_comm_s"]
        assert a["compute_s"] == b["compute_s"]


def test_settings_reach_the_traffic():
    def drawn(kind, **settings):
        given = {f"traffic.{kind}.{name}": value for name, value in ({"drift": 0.1} | settings).items()}
        return lambda **run: scenario(small(given | {"run.iterations": 2} | run)).tokens.count

    for kind, given in (("shares", {}), ("generated", {"skew": 1.0})):
        base = drawn(kind, **given)()
        assert base.shape == (2, 32, 4, 8, 8)
        np.testing.assert_array_equal(drawn(kind, **given)(**{"run.iterations": 1}), base[:1])
        assert np.any(drawn(kind, **given)(**{"run.seed": 1}) != base)
        assert np.any(drawn(kind, **given | {"drift": 0.5})()[1] != base[1])
    assert np.any(drawn("generated", skew=0.5)() != base)


def test_what_stays_in_a_server_may_take_longest():
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0}
    slow = small(even | TREE | {"gpu.nvlink_gigabytes_per_s": 1.0}, "llama-moe")
    job = resolve(slow).job
    leaves = job.selections * job.dispatch_bytes_per_selection / 2  # of every rank, through its own NIC
    exchanges = 4 * 8 * 2  # blocks of a stage, micro-batches
    np.testing.assert_allclose(row(slow)["ep_comm_s"], exchanges * leaves * 7 / 8 / 1e9, rtol=1e-9)


def test_delay_is_paid_where_circuits_change():
    by_delay = [row(small(SKEWED | {"circuits.delay_s": delay})) for delay in (0.0, 0.001, 0.025, 0.4)]
    total = [one["iteration_s"] for one in by_delay]
    assert all(a < b for a, b in itertools.pairwise(total))
    # 8 blocks a stage, 2 micro-batches, forward and backward: a short delay hides behind backward computation.
    free, short, _, long = (one["reconfig_s"] for one in by_delay)
    assert free == pytest.approx(0, abs=1e-12)
    assert 0 < short <= 16.001 * 0.001
    assert long <= 32.001 * 0.4
    kept = row(small(SKEWED | {"circuits.policy": "uniform"}))
    assert (kept["reconfig_s"], kept["policy"], kept["routing"]) == (0, "uniform", "unsplit")
    # One iteration begins with the circuits of the one before: those for the mean never change.
    static = small(SKEWED | {"circuits.policy": "static", "circuits.delay_s": 1.0})
    assert row(static)["reconfig_s"] <= 1.0
    check_refused("circuits.policy must not be static beside failures", failures_of, static)
    # One circuit a server: most pairs are left to the packet switches, which may have to wait, too.
    one = SKEWED | {"network.mfabric.optical_degree": 1, "network.nics": 3, "circuits.delay_s": 0.4}
    goes_on, waits = (row(small(one | {"circuits.packets_wait": wait})) for wait in (False, True))
    assert waits["iteration_s"] > goes_on["iteration_s"]


def test_settings_of_the_region_change_its_rows():
    # Degree 2 for four servers: best-path has pairs to move.
    ways = ("unsplit", "best-path", "split", "relay")
    narrow, best, split, relay = (
        row(small(SKEWED | {"network.mfabric.optical_degree": 2, "network.nics": 4, "circuits.routing": way}))
        for way in ways
    )
    assert (best["routing"], relay["routing"], relay["policy"]) == ("best-path", "relay", "greedy")
    assert best["ep_comm_s"] < narrow["ep_comm_s"]
    assert relay["ep_comm_s"] <= split["ep_comm_s"] * (1 + 1e-9)
    wide = row(small(SKEWED))
    assert wide["ep_comm_s"] < narrow["ep_comm_s"]  # more circuits
    assert row(small(SKEWED | {"circuits.policy": "greedy-released"}))["ep_comm_s"] != wide["ep_comm_s"]


def chained(demand, region, *, previous=None, key=None):
    """A function of the user's own."""
    return topoopt(demand, region)


def test_a_function_is_a_policy():
    mine, other = (small(SKEWED | {"circuits.policy": policy}) for policy in (chained, "topoopt"))
    own, named = row(mine), row(other)
    assert own | {"policy": "topoopt"} == named
    assert own["policy"] == effective(cases(mine))["policy"] == "chained"
    assert row(small(SKEWED))["ep_comm_s"] != own["ep_comm_s"]


def test_float32():
    # The parts are rounded one by one, and the bubble is the difference of two sums: a few units in the 7th digit.
    exact = small()
    with configured(jax_enable_x64=False):
        (got,) = simulate(exact.with_({"run.dtype": "float32"})).rows()
    assert got["dtype"] == "float32"
    np.testing.assert_allclose(sum(got[part] for part in PARTS), got["iteration_s"], rtol=1e-5)
    np.testing.assert_allclose(got["iteration_s"], row(exact)["iteration_s"], rtol=1e-5)
    np.testing.assert_allclose(got["ep_comm_s"], row(exact)["ep_comm_s"], rtol=1e-4)


def test_nothing_is_promoted():
    # With 64 bits enabled, single precision stays single: traced only.
    for dtype, name in itertools.product(("float32", "float64"), ("fat-tree", "mfabric")):
        job = scenario(small({"network.fabric": name, "run.dtype": dtype}))
        seconds = jax.tree.map(lambda x, dtype=dtype: jnp.asarray(x, dtype), block_seconds(job.workload, get_gpu()))

        def run(fabric, tokens, job=job, seconds=seconds):
            found = exchanges(job.workload, fabric, tokens, job.settings.circuits_policy())
            return found, iterate(job.workload, rates_of(fabric), found, seconds)

        tokens = jax.ShapeDtypeStruct(job.tokens.count.shape[1:], dtype)
        with configured(jax_numpy_dtype_promotion="strict"):
            found = eqx.filter_eval_shape(run, group_numbers(job.group, dtype), tokens)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)}
        assert kinds == {jnp.dtype(dtype)}


def test_numbers_of_a_fabric_are_data(monkeypatch):
    traces, counted, plain = [], module.iterate, module._time_all.__wrapped__
    monkeypatch.setattr(module, "iterate", lambda *args, **named: (traces.append(args), counted(*args, **named))[1])
    monkeypatch.setattr(module, "_time_all", eqx.filter_jit(lambda *args: plain(*args)))  # nothing traced so far
    changes = ({}, {"network.nic_gbps": 300.0, "circuits.delay_s": 0.1}, {"network.mfabric.optical_degree": 4})
    got = [simulate(small(SKEWED | change)).rows()[0]["iteration_s"] for change in changes]
    assert len(traces) == 1
    assert len(set(got)) == 3


def test_effective_holds_every_resolved_value(monkeypatch):
    given = {"run.seed": 3, "traffic.shares.drift": 0.5}
    asked = load(preset="paper", changes={"model.name": MODEL, "run.dtype": "float64"} | given)
    got = effective(cases(asked))
    assert got["resolved"] == flat(resolve(asked).case)
    assert all(got["resolved"][path] == value for path, value in given.items())
    assert got["sources"]["job.parallel.tp"] == "recipe paper (arXiv 2501.03905)"
    assert (got["version"], got["dtype"], got["jax"]) == (mfabric_jax.__version__, "float64", jax.__version__)
    assert got["device"].startswith(jax.local_devices()[0].platform)
    monkeypatch.setenv("PATH", "")
    commit.cache_clear()
    assert effective(cases(asked))["commit"] is None  # no git
    commit.cache_clear()
    assert got["commit"] is None or len(got["commit"].removesuffix("+changes")) == 40
    varied = effective(cases(asked, {"network.nic_gbps": [100, 400]}))
    assert (varied["resolved"]["network.nic_gbps"], varied["varied"]) == ([100, 400], ["network.nic_gbps"])


def test_examples_for_the_pictures():
    bandwidths = {"network.nic_gbps": (100.0, 200.0, 800.0)}
    regions, lines = examples(cases(small(), {"network.fabric": ("fat-tree", "mfabric")} | bandwidths))
    ((title, picture),) = regions.items()
    assert title == f"{MODEL}: one region, greedy circuits"
    assert picture["demand"].shape == picture["circuits"].shape == (4, 4)
    assert np.all(np.diagonal(picture["demand"]) == 0)
    assert np.all(picture["circuits"].sum(axis=1) <= 6)
    assert list(lines) == [f"{MODEL} on fat-tree at 200 Gbps", f"{MODEL} on mfabric at 200 Gbps"]
    for segments in lines.values():
        assert {"attention", "experts", "all-to-all"} <= {one["kind"] for one in segments}
        assert all(one["end_s"] > one["start_s"] for one in segments)
    assert examples(cases(small(TREE), bandwidths)) == ({}, {})
