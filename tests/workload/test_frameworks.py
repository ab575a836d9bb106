"""What Megatron Core can run: every rule with a set-up that keeps to it and one that does not."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax import Case, InputError
from mfabric_jax.evaluate.resolving.resolve import recipes, resolve_without_jax
from mfabric_jax.workload import Architecture, GroupedQuery, Latent, Workload
from mfabric_jax.workload.frameworks import RULES, framework_runs, obstacle
from mfabric_jax.workload.kernels import DISPATCHERS
from mfabric_jax.workload.mixers import GatedDelta, Linear, Mamba2, Mixed
from tests.small import row, small

FACTS = {"blocks": 24, "hidden": 64, "attention": GroupedQuery(12, 4, 8), "experts": 64, "top_k": 2}
FACTS |= {"expert_hidden": 48, "shared_hidden": 48, "expert_groups": 8, "top_groups": 2}
OVERLAP = {"schedule": "interleaved", "pp": 2, "chunks": 2, "overlap_passes": True}
MTP = {"blocks": 25, "predicted": 1, "pp": 2}
TP = {"tp": 1, "folded": 2}  # of attention alone
ETP = {"tp": 2, "tp_reduces": "copies"}
MAMBA, DELTA = Mamba2(12, 8, 4, groups=4), GatedDelta(4, 8, 8, 8)
DEEPEP, HYBRIDEP = {"dispatch": "per-server"}, {"dispatch": "per-server", "ep": 16}


def job(**given):
    """A job on as many GPUs as its degrees need, by fields of a workload and of its model."""
    names = {field.name for field in dataclasses.fields(Architecture)}
    facts = FACTS | {name: value for name, value in given.items() if name in names}
    degrees = {"dp": 8, "tp": 1, "pp": 1, "ep": 8} | {n: v for n, v in given.items() if n in ("dp", "tp", "pp", "ep")}
    others = {name: value for name, value in given.items() if name not in names and name not in degrees}
    gpus = degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["ep"]
    model = Architecture("tiny", source="made up", **facts)
    return Workload.of("tiny", model, **degrees, gpus=gpus, **({"micro_batches": 8, "micro_batch": 1} | others))


CASES = [  # fields, dispatcher, changes that Megatron Core does not run, words on them
    ({}, "nccl", {"schedule": "gpipe"}, "schedule must be 1f1b or interleaved, got gpipe"),
    ({}, "nccl", {"schedule": "zb-h1"}, "schedule must be 1f1b or interleaved, got zb-h1"),
    ({}, "nccl", {"schedule": "zb-v", "pp": 2}, "got zb-v"),
    ({}, "nccl", {"schedule": "dualpipe", "pp": 2}, "got dualpipe"),
    (
        {"schedule": "interleaved", "pp": 2, "chunks": 2},
        "nccl",
        {"chunks": 1},
        "chunks must be at least 2 under schedule interleaved, got 1",
    ),
    ({"pp": 4}, "nccl", {"pp": 5}, "got 24 blocks under layout even with pp 5 x chunks 1"),
    ({"pp": 2, "layout_of_blocks": "ends"}, "nccl", {"pp": 4}, "got 24 blocks under layout ends with pp 4 x chunks 1"),
    ({"blocks": 30, "pp": 4, "layout_of_blocks": "ends"}, "nccl", {"layout_of_blocks": "even"}, "got 30 blocks"),
    ({"pp": 5, "layout_of_blocks": "E(t*5|)*4t*4L"}, "nccl", {"layout_of_blocks": "even"}, "pp x chunks"),
    (
        {"blocks": 24, "predicted": 1, "pp": 1},
        "nccl",
        {"pp": 2},
        "layout must be written out with all m in the last place",
    ),
    (MTP | {"layout_of_blocks": "Et*12|t*12mL"}, "nccl", {"layout_of_blocks": "Et*12m|t*12L"}, "got Et*12m|t*12L"),
    (
        MTP | {"layout_of_blocks": "E(t)*12|(t)*12mL"},
        "nccl",
        {"layout_of_blocks": "Et*12|t*11mtL"},
        "got Et*12|t*11mtL",
    ),
    (TP, "nccl", {"folded": 8}, "heads must be a multiple of tp, got 12 heads with tp 8"),
    (TP, "nccl", {"attention": Mixed(((MAMBA, 8), (Linear(3, 8), 16)))}, "got 12 and 4 and 3 heads with tp 2"),
    ({"folded": 4} | {"attention": GroupedQuery(12, 2, 8)}, "nccl", {"attention": GroupedQuery(12, 6, 8)}, "kv_heads"),
    ({"cp": 2, "attention": DELTA}, "nccl", {"cp": 8}, "got 4 heads with tp 1 x cp 8"),
    (ETP, "nccl", {"expert_hidden": 49}, "expert_hidden must be a multiple of etp, got 49 with etp 2"),
    (TP, "nccl", {"shared_hidden": 49}, "got 49 and 0 with tp 2"),
    (TP | {"dense_blocks": 1, "dense_hidden": 48}, "nccl", {"dense_hidden": 49}, "got 48 and 49 with tp 2"),
    (TP, "nccl", {"sequence_parallel": False}, "parallel.sequence must be on with tp above 1"),
    ({"cp": 4, "sequence": 48}, "nccl", {"sequence": 52}, "sequence must be a multiple of 2 x cp, got 52 with cp 4"),
    (ETP | {"sequence": 48}, "nccl", {"sequence": 49}, "sequence / cp must be a multiple of tp, got 49 with cp 1 and"),
    (ETP, "nccl", {"tp_reduces": "attention"}, "tp_reduces must be copies with etp above 1, got attention"),
    (ETP, "nccl", {"tp_reduces": "all"}, "got all with etp 2"),
    (TP | {"shared_hidden": 48}, "nccl", {"tp_reduces": "attention"}, "shared experts or dense FFNs, got tp 2"),
    (OVERLAP, "nccl", {"ep": 1}, "ep must be above 1 under overlap passes, got 1"),
    (OVERLAP, "nccl", {"schedule": "1f1b", "chunks": 1}, "schedule must be interleaved (or pp 1) under overlap passes"),
    ({"overlap_passes": True}, "nccl", {"pp": 2}, "got 1f1b with pp 2"),
    ({"overlap_passes": True, "predicted": 1}, "nccl", {"predicted": 2}, "mtp must predict at most one further token"),
    ({"overlap_passes": True}, "nccl", {"attention": MAMBA}, "overlap must be none with Mamba"),
    ({"recompute": "light"}, "nccl", {"recompute": "attention"}, "recompute must be none, light, block"),
    ({"recompute": "moe+router"}, "nccl", {"recompute": "router"}, "got router"),
    ({"recompute": "block"}, "nccl", {"recompute": "norm+attention"}, "got norm+attention"),
    ({"sharding": "parameters"}, "nccl", {"pp": 2}, "sharding must be none or optimizer with pp above 1"),
    ({"sharding": "gradients"}, "nccl", {"pp": 2}, "got gradients with pp 2"),
    ({"moment_bytes": 2}, "nccl", {"sharding": "none"}, "sharding must not be none with moments in bf16"),
    ({"gathered_bytes": 1}, "nccl", {"sharding": "none"}, "weights in fp8, got none"),
    ({}, "nccl", {"redundant_experts": 8}, "redundant_experts must be 0, got 8"),
    (HYBRIDEP | {"node_limit": 2}, "deepep", {"node_limit": 3}, "node_limit must be at most the groups (servers)"),
    (HYBRIDEP | {"node_limit": "model"}, "deepep", {"top_groups": 3}, "got model"),
    ({}, "nccl", {"dispatch": "per-server"}, "got nccl with per-server"),
    (DEEPEP, "deepep", {"dispatch": "per-expert"}, "got deepep with per-expert"),
    (DEEPEP, "hybridep", {"dispatch": "per-expert"}, "got hybridep with per-expert"),
    (
        HYBRIDEP | {"ep": 64},
        "deepep",
        {"ep": 40, "experts": 40},
        "96, 128, 144, 160 with dispatcher deepep, got 1 x 40",
    ),
    (HYBRIDEP, "deepep", {"gpus_per_server": 4}, "gpus_per_server must be 8"),
    (DEEPEP | ETP | {"top_k": 16}, "deepep", {"top_k": 17}, "etp x top_k must be at most 32 with dispatcher deepep"),
    (
        DEEPEP | {"ep": 72, "experts": 72, "gpus_per_server": 72, "dp": 2},
        "hybridep",
        {"ep": 80, "experts": 80, "gpus_per_server": 80},
        "at most 72 with dispatcher hybridep, got 80 gpus_per_server with etp x ep 1 x 80",
    ),
    (DEEPEP | {"ep": 2}, "hybridep", {"experts": 6, "top_k": 2}, "got 3 a rank with etp x ep 1 x 2"),
    (HYBRIDEP | {"sequence": 21840}, "hybridep", {"sequence": 21856}, "at most 21,840 with dispatcher hybridep"),
]


@pytest.mark.parametrize(("fields", "dispatcher", "changes", "words"), CASES)
def test_a_rule(fields, dispatcher, changes, words):
    runs, breaks = job(**fields), job(**fields | changes)
    assert obstacle(runs, dispatcher) is None
    assert words in obstacle(breaks, dispatcher)
    assert (framework_runs(runs, dispatcher), framework_runs(breaks, dispatcher)) == ("megatron-core", "none")


def test_every_rule_has_a_case_and_a_source():
    broken = {words.partition(", got")[0] for words in (obstacle(job(**f | c), d) for f, d, c, _ in CASES)}
    assert broken == {rule.words.partition(", got")[0] for rule in RULES}
    assert all(", got " in rule.words and rule.source for rule in RULES)


def test_what_always_runs():
    latent = Latent(12, 16, 16, 8, 8, 8)
    assert obstacle(job(**TP | {"attention": latent, "recompute": "norm+mla-up+activation"}), "nccl") is None
    assert obstacle(job(**OVERLAP | DEEPEP | {"recompute": "light", "capacity_factor": 1.5}), "deepep") is None
    assert obstacle(job(**HYBRIDEP | ETP | {"sharding": "none"}), "deepep") is None
    assert obstacle(job(), "ideal") is obstacle(job(**DEEPEP), "ideal") is None
    assert "deepep" in obstacle(job(**DEEPEP | {"ep": 64, "gpus_per_server": 64}), "ideal")


def test_a_micro_batch_in_parts_does_not_run():
    assert obstacle(job(), "nccl", parts=2) == "overlap must be none or passes, got 2 parts of a micro-batch"
    rows = [
        row(small({"job.overlap": overlap, "job.parallel.tp": 1, "job.parallel.dp": 32}))
        for overlap in ("none", "parts")
    ]
    assert [each["framework_runs"] for each in rows] == ["megatron-core", "none"]


PUBLISHED = ["qwen3-235b", "mixtral-8x22b", "gpt-oss-120b", "mixtral-8x7b"]
FILLER = {"top_k": 2, "expert_hidden": 1536, "attention": {"heads": 64, "kv_heads": 4, "head_dim": 128}}


@pytest.mark.parametrize("model", [*PUBLISHED, "deepseek-v3", "deepseek-v2"])
def test_published_set_ups(model, tmp_path):
    path = tmp_path / f"{model}.json"
    path.write_text(json.dumps(FILLER | {"next_tokens": 1} | dict(recipes("makers")[model].dimensions)))
    for rate in ("kernels", "efficiency"):
        found = resolve_without_jax(
            Case().with_({"model.name": str(path), "compute.rate": rate, "gpu.name": "H100-SXM"})
        )
        runs = framework_runs(found.job, found.case.job.dispatcher)
        assert runs == ("megatron-core" if model in PUBLISHED else "none"), obstacle(
            found.job, found.case.job.dispatcher
        )


powers = st.sampled_from([1, 2, 4, 8, 16])
DRAWN = {
    **dict.fromkeys(("dp", "tp", "pp", "ep", "cp", "folded", "chunks", "micro_batches", "experts"), powers),
    "schedule": st.sampled_from(["1f1b", "interleaved", "gpipe", "zb-h1", "zb-v", "dualpipe"]),
    "attention": st.sampled_from(
        [GroupedQuery(12, 4, 8), Latent(12, 0, 16, 8, 8, 8), MAMBA, Mixed(((DELTA, 1), (None, 1)))]
    ),
    "blocks": st.integers(16, 40),
    "predicted": st.integers(0, 2),
    "sequence": st.sampled_from([48, 64, 21856]),
    "overlap_passes": st.booleans(),
    "sequence_parallel": st.booleans(),
    "dispatch": st.sampled_from(["per-expert", "per-server"]),
    "node_limit": st.sampled_from([None, "model", 1, 2]),
    "layout_of_blocks": st.sampled_from(["even", "ends"]),
    "recompute": st.sampled_from(["none", "light", "attention", "block", "router+moe"]),
    "sharding": st.sampled_from(["none", "optimizer", "gradients", "parameters"]),
    "tp_reduces": st.sampled_from(["attention", "all", "copies"]),
}


@given(st.fixed_dictionaries({}, optional=DRAWN), st.sampled_from(["ideal", *DISPATCHERS]))
def test_every_set_up_has_an_answer(fields, dispatcher):
    try:
        drawn = job(**fields)
    except InputError:
        return
    words = obstacle(drawn, dispatcher)
    assert words is None or (", got " in words and "{" not in words)
    assert framework_runs(drawn, dispatcher) == ("none" if words else "megatron-core")
