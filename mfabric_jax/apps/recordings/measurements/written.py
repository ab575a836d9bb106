"""Write fitted latency and bandwidth as JSON, which `network.transport` reads.

`measured` lists all fits. The other entries are constants of a transport between servers: its start-up time is the
latency, and its headers take the part of the NIC's bandwidth that was not reached. They come from the widest tier
between servers, never from inside one.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.apps.recordings.measurements.fit import LineFit
from mfabric_jax.apps.recordings.measurements.placed import ACROSS, LEAF, SERVER
from mfabric_jax.apps.recordings.measurements.ports import LOW_LATENCY, NORMAL, family
from mfabric_jax.checks import InputError, positive
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.units import gbps

LEAST_HEADER = 0.001  # bytes; a smaller header counts as 0
PAYLOAD = 4096  # bytes of a packet; only its ratio to the header matters
FIRST = ("all-to-all", "alltoallv", NORMAL, LOW_LATENCY, "send-receive", "messages")


def network_fit(fits: Sequence[LineFit]) -> LineFit | None:
    """Return the fit for the network between servers; None if all fits are inside a server.

    The widest tier comes first, then an all-to-all if there is one, then the most ranks, then the largest size.
    """
    beyond = [fit for fit in fits if fit.tier != SERVER]
    order = [*FIRST, *(family(fit.kind) for fit in beyond if family(fit.kind) not in FIRST)]
    return min(
        beyond,
        key=lambda fit: (fit.tier != ACROSS, order.index(family(fit.kind)), -(fit.ranks or 0), -fit.bytes[1]),
        default=None,
    )


def constants(fit: LineFit, nic_gbps: float) -> dict[str, Any]:
    """Return the fields of a transport with the fitted latency and part of a NIC's bandwidth.

    Raise `InputError` if the fit is faster than the NIC.
    """
    part = fit.bandwidth_bytes_per_s / gbps(positive("nic_gbps", nic_gbps))
    if part > 1:
        least = fit.bandwidth_bytes_per_s / gbps(1.0)
        raise InputError(
            f"nic_gbps must be at least the {least:.4g} Gbps that {fit.name} reached, got {nic_gbps:g}; "
            "check --gpus-per-server: the ranks of a server, each with its own NIC."
        )
    header = PAYLOAD * (1 / part - 1)
    return {
        "payload_bytes": PAYLOAD,
        "header_bytes": header if header >= LEAST_HEADER else 0.0,
        "startup_s": fit.alpha_s,
        "store_and_forward": False,
        "measured_bytes": list(fit.bytes),
    }


def write_measured(fits: Sequence[LineFit], path: str | Path, nic_gbps: float | None = None) -> Path:
    """Write the fits as JSON; return the path.

    With `nic_gbps`, the bandwidth of a NIC, also write the constants of a transport if a fit is between servers.
    """
    check_file("out", path, (".json",))
    fit = network_fit(fits)
    transport = constants(fit, nic_gbps) if fit is not None and nic_gbps is not None else {}
    path = Path(path)
    with replacing(path) as (part,):
        text = json.dumps(transport | {"measured": [fit.row() for fit in fits]}, indent=1)
        part.write_text(text + "\n", encoding="utf-8")
    return path


def remarks(fits: Sequence[LineFit], nic_gbps: float | None = None) -> list[str]:
    """Return sentences on the limits of the fits. Raise `InputError` as `constants` does."""
    sentences = []
    for fit in fits:
        if not fit.resolves_latency:
            sentences.append(
                f"{fit.name}: one size cannot separate latency from bandwidth, so alpha is 0 and the bandwidth is what "
                "that size reaches."
            )
    fit = network_fit(fits)
    if fit is None:
        sentences.append("All times are from inside a server: they say nothing about the network between servers.")
    else:
        if fit.tier == LEAF:
            sentences.append("Nothing was measured across leaf switches: a fabric with more tiers may be slower.")
        if nic_gbps is None:
            sentences.append("Give --nic-gbps, the bandwidth of a NIC, for a file that network.transport can read.")
        else:
            transport = constants(fit, nic_gbps)
            part = transport["payload_bytes"] / (transport["payload_bytes"] + transport["header_bytes"])
            sentences.append(f"network.transport takes {fit.name}: {part:.1%} of a NIC's bandwidth.")
            sentences.append("Also set job.dispatcher=ideal: other dispatchers reduce the bandwidth once more.")
    return sentences
