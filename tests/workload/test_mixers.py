"""Layers of every kind of mixer, by hand: parameters, FLOPs, caches, what decoding reads, elements that are kept."""

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.workload.mixers import (
    DecodingWork,
    GatedDelta,
    GroupedQuery,
    Latent,
    Linear,
    Mamba1,
    Mamba2,
    Mixed,
    up_params,
)

LONG = 131072


def kept(mixer, hidden):
    return sum(mixer.activation_elements(hidden).values())


def test_a_window_with_narrow_values_and_few_heads():
    """A block of MiMo-V2-Flash: 64 heads, keys of 8 heads of 192, values of 128, a window of 128 tokens."""
    layer = GroupedQuery(64, 8, 192, window=128, value_dim=128)
    queries, keys, values, out = 64 * 192, 8 * 192, 8 * 128, 64 * 128
    assert layer.params(4096) == 4096 * (queries + keys + values) + out * 4096
    # Tokens after the first 128 see 128, less half of the window for the first ones: 128 - 128^2 / (2 x 4096).
    assert layer.score_flops(4096) == 2 * (128 - 128 * 128 / (2 * 4096)) * 64 * (192 + 128)
    assert layer.cache_elements(LONG) == 128 * (keys + values) == layer.cache_elements(128)
    assert layer.cache_elements(100) == 100 * (keys + values)
    assert layer.decoding(LONG) == (DecodingWork(128 * 8 * 320, 0, 2 * 64 * 320 * 128),)
    assert layer.passed_on(1000, 3) == 1000 * 8 * 320
    assert (layer.state, layer.index_bytes(LONG), layer.whole_cache, layer.width) == (0, 0, False, 160)
    assert kept(layer, 4096) == 2 * 4096 + queries + keys + values + out
    # gpt-oss-120b: 18 blocks without a window hold keys and values of 8 heads of 64 in bf16.
    assert (
        18 * 2 * (GroupedQuery(64, 8, 64).cache_elements(LONG + 1) - GroupedQuery(64, 8, 64).cache_elements(LONG))
        == 36864
    )


def test_a_gated_output():
    """Attention of Qwen3-Next: queries and a gate of 16 x 256 each, two key-value heads."""
    layer = GroupedQuery(16, 2, 256, gated=True)
    assert layer.params(2048) == 2048 * (4096 + 4096 + 512 + 512) + 4096 * 2048
    assert layer.products(2048) == [(2048, 9216), (4096, 2048)]
    plain = GroupedQuery(16, 2, 256)
    assert layer.score_flops(512) == plain.score_flops(512)
    assert layer.decoding(512) == plain.decoding(512)
    assert kept(layer, 2048) - kept(plain, 2048) == 4096
    assert layer.pointwise_elements() - plain.pointwise_elements() == 3 * 4096


def test_borrowed_keys_and_values():
    """Hunyuan-Large: every second block reads the keys and values of the block before it."""
    layer, own = GroupedQuery(80, 8, 80, borrows=True), GroupedQuery(80, 8, 80)
    assert layer.params(6400) == 2 * 6400 * 6400
    assert own.params(6400) - layer.params(6400) == 2 * 6400 * 8 * 80
    assert kept(own, 6400) - kept(layer, 6400) == 2 * 8 * 80
    assert own.pointwise_elements() - layer.pointwise_elements() == 2 * 8 * 80
    assert (layer.cache_elements(LONG), layer.passed_on(1000, 3)) == (0, 0)
    assert layer.score_flops(512) == own.score_flops(512)
    assert layer.decoding(LONG) == own.decoding(LONG)


def test_queries_through_a_rank():
    """Attention of Step-3: queries of 64 heads of 256 through a rank of 2048, one key-value head."""
    layer = GroupedQuery(64, 1, 256, query_rank=2048)
    assert layer.params(7168) == 7168 * 2048 + 2048 * 16384 + 2 * 7168 * 256 + 16384 * 7168
    assert layer.products(7168) == [(7168, 2048 + 512), (2048, 16384), (16384, 7168)]
    assert layer.ups == (1,)
    assert up_params(layer, 7168) == 2048 * 16384
    assert (layer.cache_elements(10), layer.score_flops(10)) == (10 * 512, 2 * 5 * 64 * 512)
    assert layer.activation_elements(7168) == {
        "input": 7168,
        "norm": 7168,
        "latents": 2 * 2048,
        "mla-up": 16384,
        "qkv": 512,
        "out": 16384,
    }
    assert GroupedQuery(64, 1, 256).ups == ()


