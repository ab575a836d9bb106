"""Rows: what they hold, that they repeat, how they depend on what is asked for, whoever asks."""

import importlib
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax import Case, InputError, all_to_all_time, cases, load, resolve, simulate
from mfabric_jax.case.paths import flat
from mfabric_jax.evaluate import evaluate, example_timeline, grid, iteration_of
from mfabric_jax.evaluate.forecasts import SIGMA, errors_so_far, planning_selections, predict_tokens
from mfabric_jax.evaluate.problem import measured_decision_s
from mfabric_jax.evaluate.resolving.resolved import calibration_fits
from mfabric_jax.evaluate.rows.costs import ON_PANELS
from mfabric_jax.evaluate.rows.results import record_of_cases
from mfabric_jax.evaluate.rows.timeline import examples
from mfabric_jax.evaluate.solving import solve_between
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.policies import greedy, topoopt
from mfabric_jax.report import comparison, remarks
from mfabric_jax.routing.fixed import spray_time
from mfabric_jax.support import programs
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.support.origin import commit
from mfabric_jax.timing import exchanges, iterate, rates_of
from mfabric_jax.traffic import measured_tokens, recorded_tokens, server_bytes
from mfabric_jax.workload import block_seconds, get, get_gpu
from tests.small import JOB, MODEL, configured, row, rows, scenario, several, small

points = importlib.import_module("mfabric_jax.evaluate.rows.points")
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
        unknown = {"circuit_changes", "reconfigurations", "reconfigurations_over_allowed", *ON_PANELS}
        unknown |= {name for name in one if name.startswith("training_")}
        unknown |= {"low_gpus_usd", "high_gpus_usd"}  # nobody quotes this GPU
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
    assert one["achieved_over_peak"] == calibration_fits("paper")["llama-moe"].efficiency > 1
    assert [one[name] for name in ("usd_per_million_tokens", "joules_per_million_tokens")] == [None, None]
    assert one["perf_per_cluster_dollar"] is None
    assert one["cluster_cost_usd"] > 0
    (warning,) = [line for line in remarks([one]) if "peak" in line]
    assert warning.startswith("Warning: computation exceeds the peak of the priced GPU (llama-moe 272.")
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
    assert own["policy"] == record_of_cases(cases(mine))["policy"] == "chained"
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
            found = exchanges(job.workload, fabric, tokens, job.resolved.circuits_policy())
            return found, iterate(job.workload, rates_of(fabric), found, seconds)

        tokens = jax.ShapeDtypeStruct(job.tokens.count.shape[1:], dtype)
        with configured(jax_numpy_dtype_promotion="strict"):
            found = eqx.filter_eval_shape(run, group_numbers(job.group, dtype), tokens)
        kinds = {leaf.dtype for leaf in jax.tree.leaves(found) if jnp.issubdtype(leaf.dtype, jnp.floating)}
        assert kinds == {jnp.dtype(dtype)}


def test_numbers_of_a_fabric_are_data():
    """Programs are by size of a region, policy and routing: never by model, fabric or number."""
    programs.forget()
    changes = ({}, {"network.nic_gbps": 300.0, "circuits.delay_s": 0.1}, {"network.mfabric.optical_degree": 4})
    got = [simulate(small(SKEWED | change)).rows()[0]["iteration_s"] for change in changes]
    assert len(programs._programs) == 1
    assert len(set(got)) == 3


def test_effective_holds_every_resolved_value(monkeypatch):
    given = {"run.seed": 3, "traffic.shares.drift": 0.5}
    asked = load(preset="paper", changes={"model.name": MODEL, "run.dtype": "float64"} | given)
    got = record_of_cases(cases(asked))
    assert got["resolved"] == flat(resolve(asked).case)
    assert all(got["resolved"][path] == value for path, value in given.items())
    assert got["sources"]["job.parallel.tp"] == "recipe paper (arXiv 2501.03905)"
    assert (got["version"], got["dtype"], got["jax"]) == (mfabric_jax.__version__, "float64", jax.__version__)
    assert got["device"].startswith(jax.local_devices()[0].platform)
    with monkeypatch.context() as without_git:
        without_git.setenv("PATH", "")
        commit.cache_clear()
        assert record_of_cases(cases(asked))["commit"] is None
    commit.cache_clear()  # what this process has of the commit, later tests read
    assert got["commit"] is None or len(got["commit"].removesuffix("+changes")) == 40
    varied = record_of_cases(cases(asked, {"network.nic_gbps": [100, 400]}))
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


TIMES = ("iteration_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s")


