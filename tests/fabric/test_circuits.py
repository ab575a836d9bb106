"""What a legal set of circuits is, and round-robin matchings."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits
from mfabric_jax.fabric.circuits import round_robin
from tests.mistakes import refused

LEGAL = [[0, 2, 1], [2, 0, 1], [1, 1, 0]]  # degrees 3, 3, 2
ILLEGAL = {
    "not symmetric": [[0, 2, 1], [1, 0, 1], [1, 1, 0]],
    "a server joined to itself": [[1, 1, 0], [1, 0, 1], [0, 1, 0]],
    "a negative count": [[0, -1, 1], [-1, 0, 1], [1, 1, 0]],
    "more circuits at a server than its optical degree": [[0, 2, 2], [2, 0, 1], [2, 1, 0]],
}


@eqx.filter_jit
def checked(count, degree):
    return Circuits(count).checked(degree).count


def test_legal_circuits_pass_unchanged():
    for kind in (int, float):
        count = jnp.asarray(LEGAL, kind)
        for got in (checked(count, jnp.asarray(3)), Circuits(count).checked(3).count):
            np.testing.assert_array_equal(got, count)
            assert got.dtype == count.dtype
    half = jnp.asarray([[0, 0.5], [0.5, 0]])  # of a relaxation
    assert Circuits(half).checked(0.5).count is not None
    Circuits(LEGAL).checked(jnp.asarray([3, 3, 2]))  # every server may have its own degree


def test_the_broken_rule_is_named_under_jit_too():
    for rule, count in ILLEGAL.items():
        with pytest.raises(Exception, match=f"circuits: {rule}"):
            Circuits(count).checked(3)
        with pytest.raises(Exception, match=f"circuits: {rule}"):
            jax.block_until_ready(checked(jnp.asarray(count), jnp.asarray(3)))
    for count, degree in ((LEGAL, jnp.asarray([3, 3, 1])), ([[0, 0.5], [0.5, 0]], 0.4)):
        with pytest.raises(Exception, match="more circuits at a server than its optical degree"):
            Circuits(jnp.asarray(count)).checked(degree)


def test_other_shapes_are_a_sentence():
    for shape in ((3,), (2, 3), (2, 2, 2), ()):
        assert f"count must be [S S], got {list(shape)}" in refused(Circuits, np.zeros(shape, int))


def test_round_robin_lets_every_pair_meet_once():
    for servers in range(1, 12):
        rounds = round_robin(servers)
        assert rounds.shape == (servers - 1 + servers % 2, servers, servers)
        np.testing.assert_array_equal(rounds, rounds.transpose(0, 2, 1))
        np.testing.assert_array_equal(rounds.sum(0), 1 - np.eye(servers))
        partners = rounds.sum(2)
        assert partners.max(initial=0) <= 1  # a matching: one rests if odd
        np.testing.assert_array_equal((partners == 0).sum(0), servers % 2)
