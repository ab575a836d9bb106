"""Checks of user input. Each returns its value, or raises an `InputError` that names field, value and what is allowed.

A traced value is checked only for its type. The field's name selects the allowed range; values beyond it would exceed
memory, or give results that are 0 or infinite.
"""

import contextlib
import dataclasses
import difflib
import functools
import math
import numbers
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")


class InputError(ValueError):
    """A mistake in the user's input. The message is one sentence."""


class Misfit(InputError):
    """Values that are allowed individually but not together."""


@contextlib.contextmanager
def in_file(path: object | None) -> Iterator[None]:
    """Add the file's name to each mistake raised in the block that does not name it; None: the block reads no file."""
    named = str(path)
    try:
        yield
    except InputError as error:
        if path is None or named in str(error):
            raise
        raise type(error)(f"{named!r}: {error}") from error


class Range(NamedTuple):
    least: float
    most: float


MOST_WHOLE = 2**31 - 1  # largest whole number: devices count in 32 bits
ANY = Range(1e-30, 1e30)  # single precision ends at 1e-38 and 3e38
BY_UNIT = {  # by how a field's name ends
    "_s": Range(10**-12, 10**9),  # a picosecond, 30 years
    "_gbps": Range(10**-9, 10**9),  # a bit/s, an exabit/s
    "_tbps": Range(10**-9, 10**6),  # the same
    "_tflops": Range(10**-6, 10**9),  # a megaflop/s, 1e21 FLOP/s
    "_gigabytes": Range(10**-9, 10**12),  # a byte, a zettabyte
    "_gigabytes_per_s": Range(10**-9, 10**18),  # a byte/s, practically infinite
    "_bytes": Range(10**-3, 10**21),  # a fraction of a byte, a zettabyte
    "_bytes_per_s": Range(1, 10**21),  # a byte/s, a zettabyte/s
    "_efficiency": Range(10**-6, 100),  # above 1: calibrated to published times
    "_metre": Range(10**-6, 10**9),  # dollars per metre
}
BY_NAME = {  # by the whole name
    **{unit[1:]: sizes for unit, sizes in BY_UNIT.items()},
    "seconds": BY_UNIT["_s"],
    "goodput": Range(10**-6, 1),
    "oversubscription": Range(10**-3, 10**3),  # the servers of a large rack
    **dict.fromkeys(("sigma", "sigmas", "drift", "jitter", "noise", "row_noise", "micro_drift"), Range(10**-12, 10)),
    **dict.fromkeys(("skew", "layer_spread", "temperature"), Range(10**-12, 20)),  # 64 experts: 64^-20 is 1e-36
}
NAMED_UNITS = (  # units that may be the last word of a name
    *("s", "ms", "us", "ns", "ps", "minutes", "hours", "bps", "kbps", "mbps", "gbps", "tbps"),
    *("bytes", "kb", "mb", "gb", "tb", "mib", "gib"),
)
COUNTS = {  # largest value of each count
    **dict.fromkeys(("optical_degree", "electrical_nics", "nics", "radix"), 2**12),  # ports in one box
    **dict.fromkeys(("servers", "gpus_per_server", "gpus_per_rank", "attention_gpus"), 2**18),
    **dict.fromkeys(("gpus", "tp", "ep", "pp", "dp"), 2**24),
    **dict.fromkeys(("chunks", "overlap_parts", "drawn"), 2**10),
    **dict.fromkeys(("blocks", "num_hidden_layers", "num_layers", "n_layers"), 2**12),
    **dict.fromkeys(("experts", "num_experts", "num_local_experts", "n_routed_experts"), 2**16),
    **dict.fromkeys(("micro_batches", "scenarios"), 2**12),
    **dict.fromkeys(("iterations", "samples", "instances", "share_steps"), 2**16),
    **dict.fromkeys(("micro_batch", "sequence", "steps", "batch"), 2**26),
    **dict.fromkeys(("width", "depth", "workers", "calls", "sizes"), 2**12),
    **dict.fromkeys(("draws", "rows_per_shard"), 2**26),
    "parts": 2**20,  # files of one folder
    **dict.fromkeys(("seed", "draw_seed"), 2**32 - 1),  # keys of random numbers have 32 bits
}