def test_an_indexer_beside_grouped_queries():
    """Sparse attention of MiniMax-M3: an indexer of 4 heads of 128 with one key chooses 16 blocks of 128 tokens."""
    layer = GroupedQuery(64, 4, 128, index_heads=4, index_dim=128, index_top_k=2048)
    assert layer.params(6144) == 6144 * (64 + 2 * 4) * 128 + 6144 * 5 * 128 + 8192 * 6144
    # Half of the sequence is indexed on average; 2048 tokens are seen.
    assert layer.score_flops(LONG) == 2 * (2048 - 2048**2 / (2 * LONG)) * 64 * 256 + LONG * 4 * 128
    assert layer.cache_elements(LONG) == LONG * (4 * 256 + 128)
    index, attention = layer.decoding(LONG)
    assert index == DecodingWork(LONG * 128, 0, 2 * 4 * 128 * LONG)
    assert attention == DecodingWork(2048 * 4 * 256, 0, 2 * 64 * 256 * 2048)
    assert layer.decoding(1000)[1].elements == 1000 * 4 * 256
    assert layer.passed_on(7, 1) == 7 * (4 * 256 + 128)
    assert kept(layer, 6144) == 2 * 6144 + (64 + 8) * 128 + 5 * 128 + 64 * 128


def test_latent_attention_with_an_indexer():
    """DeepSeek-V3.2: 13.96 million parameters of an indexer of 64 heads of 128; 2048 of 131072 tokens are read."""
    plain = Latent(128, 1536, 512, 128, 64, 128)
    layer = Latent(128, 1536, 512, 128, 64, 128, index_heads=64, index_dim=128, index_top_k=2048)
    indexer = layer.params(7168) - plain.params(7168)
    assert indexer == 1536 * 64 * 128 + 7168 * 128 + 7168 * 64
    assert round(indexer / 1e6, 2) == 13.96
    index, attention = layer.decoding(LONG)
    assert index == DecodingWork(0, LONG * 128, 2 * 64 * 128 * LONG)
    assert attention == DecodingWork(2048 * 576, 0, 2 * 128 * (512 + 64 + 512) * 2048)
    assert plain.decoding(LONG) == (DecodingWork(LONG * 576, 0, 2 * 128 * (512 + 64 + 512) * LONG),)
    assert (layer.cache_elements(LONG), layer.index_bytes(LONG)) == (LONG * 576, LONG * 128)
    seen = 2048 - 2048**2 / (2 * LONG)
    assert layer.score_flops(LONG) == 2 * seen * 128 * (128 + 64 + 128) + LONG * 64 * 128
    assert layer.passed_on(5, 1) == 5 * (576 + 128)
    # An earlier block chose the tokens: no indexer, neither its key.
    shared = Latent(128, 1536, 512, 128, 64, 128, index_top_k=2048)
    assert shared.params(7168) == plain.params(7168)
    assert shared.decoding(LONG) == (attention,)
    assert (shared.index_bytes(LONG), shared.cache_elements(LONG)) == (0, LONG * 576)


def test_latent_attention_with_a_gated_output():
    plain, layer = Latent(96, 1536, 512, 128, 64, 128), Latent(96, 1536, 512, 128, 64, 128, gated=True)
    assert layer.params(7168) - plain.params(7168) == 7168 * 96 * 128
    assert layer.ups == plain.ups == (1, 3)
    assert kept(layer, 7168) - kept(plain, 7168) == 96 * 128
    assert layer.pointwise_elements() - plain.pointwise_elements() == 3 * 96 * 128


def test_a_gated_delta_rule():
    """Qwen3-Next: 16 heads of queries and keys, 32 of values, all of 128; a convolution over 4 tokens."""
    layer = GatedDelta(16, 32, 128, 128)
    assert layer.params(2048) == 2048 * (2048 + 2048 + 4096 + 4096 + 64) + 8192 * 4 + 4096 * 2048
    assert layer.state == 32 * 128 * 128
    # The state is read for the key, corrected by an outer product, and read for the query: 2 FLOPs an element each.
    assert layer.score_flops(10) == 6 * 32 * 128 * 128 + 2 * 8192 * 4 == layer.score_flops(LONG)
    assert (layer.cache_elements(LONG), layer.decoding(LONG)) == (0, ())
    assert layer.passed_on(1000, 3) == 3 * 32 * 128 * 128
    assert kept(layer, 2048) == 2 * 2048 + 2 * 8192 + 4096 + 64 + 4096
    assert layer.pointwise_elements() == 2 * 8192 + 3 * 4096


