"""Bytes per iteration against loops over every rank and against the published shares."""

import pytest

from mfabric_jax import InputError
from mfabric_jax.workload import NAMES, GroupedQuery, get, iteration_bytes
from mfabric_jax.workload.attention import Linear, Mixed
from mfabric_jax.workload.volume import (
    context_bytes,
    expert_state_bytes,
    pp_bytes,
    replica_bytes,
    share_table,
    tp_bytes_per_gpu,
)


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
        both = workload.grad_bytes + 2  # gradients scattered, weights gathered
        total["DP"] += ring * (ring - 1) * replicated * both / ring
        total["DP"] += workload.ep * replicas * (replicas - 1) * one_rank * both / replicas
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
    # Experts all-reduced over TP, too: two more a block, the reading that gives 77 : 23.
    both = iteration_bytes(get("mixtral-8x7b", tp_reduces="all"))
    assert both == volume | {"TP": 2 * volume["TP"]}
    assert both["TP"] / (both["TP"] + both["EP"]) == pytest.approx(0.7745, abs=5e-4)
    # The first stage of DeepSeek has three dense blocks.
    deepseek = get("deepseek-r1")
    model, first, last = deepseek.architecture, replica_bytes(deepseek, 0), replica_bytes(deepseek, 15)
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


def test_context_parallel_ranks_have_a_part_of_the_tokens_and_pass_keys_and_values_on():
    plain, shared = get("mixtral-8x7b"), get("mixtral-8x7b", cp=4)
    assert shared.tokens == plain.tokens / 4
    before, after = iteration_bytes(plain), iteration_bytes(shared)
    assert [after[kind] for kind in before] == pytest.approx([before[kind] / (1, 4)[kind != "DP"] for kind in before])
    # A rank's 8,192 tokens, 2 x 8 x 128 elements in bf16, thrice to the next; forward once, backward twice.
    ring = 3 * 8192 * 2 * 8 * 128 * 2
    every = shared.micro_batches * 32 * 3 * shared.dp * shared.ep  # blocks of all stages
    assert after["CP"] == pytest.approx(every * ring)
    assert iteration_bytes(get("mixtral-8x7b", cp=4, recompute="attention"))["CP"] == pytest.approx(
        4 / 3 * every * ring
    )
    deepseek = get("deepseek-r1", cp=2)  # sends the latent and the rotary key
    assert context_bytes(deepseek) == deepseek.tokens * (512 + 64) * 2
    linear = Linear(4, 16)
    assert linear.passed_on(100, 3) == 3 * 4 * 16 * 16
    assert Mixed(((linear, 1), (GroupedQuery(4, 2, 16), 3))).passed_on(100, 3) == (3072 + 3 * 6400) / 4


def test_what_replicas_send_when_they_share_out_more():
    # In bf16, one micro-batch: ZeRO-1 and -2 send as much as an all-reduce, ZeRO-3 half as much again (arXiv
    # 1910.02054). Of four each scatters its gradients and gathers weights twice.
    whole = iteration_bytes(get("llama-moe", micro_batches=1, sharding="none"))["DP"]
    for sharding, once, four in (("optimizer", 1, 1), ("gradients", 1, 5 / 2), ("parameters", 3 / 2, 4 * 3 / 2)):
        for micro_batches, times in ((1, once), (4, four)):
            sent = iteration_bytes(get("llama-moe", micro_batches=micro_batches, sharding=sharding))["DP"]
            assert sent == pytest.approx(times * whole)
    for sharding, times in (("none", 2), ("optimizer", 3 / 2), ("gradients", 3 / 2), ("parameters", 2)):
        sent = iteration_bytes(get("llama-moe", micro_batches=1, sharding=sharding, grad_bytes=4))["DP"]
        assert sent == pytest.approx(times * whole)  # gradients of 4 bytes, weights of 2
    # Embedding and head once: a matrix each on the first and the last stage, over DP x EP ranks.
    words = sum(2 * size for size in (256 - 1,) * 2) * 32000 * 4096 * 2
    for sharding in ("optimizer", "parameters"):
        some = {"sharding": sharding, "micro_batches": 4}
        more = [iteration_bytes(get("llama-moe", head=head, **some))["DP"] for head in ("counted", "left-out")]
        assert more[0] - more[1] == pytest.approx(words)


def test_an_expert_that_moves_takes_along_what_its_group_holds_of_it():
    # Bytes a parameter: 2 of weights and 12 of state, shared over replicas; dualpipe holds each on two stages.
    for name, settings, each in (
        ("deepseek-r1", {}, 2 + 12),
        ("deepseek-r1", {"schedule": "dualpipe"}, 2 + 12 / 2),
        ("deepseek-r1", {"schedule": "dualpipe", "sharding": "none"}, 2 + 12),
        ("llama-moe", {}, 2 + 12 / 16),
        ("llama-moe", {"sharding": "parameters"}, (2 + 12) / 16),
        ("llama-moe", {"schedule": "dualpipe"}, 2 + 12 / 32),
    ):
        workload = get(name, **settings)
        assert expert_state_bytes(workload) == pytest.approx(each * workload.architecture.expert_params)


def test_settings_of_parallelism_that_cannot_be():
    for settings, sentence in (
        ({"cp": 3}, "cp must divide ep (8) and the 4096 tokens of a sequence, got 3"),
        ({"sequence": 4095, "cp": 2}, "cp must divide ep (8) and the 4095 tokens of a sequence, got 2"),
        ({"vocab": 0, "head": "counted"}, "head 'counted' needs the vocab of mixtral-8x7b, which is not known"),
        ({"sharding": "zero"}, "sharding 'zero' is unknown"),
        ({"tp_reduces": "experts"}, "tp_reduces 'experts' is unknown"),
        ({"optimizer_step": "yes"}, "optimizer_step 'yes' is unknown"),
    ):
        with pytest.raises(InputError) as caught:
            get("mixtral-8x7b", **settings)
        assert sentence in str(caught.value)
    assert not get("mixtral-8x7b", vocab=0, head="known").head_counted