def format_value(value: Any) -> str:
    """Return a value as a message shows it, cut to 80 characters. Python refuses to print very long whole numbers."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return f"a whole number {'below -' if value < 0 else 'above '}1e308"
    return f"{value!r:.80}"


@functools.lru_cache(maxsize=1024)
def _name(field: str) -> str:
    """Return the bare name in a field such as "run.json, flow 1: bytes" or "latency_s of link 3"."""
    return field.rpartition(": ")[2].partition(" ")[0].rpartition(".")[2]


@functools.lru_cache(maxsize=1024)
def _sizes(field: str) -> Range:
    name = _name(field)
    if name in COUNTS:
        return Range(ANY.least, COUNTS[name])
    unit = max((unit for unit in BY_UNIT if name.endswith(unit)), key=len, default="")
    return BY_NAME.get(name) or BY_UNIT.get(unit, ANY)


def check_size(field: str, value: float) -> None:
    sizes = _sizes(field)
    if value != 0 and not float(sizes.least) <= abs(value) <= float(sizes.most):
        got = format_value(value) if abs(value) > sys.float_info.max else f"{value:g}"
        raise InputError(f"{field} must be from {sizes.least:g} to {sizes.most:g}, got {got}.")


def check_unread(options: Any, fields: Iterable[str], why: str) -> None:
    """Raise InputError if one of these fields of a dataclass differs from its default although nothing reads it.

    `why`: what reads them, such as "validate packet" in "dtype applies only to validate packet; leave it out, got ...".
    """
    usual = {field.name: field.default for field in dataclasses.fields(options)}
    for name in fields:
        if (value := getattr(options, name)) != usual[name]:
            raise InputError(f"{name} applies only to {why}; leave it out, got {format_value(value)}.")


def concrete(value: Any) -> bool:
    """Return whether a value is known now, not traced by JAX."""
    core = sys.modules.get("jax.core")  # without it nothing is traced; help does not wait for JAX
    return core is None or not isinstance(value, core.Tracer)


def _plain(value: Any) -> Any:
    import numpy as np

    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array.tolist()


def _numbers(field: str, value: Any) -> "np.ndarray":
    import numpy as np  # slow to load, and not needed for settings in text

    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{field} must be a number, got {format_value(value)}.")
    return array


def number(field: str, value: T) -> T:
    if concrete(value) and _numbers(field, value).ndim:
        raise InputError(f"{field} must be a number, got {format_value(value)}.")
    return value


def _check_rule(field: str, value: T, rule: Callable[["np.ndarray"], Any], words: str) -> T:
    """Check that a number or array satisfies `rule`, which `words` describe, and lies in its field's range."""
    if type(value) in (int, float) and rule(value):  # type: ignore[arg-type]
        check_size(field, value)  # type: ignore[arg-type]
    elif concrete(value):
        array = _numbers(field, value)
        if not rule(array).all():
            raise InputError(f"{field} must be {words}, got {_plain(value)}.")
        if not array.ndim:  # Python compares single numbers faster
            check_size(field, array.item())
            return value
        sizes = _sizes(field)  # arrays of unknown fields pass
        wrong = (array > sizes.most) | ((array < sizes.least) & (array != 0))
        if wrong.any() and not (sizes is ANY and getattr(value, "ndim", 0)):
            raise InputError(f"{field} must be from {sizes.least:g} to {sizes.most:g}, got {array[wrong].flat[0]:g}.")
    elif getattr(value, "dtype", None) is not None and value.dtype.kind == "c":  # type: ignore[attr-defined]
        raise InputError(f"{field} must be a number, got {value.dtype}.")  # type: ignore[attr-defined]
    return value


def positive(field: str, value: T) -> T:
    """Check that a number or array is finite and above 0."""
    return _check_rule(field, value, lambda array: (array > 0) & (array < math.inf), "finite and above 0")


