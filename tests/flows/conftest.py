"""The engine is tested as it is used: with the compiler's optimisations."""

import pytest

from tests.study.small import configured


@pytest.fixture(scope="module", autouse=True)
def optimised():
    """For every test here."""
    with configured(jax_disable_most_optimizations=False):
        yield
