"""Flow-level simulation and control of reconfigurable optical fabrics for Mixture-of-Experts training.

Each public name is imported at first use, and JAX with it.
"""

import time

TYPE_CHECKING = False  # as in `typing`, whose import would delay the handling of interrupts in `cli`
if TYPE_CHECKING:
    from typing import Any

    from mfabric_jax import units
    from mfabric_jax.case import Case, cases, load
    from mfabric_jax.checks import InputError
    from mfabric_jax.evaluate import resolve, simulate
    from mfabric_jax.fabric import Circuits, Region
    from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates, star_completion
    from mfabric_jax.policies import Plan, greedy
    from mfabric_jax.routing import all_to_all_time
    from mfabric_jax.support import programs

__version__ = "0.2.0"
BEGAN = time.time()  # package files written later may differ from those that this process imported

__all__ = [
    "Case",
    "Circuits",
    "FlowProblem",
    "InputError",
    "Plan",
    "Region",
    "all_to_all_time",
    "cases",
    "completion_times",
    "greedy",
    "load",
    "max_min_rates",
    "programs",
    "resolve",
    "simulate",
    "star_completion",
    "units",
]
_FROM = {
    **{"InputError": "checks", "Circuits": "fabric", "Region": "fabric", "Plan": "policies", "greedy": "policies"},
    **dict.fromkeys(("FlowProblem", "completion_times", "max_min_rates", "star_completion"), "flows"),
    **{"Case": "case", "cases": "case", "load": "case", "all_to_all_time": "routing"},
    **{"resolve": "evaluate", "simulate": "evaluate"},
}


def __getattr__(name: str) -> "Any":
    import importlib.util

    if name == "programs":
        return importlib.import_module(f"{__name__}.support.programs")
    if name in _FROM:
        return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
    if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
