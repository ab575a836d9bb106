"""Writes fitted latency and bandwidth, which `network.transport` reads, as JSON.

`measured` lists all fits. Beside it are constants of a transport, which is between
servers: its start-up is the latency, its headers take the part of a NIC that was not reached. They come from the widest
tier beyond a server, never from inside one.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.apps.recordings.measurements.fit import Fit
from mfabric_jax.apps.recordings.measurements.placed import ACROSS, LEAF, SERVER
from mfabric_jax.apps.recordings.measurements.ports import LOW_LATENCY, NORMAL, family
from mfabric_jax.checks import InputError, positive
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.units import gbps

LEAST_HEADER = 0.001  # bytes, below which there is none
PAYLOAD = 4096  # bytes of a packet; only the ratio to its header counts
FIRST = ("all-to-all", "alltoallv", NORMAL, LOW_LATENCY, "send-receive", "messages")


def chosen(fits: Sequence[Fit]) -> Fit | None:
    """The fit that stands for the network between servers: the widest tier, an all-to-all where there is one, of most
    ranks, up to the largest size."""
    beyond = [fit for fit in fits if fit.tier != SERVER]
    order = [*FIRST, *(family(fit.kind) for fit in beyond if family(fit.kind) not in FIRST)]
    return min(
        beyond,
        key=lambda fit: (fit.tier != ACROSS, order.index(family(fit.kind)), -(fit.ranks or 0), -fit.bytes[1]),
        default=None,
    )


def constants(fit: Fit, nic_gbps: float) -> dict[str, Any]:
    """Fields of a transport with the latency and the part of a NIC's bandwidth that a fit found.

    `InputError` for a fit that is faster than the NIC.
    """
    part = fit.bandwidth_bytes_per_s / gbps(positive("nic_gbps", nic_gbps))
    if part > 1:
        least = fit.bandwidth_bytes_per_s / gbps(1.0)
        raise InputError(
            f"nic_gbps must be at least the {least:.4g} Gbps that {fit.name} reached, got {nic_gbps:g}; "
            "see --gpus-per-server, the ranks that share a server and have a NIC each."
        )
    header = PAYLOAD * (1 / part - 1)
    return {
        "payload_bytes": PAYLOAD,
        "header_bytes": header if header >= LEAST_HEADER else 0.0,
        "startup_s": fit.alpha_s,
        "store_and_forward": False,
        "measured_bytes": list(fit.bytes),
    }


def write_measured(fits: Sequence[Fit], path: str | Path, nic_gbps: float | None = None) -> Path:
    """Write fits; with `nic_gbps`, the bandwidth of a NIC, constants of a transport too where one was measured beyond a
    server. Returns the path."""
    check_file("out", path, (".json",))
    fit = chosen(fits)
    told = constants(fit, nic_gbps) if fit is not None and nic_gbps is not None else {}
    path = Path(path)
    with replacing(path) as (part,):
        text = json.dumps(told | {"measured": [fit.row() for fit in fits]}, indent=1)
        part.write_text(text + "\n", encoding="utf-8")
    return path


def remarks(fits: Sequence[Fit], nic_gbps: float | None = None) -> list[str]:
    """What a reader of the fits must know: where they end. `InputError` as in `constants`."""
    said = []
    for fit in fits:
        if not fit.told_apart:
            said.append(
                f"{fit.name}: one size, from which latency and bandwidth cannot be told apart; alpha is 0, "
                "the bandwidth is what that size reaches."
            )
    fit = chosen(fits)
    if fit is None:
        said.append("All was measured inside a server: no word about the network between servers, no transport.")
    else:
        if fit.tier == LEAF:
            said.append("Nothing was measured across leaf switches: a fabric of more tiers may be slower than this.")
        if nic_gbps is None:
            said.append("--nic-gbps, the bandwidth of a NIC, makes the file one that network.transport reads.")
        else:
            told = constants(fit, nic_gbps)
            part = told["payload_bytes"] / (told["payload_bytes"] + told["header_bytes"])
            said.append(f"network.transport has {fit.name}: {part:.1%} of a NIC's bandwidth.")
            said.append("Set job.dispatcher=ideal beside it: other dispatchers have a share of links of their own.")
    return said
