"""Times that communication tools measured on a user's cluster, and the latency and bandwidth fitted to them."""

from mfabric_jax.apps.recordings.measurements.fit import fit_points as fit_points
from mfabric_jax.apps.recordings.measurements.formats import read_times as read_times
from mfabric_jax.apps.recordings.measurements.placed import UserFacts as UserFacts
from mfabric_jax.apps.recordings.measurements.placed import points_of as points_of
from mfabric_jax.apps.recordings.measurements.written import write_measured as write_measured
