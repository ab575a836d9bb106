"""How often experts are taken: recorded, generated, measured; and how uneven that leaves GPUs."""

import json

import numpy as np
import pytest

from mfabric_jax.apps.serving import serve
from mfabric_jax.case import Case
from tests.mistakes import refused

SERVED = {"network.fabric": "fat-tree", "gpu.name": "H200-SXM", "serving.ep": 8, "serving.batch": 8.0}
LAYERS, EXPERTS = 2, 8


def counts():
    """Selections [layer expert]: the first expert takes half."""
    return np.array([[70, 10, 10, 10, 10, 10, 10, 10]] * LAYERS)


def trace_in(folder, kind):
    """The path of a recording, in a format that trainings read."""
    path, count = folder / f"trace.{kind}", counts()
    if kind == "npy":
        np.save(path, count)
    elif kind == "npz":
        np.savez(path, tokens=count[None, :, None, None])
    elif kind == "csv":
        lines = [f"0,{i},0,0,{e},{count[i, e]}" for i in range(LAYERS) for e in range(EXPERTS)]
        path.write_text("\n".join(["iteration,layer,micro_batch,source,expert,tokens", *lines]), encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps({"weight": count.tolist()}), encoding="utf-8")
    else:
        chosen = [[e, (e + 1) % EXPERTS] for e in range(EXPERTS) for _ in range(3)]
        line = {"step": 0, "rank": 0, "num_tokens": len(chosen), "topk": 2, "top_indices": chosen}
        path.write_text("\n".join(json.dumps(line | {"layer": i}) for i in range(LAYERS)), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "jsonl"])
def test_every_format_of_trainings_serves(tmp_path, kind):
    said = {"model.name": "mixtral-8x7b", "serving.experts": "trace", "traffic.trace.path": trace_in(tmp_path, kind)}
    row = next(serve(Case().with_(SERVED | said)))
    assert f"trace.{kind}" in row["expert_load"]
    uneven = 1.0 if kind == "jsonl" else 70 / (140 / EXPERTS)
    assert row["rank_load_over_mean_in_order"] == pytest.approx(uneven)
    assert row["rank_load_over_mean"] == pytest.approx(uneven)  # an expert a GPU: nothing to place


def test_a_model_of_a_config_serves_its_trace_and_placement_helps(tmp_path):
    facts = {"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16}
    facts |= {"num_key_value_heads": 4, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2}
    facts |= {"moe_intermediate_size": 512, "intermediate_size": 2048, "vocab_size": 32000}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(facts | {"decoder_sparse_step": 1, "mlp_only_layers": []}), encoding="utf-8")
    said = {"model.name": str(file), "serving.experts": "trace", "traffic.trace.path": trace_in(tmp_path, "npy")}
    case = Case().with_(SERVED | said | {"serving.ep": 4})
    copied, plain = (next(serve(case.with_({"serving.redundant_experts": more}))) for more in (4, 0))
    assert plain["rank_load_over_mean_in_order"] == pytest.approx(80 / 35)
    assert copied["rank_load_over_mean"] < plain["rank_load_over_mean"] == pytest.approx(80 / 35)
    apart = next(serve(case.with_({"serving.eplb": False})))
    assert apart["rank_load_over_mean"] == apart["rank_load_over_mean_in_order"]


def test_layers_without_tokens_are_left_out(tmp_path):
    count = counts()
    count[1] = 0
    np.save(tmp_path / "half.npy", count)
    said = {"model.name": "mixtral-8x7b", "serving.experts": "trace", "traffic.trace.path": str(tmp_path / "half.npy")}
    assert np.isfinite(next(serve(Case().with_(SERVED | said)))["tpot_s"])


def test_hot_experts_are_generated_without_a_trace():
    case = Case().with_(SERVED | {"model.name": "mixtral-8x7b", "serving.experts": "generated"})
    assert "serving.experts generated needs traffic.generated.skew" in refused(list, serve(case))
    skews = [{"traffic.source": "generated", "traffic.generated.skew": skew} for skew in (0, 0.4, 0.8)]
    even, mild, hot = (next(serve(case.with_(skew))) for skew in skews)
    power = np.arange(1, 9) ** -0.4
    assert mild["rank_load_over_mean"] == pytest.approx(8 / power.sum())
    assert mild["expert_load"] == "generated, skew 0.4"
    assert even["rank_load_over_mean"] == pytest.approx(1)
    assert 1 < mild["rank_load_over_mean"] < hot["rank_load_over_mean"]
    assert even["tpot_s"] < hot["tpot_s"]


def test_measured_shares_say_of_how_many_experts_they_are():
    case = Case().with_(SERVED | {"model.name": "deepseek-v3", "serving.experts": "measured", "serving.ep": 32})
    assert next(serve(case))["expert_load"] == "measured: OLMoE's 64 experts, copied to 256"


EVENLY = [
    {},
    {"serving.ep": 40, "serving.prefill.ep": 24},
    {"serving.ep": 24, "serving.redundant_experts": 16, "serving.eplb": False, "serving.kernels": "deepep-normal"},
    {"serving.ep": 16, "serving.kernels": "hybridep", "serving.drafts.tokens": 1, "serving.tp": 2},
    {"serving.ep": 24, "network.fabric": "scale-up", "gpu.scale_up_gpus": 24},
    {"serving.split.attention_gpus": 8, "serving.split.expert_gpus": 24},
]


@pytest.mark.parametrize("said", EVENLY)
def test_balanced_experts_are_generated_ones_without_skew(said):
    """However many copies some experts have: the same load of GPUs, bytes, seconds and memory."""
    case = Case().with_(SERVED | {"model.name": "deepseek-v3", "model.experts": 32} | said)
    generated = case.with_({"serving.experts": "generated", "traffic.source": "generated"})
    even, drawn = (next(serve(each)) for each in (case, generated))
    assert (even.pop("expert_load"), drawn.pop("expert_load")) == ("balanced", "generated, skew 0")
    assert set(even) == set(drawn)
    for name, value in even.items():
        assert drawn[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name
