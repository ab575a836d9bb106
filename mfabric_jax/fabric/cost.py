"""Cost and power of a fabric: dollars and watts of NICs and of the ports, transceivers and fibres behind them.

Prices (`parts.toml`) and the parts behind a NIC come from arXiv 2501.03905, whose trees have three tiers. Parts of
two-tier trees, and the links that oversubscription saves (links above a k:1 switch count 1/k), are our own count. Only
ports in use count. Prices between listed bandwidths are interpolated on log-log axes. No prices are published for
NVLink domains and co-packaged optics, so those fabrics cost None until the user gives a price.
"""

import functools
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, in_file, not_negative, number, one_of, positive, whole
from mfabric_jax.fabric.tree import TIERS, check_ratio
from mfabric_jax.support.text_files import read_mapping

Table = dict[str, Any]
TABLES = ("watts", "gpus", "servers", "ocs", "running", "source", "switch")
BY_NAME = ("gpus", "servers", "ocs", "switch")  # tables with a table per name
UNPUBLISHED = ("scale_up_per_gpu", "co_packaged_per_gpu")


@functools.cache
def package_table() -> Table:
    return tomllib.loads((resources.files("mfabric_jax.fabric") / "parts.toml").read_text(encoding="utf-8"))


def prices_by_part() -> tuple[str, ...]:
    return (*(name for name, value in package_table().items() if not isinstance(value, dict)), *UNPUBLISHED)


def updated_table(path: str | Path | None) -> tuple[Table, Table]:
    """Return the package's table updated from a `.toml` or `.json` file, and the table of the file alone.

    Raise `InputError` for an unknown name, and for a value where a table is needed.
    """
    own = {} if path is None else read_mapping(path, "prices")
    for name, value in own.items():
        one_of("price", name, (*prices_by_part(), *TABLES))
        if name in TABLES:
            _table(name, value)
    for table in BY_NAME:
        for name, entry in own.get(table, {}).items():
            _table(f"{table}.{name}", entry)
    full_table = {
        name: _merge_values(package_table().get(name), own.get(name), name in BY_NAME)
        for name in {**package_table(), **own}
    }
    return full_table, own


def _table(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a table of values by name, got {value!r:.80}.")


def _merge_values(known: Any, own: Any, by_name: bool) -> Any:
    if not isinstance(known, dict):
        return known if own is None else own
    own = own or {}
    if by_name:
        return {name: {**known.get(name, {}), **own.get(name, {})} for name in {**known, **own}}
    return {**known, **own}


BY_BANDWIDTH = ("transceiver", "nic", "switch_port")
NIC = "nic"
PARTS = (NIC, "switch_port", "transceiver", "fibre", "ocs_port", "panel_port")
SHARP_PORT = "sharp_port"
BESIDE_NICS = (*UNPUBLISHED, "rack_switch_per_server", SHARP_PORT)
_USD, _WATTS = package_table(), package_table()["watts"]


@dataclass(frozen=True)
class SwitchPrice:
    """The price of a whole packet switch: `usd` for a box with `ports` ports of `gbps`.

    - `nic_gbps`: bandwidth of the NICs and links at a port, which may serve several (twin ports, breakout).
    - `optics_usd`: price of the module in one port; None: the port takes `transceiver`s.
    """

    gbps: float
    usd: float
    ports: int
    nic_gbps: float
    optics_usd: float | None = None

    @property
    def links_per_port(self) -> float:
        """NICs or links that a port serves."""
        return self.gbps / self.nic_gbps

    @property
    def port_usd(self) -> float:
        """Dollars of the box per NIC or link that it serves."""
        return self.usd / (self.ports * self.links_per_port)

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any]) -> "SwitchPrice":
        """Return the price in the entry `switch.GBPS` of a file. Raise `InputError` if the entry is invalid."""
        where = f"switch.{name}"
        for field in entry:
            one_of(f"field of {where}", field, ("usd", "ports", "nic_gbps", "optics_usd", "source"))
        if lacks := [field for field in ("usd", "ports") if field not in entry]:
            raise InputError(f"{where} needs {' and '.join(lacks)} of a whole switch.")
        try:
            gbps = float(name)
        except ValueError:
            gbps = 0.0
        if not 0 < gbps < float("inf"):
            raise InputError(f"{where} must be named by the Gbps of its ports, such as switch.800.")
        for field in {"usd", "optics_usd"} & {*entry}:
            one_number(f"{where}.{field}", entry[field])
        whole(f"{where}.ports", entry["ports"])
        nic_gbps = positive(f"{where}.nic_gbps", number(f"{where}.nic_gbps", entry.get("nic_gbps", gbps)))
        if gbps % nic_gbps:
            raise InputError(f"{where}.nic_gbps must divide the {gbps:g} Gbps of a port, got {nic_gbps:g}.")
        return cls(gbps, entry["usd"], entry["ports"], float(nic_gbps), entry.get("optics_usd"))


