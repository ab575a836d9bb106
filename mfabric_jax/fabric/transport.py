"""Transports: the part of fair-share bandwidth that they cost, and the time that they add.

The constants of `ndp` and `dctcp` come from one packet simulator at 100 Gbps and 1 us per link (htsim: csg-htsim of
2026-03-23). DCTCP's `startup_s` and `regain` are **calibrated** on 26 of its runs; its TCP packets have no headers.
"""

import dataclasses
from pathlib import Path
from typing import Any

from mfabric_jax.checks import InputError, fraction, not_negative, number, one_of, positive
from mfabric_jax.support.text_files import PARSERS, read_mapping
from mfabric_jax.units import us


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transport:
    """The effects of a transport beyond max-min fair sharing of bandwidth.

    - `payload_bytes`, `header_bytes`: of a packet; `pacing`: fraction of its line rate that a receiver requests.
    - `ack_bytes`: returned for every packet; `startup_s`: time until a message reaches its rate.
    - `regain`: how fast a flow takes up a freed share [payloads per round trip squared]; None: at once.
    - `store_and_forward`: a switch receives a whole packet before it forwards it.
    - `measured_bytes`: least and most bytes over a NIC in the measurement of the constants; None: not measured.
    """

    name: str
    payload_bytes: float
    header_bytes: float
    pacing: float = 1.0
    ack_bytes: float = 0.0
    startup_s: float = 0.0
    regain: float | None = None
    store_and_forward: bool = True
    measured_bytes: tuple[float, float] | None = None

    def __post_init__(self):
        if not isinstance(self.name, str):
            raise InputError(f"name must be text, got {self.name!r}.")
        for field, check in CHECKS.items():
            if (value := getattr(self, field)) is not None or field != "regain":
                check(field, number(field, value))
        if self.ack_bytes >= self.wire_bytes:
            raise InputError(
                f"ack_bytes must be below the {self.wire_bytes:g} bytes of a packet, got {self.ack_bytes:g}."
            )
        if not isinstance(self.store_and_forward, bool):
            raise InputError(f"store_and_forward must be true or false, got {self.store_and_forward!r}.")
        if self.measured_bytes is not None:
            _check_range("measured_bytes", self.measured_bytes)

    def beyond(self, size: float) -> bool:
        """Return whether an all-to-all of `size` bytes over a NIC is outside the measured range."""
        return self.measured_bytes is not None and not self.measured_bytes[0] <= size <= self.measured_bytes[1]

    @property
    def wire_bytes(self) -> float:
        return self.payload_bytes + self.header_bytes

    @property
    def goodput(self) -> float:
        """Fraction of the line rate that is payload."""
        return self.payload_bytes / self.wire_bytes

    @property
    def receiver_goodput(self) -> float:
        """Fraction of the line rate that arrives as payload if receivers set the pace."""
        return self.goodput * self.pacing

    @property
    def acks(self) -> float:
        """Acknowledgement bytes per byte of data."""
        return self.ack_bytes / self.wire_bytes

    @property
    def acks_back(self) -> float:
        """Acknowledgement bytes per byte of line rate if receivers set the pace."""
        return self.acks * self.pacing

    def path_s(self, links: Any, link_delay_s: Any, line_Bps: Any) -> Any:
        """Return the time from the last byte sent to the last byte received over `links` links, plus start-up [s]."""
        return links * link_delay_s + self.stored_bytes(links) / line_Bps + self.startup_s

    def stored_bytes(self, links: Any) -> Any:
        """Return the bytes that switches store before they forward: a packet at every link except the first."""
        return (links - 1) * self.wire_bytes if self.store_and_forward else 0.0

    def round_trip_s(self, links: Any, link_delay_s: Any, line_Bps: Any) -> Any:
        """Return the round-trip time of a packet and its small reply on an otherwise empty network [s]."""
        return 2 * links * link_delay_s + links * self.wire_bytes / line_Bps


def _check_range(field: str, value: Any) -> None:
    pair = isinstance(value, tuple) and len(value) == 2
    if not pair or not_negative(field, number(field, value[0])) > not_negative(field, number(field, value[1])):
        raise InputError(f"{field} must be two numbers, the least and the most, got {value!r:.80}.")


CHECKS = {
    **{"payload_bytes": positive, "header_bytes": not_negative, "pacing": fraction},
    **{"ack_bytes": not_negative, "startup_s": not_negative, "regain": positive},
}
MEASURED = "measured"  # table in a file of constants
NONE = Transport(name="none", payload_bytes=1, header_bytes=0, store_and_forward=False)
TRANSPORTS = {
    "none": NONE,
    "ndp": Transport(name="ndp", payload_bytes=4096, header_bytes=64, pacing=0.99, ack_bytes=64),
    "dctcp": Transport(name="dctcp", payload_bytes=4096, header_bytes=0, ack_bytes=40, startup_s=us(15), regain=0.25),
}


def get_transport(transport: str | Path | Transport) -> Transport:
    """Return a transport by its name (none, ndp, dctcp), from a `.toml` or `.json` file, or return it unchanged if it
    is a `Transport`.

    A file holds `payload_bytes` and `header_bytes`, and optionally other fields of `Transport`; the default name is the
    file's. `measured`, which `mfabric calibrate nccl` writes, says where the constants come from and is not read. Raise
    `InputError` for an unknown name or field, and for an invalid number.
    """
    if isinstance(transport, Transport):
        return transport
    if Path(transport).suffix.lower() not in PARSERS:
        return TRANSPORTS[one_of("transport", str(transport), [*TRANSPORTS, "FILE.toml or FILE.json"])]
    values = read_mapping(transport, "constants of a transport")
    measured = values.pop(MEASURED, None)
    fields = {field.name: field.default for field in dataclasses.fields(Transport)}
    try:
        for name in values:
            one_of("field of a transport", name, fields)
        missing = [name for name in ("payload_bytes", "header_bytes") if name not in values]
        if missing and measured is not None:
            raise InputError(
                "it holds measured times but no transport; to get one, calibrate with --nic-gbps from times between "
                "servers (tier leaf or across)."
            )
        if missing:
            raise InputError(f"a transport needs {' and '.join(missing)}.")
        named: dict[str, Any] = {"name": Path(transport).stem}
        if isinstance(ends := values.get("measured_bytes"), list):
            values["measured_bytes"] = tuple(ends)
        return Transport(**named | values)
    except InputError as mistake:
        raise InputError(f"{str(transport)!r}: {mistake}") from None
