"""First derivatives only: a second is an error, where rules of our own would make it a silent zero."""

from typing import Any

import jax

from mfabric_jax.checks import InputError


def once(primals: Any) -> Any:
    """The `primals` of a rule for derivatives, which cannot be differentiated again."""
    return _identity(primals)


@jax.custom_jvp
def _identity(primals):
    return primals


@_identity.defjvp
def _refuse(primals, tangents):
    raise InputError(
        "rates and completion times of flows have first derivatives alone; take the second by finite differences of "
        "the first, or put jax.lax.stop_gradient around the inputs of a first derivative that is meant as a constant."
    )