@dataclass(frozen=True)
class Prices:
    """Dollars per part; prices that depend on bandwidth are lists.

    - `transceiver`, `nic`, `switch_port`: prices at the bandwidths `gbps`, which rise.
    - `ocs_port`: port of an optical switch; None: unknown.
    - `fibre_per_metre`, `metres_per_link`: a fibre is as long as a link.
    - `rack_switch_per_server`: a server's share of its rack's management switch, on every fabric. The paper has no such
      item; 0 leaves it out.
    - `sharp_port`: added to a port of a switch that reduces (`network.in-network.sharp`). Nobody publishes it; 0 leaves
      it out.
    - `switches`: whole switches; their ports replace `switch_port` for the NICs that they serve.
    - `scale_up_per_gpu`: per GPU of a scale-up domain, besides its Ethernet NIC; `co_packaged_per_gpu`: per GPU
      of mfabric-cpo, for NVLinks, co-packaged optics and switch ports. Nobody publishes these. None: unknown.
    """

    gbps: tuple[float, ...] = tuple(_USD["gbps"])
    transceiver: tuple[float, ...] = tuple(_USD["transceiver"])
    nic: tuple[float, ...] = tuple(_USD["nic"])
    switch_port: tuple[float, ...] = tuple(_USD["switch_port"])
    ocs_port: float | None = _USD["ocs_port"]
    panel_port: float = _USD["panel_port"]
    fibre_per_metre: float = _USD["fibre_per_metre"]
    metres_per_link: float = _USD["metres_per_link"]
    rack_switch_per_server: float = _USD["rack_switch_per_server"]
    sharp_port: float = _USD[SHARP_PORT]
    scale_up_per_gpu: float | None = None
    co_packaged_per_gpu: float | None = None
    switches: tuple[SwitchPrice, ...] = ()

    def with_port(self, gbps: float, usd: float) -> "Prices":
        """Return the prices with another price of switch ports at a listed bandwidth."""
        each = zip(self.gbps, self.switch_port, strict=True)
        return replace(self, switch_port=tuple(usd if listed == gbps else port for listed, port in each))

    def __post_init__(self):
        _check_table(self, "price", unknown=("ocs_port", *UNPUBLISHED))

    @classmethod
    def read(cls, path: str | Path) -> "Prices":
        """Read prices from a `.toml` or `.json` file with the names above; missing names keep their defaults.

        A file with its own `gbps` must also list the prices at these bandwidths. It may leave out `switch_port` if it
        has whole switches that serve each bandwidth.
        """
        with in_file(path):
            return cls._of(path)

    @classmethod
    def _of(cls, path: str | Path) -> "Prices":
        _, own = updated_table(path)
        values = {field: own[field] for field in prices_by_part() if field in own}
        switches = tuple(SwitchPrice.of(name, entry) for name, entry in own.get("switch", {}).items())
        if len({switch.nic_gbps for switch in switches}) < len(switches):
            raise InputError(f"switches in {str(path)!r} must serve NICs of different nic_gbps.")
        if "gbps" in values:
            _complete(values, str(path), {switch.nic_gbps: switch for switch in switches})
        return cls(**as_tuples(values), switches=switches)

    def switch_for(self, nic_gbps: float) -> SwitchPrice | None:
        """Return the whole switch that serves NICs of this bandwidth; None if no price is given."""
        return next((switch for switch in self.switches if switch.nic_gbps == nic_gbps), None)

    def _port(self, switch: SwitchPrice) -> float:
        """Dollars of a port per NIC or link: its share of the box, plus the price of its optics above a transceiver."""
        if switch.optics_usd is None:
            return switch.port_usd
        return (
            switch.port_usd + switch.optics_usd / switch.links_per_port - self.price_of("transceiver", switch.nic_gbps)
        )

    def price_of(self, part: str, nic_gbps: Any) -> Any:
        """Return the price of a part (`PARTS`, `BESIDE_NICS`) at one bandwidth or an array of them [dollars].

        A fibre is as long as a link.
        """
        one_of("part", part, (*PARTS, *BESIDE_NICS))
        if part == "fibre":
            return self.fibre_per_metre * self.metres_per_link
        if part not in BY_BANDWIDTH:
            return getattr(self, part)
        low, high = self.gbps[0], self.gbps[-1]
        for gbps in (np.min(nic_gbps), np.max(nic_gbps)):
            if not low <= gbps <= high:
                raise InputError(
                    f"nic_gbps {gbps:g} has no price; prices are listed from {low:g} to {high:g} Gbps: take one of "
                    "these, or list your own prices by gbps in network.prices."
                )
        value = _between(self.gbps, getattr(self, part), nic_gbps)
        for switch in self.switches if part == "switch_port" else ():
            value = np.where(np.asarray(nic_gbps) == switch.nic_gbps, self._port(switch), value)
        return value.item() if isinstance(value, np.ndarray) and not value.ndim else value


