"""The set-up of each design: what differs between designs as a table, and what all share as a sentence."""

from collections.abc import Sequence
from typing import Any

from mfabric_jax.report.grid import GPU, setting_name, values_in
from mfabric_jax.report.html.contenders import Contender
from mfabric_jax.report.html.markup import small_table, tag, words
from mfabric_jax.report.numerals import number

SETTINGS = {  # titles by column
    **{"load_decode_gpus": "decode GPUs", "load_prefill_gpus": "prefill GPUs"},
    **{"gpus": "GPUs", "nic_gbps": "Gbps of a NIC", "nic_use": "NICs are", "tp": "TP", "etp": "ETP", "ep": "EP"},
    **{
        "dp": "DP",
        "pp": "PP",
        "micro_batches": "micro-batches",
        "micro_batch": "micro-batch",
        "sequence": "tokens of a sequence",
    },
    **{
        "prefill_ep": "prefill EP",
        "batch": "batch",
        "context": "context",
        "recompute": "recompute",
        "routing": "paths",
        "policy": "circuits by",
    },
    **{"circuits_for": "circuits for", "schedule": "circuit schedule", "ocs": "optical switch"},
    **{"region_servers": "servers of a region", "dispatch": "dispatch", "placement": "placement"},
    **{"compute_precision": "computed in", "precision": "sent in", "kernels": "kernels", "memory_gb": "GB of memory"},
}
_NAMED = ("fabric", "ocs", GPU, "model", "variant")  # settings in names of designs
_NOTHING = ("none", "unnamed", "-")


def set_up_section(own: Sequence[Contender]) -> str:
    """Return the settings of some designs as HTML; "" if rows have none of them."""
    own_names = dict.fromkeys(name for each in own for name in each.design.settings if name not in _NAMED)
    titles = SETTINGS | {name: setting_name(name).replace("_", " ") for name in own_names if name not in SETTINGS}
    values = {title: [_value(each, column) for each in own] for column, title in titles.items()}
    values = {title: every for title, every in values.items() if set(every) - set(_NOTHING)}
    alike = {title: every[0] for title, every in values.items() if len(set(every)) == 1}
    differ = {title: every for title, every in values.items() if title not in alike}
    written = ""
    if differ:
        lines = [dict(zip(differ, line, strict=True)) for line in zip(*differ.values(), strict=True)]
        written = small_table(lines, {"design": [each.label for each in own]})
    shared = "; ".join(f"{title} {value}" for title, value in alike.items())
    return written + (tag("p", words(f"All designs: {shared}."), class_="note") if shared else "")


def _value(each: Contender, column: str) -> str:
    values: list[Any] = values_in(each.design.rows, column) if column in each.design.rows[0] else []
    return " and ".join(dict.fromkeys(map(number, values))) or "-"
