"""Annotated shapes are checked whenever tests call the package; see `conftest.py`."""

import pathlib

import chex
import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

import mfabric_jax
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import FlowProblem, max_min_rates, star_completion
from mfabric_jax.routing import all_to_all_time
from tests.mistakes import check_refused

REGION, CIRCUITS = Region(3, 8.0, 1), Circuits(np.zeros((3, 3), int))
PROBLEM = FlowProblem(np.asarray([3.0, 4.0]), np.asarray([[0, 1], [1, -1], [-1, -1]]), cap=np.asarray([9.0, 9.0, 5.0]))


def test_a_wrong_shape_ends_in_an_error():
    assert all_to_all_time(REGION, CIRCUITS, jnp.ones((3, 3))) > 0
    for wrong in (jnp.ones((3, 4)), jnp.ones(3), jnp.ones((3, 3), int)):
        with pytest.raises(jaxtyping.TypeCheckError, match="demand"):
            all_to_all_time(REGION, CIRCUITS, wrong)
    check_refused("demand must be", all_to_all_time, REGION, CIRCUITS, jnp.ones((3, 4)))  # as users see it


def test_every_module_that_annotates_shapes_is_checked():
    """`conftest.py` finds them by how they import jaxtyping."""
    root = pathlib.Path(mfabric_jax.__file__).parent
    sources = [file.read_text(encoding="utf-8") for file in root.rglob("*.py")]
    assert [source for source in sources if "jaxtyping" in source and "from jaxtyping import" not in source] == []
    assert hasattr(all_to_all_time, "__wrapped__")


class TestVariants(chex.TestCase):
    """The same with and without a program around it."""

    @chex.variants(with_jit=True, without_jit=True)
    def test_rates(self):
        np.testing.assert_allclose(self.variant(max_min_rates)(PROBLEM).rate, [2.0, 2.0, 5.0])

    @chex.variants(with_jit=True, without_jit=True)
    def test_star(self):
        size = jnp.asarray([[0.0, 2.0], [0.0, 0.0]])
        finish = self.variant(star_completion)(size, jnp.ones(2), jnp.full(2, 0.5))
        np.testing.assert_allclose(finish, [[0.0, 4.0], [0.0, 0.0]])


def test_slopes_are_finite():
    def seconds(demand):
        return all_to_all_time(REGION, CIRCUITS, demand)

    chex.assert_tree_all_finite(jax.grad(seconds)(jnp.ones((3, 3))))
