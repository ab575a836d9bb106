"""Whether a row of serving is in time: the rule of `in_time`."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.apps.serving.expert_load import SURE


def is_in_time(row: Mapping[str, Any]) -> bool:
    """Return whether a row fits the memory and meets its limits on the time to first token and from token to token.

    `by` states whether the band's slow end or the prediction counts. Under a load, at least `serving.load.keep` of the
    requests must be in time, and no pool may be asked for more than its capacity: such a pool keeps up only with a
    short load. A load that was not simulated is in time for nobody.
    """
    if row["fits"] not in (True, None) or row.get("unsimulated"):
        return False
    return _meets_limits(row) if row.get("load_requests") is None else _keeps_up(row)


def _meets_limits(row: Mapping[str, Any]) -> bool:
    end = "_high" if row["by"] == "high" else ""
    limits = {what: row.get(f"{what}_limit_s") for what in ("tpot", "ttft")}  # a replica has none to the first token
    return all(limit is None or row[f"{what}{end}_s"] <= limit for what, limit in limits.items())


def _keeps_up(row: Mapping[str, Any]) -> bool:
    kept, least = row["in_slo"], row["in_slo_limit"]
    loads = [row[name] for name in ("decode_load", "prefill_load") if row[name] is not None]
    return (kept is None or least is None or kept >= least) and all(each <= 1 + SURE for each in loads)
