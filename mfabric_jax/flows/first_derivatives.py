"""First derivatives only: the second is an error, where rules of our own would make it a silent zero."""

from typing import TypeVar

import jax

from mfabric_jax.checks import InputError

T = TypeVar("T")


@jax.custom_jvp
def once(inputs: T) -> T:
    """`inputs` of a rule for derivatives, which cannot be differentiated again."""
    return inputs


@once.defjvp
def _refuse(primals, tangents):
    raise InputError(
        "rates and completion times of flows have first derivatives alone; take the second by finite differences of "
        "the first."
    )