def test_a_fabric_has_the_same_rows_beside_others_and_alone():
    # Under single paths rail-optimized once got the all-to-alls of the fat-tree where both were asked for.
    single = {"network.paths": "ecmp", "traffic.alike": "everything", "network.radix": 16}
    both = {one["fabric"]: one for one in rows(several(single, {"network.fabric": ("fat-tree", "rail-optimized")}))}
    for name, beside in both.items():
        alone = row(small(single | {"network.fabric": name}))
        for part in TIMES:
            np.testing.assert_allclose(beside[part], alone[part], rtol=1e-12, err_msg=f"{name} {part}")
    assert both["rail-optimized"]["ep_comm_s"] != both["fat-tree"]["ep_comm_s"]
    sprayed = row(small(TREE | {"traffic.alike": "everything"}))
    assert both["fat-tree"]["ep_comm_s"] > sprayed["ep_comm_s"]


def test_a_gpu_that_is_named_brings_its_own_peak_and_nvlink():
    # 900 GB/s as the paper simulates; H800 has 200: tensor-parallel all-reduces take 4.5 times.
    h800 = {"gpu.name": "H800-SXM", "gpu.nvlink_gigabytes_per_s": None}
    paper, theirs, own = (
        row(small(TREE | changes)) for changes in ({}, h800, h800 | {"gpu.nvlink_gigabytes_per_s": 450.0})
    )
    np.testing.assert_allclose(theirs["tp_comm_s"] / paper["tp_comm_s"], 4.5, rtol=1e-9)
    np.testing.assert_allclose(own["tp_comm_s"] / paper["tp_comm_s"], 2.0, rtol=1e-9)
    fast = row(small(TREE | {"gpu.name": "H100-SXM", "compute.efficiency": 1.0}))
    np.testing.assert_allclose(paper["compute_s"] / fast["compute_s"], 989.4 / 312 * 2, rtol=1e-9)
    assert fast["compute_source"] == "H100-SXM at 100% of peak, not calibrated"


@pytest.mark.parametrize("name", [pytest.param("nvl72", marks=pytest.mark.slow), "mfabric-cpo"])
def test_a_function_of_numbers_gives_the_rows_at_any_bandwidth(name):
    # NVLink and optical ports are what the NIC leaves of a GPU: of 800 Gbps, not of the bandwidth asked for first.
    given = {f"job.parallel.{name}": degree for name, degree in (("tp", 8), ("dp", 1), ("ep", 16), ("pp", 8))}
    asked, axis = small(given | {"network.fabric": name}, "llama-moe"), {"network.nic_gbps": [100.0, 400.0, 800.0]}
    function, numbers = iteration_of(asked)
    points = grid(**{path: [value] for path, value in numbers.items()} | axis)
    for got, want in zip(evaluate(function, points).rows(), simulate(cases(asked, axis)).rows(), strict=True):
        for part in TIMES:
            np.testing.assert_allclose(got[part], want[part], rtol=1e-9, atol=1e-15, err_msg=part)


def test_circuit_changes_are_what_differs_from_slot_to_slot():
    asked = small(
        {"circuits.ocs": "calient", "network.nics": 4, "network.mfabric.optical_degree": 2}
        | {"traffic.generated.skew": 1.0, "traffic.generated.drift": 0.4}
    )
    one = scenario(asked)
    every = np.asarray(solve_between(one).count)[0]  # [P Q L 2 S S]
    changed, turned = 0, []
    for stage in every.reshape(len(every), -1, *every.shape[-2:]):
        before, turns = stage[-1], 0  # as an iteration like it leaves them
        for now in stage:
            changed += np.maximum(now - before, 0).sum() / 2
            turns += (now != before).any()
            before = now
        turned.append(turns)
    job, found = one.workload, row(asked)
    groups = job.servers // job.pp // job.servers_per_region
    assert found["circuit_changes"] == changed * groups
    assert changed > 10
    assert found["reconfigurations"] == max(turned)
    assert row(small(TREE))["reconfigurations"] is None
    np.testing.assert_allclose(
        found["reconfigurations_over_allowed"], max(turned) / (5 * found["iteration_s"]), rtol=1e-9
    )
    assert (found["ocs"], row(small(TREE))["ocs"]) == ("calient", "none")


def test_known_all_to_alls_are_not_solved_again(monkeypatch):
    made = []

    class Counted(points.AllToAllsOf):
        def __init__(self, *given):
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(points, "AllToAllsOf", Counted)
    rates = [{"compute.efficiency": 0.5}, {"compute.rate": "calibrated"}]
    fast, slow = simulate(cases(small(SKEWED), rates)).rows()
    assert len(made) == 1
    assert fast["iteration_s"] != slow["iteration_s"]
    assert fast["ep_over_balanced"] == slow["ep_over_balanced"]


