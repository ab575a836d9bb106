"""Why an iteration with something broken can take less time than a healthy one."""

from typing import Any

from mfabric_jax.schedule.all_to_alls import Exchanges

LEAST = 1e-5  # of an iteration; less is rounding


def faster_by(
    healthy: Exchanges, failed: Exchanges, stage: int, *, moved: float, unsplit: bool, slow_down: float, at: int = 0
) -> str | None:
    """What the stage that is hit gains; None where the iteration takes as long or longer.

    - `failed`: of that stage alone [I 1 Q L 2].   - `moved`: part of a rank that works on a spare server.
    - `at`: the first iteration that suffers.
    - `unsplit`: servers that have circuits to each other leave their electrical NICs idle.
    """
    if slow_down > -LEAST:
        return None
    shorter = _total(failed.load[at:]) < _total(healthy.load[at:, stage])
    calmer = _total(failed.switch[at:]) < _total(healthy.switch[at:, stage])
    spare = "NICs of the spare, and those that were idle" if unsplit else "NICs of the spare"
    carried = spare if moved else "circuits that fit better"
    gains = [carried] * shorter + ["fewer reconfigurations"] * calmer
    return " and ".join(gains) or ("reconfigurations that are hidden" if healthy.anew is not None else None)


def _total(values: Any) -> float:
    return float(values.sum())
