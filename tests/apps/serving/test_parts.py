"""Serving of models with other parts than attention over all tokens and experts in FP8: worked out by hand."""

import dataclasses

import pytest

from mfabric_jax.apps.serving import deployment
from mfabric_jax.apps.serving.step import attention_s, cache_bytes, rates, state_bytes
from mfabric_jax.case import Case
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
    served = dataclasses.replace(found.decode.model, architecture=model)
    return dataclasses.replace(found, decode=dataclasses.replace(found.decode, model=served))


def test_a_window_caches_what_it_sees():
    """18 full layers of 2 x 8 x 64 bf16 elements: 36,864 bytes a token; 18 windows hold 128 tokens of as many."""
    model = deployed(OSS).decode.model
    each = 18 * 2 * 8 * 64 * 2
    assert each == 36_864
    assert cache_bytes(model, 100_000.0) == pytest.approx(each * (100_000 + 128))
    assert cache_bytes(model, 64.0) == pytest.approx(2 * each * 64)
    assert cache_bytes(model, 100_000.0, gpus=2) == pytest.approx(each * (100_000 + 128) / 2)


def core_s(model, context, requests=8):
    found = deployed(model, serving__batch=float(requests))
    rate = rates(found.decode.group.gpu, "fp8")
    near, far = (float(attention_s(found.decode.model, rate, requests, requests, length)) for length in (1.0, context))
    return rate, far - near


def test_sparse_attention_reads_2048_latents_and_every_index_key():
    """At 131,072 tokens a query reads 2,048 latents of 576 elements in bf16, and an indexer the keys of all tokens, 128
    bytes each: 134 MB for 8 requests, whose 17 GFLOP take about as long. In all 0.04 ms more than at one token."""
    rate, seconds = core_s(SPARSE, 131_072.0)
    index = max(8 * 131_072 * 128 / rate.cache_Bps, 8 * 2 * 64 * 128 * 131_072 / rate.attention)
    latents = max(8 * 2048 * 576 * 2 / rate.cache_Bps, 8 * 2048 * 2 * 128 * (2 * 512 + 64) / rate.attention)
    assert seconds == pytest.approx(index + latents, rel=1e-3)
    assert 0.03e-3 < seconds < 0.05e-3
    dense = core_s(DEEPSEEK_V3, 131_072.0)[1]
    assert dense > 0.45e-3  # every query reads all latents without an indexer


def test_index_keys_are_cached_in_a_byte_each():
    model = deployed(SPARSE).decode.model
    assert cache_bytes(model, 1000.0) == pytest.approx(1000 * 61 * (576 * 2 + 128))


@pytest.mark.parametrize(
    ("kind", "state"),
    [(GatedDelta(16, 32, 128, 128), 32 * 128 * 128), (Mamba2(64, 64, 128, groups=8), 64 * 64 * 128)],
)
def test_recurrent_layers_read_and_write_a_state_whatever_the_context(kind, state):
    """A quarter of the blocks has grouped-query attention, a quarter no mixer; states are float32."""
    mixed = Mixed(((kind, 18), (GroupedQuery(16, 2, 256), 9), (None, 9)))
    model = dataclasses.replace(OSS, attention=mixed)
    served = deployed(model).decode.model
    assert state_bytes(served) == pytest.approx(18 * state * 4)
    assert cache_bytes(served, 1000.0) == pytest.approx(9 * 1000 * 2 * 2 * 256 * 2)
    alone = core_s(dataclasses.replace(OSS, attention=kind), 131_072.0)[1]
    assert alone == pytest.approx(0, abs=1e-12)
    kinds = kind.products(2880)
    assert kind.params(2880) == sum(a * b for a, b in kinds) + kind.small_params(2880)


BYTES = {"bf16": (2, 2), "fp8": (1, 1), "mxfp4": (17 / 32, 2), "int4": (33 / 64, 2)}


@pytest.mark.parametrize("weights", BYTES)
def test_four_bits_hold_routed_experts_alone(weights):
    """gpt-oss-120b on one GPU: 114.7 of 116.8 billion parameters are of experts."""
    found = deployed(OSS, serving__ep=64)
    pool = dataclasses.replace(found.decode, model=dataclasses.replace(found.decode.model, weights=weights))
    slots = pool.model.load.slots
    experts = 36 * slots * 3 * 2880 * 2880
    attention = 36 * (2880 * (64 + 16) * 64 + 64 * 64 * 2880)
    plain = 36 * 2880 * 128 + 2 * 201088 * 2880
    of_experts, others = BYTES[weights]
    assert found.weight_bytes(pool) == pytest.approx(of_experts * experts + others * attention + 2 * plain, rel=1e-12)


def test_four_bits_are_multiplied_in_bf16():
    gpu = deployment(Case().with_({"model.name": "deepseek-v3", "network.fabric": "fat-tree"})).decode.group.gpu
    plain, four = rates(gpu, "bf16"), rates(gpu, "mxfp4")
    assert (four.products, four.grouped) == (plain.products, plain.grouped)
    assert rates(gpu, "int4") == four
