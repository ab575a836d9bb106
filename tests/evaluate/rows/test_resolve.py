"""What a case stands for, and that whoever asks about one case gets the same numbers."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax import Case, InputError, cases, load, resolve, simulate
from mfabric_jax.case.paths import flat
from mfabric_jax.evaluate import example_timeline, iteration_of
from mfabric_jax.evaluate.resolving.set_up import memory_columns, too_large_words
from mfabric_jax.evaluate.rows.points import EvaluatedBlock
from mfabric_jax.fabric import NAMES
from mfabric_jax.workload import get
from mfabric_jax.workload.catalog import NAMES as MODELS
from tests.small import JOB, refused, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
TREE = {"network.fabric": "fat-tree"}
NOT_KNOWN = {"gpu.scale_up_gpus", "gpu.usd"}  # of an H100, or what a fabric says of itself
NEVER_FILLED = {"job.batch.per_stage", "job.batch.bubble", "network.prices", "circuits.ocs", "run.sample"}
NEVER_FILLED |= {"compute.kernels.table"}
NEVER_FILLED |= {f"network.full-mesh.{name}" for name in ("shape", "dimensions", "split", "paths")}
NEVER_FILLED |= {"network.torus.shape", "network.railx.side", "network.railx.shape"}
NEVER_FILLED |= {"network.twisted-torus.shape", "network.on-graph.ranks"}  # of a fabric that is not chosen, all of them
NEVER_FILLED |= {"network.oversubscription", "network.graph", "failures.kinds", "failures.stage", "failures.rates"}
NEVER_FILLED |= {"job.training_tokens"}


def degrees(**given):
    return {f"job.parallel.{name}": degree for name, degree in given.items()}


# ---------------------------------------------------------------------------------------------------- what is left open
def test_what_is_open_is_filled_and_said_why():
    found = resolve(Case())
    asked, values = flat(Case()), flat(found.case)
    open_still = {path for path, value in values.items() if value is None and not path.startswith("serving.")}
    assert open_still == NOT_KNOWN | NEVER_FILLED
    assert {path for path in values if values[path] != asked.get(path)} == set(found.why)
    assert all(asked.get(path) in (None, "fit", "fewest") for path in found.why)
    assert found.why["network.nics"] == "one per GPU"
    assert found.why["job.parallel.tp"].startswith("recipe makers")
    assert found.original == Case()


def test_what_is_open_of_a_fabric_is_filled_for_its_servers():
    """128 servers of 1,024 GPUs."""
    filled = {
        "full-mesh": {"network.full-mesh.shape": "16x8", "network.full-mesh.paths": "detour"},
        "twisted-torus": {"network.twisted-torus.shape": "4x4x8"},
        "railx": {"network.railx.side": 2, "network.railx.shape": "8x4"},
    }
    for fabric, values in filled.items():
        found = resolve(Case().with_({"network.fabric": fabric}))
        assert {path: flat(found.case)[path] for path in values} == values
        assert all(found.why[path] == "usual for 128 servers in groups of 1" for path in values)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_resolved_stands_for_itself(model):
    for preset in ((), "paper"):
        for fabric in NAMES:
            found = resolve(load(preset=preset, changes={"model.name": model, "network.fabric": fabric}))
            again = resolve(found.case)
            assert again == found


def test_a_stated_value_wins_over_a_recipe():
    changed = {"job.schedule": "gpipe", "job.batch.micro_batch": 2, "job.batch.micro_batches": 3, "job.parallel.tp": 8}
    for path, value in changed.items():
        found = resolve(load(preset="paper", changes={path: value}))
        assert flat(found.case)[path] == value
        assert path not in found.why
    wide = resolve(load(preset="paper", changes={"job.parallel.tp": 8}))  # a recipe's degrees are taken together
    assert wide.why["recipe"] == "job.parallel.tp is 8, not 4"
    assert wide.why["job.batch.micro_batch"] == "recipe paper (arXiv 2501.03905)"
    own = resolve(load(preset="paper", changes={"model.recipe": "none"}))
    assert not any(why.startswith("recipe") for why in own.why.values())


@pytest.mark.parametrize("model", MODELS)
def test_preset_paper_runs_models_as_the_catalogue_has_them(model):
    assert resolve(load(preset="paper", changes={"model.name": model})).job == get(model, accumulated_bytes=2)


@pytest.mark.parametrize("model", MODELS)
def test_a_case_of_defaults_fits_the_memory(model):
    """But for DeepSeek's own recipe on 80 GB, where the busiest rank receives 1.59 times the mean, as time takes it."""
    for experts in ("received", "balanced"):
        found = resolve(Case().with_({"model.name": model, "compute.experts": experts}))
        fits = not model.startswith("deepseek") or experts == "balanced"
        assert memory_columns(found, found.job)["fits"] == fits
        assert found.job.gpus == 1024
        assert fits == (too_large_words(found) is None)
        assert fits or "; what fits: " in too_large_words(found)


