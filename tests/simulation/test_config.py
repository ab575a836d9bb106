"""Everything that can be wrong with a comparison is one sentence, before any traffic is drawn."""

import dataclasses

import numpy as np
import pytest
from mfabric_jax.study.legacy import compare

from mfabric_jax import InputError
from mfabric_jax.simulation.scenario import tokens_of
from mfabric_jax.study.config import Compare
from tests.small import configured, refused, small

TINY = {"models": ("llama-moe",)}
NAN, INF = float("nan"), float("inf")
NO_PRICE = "nic_gbps 50 has no price; prices are listed from 100 to 800 Gbps"
WHOLE = {"optical_degree": 0, "electrical_nics": 0, "iterations": 1, "seed": 0} | dict.fromkeys(
    ("dp", "tp", "pp", "ep", "gpus", "micro_batch", "micro_batches", "sequence"), 1
)
NAMED = {"policy": "greedi", "rule": "print", "routing": "best_path", "traffic": "hot-rnk", "dtype": "double"}
NAMED |= {"gpu": "A100-SXM", "first": "blok", "flows": "all", "matrices": "two", "predictor": "oracle"}
NAMED |= {"compute": "guessed", "schedule": "zigzag"}
MISTAKES = [  # how the sentence begins
    ({"models": ("llama-mo",)}, "models 'llama-mo' is unknown (did you mean 'llama-moe'?); allowed: mixtral-8x22b"),
    ({"fabrics": ("tree",)}, "fabrics 'tree' is unknown"),
    ({"nic_use": ("all",)}, "nic_use 'all' is unknown"),
    *[({field: name}, f"{field} '{name}' is unknown") for field, name in NAMED.items()],
    ({"flows": "single", "routing": "split"}, "flows 'single' needs routing unsplit"),
    ({"overlap_parts": 0}, "overlap_parts must be a whole number of at least 1"),
    ({"nic_gbps": ()}, "nic_gbps must name at least one bandwidth."),
    ({"nic_gbps": (100.0, 100.0)}, "nic_gbps must not repeat a bandwidth, got [100.0, 100.0]."),
    ({"nic_gbps": (50.0,)}, NO_PRICE),
    ({"nic_gbps": (400.0, 1000.0)}, "nic_gbps 1000 has no price"),
    ({"electrical_nics": 0}, "electrical_nics must be at least 1"),
    ({"tp": 3, "gpus": 3072}, "tp must divide gpus_per_server (8), got 3; a set-up that fits: "),
    ({"ep": 32, "gpus": 2048}, "ep must divide the 16 experts, got 32; a set-up that fits: "),
    ({"pp": 64, "gpus": 16384}, "pp must be at most the 32 blocks, got 64; a set-up that fits: "),
    ({"records": (1, 2)}, "records chooses from a trace; name one with trace."),
    ({"axes": "layer,expert"}, "axes describes a trace; name one with trace."),
    ({"axes": "layer,experts", "trace": "run.npy"}, "axis 'experts' is unknown"),
    ({"nics": 4, "nic_use": ("pooled", "own")}, "nic_use 'own' gives each GPU its own NIC, but a server has 8 GPUs"),
    ({"fabrics": ("topoopt",), "nics": 3}, "topoopt needs 4 NICs for its ring and pipeline neighbours, got nics 3"),
    ({"fabrics": ("rail-only",), "nics": 4}, "nic_use 'own' gives each GPU its own NIC, but a server has 8 GPUs"),
    ({"fabrics": ("rail-optimized",), "nics": 4, "pxn": True, "nic_use": ("pooled",)}, "nic_use 'own' gives each"),
    ({"nics": 0}, "nics must be a whole number of at least 1, got 0."),
    ({"tiers": 4}, "tiers must be 2 or 3, got 4."),
    ({"prices": "none.toml"}, "cannot read 'none.toml'"),
    ({"prices": "prices.csv"}, "prices 'prices.csv': extension '.csv' is unknown"),
    ({"nic_gbps": (100.0,), "fabrics": ("nvl72",), "gpu_tbps": 0.1, "gpus": 4096, "dp": 64}, "gpu_tbps 0.1 leaves no "),
    ({"gpu_tbps": 0.0}, "gpu_tbps must be finite and above 0, got 0.0."),
    ({"models": ("mixtral-8x7b",), "fabrics": ("nvl72",), "dp": 1}, "mixtral-8x7b: a pipeline stage"),
    *[({"goodput": value}, f"goodput must be above 0 and at most 1, got {value}.") for value in (0.0, 1.1, NAN)],
    *[({"nic_gbps": (x,)}, f"nic_gbps must be finite and above 0, got {x}.") for x in (0.0, -4.0, NAN, INF)],
    *[
        ({field: value}, f"{field} must be finite and not negative, got {value}.")
        for field in ("delay_s", "skew", "drift", "link_delay_s", "reactivation_s")
        for value in (-0.001, NAN, INF)
    ],
    *[
        ({field: value}, f"{field} must be finite and above 0, got {value}.")
        for field in ("efficiency", "nvswitch_gigabytes_per_s")
        for value in (0.0, -1.0, NAN, INF)
    ],
    *[
        ({field: value}, f"{field} must be a whole number of at least {least}, got {value!r}.")
        for field, least in WHOLE.items()
        for value in (least - 1, 2.5, "2", True)
    ],
    *[
        mistake
        for field, name in {"models": "llama-moe", "fabrics": "mfabric", "nic_use": "own"}.items()
        for mistake in (
            ({field: (name, name)}, f"{field} must not repeat a name, got {name}, {name}."),
            ({field: ()}, f"{field} must name at least one; allowed: "),
        )
    ],
]


