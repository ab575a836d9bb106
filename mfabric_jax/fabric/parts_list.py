"""Prices and power of the whole cluster: network parts, GPUs, servers, optical switches, and running costs.

Source of the optical switches: arXiv 2501.03905, table of OCS technologies; both ends of a range are kept.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, Misfit, in_file, number, one_of, positive, whole
from mfabric_jax.fabric.cost import BY_BANDWIDTH, Prices, Watts, as_tuples, one_number, package_table, updated_table
from mfabric_jax.support.bands import HIGH_GPUS, LOW_GPUS, LOW_PORTS
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.support.unread import name_unread

USUAL_SERVER = "hgx"
HOURS_A_YEAR = 8766


@dataclass(frozen=True)
class GpuPrice:
    usd: float | None = None
    server: str = USUAL_SERVER
    source: str = ""


@dataclass(frozen=True)
class Server:
    """A server for `gpus` GPUs, priced without its GPUs and network NICs; None: unknown.

    `includes`: what links the GPUs of a domain, if the server has as many and its price and watts include these links.
    """

    gpus: int = 8
    usd: float | None = None
    watts: float | None = None
    includes: str = ""
    source: str = ""


@dataclass(frozen=True)
class Running:
    """Running costs: `years` of depreciation for an always-on cluster, `pue` of its building."""

    usd_per_kwh: float
    pue: float
    years: float
    source: str = ""

    @property
    def seconds(self) -> float:
        return self.years * HOURS_A_YEAR * 3600


@dataclass(frozen=True)
class Ocs:
    """An optical switch; None: unknown.

    - `delay_s`: fastest and slowest reconfiguration.
    - `usd`, `watts`: of the switch; `usd_per_port`, `watts_per_port`: added for each port in use.
    - `reconfigurations_per_s`: most reconfigurations per second; None: only the delay limits them.
    """

    name: str
    technology: str
    ports: int
    delay_s: tuple[float, float] | None = None
    usd: float | None = None
    usd_per_port: float | None = None
    watts: float | None = None
    watts_per_port: float | None = None
    reconfigurations_per_s: float | None = None
    source: str = ""

    @property
    def port_usd(self) -> float | None:
        """Dollars per port in use; 0 if only the price of the switch is known."""
        return 0 if self.usd_per_port is None and self.usd is not None else self.usd_per_port

    def port_watts(self, assumed: float | None) -> float | None:
        """Return the watts per port in use; `assumed` if none are published."""
        known = 0 if self.watts_per_port is None and self.watts is not None else self.watts_per_port
        return assumed if known is None else known

    def check_region(self, servers: int, degree: int) -> None:
        """Raise `Misfit` if the switch has fewer ports than a region has optical NICs."""
        if servers * degree > self.ports:
            raise Misfit(
                f"ocs {self.name!r} has {self.ports} ports, but a region of {servers} servers with optical_degree "
                f"{degree} needs {servers * degree}; choose a larger switch or a smaller degree."
            )

    def switches(self, region_ports: Any, regions: Any) -> Any:
        """Return the switches for `regions` regions of `region_ports` ports each (numbers or arrays).

        A region is on one switch; a switch may hold several.
        """
        together = np.maximum(self.ports // np.maximum(region_ports, 1), 1)
        needed = np.where(np.asarray(region_ports) > 0, -(-regions // together), 0)
        return needed if needed.ndim else needed.item()


@dataclass(frozen=True)
class PartsTable:
    """The parts table in use; `gpus` and `servers` by name. `ocs`: the chosen optical switch; None: none is named."""

    prices: Prices
    watts: Watts
    gpus: Mapping[str, GpuPrice]
    servers: Mapping[str, Server]
    running: Running
    ocs: Ocs | None = None

    @classmethod
    @cached_by_files(lambda cls, path=None, ocs=None: (path,), maxsize=64)
    def read(cls, path: str | Path | None = None, ocs: str | None = None) -> "PartsTable":
        """Read the package's table, updated from a user's file; with `ocs`, optical ports have that switch's price.

        Raise `InputError` for unknown names and invalid prices.
        """
        with in_file(path):
            table, own = updated_table(path)
            prices = Prices() if path is None else Prices.read(path)
            watts, switch = _watts(table["watts"], own.get("watts", {})), None if ocs is None else get_ocs(ocs, path)
            if switch is not None:
                prices = dataclasses.replace(prices, ocs_port=switch.port_usd)
                watts = dataclasses.replace(watts, ocs_port=switch.port_watts(watts.ocs_port))
            gpus = _entries("gpus", table, GpuPrice, {"usd": one_number})
            checks = {"gpus": whole, "usd": one_number, "watts": one_number}
            servers = _entries("servers", table, Server, checks)
            for name, gpu in gpus.items():
                one_of(f"gpus.{name}.server", gpu.server, servers)
            served = {gpu.server for gpu in gpus.values()} | {*package_table()["servers"]}
            name_unread(
                repr(str(path)), "servers of no GPU", [name for name in own.get("servers", {}) if name not in served]
            )
            return cls(prices, watts, gpus, servers, _running(table["running"]), switch)

    def quote_variants(self, gpu: str) -> dict[str, "PartsTable"]:
        """Return the parts table at other quoted prices, by the column that shows the cost of tokens at that quote.

        The quotes are the lowest of a switch port, and the lowest and highest of a GPU. A user's own prices have no
        quotes.
        """
        known, port, usual, variants = package_table()["quoted"], port_quote(), Prices(), {}
        if self.prices.gbps == usual.gbps and self.prices.switch_port == usual.switch_port:
            variants[LOW_PORTS] = dataclasses.replace(self, prices=self.prices.with_port(port.gbps, port.usd[0]))
        if gpu in known["gpus"] and self.gpus[gpu].usd == package_table()["gpus"][gpu]["usd"]:
            for column, usd in zip((LOW_GPUS, HIGH_GPUS), known["gpus"][gpu], strict=True):
                gpus = {**self.gpus, gpu: dataclasses.replace(self.gpus[gpu], usd=usd)}
                variants[column] = dataclasses.replace(self, gpus=gpus)
        return variants

    def with_paid(self, part: str) -> "PartsTable":
        """Return the table with a part that costs nothing and draws nothing, unless it has a price or power."""
        tables = ("prices", self.prices), ("watts", self.watts)
        free = {name: dataclasses.replace(each, **{part: getattr(each, part) or 0}) for name, each in tables}
        return dataclasses.replace(self, **free)

    def server_of(self, gpu: str) -> Server:
        return self.servers[self.gpus.get(gpu, GpuPrice()).server]


def own_prices(path: str | Path) -> dict[str, tuple[Any, Any]]:
    """Return the values of a price file that differ from the package's: {dotted name: (value, package's or None)}.

    Raise `InputError` for unknown names.
    """
    own, usual = _flat(updated_table(path)[1]), _flat(package_table())
    return {name: (value, usual.get(name)) for name, value in own.items() if value != usual.get(name)}


def unlisted_gpus(path: str | Path) -> set[str]:
    """Return the GPUs of a price file that the package's table lacks."""
    return set(updated_table(path)[1].get("gpus", {})) - set(package_table()["gpus"])


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{prefix}{name}.")
        elif name != "source":
            values[prefix + name] = value
    return values


