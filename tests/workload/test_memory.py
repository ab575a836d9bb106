"""Memory of a GPU: by hand, against published counts, and activations in flight against the order of the schedule."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax import load, resolve
from mfabric_jax.schedule._order import BACKWARD, order_of
from mfabric_jax.simulation.memory_notes import too_large_words
from mfabric_jax.workload import GroupedQuery, Workload, fullest_stage, memory_of, models
from mfabric_jax.workload.memory import in_flight, step_bytes, usable_bytes
from mfabric_jax.workload.parallel import SHARDING

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
    assert held.weights == held.gradients == 2 * (dense + expert)
    assert held.optimizer == 12 * (dense / 4 + expert / 2)  # 4 replicas, those of an expert 2
    assert memory_of(tiny(sharding="none"), 0).optimizer == 12 * (dense + expert)
    # Per token: attention 2 x 8 + 2 x 16; the dense FFN 2 x 8 + 3 x 20; the MoE one 2 x 8, 4 float32 logits, and for
    # both choices 2 x 8 + 3 x 10. Six tokens in bf16, two micro-batches in flight on stage 0.
    attention, ffn, moe = 48, 76, 16 + 8 + 2 * 46
    assert held.activations == 2 * 2 * 6 * (2 * attention + ffn + moe) / 2
    assert held.logits == 0
    last = memory_of(tiny(), 1)
    assert last.activations == 2 * 6 * 2 * (attention + moe) / 2
    assert last.logits == 6 * (2 * 2 * 8 + 4 * 100) / 2
    assert fullest_stage(tiny()) == (1, last)
    assert last.total == sum(last) > held.total
    again = memory_of(tiny(recompute="attention"), 0).activations
    assert again == 2 * 6 * (2 * (2 * 8 + ffn + moe) + attention) / 2
    assert memory_of(tiny(recompute="block"), 0).activations == 2 * 6 * (2 * 2 * 8 + attention + moe) / 2


def test_what_replicas_share_out():
    dense, expert = (2 * 256 + 32 + 480 + 800) / 2, 240.0  # as above; 4 replicas, those of an expert 2
    share, whole = dense / 4 + expert / 2, dense + expert
    block = (256 + 32 + 2 * 240) / 2  # the MoE block, larger than the dense one of 256 + 480
    none, one, two, three = (memory_of(tiny(sharding=kind), 0) for kind in SHARDING)
    assert (none.weights, none.gradients, none.optimizer) == (2 * whole, 2 * whole, 12 * whole)
    assert (one.weights, one.gradients, one.optimizer) == (2 * whole, 2 * whole, 12 * share)
    assert (two.weights, two.gradients, two.optimizer) == (2 * whole, 2 * (share + block), 12 * share)
    assert (three.weights, three.gradients, three.optimizer) == (
        2 * (share + 2 * block),
        2 * (share + block),
        12 * share,
    )
    assert none.activations == three.activations
    assert step_bytes(tiny(), 0) == (2 + 12 + 12 + 2) * share
    assert step_bytes(tiny(sharding="none", grad_bytes=4), 0) == (4 + 12 + 12 + 2) * whole


def test_context_parallel_ranks_keep_their_part_of_the_tokens():
    plain, shared = (memory_of(tiny(cp=cp), 1) for cp in (1, 2))
    assert shared.activations == plain.activations / 2
    assert shared.logits == plain.logits / 2
    assert shared.weights == plain.weights


def test_a_dense_block_with_attention_of_today_agrees_with_the_published_count():
    # arXiv 2205.05198 counts 34 bytes per element of a token for GPT (FFN of 4 x hidden, GELU, dropout) without scores:
    # less 2 masks of a byte, and 16 of the inner FFN, here gated: 2 x 3 x inner in place of 2 x 2 x 4 x hidden.
    hidden, inner = 64, 96
    dense = models.Architecture(
        *("gpt", 2, hidden, GroupedQuery(4, 4, 16), 2, 1, 8, "made up"), dense_blocks=1, dense_hidden=inner
    )
    job = Workload("gpt", dense, 1, 1, 2, 1, gpus=2, gpus_per_server=1, sequence=10, micro_batch=1, micro_batches=1)
    assert memory_of(job, 0).activations == 10 * ((34 - 2 - 16) * hidden + 2 * 3 * inner)


def test_tied_words_are_copied_to_both_ends():
    one = dataclasses.replace(TINY, tied=True)
    whole = {"dp": 4, "pp": 1}
    untied = memory_of(tiny(**whole), 0).weights
    assert untied - memory_of(_with(one, whole), 0).weights == 2 * 800 / 2
    assert memory_of(_with(one, {}), 1).weights == memory_of(tiny(), 1).weights


def _with(architecture, more):
    return dataclasses.replace(tiny(**more), architecture=architecture)


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
        assert sum(in_flight(job, stage)) == np.cumsum(steps).max()
        assert len(in_flight(job, stage)) == chunks


def test_what_buffers_take_is_left_free():
    assert usable_bytes(80e9) == pytest.approx(73.6e9)
    assert usable_bytes(None) == usable_bytes(80e9)


def paper(model, changes):
    facts = {"model.name": model, "gpu.name": "H100-SXM", "gpu.nvlink_gigabytes_per_s": None}
    return load(preset="paper", changes=facts | changes)


def path_of(field):
    group = "batch." if "batch" in field else "" if field in ("recompute", "sharding") else "parallel."
    return f"job.{group}{field}"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama-moe", {"job.batch.bubble": 0.15}),
        ("llama-moe", {f"job.parallel.{name}": one for name, one in {"tp": 1, "pp": 8, "ep": 16, "dp": 16}.items()}),
        ("qwen-moe", {"job.batch.micro_batches": 8}),
    ],
)
def test_whatever_a_remedy_changes_the_run_that_follows_it_fits(model, changes):
    case = paper(model, changes)
    asked = resolve(case)
    said = too_large_words(asked)
    assert said is not None
    several = said.partition("what fits: ")[2].removesuffix(".").split("; ")
    assert len(several) >= 3
    for words in several:
        flags = {field.replace("-", "_"): value for field, value in re.findall(r"([\w-]+) (\w+)(?=,| \()", words)}
        flags = {path_of(field): int(value) if value.isdigit() else value for field, value in flags.items()}
        job = resolve(case.with_(flags)).job
        needs = fullest_stage(job)[1].total
        assert needs <= 0.92 * 80e9, words
        assert f"({needs / 1e9:.1f}".removesuffix(".0") in words
        assert job.gpus == asked.job.gpus, words
        assert f"{job.micro_batches} micro-batches" in words or job.micro_batches == asked.job.micro_batches


def test_a_remedy_that_needs_more_gpus_says_so():
    degrees = {"job.parallel.tp": 1, "job.parallel.pp": 4, "job.parallel.ep": 8, "job.parallel.dp": 1}
    said = too_large_words(resolve(paper("deepseek-r1", degrees)))
    assert said is not None
    found = re.search(r"what fits: .*gpus (\d+).* on (\d+) GPUs instead of 32", said)
    assert found, said
    assert found[1] == found[2] != "32"
    never = resolve(paper("deepseek-r1", degrees | {"job.parallel.pp": 1, "job.batch.micro_batch": 1}))
    assert too_large_words(never).endswith("no other set-up fits, either.")
