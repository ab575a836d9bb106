"""Searches of set-ups on unusual cases: they find what fits, or say why nothing does."""

import pytest

from mfabric_jax import Case, resolve
from mfabric_jax.evaluate.setups.search import SLACK

SMALL = {  # a model that fits anywhere
    **{"model.blocks": 8, "model.hidden": 1024, "model.experts": 8, "model.top_k": 2, "model.expert_hidden": 2048},
    **{"model.recipe": "none", "model.vocab": 32_000, "job.parallel.gpus": 16, "job.batch.global_batch": 64},
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
    assert any(runner.set_up["overlap"] == "passes" for runner in stated.runners)
    open_ep = found(job__parallel__pp=1, job__batch__micro_batch=1, job__dispatcher="nccl")
    assert open_ep.seconds <= SLACK * stated.seconds
