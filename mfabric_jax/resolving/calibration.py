"""What published iteration times imply about computation: one achieved FLOP/s rate per model, and nothing else.

Other assumptions imply other rates, so each preset has its own.

Source: arXiv 2501.03905, iteration time on the non-blocking fat-tree at 100, 200, 400 and 800 Gbps, normalised: used
as ratios to the time at 800, three numbers a model. Skew comes from recordings, every other fabric from the simulation.
"""

import json
from importlib import resources
from typing import NamedTuple

BANDWIDTHS = (100.0, 200.0, 400.0, 800.0)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "mixtral-8x22b": (1.374, 1.194, 1.082, 1.024),
    "mixtral-8x7b": (1.210, 1.079, 1.030, 1.000),
    "llama-moe": (3.932, 2.188, 1.346, 1.000),
    "qwen-moe": (5.094, 2.730, 1.563, 1.000),
}

ASSUMED = ("paper", "released", "today")  # presets that `mfabric calibrate` was run under: calibrations/NAME.json


class Calibrated(NamedTuple):
    """`efficiency`: achieved over the peak of the default GPU (a time scale: it may exceed 1).

    - `compute_s`: computation of an iteration, busiest stage.   - `ratios`: fitted times over that at 800 Gbps.
    - `residuals`: these over the published ones, less 1.
    """

    efficiency: float
    compute_s: float
    ratios: tuple[float, ...]
    residuals: tuple[float, ...]


def _read(name: str) -> dict[str, Calibrated]:
    file = resources.files("mfabric_jax.resolving") / "calibrations" / f"{name}.json"
    if not file.is_file():
        return {}
    models = json.loads(file.read_text())["models"]
    return {
        name: Calibrated(one["efficiency"], one["compute_s"], tuple(one["ratios"]), tuple(one["residuals"]))
        for name, one in models.items()
    }


CALIBRATED = {name: _read(name) for name in ASSUMED}