def _complete(values: Table, file: str, quoted: Mapping[float, SwitchPrice]) -> None:
    """Add port prices from whole switches if a file has its own `gbps`; raise `InputError` if prices are missing."""
    gbps = values["gbps"] if isinstance(values["gbps"], list) else []
    unquoted = [each for each in gbps if each not in quoted]
    if "switch_port" not in values and gbps and not unquoted:
        values["switch_port"] = [
            positive(f"usd of switch.{quoted[each].gbps:g}", quoted[each].port_usd) for each in gbps
        ]
    if missing := [field for field in BY_BANDWIDTH if field not in values]:
        serve = f", or [switch.GBPS] for NICs of {', '.join(map(str, unquoted))} Gbps" if quoted and unquoted else ""
        serve = serve if "switch_port" in missing else ""
        raise InputError(f"gbps in {file!r} needs prices at its bandwidths; add {', '.join(missing)}{serve}.")


@dataclass(frozen=True)
class Watts:
    """Electrical power per part, named as in `Prices`; None: unknown."""

    gbps: tuple[float, ...] = tuple(_WATTS["gbps"])
    transceiver: tuple[float, ...] = tuple(_WATTS["transceiver"])
    nic: tuple[float, ...] = tuple(_WATTS["nic"])
    switch_port: tuple[float, ...] = tuple(_WATTS["switch_port"])
    ocs_port: float | None = _WATTS["ocs_port"]
    panel_port: float | None = _WATTS["panel_port"]
    fibre: float | None = _WATTS["fibre"]
    rack_switch_per_server: float | None = _WATTS["rack_switch_per_server"]
    sharp_port: float | None = _WATTS[SHARP_PORT]
    scale_up_per_gpu: float | None = None
    co_packaged_per_gpu: float | None = None

    def __post_init__(self):
        _check_table(self, "power", unknown=("ocs_port", "panel_port", "fibre", *BESIDE_NICS))

    def watts_of(self, part: str, nic_gbps: Any) -> Any:
        """Return the watts of a part at one bandwidth or an array of them; None (NaN in an array) outside the list."""
        one_of("part", part, (*PARTS, *BESIDE_NICS))
        if part not in BY_BANDWIDTH:
            return getattr(self, part)
        low, high = self.gbps[0], self.gbps[-1]
        inside = (np.asarray(nic_gbps) >= low) & (np.asarray(nic_gbps) <= high)
        watts = _between(self.gbps, getattr(self, part), np.clip(nic_gbps, low, high))
        return np.where(inside, watts, np.nan) if inside.ndim else watts if inside else None


def _between(known: Any, listed: Any, nic_gbps: Any) -> Any:
    known, listed = np.asarray(known, float), np.asarray(listed, float)
    right = np.searchsorted(known, nic_gbps)
    value = np.exp(np.interp(np.log(nic_gbps), np.log(known), np.log(listed)))
    amount = np.where(known[right] == nic_gbps, listed[right], value)
    return amount if amount.ndim else amount.item()


