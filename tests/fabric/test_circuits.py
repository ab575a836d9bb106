"""What a legal set of circuits is, and round-robin matchings."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.fabric import Circuits
from mfabric_jax.fabric.circuits import round_robin

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


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("kind", [int, float])
def test_legal_circuits_pass_unchanged(kind, jitted):
    count = jnp.asarray(LEGAL, kind)
    got = checked(count, jnp.asarray(3)) if jitted else Circuits(count).checked(3).count
    np.testing.assert_array_equal(got, count)
    assert got.dtype == count.dtype


@pytest.mark.parametrize("rule", ILLEGAL)
def test_the_broken_rule_is_named(rule):
    with pytest.raises(Exception, match=f"circuits: {rule}"):
        Circuits(ILLEGAL[rule]).checked(3)


@pytest.mark.parametrize("rule", ILLEGAL)
def test_the_broken_rule_is_named_under_jit(rule):
    with pytest.raises(Exception, match=f"circuits: {rule}"):
        jax.block_until_ready(checked(jnp.asarray(ILLEGAL[rule]), jnp.asarray(3)))


def test_half_circuits_are_legal_within_the_degree():
    half = jnp.asarray([[0, 0.5], [0.5, 0]])
    assert Circuits(half).checked(0.5).count is not None
    with pytest.raises(Exception, match="more circuits at a server than its optical degree"):
        Circuits(half).checked(0.4)


def test_every_server_may_have_its_own_degree():
    degree = jnp.asarray([3, 3, 2])
    Circuits(LEGAL).checked(degree)
    with pytest.raises(Exception, match="more circuits at a server than its optical degree"):
        Circuits(LEGAL).checked(degree - jnp.asarray([0, 0, 1]))


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 2), ()])
def test_other_shapes_are_a_sentence(shape):
    with pytest.raises(InputError, match=r"count must be \[S S\], got \[") as caught:
        Circuits(np.zeros(shape, int))
    assert str(list(shape)) in str(caught.value)


@pytest.mark.parametrize("servers", range(1, 12))
def test_round_robin_lets_every_pair_meet_once(servers):
    rounds = round_robin(servers)
    assert rounds.shape[0] == servers - 1 + servers % 2
    met = dict.fromkeys(itertools.combinations(range(servers), 2), 0)
    for turn in rounds:
        pairs = [(i, j) for i, j in zip(*np.nonzero(turn), strict=True) if i < j]
        at = [server for pair in pairs for server in pair]
        assert len(set(at)) == len(at) == servers - servers % 2  # a matching: one rests if odd
        assert np.array_equal(turn, turn.T)
        assert set(np.unique(turn)) <= {0, 1}
        for pair in pairs:
            met[pair] += 1
    assert set(met.values()) <= {1}
    rests = np.argwhere(rounds.sum(axis=2) == 0)[:, 1]
    assert sorted(rests) == (list(range(servers)) if servers % 2 else [])
