"""What part of the bytes that a tool reports crosses the busiest port, by kind of communication.

Inside a server the port is a GPU's link to the others; beyond it is a GPU's NIC, of which every GPU has one.
n ranks, g of them in a server, s = n / g servers.
"""

from mfabric_jax.checks import InputError

LOW_LATENCY, NORMAL = "deepep-low-latency", "deepep-normal"  # before the operation: dispatch, combine, ...
EVEN = ("all-to-all", "alltoallv", LOW_LATENCY)  # bytes to all ranks alike, a rank's own share counted
RINGS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}  # times around a ring of n ranks
PAIRS = ("send-receive", "message", "messages")  # all bytes go to one other rank
ONCE_A_SERVER = (NORMAL,)  # a token counts once for each server, the sender's own too; inside: for each rank
KINDS = (*EVEN, *RINGS, *PAIRS, *ONCE_A_SERVER)


def family(kind: str) -> str:
    """The kind without the operation of DeepEP, which has no part in what crosses a port."""
    return next((name for name in (LOW_LATENCY, NORMAL) if kind.startswith(f"{name}-")), kind)


def port_share(kind: str, ranks: int, per_server: int, *, beyond: bool) -> float:
    """Bytes over the busiest port per reported byte of one rank.

    - `beyond`: the port is a NIC; else all ranks are in one server.

    Uneven sizes (alltoallv) are taken as if they were spread evenly over ranks. Rings run side by side over the NICs of
    a server, a part of the bytes on each (NCCL's rings; its trees send about as much).
    """
    kind = family(kind)
    if kind in PAIRS:
        return 1.0
    if kind in RINGS:
        return RINGS[kind] * (ranks - 1) / ranks / (per_server if beyond else 1)
    if kind in EVEN or kind in ONCE_A_SERVER:
        return 1 - (per_server if beyond else 1) / ranks
    raise InputError(f"kind {kind!r} is unknown; allowed: {', '.join(KINDS)}.")
