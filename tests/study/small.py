"""Small comparisons, each solved once, and JAX as a user has it."""

import contextlib
import functools

import jax
import pytest
from mfabric_jax.study.legacy import compare

from mfabric_jax import InputError
from mfabric_jax.study.config import Compare

MODEL = "mixtral-8x7b"  # four servers a region; llama-moe has two


def small(model=MODEL, **settings):
    """One model at one bandwidth, in float64; all of one model share their compiled programs."""
    given = {"models": (model,), "nic_gbps": (100.0,), "micro_batches": 2, "dtype": "float64", "compute": "achieved"}
    return Compare(**given | settings)


@functools.cache
def rows(config):
    """The rows of a comparison, solved once."""
    return tuple(compare(config))


def row(config):
    """The only row."""
    (one,) = rows(config)
    return one


def refused(**settings):
    """The one sentence about a comparison that cannot be."""
    with pytest.raises(InputError) as caught:
        Compare(**settings)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


@contextlib.contextmanager
def configured(**settings):
    """JAX with other settings for a while."""
    before = {name: jax.config.values[name] for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextlib.contextmanager
def as_a_user():
    """Standard promotion."""
    with configured(jax_numpy_dtype_promotion="standard"):
        yield