def scenarios(preset="usual", **changes):
    """What is solved of one model at one bandwidth."""
    given = {"model.name": "llama-moe", "network.nic_gbps": 400} | changes
    return [points.problem for points in simulate(load(preset=preset, changes=given)).groups]


def shown(preset="usual", **changes):
    """Fabric, variant, use of NICs, policy, routing and rule for the first all-to-all of every row."""
    return [
        (
            one.fabric.name,
            one.variant,
            one.group.nic_use,
            one.resolved.case.circuits.policy,
            one.resolved.case.circuits.routing,
            one.resolved.first,
        )
        for one in scenarios(preset, **changes)
    ]


def test_the_fat_tree_and_mfabric_are_shown_twice():
    greedy = ("greedy", "unsplit", "block")
    for preset in ("usual", "as-0.1"):
        assert shown(preset, **{"network.fabric": ["fat-tree", "mfabric", "torus"]}) == [
            ("fat-tree", "own NICs", "own", *greedy),
            ("fat-tree", "pooled NICs", "pooled", *greedy),
            ("mfabric", "as published", "pooled", *greedy),
            ("mfabric", "at its best", "pooled", "joint", "relay", "pays"),
            ("torus", "as set", "pooled", *greedy),
        ]


def test_a_preset_chooses_micro_batches_for_a_bubble():
    (one,) = scenarios("as-0.1", **{"network.fabric": "torus"})
    assert one.workload.micro_batches == 17
    (one,) = scenarios("as-0.1", **{"network.fabric": "torus", "job.batch.micro_batches": 6})
    assert one.workload.micro_batches == 6


TINY = load(preset="paper").with_({"model.name": "llama-moe"})


def test_axes_say_what_an_array_is(tmp_path):
    loads = np.arange(1, 2 * 3 * 16 + 1).reshape(2, 3, 16)  # iteration, layer, expert
    np.save(tmp_path / "plain.npy", np.repeat(loads[:, :, None, None], 16, axis=3))  # spread over sources
    np.save(tmp_path / "turned.npy", loads.transpose(2, 0, 1))

    def drawn(name, axes):
        trace = {"traffic.trace.path": str(tmp_path / name), "traffic.trace.axes": axes, "run.iterations": 2}
        return scenario(TINY.with_(trace)).tokens.count

    by_name = drawn("turned.npy", "expert,iteration,layer")
    np.testing.assert_array_equal(by_name, drawn("plain.npy", "iteration,layer,micro-batch,source,expert"))
    with pytest.raises(InputError, match="name other axes by --axes"):
        drawn("turned.npy", None)


def test_what_is_fine():
    with pytest.raises(AttributeError):
        Case().run.seed = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Case().run, seed=1) == Case().with_({"run.seed": 1}).run
    for few in ({"network.nic_use": "pooled"} | TREE, {"network.fabric": "mfabric"}):
        assert resolve(TINY.with_(few | {"network.nics": 4})).server_nics == 4


def test_float64_needs_x64():
    sentence = r"^dtype float64 needs jax\.config\.update\('jax_enable_x64', True\)"
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=sentence):
        simulate(small())


SPANS = ("stage", "run")
DRIFT = {"run.iterations": 2, "traffic.shares.drift": 0.4}
KNOWN = {"circuits.span.chosen_on": "actual"}


def span(length):
    return {"circuits.span.length": length}


def test_every_span_has_its_row_and_a_fixed_fabric_has_none():
    narrow = {"network.nics": 4, "network.mfabric.optical_degree": 2, "run.iterations": 2}
    changing = narrow | SKEWED | {"traffic.generated.drift": 0.4}
    found = simulate(cases(small(changing), [TREE | {"network.nics": 8}, {}, span("stage"), span("run")])).rows()
    assert [one["circuits_for"] for one in found] == ["none", "all-to-all", *SPANS]
    _, each, stage, run = found
    assert run["reconfig_s"] == 0
    assert each["reconfig_s"] > stage["reconfig_s"] > 0
    assert len({one["ep_comm_s"] for one in (each, stage, run)}) == 3
    assert {one["decision_s"] for one in found} == {0.0}
    assert "mfabric, run" in comparison(found)


def test_the_past_is_the_iteration_before_and_is_not_timed():
    job = resolve(small()).job
    every = measured_tokens(job, iterations=3, micro_batches=4, seed=0, drift=0.4).count
    stage, run = (scenario(small(DRIFT | span(length))) for length in SPANS)
    for one in (stage, run):
        np.testing.assert_array_equal(one.tokens.count, every[1:])
    np.testing.assert_array_equal(planning_selections(stage), every[:2])
    np.testing.assert_array_equal(planning_selections(run), every[:1])
    stage, run = (scenario(small(DRIFT | span(length) | KNOWN)) for length in SPANS)
    np.testing.assert_array_equal(stage.tokens.count, every[:2])
    for one in (stage, run):
        np.testing.assert_array_equal(planning_selections(one), every[:2])
    for alone in (small(DRIFT), small(DRIFT | TREE)):
        np.testing.assert_array_equal(scenario(alone).tokens.count, every[:2])


