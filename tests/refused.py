"""Mistakes are sentences: what is refused, and in which words."""

import pytest

from mfabric_jax import InputError


def check_refused(sentence, call, *args, **named):
    """The call raises an `InputError` in which this pattern is found."""
    with pytest.raises(InputError, match=sentence):
        call(*args, **named)
