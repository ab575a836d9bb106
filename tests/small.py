"""Small comparisons, each solved once, and JAX as a user has it."""

import contextlib
import functools

import jax
import jaxtyping
import numpy as np
import pytest

from mfabric_jax import Case, InputError, cases, load, resolve, simulate
from mfabric_jax.evaluate.solving import problem_at

MODEL = "mixtral-8x7b"  # four servers a region; llama-moe has two
# One stage of 16 servers: 8 groups of 4 ranks on 2 servers, or 2 scale-up domains of 64 GPUs, 4 groups in each.
JOB = {f"job.parallel.{name}": degree for name, degree in (("tp", 4), ("pp", 1), ("dp", 8), ("ep", 4))}
JOB |= {"job.batch.micro_batches": 1, "traffic.drawn": 1}


@functools.cache
def base(preset="paper"):
    """The paper's set-up at half of the GPU's peak, two micro-batches, in float64, on 100 Gbps NICs, drawn once."""
    given = {"job.batch.micro_batches": 2, "compute.efficiency": 0.5, "network.nic_gbps": 100, "run.dtype": "float64"}
    return load(preset=preset).with_({"model.name": MODEL, "run.draws": 1} | given)


def small(changes=None, model=MODEL, preset="paper"):
    """One case; all of one model share their compiled programs."""
    return base(preset).with_({"model.name": model} | (changes or {}))


def several(changes, axes, model=MODEL):
    """Small cases along axes."""
    return tuple(cases(small(changes, model), axes))


@functools.cache
def rows(asked):
    """The rows of a case or of a tuple of them, solved once."""
    return tuple(simulate(asked).rows())


def row(asked):
    """The only row."""
    (one,) = rows(asked)
    return one


def model_file(path, heads=(2, 1, 32), **facts):
    """The path of a file of a small model of 16 experts, with these facts instead or beside; None leaves one out.

    - `heads`: of queries, of keys and values, and their width.
    """
    attention = "{{ heads = {}, kv_heads = {}, head_dim = {} }}".format(*heads)
    usual = {"blocks": 3, "hidden": 64, "attention": attention, "experts": 16, "top_k": 2, "expert_hidden": 32}
    given = usual | {"vocab": 1000} | facts
    path.write_text("".join(f"{name} = {value}\n" for name, value in given.items() if value is not None))
    return str(path)


def scenario(case):
    """One model on one fabric with its traffic, at the bandwidth of its case."""
    return problem_at(resolve(case), (case.network.nic_gbps,))


def grid(changes, axes):
    """Rows of a small case along axes."""
    return simulate(cases(small(changes), axes)).rows()


def refused(changes, case=None):
    """The one sentence about a case that cannot be."""
    with pytest.raises(InputError) as caught:
        resolve((Case() if case is None else case).with_(changes))
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
    """Standard promotion, and annotations of shapes that are not checked."""
    with configured(jax_numpy_dtype_promotion="standard"), unchecked():
        yield


@contextlib.contextmanager
def unchecked():
    """Annotated shapes as users have them: functions judge arrays and lists themselves."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


# --------------------------------------------------------------------------------- rows by the values of their columns
def column(rows, name, **values):
    """What a column holds in the rows with these."""
    return np.array([row[name] for row in rows if values.items() <= row.items()])


def only(rows, **values):
    """The one row with these."""
    (row,) = (row for row in rows if values.items() <= row.items())
    return row
