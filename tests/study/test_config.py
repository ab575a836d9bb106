"""Everything that can be wrong with a comparison is one sentence, before any traffic is drawn."""

import dataclasses

import pytest

from mfabric_jax import InputError
from mfabric_jax.study import Compare

TINY = {"models": ("llama-moe",)}
NAN, INF = float("nan"), float("inf")


def refused(**settings):
    """The sentence."""
    with pytest.raises(InputError) as caught:
        Compare(**TINY | settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_the_defaults_are_fine():
    assert len(Compare().models) == 5
    assert dataclasses.is_dataclass(Compare)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Compare().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"models": ("llama-mo",)}, "models 'llama-mo' is unknown (did you mean 'llama-moe'?); allowed: mixtral-8x22b"),
        ({"models": ("gpt",)}, "models 'gpt' is unknown; allowed:"),
        ({"fabrics": ("fattree",)}, "fabrics 'fattree' is unknown (did you mean 'fat-tree'?); allowed: fat-tree, "),
        ({"nic_use": ("owned",)}, "nic_use 'owned' is unknown (did you mean 'own'?); allowed: own, pooled"),
        ({"policy": "greedi"}, "policy 'greedi' is unknown (did you mean 'greedy'?); allowed: greedy"),
        ({"rule": "print"}, "rule 'print' is unknown (did you mean 'printed'?); allowed: printed, released, next"),
        ({"routing": "best_path"}, "routing 'best_path' is unknown (did you mean 'best-path'?); allowed: unsplit, "),
        ({"traffic": "measure"}, "traffic 'measure' is unknown (did you mean 'measured'?); allowed: measured, "),
        ({"dtype": "double"}, "dtype 'double' is unknown; allowed: float32, float64."),
        ({"gpu": "A100-SXM"}, "gpu 'A100-SXM' is unknown (did you mean '"),
    ],
)
def test_unknown_names_suggest_the_nearest(settings, words):
    assert refused(**settings).startswith(words)


@pytest.mark.parametrize("field", ["models", "fabrics", "nic_use"])
def test_lists_are_neither_empty_nor_repeat(field):
    name = {"models": "llama-moe", "fabrics": "mfabric", "nic_use": "own"}[field]
    assert refused(**{field: (name, name)}) == f"{field} must not repeat a name, got {name}, {name}."
    assert refused(**{field: ()}).startswith(f"{field} must name at least one; allowed: ")


def test_bandwidths():
    assert refused(nic_gbps=()) == "nic_gbps must name at least one bandwidth."
    assert refused(nic_gbps=(100.0, 100.0)) == "nic_gbps must not repeat a bandwidth, got [100.0, 100.0]."
    assert refused(nic_gbps=(50.0,)).startswith("nic_gbps 50 has no price; prices are listed from 100 to 800 Gbps")
    assert refused(nic_gbps=(400.0, 1000.0)).startswith("nic_gbps 1000 has no price")
    for value in (0.0, -400.0, NAN, INF):
        assert refused(nic_gbps=(value,)) == f"nic_gbps must be finite and above 0, got {value}."


@pytest.mark.parametrize("field", ["delay_s", "skew", "drift"])
@pytest.mark.parametrize("value", [-0.001, NAN, INF])
def test_not_negative(field, value):
    assert refused(**{field: value}) == f"{field} must be finite and not negative, got {value}."


@pytest.mark.parametrize("field", ["efficiency", "nvswitch_gigabytes_per_s"])
@pytest.mark.parametrize("value", [0.0, -1.0, NAN, INF])
def test_above_zero(field, value):
    assert refused(**{field: value}) == f"{field} must be finite and above 0, got {value}."


@pytest.mark.parametrize(
    ("field", "least"),
    [("optical_degree", 0), ("electrical_nics", 0), ("iterations", 1), ("seed", 0)]
    + [(degree, 1) for degree in ("dp", "tp", "pp", "ep", "gpus", "micro_batch", "micro_batches", "sequence")],
)
def test_whole_numbers(field, least):
    for value in (least - 1, 2.5, "2", True):
        sentence = refused(**{field: value})
        assert sentence == f"{field} must be a whole number of at least {least}, got {value!r}."


def test_gradients_need_electrical_nics():
    assert "electrical_nics must be at least 1" in refused(electrical_nics=0)


def test_degrees_that_do_not_multiply():
    sentence = refused(dp=2)
    assert "dp x tp x pp x ep must equal gpus, got 2 x 1 x 4 x 16 = 128 but gpus = 1024" in sentence
    assert "gpus (--gpus) of 128 would fit" in sentence
    assert Compare(**TINY, dp=2, gpus=128).workload("llama-moe").gpus == 128


def test_groups_that_do_not_fit_servers():
    sentence = refused(tp=3, gpus=3072)
    assert sentence == "tp must divide gpus_per_server (8), got 3."
    experts = refused(models=("mixtral-8x7b",), ep=3, gpus=384)
    assert "EP group of tp x ep = 4 x 3 = 12 GPUs does not fit whole servers of 8" in experts
    assert "must be a multiple or a divisor" in experts
    assert refused(ep=32, gpus=2048) == "ep must divide the 16 experts, got 32."
    assert refused(pp=64, gpus=16384) == "pp must be at most the 32 blocks, got 64."


def test_every_model_is_checked():
    with pytest.raises(InputError, match="ep must divide the 8 experts, got 16"):
        Compare(models=("llama-moe", "mixtral-8x7b"), dp=1, tp=1, pp=1, ep=16, gpus=16)


def test_records_need_a_trace():
    assert refused(records=(1, 2)) == "records chooses from a trace; name one with trace."


def test_own_needs_a_nic_for_every_gpu():
    assert "a server has 8 GPUs and 4 NICs; use nic_use 'pooled' or 8 NICs" in refused(nics=4)
    assert refused(nics=4, nic_use=("pooled", "own")).startswith("nic_use 'own' gives each GPU its own NIC")
    assert Compare(**TINY, nics=4, nic_use=("pooled",)).nic_use == ("pooled",)
    assert Compare(**TINY, nics=4, fabrics=("mfabric",)).fabrics == ("mfabric",)
