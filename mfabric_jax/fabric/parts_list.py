"""Everything of a cluster that costs or draws: network parts, GPUs, servers, and what running it costs."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError, one_of, positive, whole
from mfabric_jax.fabric.cost import Prices, Watts, as_tuples, one_number
from mfabric_jax.fabric.ocs import Ocs, get_ocs
from mfabric_jax.fabric.parts_file import with_own

USUAL_SERVER = "hgx"
HOURS_A_YEAR = 8766


@dataclass(frozen=True)
class GpuPrice:
    """Dollars of a GPU, and the server that it sits in."""

    usd: float | None = None
    server: str = USUAL_SERVER
    source: str = ""


@dataclass(frozen=True)
class Server:
    """A server for so many GPUs, without these and without the NICs of the network; None is not known."""

    gpus: int = 8
    usd: float | None = None
    watts: float | None = None
    source: str = ""


@dataclass(frozen=True)
class Running:
    """What running costs: `years` until a cluster that always runs is written off, `pue`: of its building."""

    usd_per_kwh: float
    pue: float
    years: float
    source: str = ""

    @property
    def seconds(self) -> float:
        """Until it is written off."""
        return self.years * HOURS_A_YEAR * 3600


@dataclass(frozen=True)
class Parts:
    """The table of parts in use.

    - `prices`, `watts`: of the network.   - `gpus`, `servers`: by name.   - `running`.   - `ocs`: the optical switch
    that is asked for, None where none is named.
    """

    prices: Prices
    watts: Watts
    gpus: Mapping[str, GpuPrice]
    servers: Mapping[str, Server]
    running: Running
    ocs: Ocs | None = None

    @classmethod
    def read(cls, path: str | Path | None = None, ocs: str | None = None) -> "Parts":
        """The package's table, or a user's own over it; with `ocs` its prices of ports are those of that switch.

        `InputError` for unknown names, and for what is no price.
        """
        return _usual(ocs) if path is None else cls._of(path, ocs)

    @classmethod
    def _of(cls, path: str | Path | None, ocs: str | None) -> "Parts":
        table, _ = with_own(path)
        prices = Prices() if path is None else Prices.read(path)
        watts, switch = _watts(table["watts"]), None if ocs is None else get_ocs(ocs, path)
        if switch is not None:
            prices = dataclasses.replace(prices, ocs_port=switch.port_usd)
            watts = dataclasses.replace(watts, ocs_port=switch.port_watts(watts.ocs_port))
        gpus = _entries("gpus", table, GpuPrice, {"usd": one_number})
        checks = {"gpus": whole, "usd": one_number, "watts": one_number}
        servers = _entries("servers", table, Server, checks)
        for name, gpu in gpus.items():
            one_of(f"gpus.{name}.server", gpu.server, servers)
        return cls(prices, watts, gpus, servers, _running(table["running"]), switch)

    def server_of(self, gpu: str) -> Server:
        """The server that a GPU sits in."""
        return self.servers[self.gpus.get(gpu, GpuPrice()).server]


@functools.cache
def _usual(ocs: str | None) -> Parts:
    """The package's table, read once."""
    return Parts._of(None, ocs)


def _entries(table: str, found: Mapping[str, Any], cls: type, checks: Mapping[str, Callable]) -> dict[str, Any]:
    """The entries of a table of tables, each of a class."""
    return {name: _entry(f"{table}.{name}", given, cls, checks) for name, given in found[table].items()}


def _entry(where: str, given: Mapping[str, Any], cls: type, checks: Mapping[str, Callable]) -> Any:
    names = [field.name for field in dataclasses.fields(cls)]
    for field, value in given.items():
        one_of(f"field of {where}", field, names)
        if field in checks and (value is not None or checks[field] is whole):
            checks[field](f"{where}.{field}", value)
        elif field not in checks and not isinstance(value, str):
            raise InputError(f"{where}.{field} must be a text, got {value!r:.80}.")
    return cls(**given)


def _watts(given: Mapping[str, Any]) -> Watts:
    """Those of the network."""
    values = {field: value for field, value in given.items() if field != "source"}
    for field in values:
        one_of("field of watts", field, [*(field.name for field in dataclasses.fields(Watts)), "source"])
    try:
        return Watts(**as_tuples(values))
    except InputError as mistake:
        raise InputError(f"watts: {mistake}") from None


def _running(given: Mapping[str, Any]) -> Running:
    checks: dict[str, Callable] = dict.fromkeys(("usd_per_kwh", "pue", "years"), one_number)
    running = _entry("running", given, Running, checks)
    for field in checks:
        if getattr(running, field) is None:
            raise InputError(f"running.{field} must be a number, got nothing.")
    positive("running.years", running.years)
    if running.pue < 1:
        raise InputError(f"running.pue must be at least 1, got {running.pue!r}.")
    return running
