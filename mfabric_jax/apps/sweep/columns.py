"""Columns of the rows of sweeps."""

from mfabric_jax.evaluate.rows.rows import CASES
from mfabric_jax.support.columns import TEXT, Column, Columns

CONFIGURATION = Column("configuration", "", "Number of the configuration.")
SWEEP = Columns(CONFIGURATION, CASES)
ALL_TO_ALLS = Columns(
    CONFIGURATION,
    Column("servers", "", "Servers of the region."),
    Column("policy", TEXT, "Policy that chooses circuits."),
    Column("routing", TEXT, "How bytes use circuits."),
    Column("seconds", "s", "Time of the all-to-all."),
    Column("bound_s", "s", "Degree bound."),
    Column("over_bound", "", "`seconds` over `bound_s`."),
)
