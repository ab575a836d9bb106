"""Numbers as text, the same text wherever a value is printed; percent, millions, units."""

import math
from collections.abc import Sequence
from typing import Any

MISSING = "-"
_DIGITS, _EXACT, _CLEAN = 3, 4, 12  # significant digits: rounded, exact, without noise
_SMALLEST_POWER, _LARGEST_POWER = -5, 9  # powers of ten; numbers outside are printed with an exponent
_MOST_NAMES = 12
LARGEST = 1e150  # differences and ratios of numbers between SMALLEST
SMALLEST = 1e-150  # and LARGEST are finite


def usable(value: Any) -> float | None:
    """Return the value as a float; None for text, infinities and NaN."""
    if value is None or isinstance(value, str) or not abs(value) <= LARGEST:
        return None
    return float(value) if abs(value) >= SMALLEST else 0.0


def plain_scalar(value: Any) -> Any:
    return value.item() if getattr(value, "shape", None) == () else value


def count_phrase(count: int, singular: str, plural: str = "") -> str:
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def millions(dollars: float) -> float:
    return dollars / 1_000_000


def _unit(value: float, units: Sequence[str], least: float) -> tuple[str, float]:
    for power, unit in enumerate(units):
        if value * 1000**power >= least or value == 0 or unit == units[-1]:
            return unit, 1000.0**power
    raise AssertionError(units)


def bytes_unit(gigabytes: float) -> tuple[str, float]:
    """Return the best unit of a size (GB or smaller) and the factor from gigabytes to it."""
    return _unit(gigabytes, ("GB", "MB", "kB", "B"), 0.1)


def time_unit(seconds: float, least: float = 1.0) -> tuple[str, float]:
    """Return the best unit of times up to `seconds` and the factor from seconds to it."""
    return _unit(seconds, ("s", "ms", "us", "ns"), least)


def number(value: Any, digits: int = _DIGITS) -> str:
    """Return a value as tables, pages, pictures and sentences print it; the text depends only on the value.

    A number of at most `_EXACT` digits, such as a setting, is printed exactly: 400, 0.025, 1024. Others are rounded to
    `digits` significant digits, which a predicted time supports, and keep trailing zeros: 0.210. Digits before the
    point are never rounded: 12346. Numbers below 1e-5 or from 1e9 on have an exponent.
    """
    if value is None:
        return MISSING
    if isinstance(value, str | int):
        return str(value)
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else str(float(value))
    exact = float(f"{value:.{_CLEAN - 1}e}")  # 0.1 + 0.2 is 0.3
    held = float(f"{exact:.{_EXACT - 1}e}") == exact
    text = f"{exact:.{(_EXACT if held else digits) - 1}e}"
    mantissa, power = text.split("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if held else mantissa
    if not _SMALLEST_POWER <= int(power) < _LARGEST_POWER:
        return f"{mantissa}e{power}"
    places = len(mantissa.partition(".")[2]) - int(power)
    return f"{exact:.{max(0, places)}f}"


def with_error(value: Any, error: Any) -> str:
    """Return a number with the digits that its error supports, to the first of the error, and at least its usual ones.

    An error that is unknown or 0 supports no further digits.
    """
    text, error = number(value), usable(error)
    if not error or isinstance(value, str) or usable(value) is None or "e" in text:
        return text
    places = -math.floor(math.log10(abs(error)))
    return f"{value:.{min(places, _CLEAN)}f}" if places > len(text.partition(".")[2]) else text


def percent(share: Any, signed: bool = False) -> str:
    """Return a share in percent, to a tenth; `signed`: with its sign."""
    if share is None or isinstance(share, str) or not math.isfinite(share):
        return number(share)
    text = f"{share:{'+' if signed else ''}.1%}"
    return text.replace("-0.0%", "+0.0%" if signed else "0.0%")


def join_names(names: Sequence[Any], last: str = "and", most: int = _MOST_NAMES) -> str:
    """Return "a, b and c"; more than `most` end in "and 5 more". Names with commas are apart by semicolons."""
    every = [str(name) for name in names]
    if len(every) > most:
        every = [*every[:most], f"{len(every) - most} more"]
    if len(every) > 2 and any("," in name for name in every):
        return f"{'; '.join(every[:-1])}; {last} {every[-1]}"
    return f" {last} ".join(filter(None, [", ".join(every[:-1]), *every[-1:]])) or "none"
