"""How a mistake of the user is answered, and files that are mistaken."""

import contextlib

import jaxtyping
import numpy as np
import pytest

from mfabric_jax.checks import InputError


@contextlib.contextmanager
def as_users_call():
    """Annotated shapes are not checked, as in the programs of users: what is wrong reaches the package's own checks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def refused(call, *args, **named) -> str:
    """The one sentence with which a call is refused."""
    with as_users_call(), pytest.raises(InputError) as caught:
        call(*args, **named)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def check_refused(pattern, call, *args, **named):
    """The call raises an `InputError` in which this pattern is found."""
    with as_users_call(), pytest.raises(InputError, match=pattern):
        call(*args, **named)


def changed(content, rng):
    """The content with a part deleted, doubled or overwritten, or its end cut off."""
    data = bytearray(content)
    at, length = int(rng.integers(len(data))), int(rng.integers(1, 40))
    match rng.integers(4):
        case 0:
            del data[at : at + length]
        case 1:
            data[at:at] = data[at : at + length]
        case 2:
            data[at : at + 3] = rng.integers(256, size=len(data[at : at + 3]), dtype=np.uint8).tobytes()
        case 3:
            del data[at:]
    return bytes(data)
