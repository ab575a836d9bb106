"""Serving of models with other parts than attention over all tokens and experts in FP8: worked out by hand."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.apps.serving import deployment
from mfabric_jax.apps.serving.layer_parts import (
    PassTokens,
    attention_s,
    cache_bytes,
    formats_of,
    request_bytes,
    state_bytes,
    weight_bytes,
)
from mfabric_jax.case import Case
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.kernels import rates_of, table
from mfabric_jax.workload.measured_kernels import ExpertWork, all_reduce_s, experts_s, measured_kernels, product_s
from mfabric_jax.workload.mixers import GatedDelta, GroupedQuery, Latent, Mamba2, Mixed
from mfabric_jax.workload.models import DEEPSEEK_V3, Architecture

OSS = Architecture(
    "oss",
    36,
    2880,
    Mixed(((GroupedQuery(64, 8, 64, window=128), 18), (GroupedQuery(64, 8, 64), 18))),
    *(128, 4, 2880),
    source="arXiv 2508.10925",
    vocab=201088,
)
SPARSE = dataclasses.replace(
    DEEPSEEK_V3,
    attention=Latent(128, 1536, 512, 128, 64, 128, index_heads=64, index_dim=128, index_top_k=2048),
)


def deployed(model, **settings):
    """A deployment of an architecture that no file holds."""
    said = {"model.name": "deepseek-v3", "network.fabric": "fat-tree", "gpu.name": "H200-SXM", "serving.ep": 64}
    case = Case().with_(said | {name.replace("__", "."): value for name, value in settings.items()})
    found = deployment(case)
    return dataclasses.replace(found.decode.model, architecture=model)


def test_a_window_caches_what_it_sees():
    """18 full layers of 2 x 8 x 64 bf16 elements: 36,864 bytes a token; 18 windows hold 128 tokens of as many."""
    model = deployed(OSS)
    each = 18 * 2 * 8 * 64 * 2
    assert each == 36_864
    assert cache_bytes(model, 100_000.0) == pytest.approx(each * (100_000 + 128))
    assert cache_bytes(model, 64.0) == pytest.approx(2 * each * 64)
    assert cache_bytes(model, 100_000.0, gpus=2) == pytest.approx(each * (100_000 + 128) / 2)


def test_every_gpu_that_splits_attention_holds_a_head_of_keys_and_values():
    """4 GPUs split 2 heads of keys and values: each holds one, half of the cache, and not a quarter."""
    narrow = dataclasses.replace(OSS, attention=GroupedQuery(16, 2, 128))
    alone, four = deployed(narrow), deployed(narrow, serving__tp=4)
    assert request_bytes(four, 1000.0) == pytest.approx(request_bytes(alone, 1000.0) / 2)
    assert request_bytes(alone, 1000.0) == pytest.approx(36 * 1000 * 2 * 2 * 128 * 2)


def core_s(model, context, requests=8, queries=1):
    """Seconds of one layer's attention over a context beyond those over 2,048 tokens."""
    served = deployed(model, serving__batch=float(requests))
    near, far = (
        float(attention_s(served, PassTokens(queries * requests, length, queries=queries)))
        for length in (2048.0, context)
    )
    return far - near


def test_sparse_attention_reads_2048_latents_and_every_index_key():
    """At 131,072 tokens a query reads 2,048 latents as before, and an indexer the keys of 129,024 more tokens, 128
    bytes each: 132 MB for 8 requests at 82 % of 4,800 GB/s, or 17 GFLOP at the rate of long prompts, which is 34 us."""
    seconds = core_s(SPARSE, 131_072.0)
    flop_s = 2.525e-9 / (2 * 160 * 4096)
    read_s, computed_s = 8 * 129_024 * 128 / (0.82 * 4800e9), 8 * 129_024 * 2 * 64 * 128 * flop_s
    assert seconds == pytest.approx(max(read_s, computed_s), rel=0.2)  # the kernel's floor covers 2,048 tokens
    assert 0.03e-3 < seconds < 0.05e-3
    dense = core_s(DEEPSEEK_V3, 131_072.0)
    assert dense > 0.45e-3  # every query reads all latents without an indexer


def test_several_queries_of_a_request_read_latents_as_more_heads_do():
    """128 heads are all that was measured, so two queries take twice as long; keys and values are read once."""
    assert core_s(DEEPSEEK_V3, 65_536.0, queries=2) == pytest.approx(2 * core_s(DEEPSEEK_V3, 65_536.0), rel=0.02)
    grouped = dataclasses.replace(OSS, attention=GroupedQuery(64, 8, 64))
    assert core_s(grouped, 65_536.0, queries=2) == pytest.approx(core_s(grouped, 65_536.0), rel=1e-6)


def test_index_keys_are_cached_in_a_byte_each():
    model = deployed(SPARSE)
    assert cache_bytes(model, 1000.0) == pytest.approx(1000 * 61 * (576 * 2 + 128))


