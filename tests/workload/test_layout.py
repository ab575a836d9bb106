"""Blocks of a pipeline's places: even, with ends, and as written."""

import dataclasses

import pytest

from mfabric_jax import Case, InputError, resolve
from mfabric_jax.timing.iteration import last_blocks
from mfabric_jax.workload import get_gpu, memory_of, models
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.layout import places_of
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.volume import replica_bytes, stage_params, word_params


@pytest.mark.parametrize(
    ("layout", "blocks", "predicted", "places", "want"),
    [
        ("even", 7, 0, 3, (3, 2, 2)),
        ("ends", 94, 0, 32, (2, *(3,) * 30, 2)),
        ("ends", 7, 0, 3, (2, 3, 2)),
        ("Et|(tt|)*30mL", 62, 1, 32, (1, *(2,) * 30, 1)),
        ("Ett,|t*3|tmL", 7, 1, 3, (2, 3, 2)),
        ("E(t|)*3ttL", 5, 0, 4, (1, 1, 1, 2)),
    ],
)
def test_what_a_layout_means(layout, blocks, predicted, places, want):
    assert places_of(layout, blocks, predicted, places) == want
    assert sum(want) == blocks


@pytest.mark.parametrize(
    ("layout", "what"),
    [
        ("uneven", "layout must be even, ends, or places like"),
        ("tt|ttL", "from E to L, got"),
        ("Et|tL", "layout must have 4 t, got 2 in 'Et|tL'"),
        ("Ett|t|tL", "layout must have 2 places"),
        ("Ett|ttmL", "layout must have 0 m, got 1"),
        ("E|ttttL", "layout must leave every place a block, got 'E|ttttL': 0, 4"),
    ],
)
def test_what_no_layout_is(layout, what):
    with pytest.raises(InputError) as mistake:
        places_of(layout, 4, 0, 2)
    assert what in str(mistake.value)


def test_a_job_has_its_blocks_where_the_layout_puts_them_and_the_head_at_the_end():
    job = Workload("m", models.MIXTRAL_8X7B, 1, 1, 4, 8, 32, micro_batches=4, layout_of_blocks="Et*5|t*9|t*9|t*9L")
    assert job.stage_blocks == (5, 9, 9, 9)
    assert job.stage_layers(1) == list(range(5, 14))
    assert last_blocks(job)[3].sum() == 2 * job.micro_batches
    assert not last_blocks(job)[:3].any()


def test_a_predicted_token_is_a_block_and_a_head_and_an_embedding_beside_it():
    stated = {"model.name": "deepseek-v3", "model.recipe": "none", "gpu.name": "H100-SXM"}
    stated |= {f"job.parallel.{name}": of for name, of in (("tp", 1), ("pp", 2), ("ep", 64), ("dp", 1))}
    without, more = (resolve(Case().with_(stated | {"job.mtp": on})).job for on in (False, True))
    assert (without.architecture.blocks, more.architecture.blocks, more.predicted) == (61, 62, 1)
    assert more.moe_layers == without.moe_layers + 1
    gpu = get_gpu("H100-SXM")
    heads = [kernel_seconds(job, gpu).head_s for job in (without, more)]
    assert 2 * heads[0] < heads[1] < 2.2 * heads[0]
    plain = dataclasses.replace(more, predicted=0)
    words, joined = more.architecture.head_params, 2 * 7168**2
    assert memory_of(more, 1).weights - memory_of(plain, 1).weights == pytest.approx(2 * (words + joined))
    assert memory_of(more, 0) == memory_of(plain, 0)
    ends = 4 * 7168 + 4 * 129280  # input and normed input of a head in bf16, logits in float32
    assert memory_of(plain, 1).logits == plain.tokens * ends
    assert memory_of(more, 1).logits == more.tokens * (
        2 * ends + 4 * 2 * 7168
    )  # and two vectors, before and after norms
    for stage, parts in ((0, 0), (1, words + joined)):
        grown = replica_bytes(more, stage).dense - replica_bytes(plain, stage).dense
        assert grown == pytest.approx(parts * (1 + 1))  # half an all-reduce and half an all-gather of 2 bytes
    unheaded = dataclasses.replace(more, head="left-out")
    assert kernel_seconds(unheaded, gpu).head_s == pytest.approx(heads[1] - 2 * heads[0], rel=1e-9)
    with pytest.raises(InputError, match=r"job\.mtp needs a model that predicts further tokens; mixtral-8x7b has"):
        resolve(Case().with_({"model.name": "mixtral-8x7b", "job.mtp": True}))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("layout", ["even", "ends"])
def test_stages_have_all_parameters_of_a_model_and_of_what_it_predicts(schedule, layout):
    """Each once, whatever the pipeline; dualpipe has two copies of it. A second embedding beside the head where further
    tokens are predicted."""
    order, facts = SCHEDULES[schedule], dataclasses.replace(models.DEEPSEEK_V3, blocks=62, next_tokens=1)
    fields = {"schedule": schedule, "layout_of_blocks": layout, "chunks": 2 if schedule == "interleaved" else None}
    job = Workload.of("m", facts, 2, 1, 4, 8, 64, micro_batches=8, predicted=1, **fields)
    each = [stage_params(job, stage) for stage in range(4)]
    own = dataclasses.replace(facts, blocks=61)
    whole = own.params(embedding=False, head=False) + own.prediction_params
    assert sum(stage.dense + 8 * stage.expert for stage in each) == pytest.approx(order.copies * whole, rel=1e-12)
    words = [word_params(job, stage) for stage in range(4)]
    held = {"zb-v": 2, "dualpipe": 4}.get(schedule, 3)  # a stage with both ends needs one embedding
    assert sum(words) == held * facts.head_params
