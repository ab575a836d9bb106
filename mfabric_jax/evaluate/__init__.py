"""Iterations evaluated: policy, seconds of all-to-alls and clock, in batches on the host or composed in one program."""

from typing import TYPE_CHECKING

from mfabric_jax.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.evaluate.forecasts import guess_of, planned_on, sigma_of  # noqa: F401
    from mfabric_jax.evaluate.on_schedules import OnSchedules  # noqa: F401

__getattr__ = at_first_use(
    __name__, {"forecasts": ("guess_of", "planned_on", "sigma_of"), "on_schedules": ("OnSchedules",)}
)
