"""The settings of the pools that a row of `mfabric serve` has."""

from collections.abc import Mapping
from typing import Any

POOL_COLUMNS = {  # of rows, by setting
    **{"serving.ep": "ep", "serving.batch": "batch", "serving.overlap": "overlap"},
    **{f"serving.prefill.{name}": f"prefill_{name}" for name in ("ep", "tokens", "overlap")},
}
_SIZES = {"decode": "ep", "prefill": "prefill_ep"}  # columns of a group's GPUs, by pool


def settings_of_pools(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes of a row's pools by setting, under a load with their groups."""
    own = {path: row[column] for path, column in POOL_COLUMNS.items()}
    if row.get("load_decode_gpus") is None:
        return own
    groups = {pool: int(row[f"load_{pool}_gpus"] // row[size]) for pool, size in _SIZES.items()}
    return own | {f"serving.load.{pool}_groups": count for pool, count in groups.items()}
