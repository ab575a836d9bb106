"""One block as a list of segments to draw: what runs when, forward and then backward."""

from typing import Any

from mfabric_jax.workload import BACKWARD_OVER_FORWARD


def block_segments(
    *,
    attention_s: float,
    moe_s: float,
    tp_s: float,
    exchange_s: float,
    delay_s: float,
    switches: bool,
) -> list[dict[str, Any]]:
    """Segments (track, label, kind, direction, start_s, end_s) of one MoE block in the middle of its stage.

    Forward the reconfiguration stands between gate and dispatch; backward it runs under the attention gradients of
    the block computed before, and what they do not cover delays the first all-to-all. `switches`: the circuits change.
    """
    segments: list[dict[str, Any]] = []

    def add(track: str, label: str, kind: str, direction: str, start: float, length: float) -> float:
        if length > 0:
            end = start + length
            segments.append(
                {"track": track, "label": label, "kind": kind, "direction": direction, "start_s": start, "end_s": end}
            )
        return start + length

    now = add("compute", "attention", "attention", "forward", 0.0, attention_s)
    now = add("network", "TP", "tp", "forward", now, tp_s)
    now = add("reconfiguration", "reconfigure", "reconfigure", "forward", now, delay_s if switches else 0.0)
    now = add("network", "dispatch", "all-to-all", "forward", now, exchange_s)
    now = add("compute", "experts", "experts", "forward", now, moe_s)
    now = add("network", "combine", "all-to-all", "forward", now, exchange_s)

    before = now
    now = add("compute", "attention (next block)", "attention", "backward", now, BACKWARD_OVER_FORWARD * attention_s)
    now = add("network", "TP", "tp", "backward", now, tp_s)
    ready = add("reconfiguration", "reconfigure", "reconfigure", "backward", before, delay_s if switches else 0.0)
    now = add("network", "combine grad", "all-to-all", "backward", max(now, ready), exchange_s)
    now = add("compute", "experts", "experts", "backward", now, BACKWARD_OVER_FORWARD * moe_s)
    now = add("network", "dispatch grad", "all-to-all", "backward", now, exchange_s)
    now = add("compute", "attention", "attention", "backward", now, BACKWARD_OVER_FORWARD * attention_s)
    add("network", "TP", "tp", "backward", now, tp_s)
    return segments
