"""How a setting is declared: its group, its type, its text and its flag.

A case (`Case` in `case.paths`) has eleven groups of settings, which `job.py`, `network.py` and `serving.py` declare;
the longest path is `group.part.leaf`. Every leaf has one default. Settings that exclude each other are one *choice*
between alternatives (subclasses of `Alternative`). A choice is stated by name (`circuits.reconfigure = "pays"`), or by
a table with the name of the alternative (`[circuits.predict] sigma = 0.3`). An alternative whose only field is `value`
is written as one key (`compute.efficiency = 0.4`). `None` leaves a value open; `resolve` fills it. Nothing here
computes: no NumPy, no JAX.
"""

from typing import Annotated, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
Amount = Annotated[float, msgspec.Meta(gt=0)]
Least0 = Annotated[float, msgspec.Meta(ge=0)]
Precision = Literal["bf16", "fp8"]
Sums = Literal["bf16", "fp32"]
NicUse = Literal["own", "pooled"]


class SettingsGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of related settings."""


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One alternative of a choice; its tag is its name."""

    @property
    def name(self) -> str:
        """The name by which a file states the alternative."""
        return self.__struct_config__.tag  # type: ignore[return-value]


def doc(text: str, *, traced: bool = False, file: bool = False, flag: str = "", command: str = "") -> msgspec.Meta:
    """Return the help of a setting.

    - `traced`: other values use the same compiled program. `file`: the value may name a file.
    - `flag`: its short flag. `command`: the only command that has the flag, or gives it this meaning; "": all.
    """
    marks = {"traced": traced, "file": file, "flag": flag, "command": command}
    return msgspec.Meta(
        description=text, extra_json_schema={name: mark for name, mark in marks.items() if mark} or None
    )
