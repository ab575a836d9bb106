"""What the tests of this folder share."""

import pytest

from tests.study.small import as_a_user


@pytest.fixture(scope="module")
def as_users_have_it():
    """The rest of the tests are strict about dtypes."""
    with as_a_user():
        yield
