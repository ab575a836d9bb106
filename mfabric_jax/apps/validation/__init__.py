"""Comparison of the simulator with packet-level runs and with trainings on real clusters."""

from typing import TYPE_CHECKING

from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.apps.validation.packets import packet_groups as packet_groups
    from mfabric_jax.apps.validation.packets import packet_rows as packet_rows
    from mfabric_jax.apps.validation.packets import predict as predict
    from mfabric_jax.apps.validation.packets import read_runs as read_runs
    from mfabric_jax.apps.validation.training_steps import training_rows as training_rows
    from mfabric_jax.apps.validation.training_steps import trainings as trainings

__getattr__ = at_first_use(
    __name__,
    {
        "packets": ("packet_groups", "packet_rows", "predict", "read_runs"),
        "training_steps": ("training_rows", "trainings"),
    },
)
