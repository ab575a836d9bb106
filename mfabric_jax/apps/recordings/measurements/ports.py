"""The part of a tool's reported bytes that crosses the busiest port, by kind of communication.

Inside a server the port is a GPU's link to the others; between servers it is a GPU's NIC. Every GPU has one NIC.
"""

from mfabric_jax.checks import InputError

LOW_LATENCY, NORMAL = "deepep-low-latency", "deepep-normal"  # before the operation: dispatch, combine, ...
EVEN = ("all-to-all", "alltoallv", LOW_LATENCY)  # equal bytes to all ranks, the sender's own share included
RINGS = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0}  # times around a ring of n ranks
PAIRS = ("send-receive", "message", "messages")  # all bytes go to one other rank
ONCE_A_SERVER = (NORMAL,)  # a token counts once per server, the sender's included; in one server: once per rank
KINDS = (*EVEN, *RINGS, *PAIRS, *ONCE_A_SERVER)


def family(kind: str) -> str:
    """Return the kind without DeepEP's operation, which does not change what crosses a port."""
    return next((name for name in (LOW_LATENCY, NORMAL) if kind.startswith(f"{name}-")), kind)


def port_share(kind: str, ranks: int, per_server: int, *, beyond: bool) -> float:
    """Return the bytes over the busiest port per reported byte of one rank.

    - `ranks`: of the group; `per_server`: of them in a server.
    - `beyond`: the port is a NIC; else all ranks are in one server.

    Uneven sizes (alltoallv) count as if spread evenly over ranks. One ring runs over each NIC of a server, with an
    equal part of the bytes (as in NCCL's rings; NCCL's trees send about as much).
    """
    kind = family(kind)
    if kind in PAIRS:
        return 1.0
    if kind in RINGS:
        return RINGS[kind] * (ranks - 1) / ranks / (per_server if beyond else 1)
    if kind in EVEN or kind in ONCE_A_SERVER:
        return 1 - (per_server if beyond else 1) / ranks
    raise InputError(f"kind {kind!r} is unknown; allowed: {', '.join(KINDS)}.")
