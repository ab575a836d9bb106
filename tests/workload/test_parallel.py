"""Degrees, stages and placement."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.timing.passes import places
from mfabric_jax.workload import (
    NAMES,
    GroupedQuery,
    Workload,
    get,
    iteration_bytes,
    micro_batches_for,
    models,
    place_ranks,
)
from mfabric_jax.workload.mixers import Linear, Mixed
from mfabric_jax.workload.volume import (
    context_bytes,
    expert_state_bytes,
    pp_bytes,
    replica_bytes,
    share_table,
    tp_bytes_per_gpu,
)

REGION_SERVERS = {"mixtral-8x22b": 8, "mixtral-8x7b": 4, "llama-moe": 2, "qwen-moe": 4, "qwen-moe-ep16": 2}
REGION_SERVERS |= {"deepseek-r1": 8, "deepseek-v3": 16}


def test_regions_have_the_published_size():
    assert tuple(REGION_SERVERS) == NAMES
    for name, servers in REGION_SERVERS.items():
        workload = get(name)
        assert workload.servers_per_region == servers
        assert workload.gpus == workload.servers * 8 == (2048 if name == "deepseek-v3" else 1024)
        assert workload.ranks_per_server * servers == workload.ep


def test_tokens_and_bytes_by_hand():
    workload = get("mixtral-8x7b", dispatch_bytes=1)
    assert workload.tokens == 8 * 4096
    assert workload.selections == 2 * 8 * 4096
    assert workload.dispatch_bytes_per_selection == 4096
    assert workload.combine_bytes_per_selection == 8192
    assert workload.micro_batches == 4
    assert get("deepseek-v3").tokens == 4096
    assert get("deepseek-v3").micro_batches == 240


def test_61_blocks_over_16_stages():
    workload = get("deepseek-r1")
    assert workload.stage_blocks == (4,) * 13 + (3,) * 3
    assert workload.stage_layers(0) == [0]  # blocks 0 to 2 are dense, block 3 is the first with experts
    assert workload.stage_layers(1) == [1, 2, 3, 4]
    assert workload.stage_layers(15) == [55, 56, 57]


def test_chunks_by_hand():
    # 11 blocks at 6 places of 2, 2, 2, 2, 2, 1, the first three dense: stage p has places p and 3 + p.
    model = dataclasses.replace(models.DEEPSEEK_V3, blocks=11, dense_blocks=3)
    settings = {"micro_batches": 6, "schedule": "interleaved", "chunks": 2}
    workload = Workload.of("m", model, dp=1, tp=1, pp=3, ep=8, gpus=24, **settings)
    assert workload.place_blocks == (2, 2, 2, 2, 2, 1)
    assert [list(workload.place_layers(place)) for place in range(6)] == [[], [0], [1, 2], [3, 4], [5, 6], [7]]
    assert workload.stage_blocks == (4, 4, 3)
    assert [workload.stage_layers(stage) for stage in range(3)] == [[3, 4], [0, 5, 6], [1, 2, 7]]
    # One chunk: places are stages.
    whole = dataclasses.replace(workload, chunks=1)
    assert whole.place_blocks == whole.stage_blocks == (4, 4, 3)
    assert [whole.stage_layers(stage) for stage in range(3)] == [[0], [1, 2, 3, 4], [5, 6, 7]]


@given(pp=st.integers(1, 32), chunks=st.integers(1, 4), blocks=st.integers(33, 80), dense=st.integers(0, 32))
def test_every_block_has_one_place(pp, chunks, blocks, dense):
    model = dataclasses.replace(models.DEEPSEEK_V3, blocks=blocks, dense_blocks=dense)
    chunks = min(chunks, blocks // pp) if pp > 1 else 1
    settings = {"schedule": "interleaved", "chunks": chunks}
    workload = Workload.of("m", model, dp=1, tp=1, pp=pp, ep=8, gpus=8 * pp, **settings)
    walk, stages = [], [[] for _ in range(pp)]
    for chunk in range(chunks):
        for stage in range(pp):
            walk += workload.place_layers(chunk * pp + stage)
            stages[stage] += workload.place_layers(chunk * pp + stage)
    assert walk == list(range(workload.moe_layers))
    assert stages == [workload.stage_layers(stage) for stage in range(pp)]
    assert sum(workload.place_blocks) == sum(workload.stage_blocks) == blocks
    assert max(workload.place_blocks) - min(workload.place_blocks) <= 1


def test_placement_agrees_with_nested_loops():
    workload = Workload.of("m", models.MIXTRAL_8X7B, dp=2, tp=4, pp=3, ep=4, gpus=96)
    placed = place_ranks(workload)
    for gpu, (pp, dp, ep, tp) in enumerate(np.ndindex(3, 2, 4, 4)):
        assert [int(index[gpu]) for index in placed[:4]] == [tp, ep, dp, pp]
        assert placed.server[gpu] == gpu // 8
        assert placed.region[gpu] == pp * 2 + dp  # 16 GPUs a group: two servers
        assert placed.server[gpu] % 2 == ep // workload.ranks_per_server


def test_micro_batches_for_a_bubble_by_hand():
    # 3 / (17 + 3) = 0.15 exactly; 15 / (85 + 15) too; with two chunks half as many, a multiple of pp where it must be.
    assert [micro_batches_for(0.15, pp) for pp in (1, 2, 4, 16)] == [1, 6, 17, 85]
    assert micro_batches_for(0.15, 4, 2) == 9
    assert micro_batches_for(0.15, 4, 2, "interleaved") == 12
    assert micro_batches_for(0.99, 4) == 1


@given(st.floats(0.01, 0.9), st.integers(1, 64), st.integers(1, 4))
def test_no_fewer_micro_batches_would_do(bubble, pp, chunks):
    found = micro_batches_for(bubble, pp, chunks)
    parts = [(pp - 1) / (chunks * m + pp - 1) for m in (found, found - 1) if m]
    assert parts[0] <= bubble * (1 + 1e-6)
    assert len(parts) == 1 or parts[1] > bubble * (1 - 1e-6)


def test_every_other_block_is_dense():
    # Blocks 1, 3, 5, 7 of 9 have experts, over 2 stages of 5 and 4: places 1 and 3 of the first, 0 and 2 of the second.
    workload = get("mixtral-8x7b", blocks=9, pp=2, dp=16, dense_blocks=(0, 2, 4, 6, 8), dense_hidden=100)
    assert workload.architecture.moe_blocks == (1, 3, 5, 7)
    assert [workload.place_positions(place) for place in range(2)] == [(1, 3), (0, 2)]
    assert [workload.stage_layers(stage) for stage in range(2)] == [[0, 1], [2, 3]]
    where = places(workload)
    assert where.layer[0, 0].tolist() == [-1, 0, -1, 1, -1]
    assert where.layer[1, 0].tolist() == [2, -1, 3, -1, -1]
    assert where.layer[1, 1].tolist() == [-1, 3, -1, 2, -1]  # backward; short passes are padded


def test_what_a_schedule_needs_is_filled_where_it_is_open():
    """Micro-batches: as many as stages, under dualpipe twice as many, whose passes overlap; chunks: two of zb-v."""
    shape = {"dp": 1, "tp": 1, "pp": 4, "ep": 8, "gpus": 32}
    for said, filled in (
        ({}, (4, 1, False)),
        ({"micro_batches": 9, "chunks": None}, (9, 1, False)),
        ({"schedule": "zb-v"}, (4, 2, False)),
        ({"schedule": "dualpipe"}, (8, 1, True)),
        ({"schedule": "dualpipe", "overlap_passes": False, "micro_batches": 10}, (10, 1, False)),
    ):
        job = Workload.of("m", models.MIXTRAL_8X7B, **shape, **said)
        assert (job.micro_batches, job.chunks, job.overlap_passes) == filled


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
    # Every token is copied for its two experts before ranks gather it: twice the bytes after experts.
    copies = iteration_bytes(get("mixtral-8x7b", tp_reduces="copies"))
    assert copies == volume | {"TP": pytest.approx(3 * volume["TP"], rel=1e-12)}
    dense = get("deepseek-r1", tp=8, ep=8, tp_reduces="copies")  # 58 blocks of 8 copies, 3 dense ones
    alone = iteration_bytes(dataclasses.replace(dense, tp_reduces="attention"))["TP"]
    assert iteration_bytes(dense)["TP"] == pytest.approx(alone * (61 + 58 * 8 + 3) / 61, rel=1e-12)
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


def test_a_head_of_unknown_size_takes_no_time():
    assert not get("mixtral-8x7b", vocab=0, head="known").head_counted
