"""Mistakes in failures, each answered with one sentence; see `tests/test_refusals.py`."""

from mfabric_jax.apps.failures.iterations import failures_of, failures_of_cases
from tests.evaluate.rows.refusals import LPT, PLACED
from tests.small import small

UNEQUAL = {"network.fabric": "fat-tree", "network.rails.speeds": (1.0, 0.5) * 4, "network.nic_gbps": 400}
REFUSED = [
    (lambda: failures_of(small(UNEQUAL)), "network.rails.speeds must be empty for failures, got [1.0, 0.5"),
    (lambda: failures_of_cases(small(PLACED)), f"{LPT}.every must be 0 for failures, got 2"),
    (lambda: failures_of(small({"circuits.policy": "static"})), "circuits.policy must not be static for failures"),
    (lambda: failures_of(small({"circuits.schedule": "spectra"})), "circuits.schedule must be none for"),
]
