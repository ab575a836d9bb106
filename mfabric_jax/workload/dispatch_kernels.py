"""Kernels of dispatch and combine (`dispatch_kernels.toml`, with sources).

Serving takes a family by its name or from a user's file, with its latency. Training takes the achieved fractions of
links' rates of a job's dispatcher, which a user's table of kernels may replace.
"""

import functools
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError, fraction, not_negative, number, one_of, positive
from mfabric_jax.support.text_files import read_mapping

WIRE = {  # bytes of an element and of its scales, by format
    "bf16": 2.0,
    "fp8": 1 + 4 / 128,  # a float32 scale for 128 elements
    "nvfp4": 0.5 + 1 / 16,  # an FP8 scale for 16
}
COPIES = ("expert", "gpu", "server")
REACH = ("any", "domain")
INSIDE = ("nvlink", "nic")


class TransferKernel(NamedTuple):
    """One call of a kernel: latency and rates.

    - Latency is `alpha_s`, plus `peer_s` per GPU of the group, plus `beyond_s` if the group is larger than a domain.
      `floor_s`: least time of latency and bytes together.
    - `nic`, `nvlink`: achieved fraction of a link's rate; `nic_message_s`, `nvlink_message_s`: added per copy of a
      token.
    """

    alpha_s: float = 0.0
    peer_s: float = 0.0
    beyond_s: float = 0.0
    floor_s: float = 0.0
    nic: float = 1.0
    nic_message_s: float = 0.0
    nvlink: float = 1.0
    nvlink_message_s: float = 0.0

    def before_s(self, gpus: int, *, beyond: bool) -> float:
        """Return the latency [s] of a call among `gpus` GPUs. `beyond`: they are in several domains."""
        return self.alpha_s + self.peer_s * gpus + (self.beyond_s if beyond else 0.0)


class Family(NamedTuple):
    """Kernels of dispatch and combine that belong together. `dispatch_kernels.toml` explains the fields."""

    name: str
    copies: str
    dispatch: TransferKernel
    combine: TransferKernel
    reach: str = "any"
    inside: str = "nvlink"
    header_bytes: float = 0.0
    cores: float = 0.0

    def wire_bytes(self, hidden: int, precision: str, *, combine: bool = False) -> float:
        """Return the bytes of one copy of a token on the wire."""
        vector = hidden * WIRE[one_of("precision", precision, WIRE)]
        return vector if combine else vector + self.header_bytes


UNITS = {"alpha_us": "alpha_s", "peer_us": "peer_s", "beyond_us": "beyond_s", "floor_us": "floor_s"}
OF_MESSAGES = {"nic_message_ns": "nic_message_s", "nvlink_message_ns": "nvlink_message_s"}


OF_TRAINING = ("rings", "counts")  # tables of training alone
LEFT_OUT = ("like", "training")  # parts of a family's table that are no fields of its kernels


@functools.cache
def _tables() -> dict[str, Any]:
    text = (resources.files("mfabric_jax.workload") / "dispatch_kernels.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def package_families() -> dict[str, Family]:
    """Return the package's families by name."""
    tables, families = _tables(), {}
    for name, table in tables.items():
        if name not in OF_TRAINING:
            below = tables.get(table.get("like", ""), {})
            own = {key: value for key, value in (below | table).items() if key not in LEFT_OUT}
            families[name] = _family(name, own)
    return families


def family(name: str) -> Family:
    """Return a family of kernels by name, or from a .toml or .json file with the fields of `dispatch_kernels.toml`."""
    if not name.endswith((".toml", ".json")):
        return package_families()[one_of("serving.kernels", name, [*package_families(), "FILE.toml or FILE.json"])]
    try:
        return _family(Path(name).stem, read_mapping(Path(name), "kernels of dispatch and combine"))
    except InputError as mistake:
        raise InputError(f"{name!r}: {mistake}") from None


def _family(name: str, table: dict[str, Any]) -> Family:
    words = {"copies": COPIES, "reach": REACH, "inside": INSIDE}
    numbers = {"header_bytes": not_negative, "cores": _below_one}
    for field in table:
        one_of("field of kernels", field, (*words, *numbers, "dispatch", "combine"))
    if "copies" not in table or "dispatch" not in table:
        raise InputError("kernels need copies (expert, gpu or server) and a table dispatch.")
    fields: dict[str, Any] = {
        field: one_of(field, table[field], allowed) for field, allowed in words.items() if field in table
    }
    fields |= {field: check(field, number(field, table[field])) for field, check in numbers.items() if field in table}
    dispatch = _mapping("dispatch", table["dispatch"])
    combine = _mapping("combine", table.get("combine", {"like": "dispatch"}))
    if "like" in combine:
        one_of("combine.like", combine["like"], ("dispatch",))
        combine = dispatch | {field: value for field, value in combine.items() if field != "like"}
    return Family(name=name, dispatch=_kernel("dispatch", dispatch), combine=_kernel("combine", combine), **fields)


def _mapping(field: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{field} must be a table of a kernel's numbers, got {value!r}.")
    return value


def _kernel(where: str, table: dict[str, Any]) -> TransferKernel:
    amounts = {}
    for field, value in table.items():
        one_of(f"field of {where}", field, (*UNITS, *OF_MESSAGES, "nic", "nvlink"))
        amount = number(f"{where}.{field}", value)
        if field in UNITS:
            amounts[UNITS[field]] = units.us(not_negative(f"{where}.{field}", amount))
        elif field in OF_MESSAGES:
            amounts[OF_MESSAGES[field]] = units.ns(not_negative(f"{where}.{field}", amount))
        else:
            amounts[field] = fraction(f"{where}.{field}", positive(f"{where}.{field}", amount))
    return TransferKernel(**amounts)


def _below_one(field: str, value: float) -> float:
    if not 0 <= value < 1:
        raise InputError(f"{field} must be a fraction of a GPU's cores, at least 0 and below 1, got {value:g}.")
    return value


# ------------------------------------------------------------------------------------------------------------- training
SHARES = ("nvlink", "nic", "cores", "beside")


def training_parts() -> dict[str, Any]:
    """Return the parts `counts` and `communication` of a table of kernels, as the package has them."""
    tables = _tables()
    each = [table["training"] for table in tables.values() if "training" in table]
    shares = {own["dispatcher"]: {name: own[name] for name in SHARES if name in own} for own in each}
    return {"counts": tables["counts"], "communication": {"rings": tables["rings"]} | shares}
