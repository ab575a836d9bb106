"""All schedulers, and the network that tests give them."""

from mfabric_jax.circuit_schedules.bvn import bvn
from mfabric_jax.circuit_schedules.eclipse import eclipse
from mfabric_jax.circuit_schedules.joint import joint
from mfabric_jax.circuit_schedules.keep_or_reconfigure import keep_or_reconfigure
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair


def short_joint(demand, **network):
    return joint(demand, programmes=30, **network)


PUBLISHED = (bvn, solstice, eclipse, spectra, whole_pair, keep_or_reconfigure)
SCHEDULERS = (*PUBLISHED, short_joint)


def network(**changed):
    """One directed all-stop switch without packet NICs, 1 byte/s; all turns paid."""
    usual = {"circuit_Bps": 1.0, "packet_Bps": 0.0, "switches": 1, "ports": 1, "delay_s": 0.01}
    return {**usual, "all_stop": True, "directed": True, "first_free": False, **changed}