def _entries(table: str, tables: Mapping[str, Any], cls: type, checks: Mapping[str, Callable]) -> dict[str, Any]:
    return {name: _entry(f"{table}.{name}", entry, cls, checks) for name, entry in tables[table].items()}


def _entry(where: str, entry: Mapping[str, Any], cls: type, checks: Mapping[str, Callable], **extra: Any) -> Any:
    names = [field.name for field in dataclasses.fields(cls) if field.name not in extra]
    for field, value in entry.items():
        one_of(f"field of {where}", field, names)
        if field in checks and (value is not None or checks[field] is whole):
            checks[field](f"{where}.{field}", value)
        elif field not in checks and not isinstance(value, str):
            raise InputError(f"{where}.{field} must be text, got {value!r:.80}.")
    return cls(**{**entry, **extra})


def _watts(table: Mapping[str, Any], own: Mapping[str, Any]) -> Watts:
    missing = [field for field in BY_BANDWIDTH if field not in own]
    if "gbps" in own and missing:
        raise InputError(f"watts.gbps needs the power at its bandwidths; add {', '.join(missing)} to watts.")
    values = {field: value for field, value in table.items() if field != "source"}
    for field in values:
        one_of("field of watts", field, [*(field.name for field in dataclasses.fields(Watts)), "source"])
    try:
        return Watts(**as_tuples(values))
    except InputError as mistake:
        raise InputError(f"watts: {mistake}") from None


