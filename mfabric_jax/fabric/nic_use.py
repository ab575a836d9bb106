"""How the GPUs of a server use its NICs, and what crosses the NVSwitch for it."""

from typing import Literal, get_args

NicUse = Literal["own", "pooled"]
PORTS = 2  # of a NIC with circuits both ways around the ring of its rail
NIC_USES: tuple[str, ...] = get_args(NicUse)
Handover = Literal[
    "none", "to the rail", "levelled", "spread"
]  # over the NVSwitch of a server; see `routing.delegated`
