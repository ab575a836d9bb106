"""What is computed again, by part: memory that it spares and seconds that it takes."""

import dataclasses

import pytest

from mfabric_jax import InputError
from mfabric_jax.timing.blocks import BlockWork, OtherSeconds, Send, alone, pair
from mfabric_jax.workload import get_gpu, memory_of, models
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import LEVELS, PARTS, recomputed_of

JOB = Workload("v3", models.DEEPSEEK_V3, 1, 1, 4, 64, 256, micro_batch=1, micro_batches=8)
H100 = get_gpu("H100-SXM")
PASSES = ("forward", "backward")


def with_(recompute):
    return dataclasses.replace(JOB, recompute=recompute)


def of(kind, recompute):
    """What a pass alone does, without the names of its runs."""
    return [op for _, op in alone(kind, recompute) if not isinstance(op, OtherSeconds)]


@pytest.mark.parametrize("recompute", LEVELS)
def test_one_list_of_operations_serves_both_directions(recompute):
    """The clock plays a forward block by the list of a backward one: what is not computation stands in one order."""
    forward, backward = ([op for op in of(kind, recompute) if not isinstance(op, BlockWork)] for kind in PASSES)
    in_place = [op for op in backward if not getattr(op, "again", False)]
    assert [(type(op), getattr(op, "which", None)) for op in forward] == [
        (type(op), getattr(op, "which", None)) for op in in_place
    ]


def test_levels_hold_more_and_more_and_parts_can_be_joined():
    assert [sorted(recomputed_of(level).parts) for level in LEVELS] == [
        [],
        ["activation", "mla-up", "norm"],
        ["attention"],
        sorted(PARTS),
    ]
    joined = recomputed_of("norm+activation+mla-up")
    assert joined == recomputed_of("light")
    assert (joined.attention, joined.inner, joined.exchanges, joined.whole) == (True, True, False, False)
    assert recomputed_of("moe").exchanges
    assert not recomputed_of("moe").attention


@pytest.mark.parametrize("value", ["norms", "norm+", "", "norm,moe", "light+moe"])
def test_an_unknown_part_is_named(value):
    with pytest.raises(InputError) as mistake:
        with_(value)
    assert str(mistake.value).startswith("recompute must be none, light, ")
    assert str(mistake.value).endswith(f"joined by +, got {value!r}.")


def test_every_part_spares_memory_and_takes_seconds():
    none, seconds = memory_of(JOB, 1), kernel_seconds(JOB, H100).backward
    for part in PARTS:
        memory, again = memory_of(with_(part), 1), kernel_seconds(with_(part), H100).backward
        on_stage = (0, 1)[part != "mlp"]  # dense blocks are on the first stage
        assert memory_of(with_(part), on_stage).activations < memory_of(JOB, on_stage).activations, part
        assert memory.buffers >= none.buffers, part
        spent = sum(one.again for one in (again.attention, again.moe, again.dense))
        assert spent > sum(one.again for one in (seconds.attention, seconds.moe, seconds.dense)) == 0, part
        assert again.attention.inputs == seconds.attention.inputs


def test_up_projections_by_their_flops():
    # Queries of 1,536 to 128 x 192, keys and values of 512 to 128 x 256: 54.5 of 187 million parameters.
    found = block_seconds(with_("mla-up"), H100)
    whole = block_seconds(JOB, H100)
    attention = 2 * 187_105_280 + 2 * 2048 * 128 * 320
    up = 2 * (1536 * 128 * 192 + 512 * 128 * 256)
    assert found.backward.attention.again == pytest.approx(whole.attention_s * up / attention)
    assert found.backward.moe.again == 0


def test_activations_are_made_again_before_experts_and_their_all_to_alls_only_with_moe():
    plain, gated, moe = (of("backward", recompute) for recompute in ("none", "activation", "moe"))
    experts = [op for op in gated if isinstance(op, BlockWork) and op.kind == "experts"]
    assert experts[0].bases == ("inner again", "inner inputs", "inner weights")
    assert [op for op in gated if isinstance(op, Send)] == [op for op in plain if isinstance(op, Send)]
    sent = [(op.label, op.again) for op in moe if isinstance(op, Send)]
    assert sent[:2] == [("dispatch again", True), ("combine again", True)]
    assert not any("attention again" in op.bases for op in moe if isinstance(op, BlockWork))


def test_gradients_of_weights_that_are_not_delayed_come_with_those_of_inputs():
    late, early = (pair("none", delayed) for delayed in (True, False))
    weights = [op for _, _, op in late if isinstance(op, BlockWork) and op.off]
    assert [op.bases for op in weights] == [("inner weights",), ("attention weights",)]
    assert not any(isinstance(op, BlockWork) and op.off for _, _, op in early)
    assert sum(("inner weights" in op.bases) for _, _, op in early if isinstance(op, BlockWork)) == 1