def _check_table(table: Any, what: str, unknown: Sequence[str]) -> None:
    """Raise `InputError` unless bandwidths rise, lists have equal lengths and numbers are 0 or more."""
    listed = ("gbps", *BY_BANDWIDTH)
    for field in listed:
        value = getattr(table, field)
        several = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
        if not several or not all(isinstance(x, Real) and not isinstance(x, bool) for x in value):
            raise InputError(f"{field} must be a list of numbers, got {value!r:.80}.")
        positive(field, value)
        if len(value) != len(table.gbps):
            bandwidths = f"{len(table.gbps)} bandwidths in gbps"
            raise InputError(f"{field} must list one {what} for each of the {bandwidths}, got {list(value)}.")
    if any(low >= high for low, high in itertools.pairwise(table.gbps)):
        raise InputError(f"gbps must rise from one bandwidth to the next, got {list(table.gbps)}.")
    for field, value in vars(table).items():
        if field not in (*listed, "switches") and not (field in unknown and value is None):
            one_number(field, value)


def as_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {field: tuple(value) if isinstance(value, list) else value for field, value in values.items()}


def one_number(field: str, value: Any) -> None:
    """Raise `InputError` unless the value is one number, 0 or more."""
    not_negative(field, number(field, value))


@dataclass(frozen=True)
class Attachment:
    """Parts behind one NIC, without the NIC itself.

    - `links`: (kind of failure, number) of the links that these parts form; kinds as in `fabric.failures`. A link has
      two transceivers, or one if it ends on an optical switch or a patch panel.
    """

    switch_ports: Any = 0
    transceivers: Any = 1
    fibres: Any = 1
    ocs_ports: Any = 0
    panel_ports: Any = 0
    links: tuple[tuple[str, Any], ...] = ()

    @property
    def counts(self) -> dict[str, Any]:
        """Number of each of `PARTS`, including the NIC; zeros are left out."""
        behind = {part: getattr(self, f"{part}s") for part in PARTS if part != NIC}
        return {part: count for part, count in ({NIC: 1} | behind).items() if np.any(count)}


def tree_attachment(oversubscription: float = 1.0, tiers: Any = 3, oversubscribed_at: str = "edge") -> Attachment:
    """Return the parts behind a NIC on a tree, oversubscribed k:1 at the edge or (three tiers only) the aggregation.

    A link has a port and a transceiver at each end. The path up has one link per tier; above the oversubscribed switch,
    k NICs share a link. `tiers` may be an array. Switch ports, transceivers and fibres per NIC:

    - three tiers: 5, 6, 3 at 1:1; 1 + 4/k, 2 + 4/k, 1 + 2/k at the edge; 3 + 2/k, 4 + 2/k, 2 + 1/k at the aggregation;
    - two tiers: 3, 4, 2 at 1:1; 1 + 2/k, 2 + 2/k, 1 + 1/k at the edge;
    - one switch: 1, 2, 1.
    """
    positive("oversubscription", oversubscription)
    one_of("at", oversubscribed_at, ("edge", "aggregation"))
    for each in np.unique(tiers).tolist():
        if each not in TIERS:
            raise InputError(f"tiers must be 1, 2 or 3, got {each!r}.")
        check_ratio(each, oversubscription, oversubscribed_at)
    below = 1 if oversubscribed_at == "edge" else 2
    every = [(tier < tiers) * (1.0 if tier < below else 1 / oversubscription) for tier in range(max(TIERS))]
    return attachment_of_links(*every)


def attachment_of_links(nic: Any, up: Any = 0.0, spine: Any = 0.0) -> Attachment:
    """Return the parts behind a NIC from its numbers of links: to the edge, from the edge up, above the aggregation."""
    by_kind = (("nic-link", nic), ("link", up), ("spine-link", spine))
    links = nic + up + spine
    used = tuple((kind, count) for kind, count in by_kind if np.any(count))
    return Attachment(switch_ports=2 * links - 1, transceivers=2 * links, fibres=links, links=used)


REGIONAL_OCS = Attachment(ocs_ports=1, links=(("optical-link", 1),))
PATCH_PANEL = Attachment(panel_ports=1, links=(("optical-link", 1),))
# Fixed links between two servers: each link has two NICs, so a NIC counts half a link.
DIRECT_LINK = Attachment(fibres=0.5, links=(("link", 0.5),))  # two NICs share a fibre
THROUGH_OCS = Attachment(ocs_ports=1, links=(("link", 0.5),))
THROUGH_PANEL = Attachment(panel_ports=1, links=(("link", 0.5),))


class PartGroup(NamedTuple):
    """NICs of a server with the same attachment, what they lead `to`, and the parts behind each."""

    nics: Any
    to: str
    attachment: Attachment
