"""Searches of set-ups on unusual cases: they find what fits, or say why nothing does."""

import pytest

from mfabric_jax import Case, cases, resolve, simulate
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.commands.shared import check_cases
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax, without_search
from mfabric_jax.evaluate.setups.search import SLACK

SMALL = {  # a model that fits anywhere
    **{"model.blocks": 8, "model.hidden": 1024, "model.experts": 8, "model.top_k": 2, "model.expert_hidden": 2048},
    **{
        "job.search": "each",
        "model.recipe": "none",
        "model.vocab": 32_000,
        "job.parallel.gpus": 16,
        "job.batch.global_batch": 64,
    },
    **{"job.batch.sequence": 1024, "network.fabric": "fat-tree"},
}


def found(**changes):
    return resolve(Case().with_(SMALL | {name.replace("__", "."): value for name, value in changes.items()})).searched


@pytest.mark.parametrize("gpus", [96, 512])
def test_recipes_with_settings_that_are_no_degrees_start_a_search(gpus):
    resolved = resolve(
        Case().with_(
            {
                "model.name": "mixtral-8x7b",
                "job.search": "each",
                "job.parallel.gpus": gpus,
                "job.batch.global_batch": 1536,
            }
        )
    )
    assert resolved.searched is not None


def test_passes_overlap_beside_degrees_without_all_to_alls():
    """Degrees of one expert rank, which come first, do not decide for the others."""
    stated = found(job__parallel__ep=8, job__parallel__pp=1, job__batch__micro_batch=1)
    assert any(runner.set_up.overlap == "passes" for runner in stated.runners)
    open_ep = found(job__parallel__pp=1, job__batch__micro_batch=1, job__dispatcher="nccl")
    assert open_ep.seconds <= SLACK * stated.seconds


def test_stated_recomputation_of_all_to_alls_leaves_out_passes_that_overlap():
    assert found(job__recompute="block").best.overlap == "none"


def test_refusals_say_what_does_not_hold():
    with pytest.raises(Misfit, match=r"job\.frameworks=any"):
        found(job__schedule="zb-h1")
    with pytest.raises(Misfit, match="keeps to what is stated"):
        found(job__layout="Et|(tt|)*3tL", job__parallel__pp=2)


def test_circuits_that_weigh_computation():
    assert found(network__fabric="mfabric", circuits__reconfigure="pays", job__parallel__ep=8).seconds > 0


@pytest.mark.parametrize("changes", [{"run.replicas": 2}, {"job.per-server.node_limit": 2}])
def test_searches_time_what_the_case_states(changes):
    """Settings that belong to a dispatch, and replicas, which decide whether gradients overlap."""
    found()  # must not answer for the changed case
    resolved = resolve(Case().with_(SMALL | {"job.parallel.ep": 8} | changes))
    row = simulate(cases(resolved.case)).rows()[0]
    assert resolved.searched.seconds == pytest.approx(row["iteration_s"], rel=1e-6) or "run.replicas" in changes
    assert row["framework_runs"] == "megatron-core"


@pytest.mark.parametrize(
    ("gigabytes", "parts"), [(4.0, "none"), (3.5, "norm"), (3.0, "activation+moe"), (2.0, "block")]
)
def test_recomputation_is_the_least_that_fits(gigabytes, parts):
    stated = {"gpu.memory_gigabytes": gigabytes, "job.parallel.ep": 8, "job.parallel.tp": 1}
    resolved = resolve(Case().with_(SMALL | stated | {"job.batch.micro_batch": 4}))
    assert resolved.searched.best.recompute == parts


def test_a_recipe_that_suits_another_batch_does_not_refuse_a_search():
    case = Case().with_(
        {"model.name": "deepseek-v3", "gpu.name": "H200-SXM", "network.fabric": "fat-tree", "job.search": "each"}
        | {"job.batch.sequence": 32768, "job.batch.global_batch": 512, "job.parallel.gpus": 1024}
    )
    with pytest.raises(InputError, match="under schedule 'dualpipe'"):
        resolve_without_jax(case.with_({"job.search": "recipe"}))
    assert resolve_without_jax(without_search(case)).job.iteration_tokens == 512 * 32768


@pytest.mark.parametrize(
    "stated",
    [
        {"model.name": "mixtral-8x22b", "job.parallel.gpus": 32, "circuits.reconfigure": "pays"},  # recomputes experts
        {"model.name": "mixtral-8x7b", "job.parallel.gpus": 32, "run.replicas": 8},  # has 2 replicas
        {"model.name": "deepseek-v3", "job.parallel.gpus": 1000, "job.parallel.ep": 8, "job.batch.global_batch": 100},
    ],  # the last divides with context parallelism alone
)
def test_a_case_is_not_refused_for_a_quick_set_up_that_a_search_need_not_take(stated):
    case = Case().with_({"job.search": "each", "model.recipe": "none", "job.batch.global_batch": 256} | stated)
    check_cases(cases(case))
    with pytest.raises(InputError, match=r"job\.parallel\.tp must divide"):
        check_cases(cases(case.with_({"job.parallel.tp": 3})))
