"""Single MoE layers beside their measurements, and what a layer consists of by hand."""

import numpy as np
import pytest

from mfabric_jax.apps.validation import layers
from mfabric_jax.apps.validation.layers import TOKENS, count_reached_gpus, layer_rows, layer_seconds

MODEL = {"hidden": 1024, "expert_hidden": 512, "experts": 8, "top_k": 2}


def test_the_twelve_layers_are_predicted_within_eight_per_cent_on_average():
    rows = list(layer_rows())
    errors = np.array([row["error"] for row in rows])
    assert len(rows) == 12
    assert abs(errors).mean() < 0.08
    assert abs(errors).max() < 0.18
    for row in rows:
        assert row["predicted_s"] == pytest.approx(row["forward_s"] + row["backward_s"])
        assert row["measured_s"] == pytest.approx(row["measured_forward_s"] + row["measured_backward_s"])


def test_gpus_that_a_token_reaches():
    assert count_reached_gpus(MODEL) == pytest.approx(2.0)  # an expert a GPU
    assert count_reached_gpus(MODEL | {"experts": 32, "top_k": 32}) == pytest.approx(8.0)  # all of them
    # 2 of 4 experts on 2 GPUs: both on one GPU in 2 of 6 choices.
    assert count_reached_gpus(MODEL | {"experts": 16, "top_groups": 2}) == pytest.approx(2 - 2 / 6)


def test_weights_are_cast_in_the_forward_pass(monkeypatch):
    """4 bytes for each of 1,024 x 512 x 3 weights, at 82 % of 3,350 GB/s; none in bf16."""
    usual = {precision: layer_seconds(MODEL, "nccl", precision) for precision in ("bf16", "fp8")}
    monkeypatch.setattr(layers, "CAST_BYTES", 0)
    for precision, cast_s in (("bf16", 0.0), ("fp8", 4 * 3 * 1024 * 512 / (0.82 * 3350e9))):
        (forward, backward), (alone, behind) = usual[precision], layer_seconds(MODEL, "nccl", precision)
        assert forward - alone == pytest.approx(cast_s, abs=1e-12)
        assert backward == behind


def test_tokens_are_sent_twice_a_pass():
    # HybridEP's share of NVLink is larger than DeepEP's: 4 transfers of the bytes that leave a GPU.
    slow, fast = (sum(layer_seconds(MODEL, name, "bf16")) for name in ("deepep", "hybridep"))
    moved = 4 * TOKENS * 2 * 7 / 8 * 1024 * 2 / 450e9
    assert slow - fast == pytest.approx(moved / 0.78 - moved / 0.94)
