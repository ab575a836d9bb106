"""One block as a list of segments to draw: what runs when, forward and then backward."""

from typing import Any

from mfabric_jax.workload import BACKWARD_OVER_FORWARD


def block_segments(
    *,
    attention_s: float,
    moe_s: float,
    tp_s: float,
    optical_s: float,
    packet_s: float,
    delay_s: float,
    switches: bool,
    eps_waits: bool = False,
) -> list[dict[str, Any]]:
    """Segments (track, label, kind, direction, start_s, end_s) of one MoE block in the middle of its stage.

    - `optical_s`, `packet_s`: the parts of each all-to-all on circuits and on packet switches (or NVSwitches).

    Forward the reconfiguration stands between gate and dispatch on circuits; backward it runs under the attention
    gradients of the block computed before, and what they do not cover delays the first all-to-all on circuits.
    `switches`: the circuits change. `eps_waits`: then packets wait too.
    """
    segments: list[dict[str, Any]] = []
    pause = delay_s if switches and (optical_s or eps_waits) else 0.0

    def add(track: str, label: str, kind: str, direction: str, start: float, length: float) -> float:
        if length > 0:
            end = start + length
            segments.append(
                {"track": track, "label": label, "kind": kind, "direction": direction, "start_s": start, "end_s": end}
            )
        return start + length

    def exchange(label: str, direction: str, start: float, circuits_ready: float = 0.0) -> float:
        ready = max(start, circuits_ready)
        packets = add("EPS", label, "all-to-all", direction, ready if eps_waits else start, packet_s)
        return max(packets, add("OCS", label, "all-to-all", direction, ready, optical_s) if optical_s else packets)

    now = add("compute", "attention", "attention", "forward", 0.0, attention_s)
    now = add("NVSwitch", "TP", "tp", "forward", now, tp_s)
    ready = add("OCS", "reconfigure", "reconfigure", "forward", now, pause)
    now = exchange("dispatch", "forward", now, ready)
    now = add("compute", "experts", "experts", "forward", now, moe_s)
    now = exchange("combine", "forward", now)

    ready = add("OCS", "reconfigure", "reconfigure", "backward", now, pause)
    now = add("compute", "attention (next block)", "attention", "backward", now, BACKWARD_OVER_FORWARD * attention_s)
    now = add("NVSwitch", "TP", "tp", "backward", now, tp_s)
    now = exchange("combine grad", "backward", now, ready)
    now = add("compute", "experts", "experts", "backward", now, BACKWARD_OVER_FORWARD * moe_s)
    now = exchange("dispatch grad", "backward", now)
    now = add("compute", "attention", "attention", "backward", now, BACKWARD_OVER_FORWARD * attention_s)
    add("NVSwitch", "TP", "tp", "backward", now, tp_s)
    return segments