@pytest.mark.parametrize(
    ("kind", "state"),
    [(GatedDelta(16, 32, 128, 128), 32 * 128 * 128), (Mamba2(64, 64, 128, groups=8), 64 * 64 * 128)],
)
def test_recurrent_layers_read_and_write_a_state_whatever_the_context(kind, state):
    """A quarter of the blocks has grouped-query attention, a quarter no mixer; states are float32."""
    mixed = Mixed(((kind, 18), (GroupedQuery(16, 2, 256), 9), (None, 9)))
    model = dataclasses.replace(OSS, attention=mixed)
    served = deployed(model)
    assert state_bytes(served) == pytest.approx(18 * state * 4)
    assert cache_bytes(served, 1000.0) == pytest.approx(9 * 1000 * 2 * 2 * 256 * 2)
    alone = core_s(dataclasses.replace(OSS, attention=kind), 131_072.0)
    assert alone == pytest.approx(0, abs=1e-12)
    kinds = kind.products(2880)
    assert kind.params(2880) == sum(a * b for a, b in kinds) + kind.small_params(2880)


BYTES = {"bf16": (2, 2), "fp8": (1, 1), "mxfp4": (17 / 32, 2), "int4": (33 / 64, 2)}


@pytest.mark.parametrize("weights", BYTES)
def test_four_bits_hold_routed_experts_alone(weights):
    """gpt-oss-120b on one GPU: 114.7 of 116.8 billion parameters are of experts."""
    model = deployed(OSS, serving__ep=64, serving__formats__weights=weights)
    slots = model.load.slots
    experts = 36 * slots * 3 * 2880 * 2880
    attention = 36 * (2880 * (64 + 16) * 64 + 64 * 64 * 2880)
    plain = 36 * 2880 * 128 + 2 * 201088 * 2880
    of_experts, others = BYTES[weights]
    assert weight_bytes(model) == pytest.approx(of_experts * experts + others * attention + 2 * plain, rel=1e-12)


def test_pools_have_the_formats_of_releases():
    model = deployed(DEEPSEEK_V3, gpu__name="GB200-NVL72", serving__formats__weights="nvfp4")
    assert model.formats == formats_of("nvfp4", model.kernels.gpu, latent=True, cache="bf16")
    assert model.formats == ("bf16", "nvfp4", "nvfp4", "bf16")
    assert deployed(OSS, serving__formats__weights="mxfp4").formats == ("bf16", "bf16", "mxfp4", "bf16")


def test_a_table_of_ones_own_replaces_measured_kernels(tmp_path):
    """H200 by the package's rates of training is what H200 would be unmeasured; half of its memory's rate is slower."""
    own, usual = tmp_path / "own.json", table()["other"] | {"gpus": ["H200-SXM"]}
    tables = {"package": usual, "slow": usual | {"memory": {"stream": [0.4, 0.4, 0.4]}}}
    seconds = {"measured": float(attention_s(deployed(OSS), PassTokens(8.0, 65_536.0)))}
    for name, rates in tables.items():
        own.write_text(json.dumps({"hopper": rates}), encoding="utf-8")
        model = deployed(OSS, compute__kernels__table=str(own))
        assert model.kernels == measured_kernels(model.kernels.gpu, path=str(own))
        seconds[name] = float(attention_s(model, PassTokens(8.0, 65_536.0)))
    assert len(set(seconds.values())) == 3
    assert seconds["slow"] > 1.5 * seconds["package"]


@pytest.mark.parametrize(("gpu", "weights"), [("A100-80GB-SXM", "fp8"), ("H20-SXM", "fp8")])
def test_gpus_that_nobody_measured_take_the_estimate_of_training(gpu, weights):
    """A100 has no FP8: its products run at the rate of bf16."""
    model = deployed(DEEPSEEK_V3, gpu__name=gpu, serving__formats__weights=weights)
    rates = rates_of(model.kernels.gpu)
    many = 2 * 65_536 * 7168 * 16_384 / float(product_s(model.kernels, weights, 65_536, 7168, 16_384))
    assert many == pytest.approx(rates.products["fp8"], rel=0.1)
    assert float(attention_s(model, PassTokens(8.0, 4096.0))) > 0


def test_kernels_of_arrays_of_jax_are_those_of_numbers():
    kernels = measured_kernels(get_gpu("H200-SXM"))
    rows = np.array([1.0, 200.0, 5000.0])
    for seconds in (
        lambda some: product_s(kernels, "fp8", some, 7168, 2048),
        lambda some: all_reduce_s(kernels, 8, 1000 * some),
        lambda some: experts_s(kernels, "fp8", ExpertWork(4.0, some, 0.0, 7168, 2048)),
    ):
        assert np.asarray(jax.jit(seconds)(jnp.asarray(rows))) == pytest.approx(seconds(rows), rel=1e-6)