def _running(table: Mapping[str, Any]) -> Running:
    checks: dict[str, Callable] = dict.fromkeys(("usd_per_kwh", "pue", "years"), one_number)
    running = _entry("running", table, Running, checks)
    for field in checks:
        if getattr(running, field) is None:
            raise InputError(f"running.{field} must be a number, got nothing.")
    positive("running.years", running.years)
    if running.pue < 1:
        raise InputError(f"running.pue must be at least 1, got {running.pue!r}.")
    return running


def _ocs(name: str, entry: Mapping[str, Any]) -> Ocs:
    if "ports" not in entry:
        raise InputError(f"ocs.{name} needs ports, the number of ports of one switch.")
    numbers = dict.fromkeys(("usd", "usd_per_port", "watts", "watts_per_port"), one_number)
    checks: dict[str, Callable] = {"ports": whole, "delay_s": lambda field, value: None, **numbers}
    checks["reconfigurations_per_s"] = lambda field, value: positive(field, number(field, value))
    switch = _entry(f"ocs.{name}", {"technology": "own", **entry}, Ocs, checks, name=name)
    return dataclasses.replace(switch, delay_s=_delays(f"ocs.{name}.delay_s", entry.get("delay_s")))


def _delays(field: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    both = tuple(value) if isinstance(value, list) else (value, value)
    if len(both) != 2:
        raise InputError(f"{field} must be one number or two, fastest and slowest, got {value!r}.")
    for end in both:
        one_number(field, end)
    if both[0] > both[1]:
        raise InputError(f"{field} must be fastest and slowest, got {value!r}.")
    return both


class Quote(NamedTuple):
    """Quotes of a part at one bandwidth: the lowest and highest price, and the `product`."""

    gbps: float
    usd: tuple[float, float]
    product: str


def port_quote() -> Quote:
    """Return the quotes of a switch port; they are not its default price."""
    quotes = package_table()["quoted"]
    ((gbps, usd),) = quotes["switch_port"].items()
    return Quote(float(gbps), tuple(usd), quotes["source"]["switch_port"])


OCS = {name: _ocs(name, entry) for name, entry in package_table()["ocs"].items()}


def get_ocs(name: str, prices: str | Path | None = None) -> Ocs:
    """Return the optical switch of that name, from the package or a price file.

    An `ocs_port` of that file applies to all switches that it does not name. Raise `InputError` for an unknown name.
    """
    if prices is None:
        return OCS[one_of("ocs", name, OCS)]
    table, own = updated_table(prices)
    with in_file(prices):
        entry = table["ocs"][one_of("ocs", name, table["ocs"])]
        if "ocs_port" in own and name not in own.get("ocs", {}):
            entry = {**entry, "usd_per_port": own["ocs_port"]}
        return OCS[name] if entry == package_table()["ocs"].get(name) else _ocs(name, entry)