def not_negative(field: str, value: T) -> T:
    """Check that a number or array is finite and not negative."""
    return _check_rule(field, value, lambda array: (array >= 0) & (array < math.inf), "finite and not negative")


def fraction(field: str, value: T) -> T:
    """Check that a fraction is above 0 and at most 1."""
    return _check_rule(field, value, lambda array: (array > 0) & (array <= 1), "above 0 and at most 1")


def whole(field: str, value: int, *, at_least: int = 1) -> int:
    is_whole = type(value) is int or (isinstance(value, numbers.Integral) and not isinstance(value, bool))
    if not is_whole or value < at_least:
        raise InputError(f"{field} must be a whole number of at least {at_least}, got {format_value(value)}.")
    most = COUNTS.get(_name(field), MOST_WHOLE)
    if value > most:
        raise InputError(f"{field} must be at most {most:,}, got {format_value(value)}.")
    return int(value)


def check_together(**counts: int) -> None:
    """Raise Misfit if the product of these counts exceeds the largest size of a device array."""
    if math.prod(counts.values()) > MOST_WHOLE:
        got = " x ".join(f"{count:,}" for count in counts.values())
        raise Misfit(f"{' x '.join(counts)} must be at most {MOST_WHOLE:,} together, got {got}.")


def one_of(field: str, value: str, allowed: Iterable[str]) -> str:
    """Check that a name is in `allowed`; the error suggests the closest one."""
    names = list(allowed)
    if value not in names:
        check_letter_case(field, value, names)
        raise InputError(f"{field} {value!r} is unknown{suggestion(str(value), names)}; allowed: {', '.join(names)}.")
    return value


def check_letter_case(field: str, value: Any, names: Iterable[str]) -> None:
    """Raise `InputError` if a value is one of the names in other letter case."""
    lower = str(value).lower()
    if same := [name for name in names if name != value and str(name).lower() == lower]:
        raise InputError(f"{field} must be {same[0]!r} in this letter case, got {value!r}.")


def suggestion(word: str, names: Sequence[str]) -> str:
    """Return the name closest to a word as " (did you mean ...?)", or "" if none is close.

    A path that begins or ends with the word is preferred. A name with another unit is not suggested.
    """
    near = [name for name in names if "." in name and word in (name.partition(".")[0], name.rpartition(".")[2])]
    by_lower = {str(name).lower(): name for name in reversed(names)}
    close = [by_lower[lower] for lower in difflib.get_close_matches(word.lower(), by_lower, n=1)]
    near = near[:1] or [name for name in close if _unit(word) in ("", _unit(name))]
    return f" (did you mean {near[0]!r}?)" if near else ""


def _unit(name: str) -> str:
    last = name.lower().rpartition("_")[2]
    return last if last in NAMED_UNITS else ""


def of_type(field: str, value: T, *types: type, hint: str = "") -> T:
    """Check that a value has one of these types; `hint` ends the message and says how to make one."""
    if not isinstance(value, types):
        shape = getattr(value, "shape", None)
        got = type(value).__name__ + (f" {list(shape)}" if shape is not None and not callable(shape) else "")
        wanted = " or ".join(kind.__name__ for kind in types)
        raise InputError(f"{field} must be a {wanted}, got {got}{hint and f'; {hint}'}.")
    return value


def check_list(field: str, value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{field} must be a list or tuple, got {value!r}.")
    return value


def distinct(field: str, values: Sequence) -> Any:
    """Check that a list is not empty and repeats no value."""
    if not values or len(set(values)) < len(values):
        raise InputError(f"{field} must name at least one and repeat none, got {list(values)}.")
    return values


def names(field: str, values: Any, allowed: Iterable[str]) -> Any:
    """Check a list of names: not empty, all known, none repeated."""
    allowed = list(allowed)
    if not check_list(field, values):
        raise InputError(f"{field} must name at least one; allowed: {', '.join(allowed)}.")
    for name in values:
        one_of(field, name, allowed)
    if len(set(values)) < len(values):
        raise InputError(f"{field} must not repeat a name, got {', '.join(values)}.")
    return values
