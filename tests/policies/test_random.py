"""Random circuits: legal, as many as the uniform topology has, other ones for other keys."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import REGISTRY, get, random_circuits, uniform

DRAWS = 60


@eqx.filter_jit
def drawn(degree, keys, servers):
    """Circuits for every key [key S S], and the uniform ones."""
    region = Region(servers, 400.0, degree)
    demand = jnp.zeros((servers, servers))
    return jax.vmap(lambda key: random_circuits(demand, region, key=key).circuits.count)(keys), uniform(
        demand, region
    ).circuits.count


def keys(seed):
    return jax.random.split(jax.random.key(seed), DRAWS)


@pytest.mark.parametrize(("servers", "degree"), [(4, 5), (5, 3), (8, 6)])
def test_the_uniform_topology_among_servers_dealt_new_places(servers, degree):
    count, even = map(np.asarray, drawn(jnp.asarray(degree), keys(servers), servers))
    assert len({one.tobytes() for one in count}) > 2
    for one in count:
        Circuits(one).checked(np.asarray(degree))
        np.testing.assert_array_equal(np.sort(one.ravel()), np.sort(even.ravel()))
    # Every pair is as likely as any other: the mean of a pair that has c or c + 1 circuits is within 4 sigma.
    share = (even.sum() / (servers * (servers - 1))) - even[~np.eye(servers, dtype=bool)].min()
    mean = count.mean(axis=0)[~np.eye(servers, dtype=bool)] - even[~np.eye(servers, dtype=bool)].min()
    np.testing.assert_allclose(mean, share, atol=4 * np.sqrt(share * (1 - share) / DRAWS))


def test_unequal_degrees_stay_with_their_servers():
    # Server 1 has no optical NIC, server 3 one: whoever gets which place, no one gets more than it has.
    degree = np.array([4, 0, 3, 1, 4, 2])
    count, even = map(np.asarray, drawn(jnp.asarray(degree), keys(0), 6))
    for one in count:
        Circuits(one).checked(degree)
    assert count[:, 1].sum() == 0
    assert (count.sum(axis=-1).max(axis=0)[[0, 4]] >= 2).all()  # those that have many do use them
    assert count.sum(axis=(1, 2)).mean() > even.sum() / 2
    assert len({one.tobytes() for one in count}) > 10


def test_the_same_key_gives_the_same_circuits_whatever_the_demand():
    region, key = Region(4, 400.0, 5), jax.random.key(1)
    once = random_circuits(np.zeros((4, 4)), region, key=key).circuits.count
    again = random_circuits(np.ones((4, 4)), region, previous=None, key=key).circuits.count
    np.testing.assert_array_equal(once, again)
    assert once.dtype == uniform(None, region).circuits.count.dtype
    assert get("random") is REGISTRY["random"] is random_circuits


def test_it_needs_a_key():
    with pytest.raises(InputError, match=r"^policy 'random' needs a key, got none\.$"):
        random_circuits(np.zeros((4, 4)), Region(4, 400.0, 5))
