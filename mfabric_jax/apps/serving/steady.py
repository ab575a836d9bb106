"""Whether pools keep up with a load, from the columns of its row."""

from collections.abc import Mapping
from typing import Any

FINISHED = 0.9  # least ratio of finished to arriving requests of pools that keep up
LIVES = 5  # least length of a load, in times of a median request
SPARE = 1.25  # of a longer load, whose requests take longer once pools are full


def overloaded_pools(row: Mapping[str, Any]) -> list[str]:
    """Return the pools that are asked for more than they can process."""
    return [pool for pool in ("decode", "prefill") if (row[f"{pool}_load"] or 0.0) > 1]


def is_too_short(row: Mapping[str, Any]) -> bool:
    """Whether a load ends before its pools are in a steady state."""
    return row["load_window_s"] < LIVES * row["load_e2e_p50_s"]


def times_too_short(row: Mapping[str, Any]) -> float | None:
    """Return how many times the requests of a load make it long enough; None if all of them arrive at once."""
    window_s = row["load_window_s"]
    return SPARE * LIVES * row["load_e2e_p50_s"] / window_s if window_s else None


def falls_behind(row: Mapping[str, Any]) -> bool:
    """Whether requests arrive faster than the pools finish them. Early in a load few requests have finished, so a
    load that is too short shows only by its demand."""
    arrive, done = row["load_requests_per_s"], row["requests_per_s"]
    lags = arrive is not None and done is not None and done < FINISHED * arrive
    return bool(overloaded_pools(row)) or (lags and not is_too_short(row))
