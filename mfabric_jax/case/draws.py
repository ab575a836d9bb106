"""Random axes: a choice { of = [...] } or a range { low, high, scale, whole }; what they may say, and their values."""

import math
import sys
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mfabric_jax.checks import InputError, one_of

if TYPE_CHECKING:
    import numpy as np

SCALES = ("linear", "log")
WHOLE_BELOW = 2**31  # whole numbers are of 32 bits on devices
FORM = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_form(field: str, axis: Any) -> None:
    """`InputError` for what is neither a choice of at least one value nor a range."""
    keys = set(axis) if isinstance(axis, Mapping) else set()
    if keys == {"of"}:
        if not isinstance(axis["of"], list | tuple) or not axis["of"]:
            raise InputError(f"{field}.of must be a list of at least one value, got {axis['of']!r}.")
    elif not {"low", "high"} <= keys <= {"low", "high", "scale", "whole"}:
        raise InputError(f"{field} must be {FORM}, got {axis!r}.")


def check_range(field: str, low: Any, high: Any, scale: Any = "linear", whole: Any = False) -> None:
    """`InputError` for a range from which nothing can be drawn."""
    for end, value in (("low", low), ("high", high)):
        if not is_number(value) or not abs(value) <= sys.float_info.max:
            raise InputError(f"{field}.{end} must be a number, got {value!r:.80}.")
    one_of(f"{field}.scale", scale, SCALES)
    if not isinstance(whole, bool):
        raise InputError(f"{field}.whole must be true or false, got {whole!r}.")
    if low > high or (scale == "log" and low <= 0):
        least = "above 0 and " if scale == "log" else ""
        raise InputError(f"{field}.low must be {least}at most high ({high}), got {low}.")
    if not math.isfinite(high - low):
        raise InputError(f"{field} must be no wider than numbers are large, got from {low} to {high}.")
    if whole and (max(abs(low), abs(high)) >= WHOLE_BELOW or int(low) != low or int(high) != high):
        raise InputError(f"{field} is whole: low and high must be whole numbers below 2^31, got {low} and {high}.")


def draw(path: str, axis: Mapping[str, Any], count: int, seed: int) -> "np.ndarray":
    """Draw [count] values of a range, or places in the list of a choice; each path has a random stream of its own."""
    import numpy as np

    rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
    if "of" in axis:
        return rng.integers(len(axis["of"]), size=count)
    low, high, whole = axis["low"], axis["high"], axis.get("whole", False)
    if axis.get("scale", "linear") == "linear":
        return rng.integers(low, high, size=count, endpoint=True) if whole else rng.uniform(low, high, count)
    first, last = (low - 0.5, high + 0.5) if whole else (low, high)
    values = np.exp(rng.uniform(np.log(first), np.log(last), count))
    return np.clip(np.rint(values), low, high).astype(np.int64) if whole else np.clip(values, low, high)