def test_errors_are_those_of_predictions_so_far():
    job = resolve(small()).job
    tokens = measured_tokens(job, iterations=5, micro_batches=2, seed=1, drift=0.5)
    found = errors_so_far(tokens.count, predict_tokens(tokens, "previous-iteration"), job)
    assert found[0] == found[1] == SIGMA
    assert (found[2:] > 0.3).all()
    np.testing.assert_allclose(errors_so_far(tokens.count, tokens.count, job)[2:], 0, atol=1e-6)
    calm = measured_tokens(job, iterations=5, micro_batches=2, seed=1, drift=0.01)
    assert errors_so_far(calm.count, predict_tokens(calm, "previous-iteration"), job)[-1] < found[-1]


def test_a_decision_is_timed_without_its_compilation():
    demand = jnp.ones((8, 8), jnp.float32)
    assert 0 < measured_decision_s(greedy, Region(8, 400.0), demand, jax.random.key(0)) < 0.1


def test_a_timeline_may_keep_circuits_for_a_stage():
    case = small(JOB | SKEWED | span("stage"))
    _, stages = example_timeline(case)
    np.testing.assert_allclose(stages[0]["iteration_s"], row(case)["iteration_s"], rtol=1e-9)


RECORDS = (2011, 2301)
EVERY = 10  # of the 30 records there
BATCH = 96


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "smartmoe_gate_trace"


@jax.jit
@jax.vmap
def seconds(demand):
    """All-to-alls [BATCH R R] of 16 ranks on two servers: fat-tree with own and with pooled NICs, and mFabric."""
    region, all_circuits = Region(2, 400.0), Circuits(6 - 6 * jnp.eye(2, dtype=jnp.int32))
    trees = [spray_time(Electrical(400.0, nic_use=use), demand, 8) for use in ("own", "pooled")]
    return jnp.stack([*trees, all_to_all_time(region, all_circuits, server_bytes(demand, 8))])


def test_time_over_balanced_is_the_busiest_rank_over_the_mean(folder):
    workload = get("qwen-moe-ep16")
    tokens = recorded_tokens(workload, folder, RECORDS)
    count = np.asarray(tokens.count[::EVERY], float)  # every layer and micro-batch
    assert count.shape[:4] == (3, workload.moe_layers, 4, 16)
    demand = count.reshape(-1, BATCH, 16, 16, count.shape[-1] // 16).sum(axis=-1)  # one byte a selection
    own, pooled, optical = np.concatenate([seconds(batch) for batch in demand]).T
    balanced = np.asarray(seconds(np.full_like(demand[0], demand.mean())))[0, 0]
    load = tokens.rank_load_over_mean(workload.ep)[::EVERY].reshape(-1)
    ratio = own / balanced / load
    assert np.median(load) > 5  # far from balanced, so this says something
    assert np.median(ratio) == pytest.approx(1, abs=0.02)
    assert np.all(np.abs(np.quantile(ratio, [0.1, 0.9]) - 1) < 0.02)
    # Two servers: what leaves one goes over 6 circuits or over 8 NICs. Against own NICs mFabric gains by pooling.
    np.testing.assert_allclose(optical / pooled, 8 / 6, rtol=1e-9)
    assert np.median(optical / own) == pytest.approx(0.28, abs=0.03)


def test_recorded_rows_from_a_file(tmp_path):
    # The same balanced counts, recorded and generated.
    np.save(tmp_path / "run.npy", np.ones((2, 3, 4, 16, 16)))
    traced = {"network.fabric": "fat-tree", "traffic.trace.path": str(tmp_path / "run.npy")}
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0}
    got = row(small(traced, "llama-moe"))
    want = row(small({"network.fabric": "fat-tree"} | even, "llama-moe"))
    times = [name for name in got if name.endswith("_s")]
    np.testing.assert_allclose([got[name] for name in times], [want[name] for name in times], rtol=1e-9)
    np.savez(tmp_path / "run.npz", tokens=np.ones((1, 2, 1, 4, 16)))  # of other ranks
    with pytest.raises(InputError, match=r"ep of the workload must divide the 4 source ranks of .*run\.npz, got 16"):
        simulate(small(traced | {"traffic.trace.path": str(tmp_path / "run.npz")}, "llama-moe"))
