"""Bytes per iteration against loops over every rank and against the published shares."""

import pytest

from mfabric_jax.workload import NAMES, get, iteration_bytes
from mfabric_jax.workload.volume import gradient_bytes, pp_bytes, share_table, tp_bytes_per_gpu


def loop_over_everything(workload):
    """Oracle: every GPU, block and micro-batch in turn; ring steps and all-to-all pairs one by one."""
    model, total = workload.architecture, dict.fromkeys(("TP", "EP", "PP", "DP"), 0.0)
    activation = workload.micro_batch * workload.sequence * model.hidden * 2
    again = workload.recompute == "block"  # its forward pass runs twice
    first = 0
    for stage in range(workload.pp):
        blocks = model.blocks // workload.pp + (stage < model.blocks % workload.pp)
        replicated = one_rank = 0
        for block in range(first, first + blocks):
            moe = block >= model.dense_blocks
            replicated += model.attention_params
            replicated += model.gate_params + model.shared_params if moe else model.dense_params
            one_rank += model.expert_params * model.experts // workload.ep if moe else 0
            for _ in range(workload.micro_batches * workload.dp * workload.ep):
                total["TP"] += (2 + again) * workload.tp * 2 * (workload.tp - 1) * activation / workload.tp
                if moe:
                    pair = workload.micro_batch * workload.sequence * model.top_k * model.hidden / workload.ep
                    two = workload.dispatch_bytes + workload.combine_bytes
                    total["EP"] += (workload.ep - 1) * pair * two * (2 + again)
        first += blocks
        for _ in range(workload.micro_batches * workload.dp * workload.ep):
            for chunk in range(workload.chunks):
                first_place, last_place = chunk + stage == 0, (chunk, stage) == (workload.chunks - 1, workload.pp - 1)
                total["PP"] += activation * ((not first_place) + (not last_place))
        ring, replicas = workload.dp * workload.ep, workload.dp
        total["DP"] += ring * 2 * (ring - 1) * replicated * workload.grad_bytes / ring
        total["DP"] += workload.ep * replicas * 2 * (replicas - 1) * one_rank * workload.grad_bytes / replicas
    return total


def test_totals_agree_with_a_loop():
    for name in NAMES:
        if name != "deepseek-v3":  # its loop is long
            workload = get(name, dispatch_bytes=1, grad_bytes=4)
            assert iteration_bytes(workload) == pytest.approx(loop_over_everything(workload), rel=1e-9)
    chunks = {"schedule": "interleaved", "chunks": 2, "dispatch_bytes": 1}
    plain = iteration_bytes(get("mixtral-8x7b", **chunks))
    for recompute, more in (("attention", 1), ("block", 1.5)):
        again = get("mixtral-8x7b", recompute=recompute, **chunks)
        volume = iteration_bytes(again)
        assert volume == pytest.approx(loop_over_everything(again), rel=1e-9)
        assert [volume[kind] / plain[kind] for kind in plain] == pytest.approx([more, more, 1, 1])
    assert plain["PP"] / iteration_bytes(get("mixtral-8x7b"))["PP"] == pytest.approx(7 / 3)  # boundaries of 4 stages


def test_pieces_by_hand():
    workload, activation = get("mixtral-8x7b"), 32768 * 4096 * 2
    assert tp_bytes_per_gpu(workload) == 1.5 * activation
    assert tp_bytes_per_gpu(get("llama-moe")) == 0
    assert pp_bytes(workload) == activation
    volume = iteration_bytes(workload)
    assert volume["TP"] / (volume["TP"] + volume["EP"]) == pytest.approx(0.632, abs=5e-4)  # 63 : 37
    # The first stage of DeepSeek has three dense blocks.
    deepseek = get("deepseek-r1")
    model, first, last = deepseek.architecture, gradient_bytes(deepseek, 0), gradient_bytes(deepseek, 15)
    one_moe = model.gate_params + model.shared_params
    assert first.dense == 2 * (4 * model.attention_params + one_moe + 3 * model.dense_params)
    assert first.expert == 2 * 4 * model.expert_params  # one MoE block, 256 experts over 64 ranks
    assert last.dense == 2 * 3 * (model.attention_params + one_moe)
    assert last.expert == 3 * first.expert


def test_shares_add_up_and_stand_beside_the_published_ones():
    for name in NAMES:
        rows, volume = share_table(get(name)), iteration_bytes(get(name))
        assert {row["parallelism"]: row["bytes_per_iteration"] for row in rows} == volume
        total = sum(volume.values())
        assert [row["share"] for row in rows] == pytest.approx([size / total for size in volume.values()])
    shown = {row["parallelism"]: row["measured"] for row in share_table(get("mixtral-8x7b"))}
    assert shown == {"TP": "60 %", "EP": "30 %", "PP": "PP+DP < 6-10 %", "DP": "PP+DP < 6-10 %"}
    qwen = share_table(get("qwen-moe"))
    assert qwen[1]["measured"] == "> 80 %"
    assert qwen[1]["share"] > 0.8
    assert all(row["measured"] is None for row in share_table(get("deepseek-r1")))
    alone = share_table(get("mixtral-8x7b", dp=1, tp=1, pp=1, ep=1, gpus=1, gpus_per_server=1))
    assert [(row["bytes_per_iteration"], row["share"]) for row in alone] == [(0, 0)] * 4
