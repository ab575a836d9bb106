"""Memory of a GPU in training: by hand, against published counts, and against the passes of schedules."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.timing.passes import order_of
from mfabric_jax.workload import GroupedQuery, Workload, fullest_stage, memory_of, models
from mfabric_jax.workload.memory import RankLoad, step_bytes
from mfabric_jax.workload.parallel import SHARDING
from mfabric_jax.workload.schedules import BACKWARD, passes_in_memory

# Width 8, one head of 8: 256 parameters of attention; 4 experts of 3 x 8 x 10 with a gate of 32, one of four blocks
# dense with 3 x 8 x 20; embedding and head of 100 x 8. Four GPUs a stage: tp 2, ep 2.
TINY = models.Architecture(
    *("tiny", 4, 8, GroupedQuery(1, 1, 8), 4, 2, 10, "made up"), dense_blocks=1, dense_hidden=20, vocab=100
)


def tiny(**more):
    size = {"dp": 2, "tp": 2, "pp": 2, "ep": 2, "gpus": 16, "gpus_per_server": 4, "sequence": 6, "micro_batch": 1}
    return Workload("tiny", TINY, **size | {"micro_batches": 5} | more)


def test_parts_by_hand():
    held = memory_of(tiny(), 0)
    dense = (2 * 256 + 32 + 480 + 800) / 2  # attention, gate, dense FFN, embedding; TP halves all
    expert = 2 * 240 / 2  # one of two blocks, 4 experts over ep 2
    assert held.weights == 2 * (dense + expert)
    assert held.gradients == 4 * (dense + expert)  # summed in float32
    assert held.optimizer == 12 * (dense / 4 + expert / 2)  # 4 replicas, those of an expert 2
    assert memory_of(tiny(sharding="none"), 0).optimizer == 12 * (dense + expert)
    # Per token: attention 2 x 8 + 2 x 16; the dense FFN 2 x 8 + 3 x 20; the MoE one 2 x 8, 4 float32 logits, and for
    # both choices 8 + 3 x 10. Six tokens in bf16, two micro-batches in flight on stage 0.
    attention, ffn, moe = 48, 76, 16 + 8 + 2 * 38
    assert held.activations == 2 * 2 * 6 * (2 * attention + ffn + moe) / 2
    assert held.logits == 0
    assert held.buffers == 6 * 2 * 8 * (2 + 2) / 2  # rows of both choices that travel to experts and back
    last = memory_of(tiny(), 1)
    assert last.activations == 2 * 6 * 2 * (attention + moe) / 2
    assert last.logits == 6 * (2 * 2 * 8 + 4 * 100) / 2
    assert fullest_stage(tiny()) == (1, last)
    assert last.total == sum(last) > held.total
    again, block = (memory_of(tiny(recompute=kind), 0) for kind in ("attention", "block"))
    assert again.activations == 2 * 6 * 2 * (2 * 8 + ffn + moe) / 2
    assert again.buffers - held.buffers == 2 * 6 * (attention - 8) / 2  # its input is kept
    assert block.activations == 2 * 6 * 2 * 2 * 8 / 2
    assert block.buffers - held.buffers == 2 * 6 * (attention - 8 + moe) / 2


def test_what_replicas_share_out():
    dense, expert = (2 * 256 + 32 + 480 + 800) / 2, 240.0  # as above; 4 replicas, those of an expert 2
    share, whole = dense / 4 + expert / 2, dense + expert
    block = (256 + 32 + 2 * 240) / 2  # the MoE block, larger than the dense one of 256 + 480
    none, one, two, three = (memory_of(tiny(sharding=kind), 0) for kind in SHARDING)
    assert (none.weights, none.gradients, none.optimizer) == (2 * whole, 4 * whole, 12 * whole)
    assert (one.weights, one.gradients, one.optimizer) == (2 * whole, 4 * whole, 12 * share)
    assert (two.weights, two.gradients, two.optimizer) == (2 * whole, 4 * (share + block), 12 * share)
    assert (three.weights, three.gradients, three.optimizer) == (
        2 * (share + 2 * block),
        4 * (share + block),
        12 * share,
    )
    assert none.activations == three.activations
    assert step_bytes(tiny(), 0) == (4 + 12 + 12 + 2) * share
    assert step_bytes(tiny(sharding="none", accumulated_bytes=2), 0) == (2 + 12 + 12 + 2) * whole


def test_number_formats_in_memory():
    usual = memory_of(tiny(), 0)
    small = memory_of(tiny(accumulated_bytes=2, moment_bytes=2, weight_bytes=1, kept_bytes=1), 0)
    assert (small.weights, small.gradients, small.optimizer) == (
        usual.weights / 2,
        usual.gradients / 2,
        usual.optimizer * 8 / 12,
    )
    # A byte less of what products keep: of attention 8 normed and 8 of output; of a FFN the normed input, gate and up
    # (2 x 20 or 2 x 2 x 10) and their product; of experts their rows, too.
    kept = 2 * 16 + (8 + 3 * 20) + (8 + 2 * (8 + 3 * 10))
    assert usual.activations - small.activations == 2 * 6 * kept / 2


def test_a_dense_block_with_attention_of_today_agrees_with_the_published_count():
    # arXiv 2205.05198 counts 34 bytes per element of a token for GPT (FFN of 4 x hidden, GELU, dropout) without scores:
    # less 2 masks of a byte, and 16 of the inner FFN, here gated: 2 x 3 x inner in place of 2 x 2 x 4 x hidden.
    hidden, inner = 64, 96
    dense = models.Architecture(
        *("gpt", 2, hidden, GroupedQuery(4, 4, 16), 2, 1, 8, "made up"), dense_blocks=1, dense_hidden=inner
    )
    job = Workload("gpt", dense, 1, 1, 2, 1, gpus=2, gpus_per_server=1, sequence=10, micro_batch=1, micro_batches=1)
    assert memory_of(job, 0).activations == 10 * ((34 - 2 - 16) * hidden + 2 * 3 * inner)


def test_passes_that_run_together_hold_rows_of_both_and_a_block_more():
    # Rows of a token: two choices of 8 elements there and back, 2 bytes each. A block of the first stage: attention 48
    # elements a token, and beside it 76 of the dense FFN or 100 of experts (`test_parts_by_hand`), 2 bytes each.
    rows, newest = 2 * 8 * (2 + 2), 2 * (48 + 100)
    micro_batches = {"micro_batches": 8}
    both = rows + newest
    for schedule, extra in (
        ("1f1b", both),
        ("interleaved", both),
        ("dualpipe", 0),
    ):  # dualpipe counts both passes whole
        shape = micro_batches | {"schedule": schedule, "chunks": 2 if schedule == "interleaved" else 1}
        alone, pair = (memory_of(tiny(**shape, overlap_passes=pair), 0) for pair in (False, True))
        assert alone.buffers == 6 / 2 * rows
        assert pair.buffers == 6 / 2 * (rows + extra)
    # A rank that receives twice as much: 76 of the 100 elements are of rows that it received.
    loads = (RankLoad(block=2.0),) * 2
    pair = memory_of(tiny(**micro_batches, overlap_passes=True), 0, loads)
    assert pair.buffers == 6 / 2 * (2 * 2 * rows + 2 * (48 + 100 + 76))


def test_tied_words_are_copied_to_both_ends_and_context_parallel_ranks_keep_their_part_of_the_tokens():
    def weights(stage, **more):
        return memory_of(
            dataclasses.replace(tiny(**more), architecture=dataclasses.replace(TINY, tied=True)), stage
        ).weights

    whole = {"dp": 4, "pp": 1}
    assert memory_of(tiny(**whole), 0).weights - weights(0, **whole) == 2 * 800 / 2
    assert weights(1) == memory_of(tiny(), 1).weights
    plain, shared = (memory_of(tiny(cp=cp), 1) for cp in (1, 2))
    assert (shared.activations, shared.logits) == (plain.activations / 2, plain.logits / 2)
    assert shared.weights == plain.weights


@given(
    st.sampled_from([("1f1b", 1), ("gpipe", 1), ("interleaved", 2), ("interleaved", 3)]),
    *(st.integers(1, 5), st.integers(1, 4)),
)
def test_passes_in_flight_are_those_of_the_schedule(kind, stages, rounds):
    (schedule, chunks), stages = kind, max(stages, 2)
    model = dataclasses.replace(models.MIXTRAL_8X7B, blocks=stages * chunks)
    shape = {"schedule": schedule, "chunks": chunks, "micro_batches": stages * rounds}
    job = Workload("m", model, dp=1, tp=1, pp=stages, ep=8, gpus=8 * stages, **shape)
    order = order_of(job)
    for stage in range(stages):
        steps = np.where(order.kind[stage] == BACKWARD, -1, 1)
        in_flight = passes_in_memory(schedule, stage, job.shape, chunks)
        assert sum(in_flight) == np.cumsum(steps).max()
        assert len(in_flight) == chunks
