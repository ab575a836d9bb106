"""What a fabric costs: dollars per NIC and for the ports, transceivers and fibres behind it.

Prices and counts per NIC: PAPER section 5. Only ports in use count. Between two listed bandwidths prices are
interpolated on log-log axes; outside them there is no price.
"""

import itertools
import math
from dataclasses import dataclass

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.region import Region


@dataclass(frozen=True)
class Prices:
    """Dollars per part; those that depend on the bandwidth per listed Gbps."""

    gbps: tuple[float, ...] = (100, 200, 400, 800)
    transceiver: tuple[float, ...] = (99, 239, 659, 1399)
    nic: tuple[float, ...] = (659, 1079, 1499, 2248)
    switch_port: tuple[float, ...] = (187, 374, 1090, 1400)
    ocs_port: float = 520
    panel_port: float = 100
    fibre_per_metre: float = 0.3
    metres_per_link: float = 500

    def at(self, part: str, nic_gbps: float) -> float:
        """Price of `transceiver`, `nic` or `switch_port` at a bandwidth."""
        listed, low, high = getattr(self, part), self.gbps[0], self.gbps[-1]
        if not low <= nic_gbps <= high:
            raise InputError(f"nic_gbps {nic_gbps:g} has no price; prices are listed from {low:g} to {high:g} Gbps.")
        for (x0, x1), (y0, y1) in zip(itertools.pairwise(self.gbps), itertools.pairwise(listed), strict=True):
            if x0 <= nic_gbps <= x1:
                along = math.log(nic_gbps / x0) / math.log(x1 / x0)
                return y0 * (y1 / y0) ** along
        raise AssertionError("unreachable: the bandwidth is inside the list")


@dataclass(frozen=True)
class Attachment:
    """Parts behind one NIC, besides the NIC itself."""

    switch_ports: float = 0
    transceivers: float = 1
    fibres: float = 1
    ocs_ports: float = 0
    panel_ports: float = 0

    def cost(self, nic_gbps: float, prices: Prices) -> float:
        """Dollars of one NIC and all that is behind it."""
        return (
            prices.at("nic", nic_gbps)
            + self.switch_ports * prices.at("switch_port", nic_gbps)
            + self.transceivers * prices.at("transceiver", nic_gbps)
            + self.fibres * prices.fibre_per_metre * prices.metres_per_link
            + self.ocs_ports * prices.ocs_port
            + self.panel_ports * prices.panel_port
        )


def tree(oversubscription: float = 1.0) -> Attachment:
    """A NIC on a three-tier fat-tree, oversubscribed at the edge; at 1: 5 switch ports, 6 transceivers, 3 fibres."""
    above = 1 / oversubscription
    return Attachment(switch_ports=1 + 4 * above, transceivers=2 + 4 * above, fibres=1 + 2 * above)


REGIONAL_OCS = Attachment(ocs_ports=1)


def server_cost(fabric: Electrical | Region, nic_gbps: float, prices: Prices | None = None) -> float:
    """Networking dollars per server at a NIC bandwidth. A region's electrical NICs are paid as on a fat-tree."""
    prices = prices or Prices()
    if isinstance(fabric, Region):
        optical = float(fabric.optical_degree) * REGIONAL_OCS.cost(nic_gbps, prices)
        return optical + float(fabric.electrical_nics) * tree().cost(nic_gbps, prices)
    over = 1.0 if fabric.oversubscription is None else float(fabric.oversubscription)
    return fabric.nics * tree(over).cost(nic_gbps, prices)