def test_dp_and_gpus_follow_from_each_other():
    paper = load(preset="paper", changes={"model.name": "llama-moe"})  # tp 1, pp 4, ep 16: replicas of 64
    assert resolve(paper.with_(degrees(dp=2))).job.gpus == 128
    assert resolve(paper.with_(degrees(gpus=128))).job.dp == 2
    assert resolve(paper.with_(degrees(gpus=128, dp=2))).job == resolve(paper.with_(degrees(dp=2))).job


def test_batch_and_micro_batches_follow_from_each_other():
    paper = load(preset="paper", changes={"model.name": "llama-moe"})  # 8 sequences x ep 16 x dp 16: 2,048

    def batch(changes):
        found = resolve(paper.with_({f"job.batch.{name}": value for name, value in changes.items()})).case.job.batch
        return found.global_batch, found.micro_batches

    for one in ({"global_batch": 6144}, {"micro_batches": 3}, {"global_batch": 6144, "micro_batches": 3}):
        assert batch(one) == (6144, 3)
    assert batch({"per_stage": 2}) == (8 * 2048, 8)
    assert batch({"bubble": 0.15}) == (17 * 2048, 17)
    assert batch({"bubble": 0.15, "micro_batches": 20}) == (20 * 2048, 20)
    near = refused({"job.batch.global_batch": 5000}, paper)
    assert near.startswith("no set-up with ") or "got 5000; the nearest are" in near
    assert {"4096", "6144"} <= set(near.replace(".", " ").replace(";", " ").split())


# -------------------------------------------------------------------------------------- one case, whoever asks about it
WAYS = {
    "fat-tree": TREE,
    "pooled": TREE | {"network.nic_use": "pooled", "network.tiers": 2},
    "mfabric": {"traffic.generated.skew": 1.0},
    "experts": {"compute.experts": "received", "job.head": True, "job.optimizer_step": True},
    "overlap": {"circuits.packets_wait": True, "job.parts": 2, "job.overlap_gradients": True},
    "memory": {"job.sharding": "parameters", "job.parallel.cp": 2, "job.parallel.tp_reduces": "all"},
    "servers": TREE | {"job.dispatch": "per-server", "placement.longest-processing-time.redundant_experts": 8},
    "random": {"circuits.predict.predictor": "random", "circuits.routing": "relay"},
}
STAGES = JOB | {"job.parallel.pp": 2, "job.parallel.dp": 4}
PARTS = ("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")