def test_kimi_delta_attention():
    """Kimi Linear: 32 heads of 128, a decay of every channel through a rank of 128, and so the output gate."""
    layer = GatedDelta(32, 32, 128, 128, decay_rank=128, gate_rank=128)
    ranks = 2 * (2304 * 128 + 128 * 4096)
    assert layer.params(2304) == 3 * 2304 * 4096 + ranks + 2304 * 32 + 3 * 4096 * 4 + 4096 * 2304
    assert layer.products(2304)[-1] == (4096, 2304)
    assert kept(layer, 2304) == 2 * 2304 + 2 * 12288 + (4096 + 128) + (4096 + 128) + 32 + 4096
    whole = GatedDelta(32, 32, 128, 128, decay_rank=128)
    assert whole.params(2304) - layer.params(2304) == 2304 * 4096 - 2304 * 128 - 128 * 4096


def test_mamba_2():
    """Nemotron-3-Nano: 64 heads of 64, 128 states, 8 groups, a convolution over 4 tokens."""
    layer, mixed = Mamba2(64, 64, 128, 8), 4096 + 2 * 8 * 128
    assert layer.params(2688) == 2688 * (4096 + mixed + 64) + mixed * 4 + 4096 * 2688
    assert round(layer.params(2688) / 1e6, 1) == 38.7
    assert layer.state == 64 * 64 * 128
    assert layer.score_flops(LONG) == 5 * 64 * 64 * 128 + 2 * mixed * 4
    assert (layer.cache_elements(LONG), layer.index_bytes(LONG), layer.decoding(LONG)) == (0, 0, ())
    assert layer.passed_on(1000, 2) == 2 * 64 * 64 * 128
    assert kept(layer, 2688) == 2 * 2688 + 2 * mixed + 4096 + 64 + 4096


def test_mamba_1():
    """Jamba 1.5 Mini: 8192 channels of 16 states, time steps through a rank of 256."""
    layer = Mamba1(8192, 16, 256)
    products = [(4096, 16384), (8192, 256 + 32), (256, 8192), (8192, 4096)]
    assert layer.products(4096) == products
    assert layer.params(4096) == sum(inner * outer for inner, outer in products) + 8192 * 4 + 8192 * 16
    assert layer.state == 8192 * 16
    assert layer.score_flops(LONG) == 7 * 8192 * 16 + 2 * 8192 * 4
    assert (layer.cache_elements(LONG), layer.passed_on(1000, 2)) == (0, 2 * 8192 * 16)
    assert kept(layer, 4096) == 2 * 4096 + 4 * 8192 + 256 + 32 + 8192
    assert (layer.width, layer.pointwise_elements()) == (16, 5 * 8192)


def test_blocks_without_a_mixer_count_in_the_mean():
    full, linear = GroupedQuery(2, 1, 3), Linear(2, 3)
    mixed = Mixed(((full, 1), (None, 2), (linear, 1)))
    assert mixed.params(8) == (full.params(8) + linear.params(8)) / 4
    assert mixed.score_flops(4) == (full.score_flops(4) + linear.score_flops(4)) / 4
    assert mixed.shares == [(full, 0.25), (linear, 0.25)]
    assert kept(mixed, 8) == (kept(full, 8) + kept(linear, 8)) / 4


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: GroupedQuery(4, 2, 8, index_heads=2), "index_heads, index_dim and index_top_k must all be above 0"),
        (
            lambda: Latent(4, 0, 8, 4, 2, 4, index_heads=2, index_top_k=8),
            "must all be above 0, or all 0, got [2, 0, 8]",
        ),
        (lambda: GroupedQuery(4, 2, 8, gated=1), "attention.gated must be true or false, got 1"),
        (lambda: GatedDelta(3, 4, 8, 8), "attention.key_heads must divide the 4 value_heads, got 3"),
        (lambda: Mamba2(4, 8, 16, groups=3), "attention.groups must divide the 4 heads, got 3"),
        (lambda: Mamba1(8, 0, 4), "attention.state_dim must be a whole number of at least 1, got 0"),
        (lambda: Mixed(((None, 4),)), "attention must have at least one kind"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_impossible_mixers_are_refused(build, words):
    with pytest.raises(InputError) as caught:
        build()
    assert words in str(caught.value)
