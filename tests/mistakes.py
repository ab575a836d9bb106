"""How a mistake of the user is answered."""

import pytest

from mfabric_jax.checks import InputError


def refused(call, *args, **named) -> str:
    """The one sentence with which a call is refused."""
    with pytest.raises(InputError) as caught:
        call(*args, **named)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def check_refused(pattern, call, *args, **named):
    """The call raises an `InputError` in which this pattern is found."""
    with pytest.raises(InputError, match=pattern):
        call(*args, **named)