@pytest.mark.parametrize("way", WAYS)
def test_rows_timelines_and_functions_of_numbers_say_the_same(way):
    case = small(STAGES | WAYS[way])
    want = row(case)
    function, numbers = iteration_of(case)
    found = eqx.filter_jit(function)(numbers)
    for name in ("iteration_s", *PARTS):
        np.testing.assert_allclose(found[name], want[name], rtol=1e-12, atol=1e-12, err_msg=name)
    segments, stages = example_timeline(case)
    assert {one["iteration_s"] for one in stages} == {stages[0]["iteration_s"]}
    np.testing.assert_allclose(stages[0]["iteration_s"], want["iteration_s"], rtol=1e-12)
    busiest = min(stages, key=lambda one: one["bubble_s"])
    for name in PARTS:
        np.testing.assert_allclose(busiest[name], want[name], rtol=1e-9, atol=1e-9, err_msg=name)
    for stage in stages:
        np.testing.assert_allclose(sum(stage[name] for name in PARTS), stage["iteration_s"], rtol=1e-12)
        drawn = [one for one in segments if one["stage"] == stage["stage"] and one["kind"] in ("tp", "cp")]
        length = sum(one["end_s"] - one["start_s"] for one in drawn)
        np.testing.assert_allclose(length, stage["tp_comm_s"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(max(one["end_s"] for one in segments), want["iteration_s"], rtol=1e-12)


SECOND = {"run.iterations": 3, "run.sample": 1, "traffic.shares.drift": 0.5, "job.parallel.pp": 1}


def test_a_timeline_is_of_the_iteration_that_the_case_names():
    case = small(JOB | SECOND)
    each = [row(case.with_({"run.sample": sample}))["iteration_s"] for sample in range(3)]
    assert len(set(each)) == 3
    _, (stage, *_) = example_timeline(case)
    np.testing.assert_allclose(stage["iteration_s"], each[1], rtol=1e-6)


OTHERS = {
    **{
        "circuits.policy": "uniform",
        "circuits.routing": "relay",
        "circuits.reconfigure": "reuse",
        "circuits.partial": True,
    },
    **{"run.seed": 1, "traffic.generated.skew": 0.5, "traffic.shares.drift": 0.3, "traffic.drawn": 2},
    **{"placement.rule": "hierarchical", "compute.experts": "received", "job.precision.dispatch": "fp8"},
    **{"circuits.span.length": "run", "network.transport": "ndp", "circuits.cold_start": True, "run.iterations": 2},
    **{"network.mfabric.optical_degree": 4, "job.dispatch": "per-server", "run.dtype": "float32"},
}


def test_cases_that_differ_in_what_all_to_alls_depend_on_share_none():
    """And those that differ in delays, computation or the bandwidth alone share all."""
    every = {path: scenario(small({path: value})) for path, value in OTHERS.items()}
    keys = {path: one.between_key for path, one in every.items()} | {"as it is": scenario(small()).between_key}
    assert len(set(keys.values())) == len(keys)
    more = {"circuits.predict.predictor": "uniform", "circuits.predict.sigma": 0.1, "circuits.predict.both": True}
    turns = [
        scenario(small({"circuits.reconfigure": "predict", path: value})).between_key for path, value in more.items()
    ]
    assert len({*turns, scenario(small({"circuits.reconfigure": "predict"})).between_key}) == 4
    for path, value in (("compute.efficiency", 0.3), ("network.nic_gbps", 400.0), ("network.link_delay_s", 0.001)):
        assert scenario(small({path: value})).between_key == keys["as it is"]


def test_fabrics_without_circuits_share_all_to_alls_whatever_the_policy():
    tree, other = (scenario(small(TREE | {"circuits.policy": policy})) for policy in ("greedy", "uniform"))
    assert tree.between_key == other.between_key


def test_rails_share_all_to_alls():
    """Groups that are alike, whatever settings of its own a fabric has."""
    rails = {"network.fabric": "rail-optimized", "network.rail-optimized.pxn": True}
    one, other = (scenario(small(change)) for change in (rails, {"network.fabric": "rail-only"}))
    assert one.between_key == other.between_key


NARROW = {"network.nics": 6, "network.mfabric.optical_degree": 4}
AXES = {  # of more rows than are timed one by one
    "above the peak": (TREE, {"compute.efficiency": (0.5, 1.0, 1.5)}),
    "efficiency": ({}, {"compute.efficiency": (0.2, 0.3, 0.4), "network.nic_gbps": (100.0, 200.0, 400.0)}),
    "delay": ({}, {"circuits.delay_s": (0.0, 0.01, 0.4), "circuits.each_s": (0.0, 0.2), "network.goodput": (0.5, 1.0)}),
    "degree": (NARROW, {"network.mfabric.optical_degree": (1, 2, 4), "network.nic_gbps": (100.0, 300.0, 800.0)}),
    "sample": ({"run.iterations": 2}, {"run.sample": (None, 0, 1), "network.link_delay_s": (0.0, 1e-4)}),
    "span": ({"circuits.span.length": "run", "circuits.decision_s": 0.02}, {"circuits.delay_s": (0.0, 0.1)}),
    "pays": ({"circuits.reconfigure": "pays"}, {"circuits.delay_s": (0.001, 0.1), "compute.efficiency": (0.2, 0.5)}),
    "tree": (TREE, {"network.nic_gbps": (100.0, 200.0, 400.0), "gpu.nvlink_gigabytes_per_s": (300.0, 900.0)}),
    "domains": ({"network.fabric": "mfabric-cpo"}, {"network.nic_gbps": (100.0, 400.0, 800.0)}),
}
SLOW = ("tree", "domains", "efficiency")


@pytest.mark.parametrize("axis", [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in AXES])
def test_many_cases_at_once_have_the_rows_of_single_ones(axis):
    changes, axes = AXES[axis]
    asked = cases(small(JOB | {"traffic.generated.skew": 1.0} | changes), axes)
    (block,) = asked.blocks
    together = EvaluatedBlock(block).rows()
    alone = [row(case) for case in asked]
    assert len(together) == len(alone) == len(asked)
    for one, other in zip(together, alone, strict=True):
        assert one.keys() == other.keys()
        for name, want in other.items():
            if isinstance(want, float):
                assert one[name] == pytest.approx(want, rel=1e-12, abs=1e-12), name
            else:
                assert one[name] == want, name


def test_cases_that_differ_in_numbers_are_solved_together():
    rates = cases(small(TREE), {"compute.efficiency": np.linspace(0.2, 0.6, 17).tolist()})
    (together,) = simulate(rates).groups
    assert len(together.block) == 17
    models = cases(small(TREE), {"model.name": ["llama-moe", "mixtral-8x7b"]})
    assert [len(points.block) for points in simulate(models).groups] == [1, 1]


def test_a_case_that_cannot_be_is_refused_before_anything_is_computed():
    asked = cases(small(), {"network.mfabric.optical_degree": list(range(1, 9)), "network.nic_gbps": [100, 200, 400]})
    with pytest.raises(InputError, match=r"^network\.mfabric\.optical_degree must be below the 8 NICs of a server"):
        simulate(asked)
