"""Optical circuit switches one can buy or read about: ports bound a region, the delay is what a reconfiguration costs.

They are those of `parts.toml` and of one's own file of prices.

Source: arXiv 2501.03905, table of OCS technologies; where it gives a range, both ends. Prices and power: `parts.toml`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, Misfit, one_of, positive, whole
from mfabric_jax.fabric.cost import one_number
from mfabric_jax.fabric.parts_file import packaged, with_own


@dataclass(frozen=True)
class Ocs:
    """`ports` of one switch; `delay_s`: fastest and slowest reconfiguration, None where nobody reports it.

    - `usd`, `watts` of a switch, `usd_per_port`, `watts_per_port` of a port in use, beside it; None is not known.
    - `turns_per_s`: how often it may set all its circuits anew; None: as fast as its delay allows.
    """

    name: str
    technology: str
    ports: int
    delay_s: tuple[float, float] | None = None
    usd: float | None = None
    usd_per_port: float | None = None
    watts: float | None = None
    watts_per_port: float | None = None
    turns_per_s: float | None = None
    source: str = ""

    @property
    def port_usd(self) -> float | None:
        """Dollars of a port in use: none beside the price of the switch, if that is all there is."""
        return 0 if self.usd_per_port is None and self.usd is not None else self.usd_per_port

    def port_watts(self, assumed: float | None) -> float | None:
        """Watts of a port in use; `assumed` where nothing is published."""
        known = 0 if self.watts_per_port is None and self.watts is not None else self.watts_per_port
        return assumed if known is None else known

    def check_region(self, servers: int, degree: int) -> None:
        """A region needs a port for every optical NIC."""
        if servers * degree > self.ports:
            raise Misfit(
                f"ocs {self.name!r} has {self.ports} ports, but a region of {servers} servers with optical_degree "
                f"{degree} needs {servers * degree}; choose a larger switch or a smaller degree."
            )

    def switches(self, region_ports: Any, regions: Any) -> Any:
        """How many of it serve regions of so many ports each, numbers or arrays; a region is on one switch."""
        together = np.maximum(self.ports // np.maximum(region_ports, 1), 1)
        needed = np.where(np.asarray(region_ports) > 0, -(-regions // together), 0)
        return needed if needed.ndim else needed.item()


NUMBERS = ("usd", "usd_per_port", "watts", "watts_per_port")


def _ocs(name: str, given: Mapping[str, Any]) -> Ocs:
    """A switch from its table."""
    for field in given:
        one_of(f"field of ocs.{name}", field, [field.name for field in fields(Ocs)][1:])
    if "ports" not in given:
        raise InputError(f"ocs.{name} needs ports, how many one switch has.")
    whole(f"ocs.{name}.ports", given["ports"])
    for field in (*NUMBERS, "turns_per_s"):
        if given.get(field) is not None:
            one_number(f"ocs.{name}.{field}", given[field])
    if given.get("turns_per_s") is not None:
        positive(f"ocs.{name}.turns_per_s", given["turns_per_s"])
    for field in ("technology", "source"):
        if not isinstance(given.get(field, ""), str):
            raise InputError(f"ocs.{name}.{field} must be a text, got {given[field]!r:.80}.")
    values: dict[str, Any] = {"technology": "own", **given, "delay_s": _delays(name, given.get("delay_s"))}
    return Ocs(name, **values)


def _delays(name: str, given: Any) -> tuple[float, float] | None:
    """The fastest and the slowest, or one number for both."""
    if given is None:
        return None
    both = tuple(given) if isinstance(given, list) else (given, given)
    if len(both) != 2:
        raise InputError(f"ocs.{name}.delay_s must be one number or two, fastest and slowest, got {given!r}.")
    for end in both:
        one_number(f"ocs.{name}.delay_s", end)
    if both[0] > both[1]:
        raise InputError(f"ocs.{name}.delay_s must be fastest and slowest, got {given!r}.")
    return both


OCS = {name: _ocs(name, given) for name, given in packaged()["ocs"].items()}


def get_ocs(name: str, prices: str | Path | None = None) -> Ocs:
    """The switch of that name, of the package or of a file of prices; `InputError` for an unknown one.

    An `ocs_port` of that file is the price of all switches that it does not name.
    """
    if prices is None:
        return OCS[one_of("ocs", name, OCS)]
    table, own = with_own(prices)
    given = table["ocs"][one_of("ocs", name, table["ocs"])]
    if "ocs_port" in own and name not in own.get("ocs", {}):
        given = {**given, "usd_per_port": own["ocs_port"]}
    return OCS[name] if given == packaged()["ocs"].get(name) else _ocs(name, given)
