"""Scale-up domains of any size and rate, plus one NIC per GPU on a switch tree.

A GPU has one port at each switch of its domain and uses all of them at once; a switch has one port per GPU. So an NVL72
(NVIDIA GB200: 18 ports of 50 GB/s) has 18 chips of 72 ports and 1,296 links. It is one non-blocking tier, so only the
ports of GPUs limit the rate. Sources disagree on what an NVL576 is, so the number of GPUs and their rate are settings.
"""

from collections.abc import Callable
from typing import Any

from mfabric_jax import units
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.site import About, Domain, Domains

PRICE = ("scale_up_per_gpu", "NVLink domains")


def domain_links(domain: Domain) -> int:
    """Return the number of links from GPUs to switches in a domain of one tier."""
    return domain.gpus * domain.planes


def _domain_of_settings(value_at: Callable[[str], Any]) -> Domain:
    gpus, ports, rate = (value_at(f"network.scale-up.{name}") for name in ("gpus", "ports", "port_gigabytes_per_s"))
    return Domain(gpus, ports * units.gigabytes_per_s(rate), ports)


SCALE_UP = OnTree(
    About(
        name="scale-up",
        summary="domains of `network.scale-up.gpus` GPUs, plus one NIC per GPU",
        look=("Scale-up domains", "#7F3C8D", "X"),
        domains=Domains(gpus=72, stated=_domain_of_settings, price=PRICE),
    )
)
