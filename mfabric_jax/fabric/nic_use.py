"""How the GPUs of a server use its NICs, and what therefore crosses the NVSwitch."""

from typing import Any, Literal, get_args

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, concrete

NicUse = Literal["own", "pooled"]
PORTS = 2  # ports of a NIC with a circuit in each direction around the ring of its rail
NIC_USES: tuple[str, ...] = get_args(NicUse)
# How bytes cross the NVSwitch of a server; see `routing.fixed.delegated_bytes`.
Handover = Literal["none", "to the rail", "levelled", "spread"]
RING_NICS = 2  # NICs of a server per ring: one for each neighbour


def optical_ports(gpu_tbps: Any, nic_gbps: Any) -> Any:
    """Return the optical ports of a GPU with co-packaged optics: those that fit half of its non-Ethernet bandwidth.

    Arguments may be traced, or arrays over cases [N]. Raise `InputError` if no port fits.
    """
    ports = (units.to_gbps(units.tbps(gpu_tbps)) - nic_gbps) // (2 * nic_gbps)
    if concrete(ports) and np.any(ports < 1):
        nic_gbps = np.max(nic_gbps)
        raise InputError(f"gpu_tbps {gpu_tbps:g} leaves no optical port of nic_gbps {nic_gbps:g} for a GPU.")
    return ports.astype(np.int32) if np.ndim(ports) or not concrete(ports) else int(ports)
