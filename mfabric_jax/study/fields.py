"""Types and choices of the fields of settings, and the check that values are among them."""

import dataclasses
import functools
import types
import typing
from typing import Any, Literal

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.workload.precision import PRECISIONS


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Types of a class's fields."""
    return typing.get_type_hints(cls)


def allowed_types(hint: Any) -> tuple[Any, ...]:
    """The types of a union, one by one."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return typing.get_args(hint)
    return (hint,)


def choices(hint: Any) -> tuple:
    """The values of a Literal, alone or in a union; empty where there is none."""
    return tuple(
        value for one in allowed_types(hint) if typing.get_origin(one) is Literal for value in typing.get_args(one)
    )


def check_of_simulator(dtype: Any) -> None:
    """`InputError` for a precision of what is sent in the place of that of the simulator."""
    if dtype in PRECISIONS:
        raise InputError(
            f"dtype is that of the simulator, float32 or float64; of what is sent it is precision {dtype}."
        )


def check_choices(settings: Any) -> None:
    """`InputError` for a field that is none of its choices, or no truth value where it must be one."""
    for field in dataclasses.fields(settings):
        hint, value = hints(type(settings))[field.name], getattr(settings, field.name)
        if field.name == "dtype":
            check_of_simulator(value)
        if hint is bool and not isinstance(value, bool):
            raise InputError(f"{field.name} must be true or false, got {value!r}.")
        values = choices(hint)
        if not values or value is None or value in values:
            continue
        if isinstance(values[0], str):
            one_of(field.name, str(value), values)
        raise InputError(f"{field.name} must be {' or '.join(map(str, values))}, got {value!r}.")
