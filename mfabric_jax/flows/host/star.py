"""Stars of ports on the host: ends of all-to-alls, one instance after the other, in double precision."""

from typing import Any

import numpy as np

from mfabric_jax.support.loops import at_first_call

# (stars [B N N], ports, groups, array for every flow's end) -> end of each star's last flow [B]
_ends = at_first_call("mfabric_jax.flows.host.star_loops:ends_of_all")


def latest_ends(size: Any, leaf: Any, groups: Any = None) -> np.ndarray:
    """Return when the last flow of each star ends [B] s: `star_completion(...).max()` in float64, without XLA.

    - `size` [B N N]: bytes from endpoint i to endpoint j. `leaf` [2 N]: capacities up and down [bytes/s].
    - `groups` [2 G]: capacities that N/G neighbouring endpoints share; infinity is no limit.

    The result is 0 without bytes, infinity if bytes cross a dead port, NaN if an input is NaN or a size infinite.
    """
    size, leaf, groups = _arrays(size, leaf, groups)
    if not np.isfinite(size).all() or np.isnan(leaf).any() or np.isnan(groups).any():
        ends = [
            _ends(instance[None], leaf, groups, NO_FLOW)[0] if _is_valid(instance, leaf, groups) else np.nan
            for instance in size
        ]
        return np.array(ends).reshape(len(size))
    return _ends(size, leaf, groups, NO_FLOW)


def flow_ends(size: Any, leaf: Any, groups: Any = None) -> np.ndarray:
    """Return when every flow of each star ends [B N N] s, 0 without bytes.

    Inputs as in `latest_ends`, but finite, and every port has capacity.
    """
    size, leaf, groups = _arrays(size, leaf, groups)
    each = np.zeros(size.shape)
    _ends(size, leaf, groups, each)
    return each


NO_FLOW = np.zeros((0, 0, 0))


def _arrays(size: Any, leaf: Any, groups: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    size, leaf = np.ascontiguousarray(size, float), np.ascontiguousarray(leaf, float)
    return size, leaf, np.zeros((2, 0)) if groups is None else np.ascontiguousarray(groups, float)


def _is_valid(size: np.ndarray, leaf: np.ndarray, groups: np.ndarray) -> bool:
    return bool(np.isfinite(size).all() and not np.isnan(leaf).any() and not np.isnan(groups).any())