def test_mistakes_are_sentences():
    for settings, words in MISTAKES:
        said = refused(**TINY | settings).removeprefix("llama-moe: ")
        assert said.startswith(words), (settings, said)


def test_degrees_that_do_not_fit_say_what_would():
    sentence = refused(**TINY, dp=2, gpus=1024)
    assert "dp x tp x pp x ep must equal gpus, got 2 x 1 x 4 x 16 = 128 but gpus = 1024" in sentence
    assert "gpus (--gpus) of 128 would fit" in sentence
    assert Compare(**TINY, dp=2).workload("llama-moe").gpus == 128
    assert Compare(**TINY, gpus=128).workload("llama-moe").dp == 2
    experts = refused(models=("mixtral-8x7b",), ep=3, gpus=384)
    assert "EP group of tp x ep = 4 x 3 = 12 GPUs does not fit whole servers of 8" in experts
    assert "must be a multiple or a divisor" in experts
    every = refused(models=("llama-moe", "mixtral-8x7b"), dp=1, tp=1, pp=1, ep=16, gpus=16)
    assert "ep must divide the 8 experts, got 16" in every
    stage = refused(models=("mixtral-8x7b",), fabrics=("nvl72",), dp=1, gpus=128)
    assert stage.startswith("mixtral-8x7b: a pipeline stage of dp x tp x ep = 1 x 4 x 8 = 32 GPUs must")
    port = refused(models=("mixtral-8x7b",), nic_gbps=(100.0,), fabrics=("mfabric-cpo",), gpu_tbps=0.2)
    assert port.startswith("gpu_tbps 0.2 leaves no optical port of nic_gbps 100")


def test_axes_say_what_an_array_is(tmp_path):
    loads = np.arange(1, 2 * 3 * 16 + 1).reshape(2, 3, 16)  # iteration, layer, expert
    np.save(tmp_path / "plain.npy", np.repeat(loads[:, :, None, None], 16, axis=3))  # spread over sources
    np.save(tmp_path / "turned.npy", loads.transpose(2, 0, 1))

    def drawn(name, axes):
        config = Compare(**TINY, trace=str(tmp_path / name), axes=axes, iterations=2)
        return tokens_of(config, config.workload("llama-moe"), ("all-to-all",)).count

    by_name = drawn("turned.npy", "expert,iteration,layer")
    np.testing.assert_array_equal(by_name, drawn("plain.npy", "iteration,layer,micro-batch,source,expert"))
    with pytest.raises(InputError, match="name its axes, such as --axes"):
        drawn("turned.npy", None)


def test_what_is_fine():
    assert len(Compare().models) == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        Compare().seed = 1  # type: ignore[misc]
    assert "a server has 8 GPUs and 4 NICs; use nic_use 'pooled' or 8 NICs" in refused(**TINY, nics=4)
    assert Compare(**TINY, nics=4, nic_use=("pooled",)).nic_use == ("pooled",)
    assert Compare(**TINY, nics=4, fabrics=("mfabric",)).fabrics == ("mfabric",)


def test_float64_needs_x64():
    sentence = r"^dtype float64 needs jax\.config\.update\('jax_enable_x64', True\)"
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=sentence):
        next(compare(small()))
