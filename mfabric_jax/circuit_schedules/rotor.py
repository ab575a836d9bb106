"""Round robin, whatever the demand: switches show the same matchings again and again."""

import math
from typing import Unpack

import numpy as np
from jaxtyping import Float, Int

from mfabric_jax.checks import Misfit, positive
from mfabric_jax.circuit_schedules.placing import Placed, SwitchNetwork
from mfabric_jax.fabric.region import round_robin

MOST_SHOWN = 2**16
ROUNDING = 1e-12  # of a cycle


def rotor(demand: Float[np.ndarray, "S S"], *, slot_s: float | None = None, **network: Unpack[SwitchNetwork]) -> Placed:
    """Give every pair one circuit for `slot_s` seconds a cycle, for as many cycles as the largest pair needs.

    The matchings of a cycle are shifts by 1 to S - 1, or the matchings of a tournament if circuits carry both
    directions. They are dealt to the switches; a switch shows one per port at a time. `slot_s` None: one cycle. All
    paths are direct, as in RotorNet (SIGCOMM 2017) without its second hop. Raise `Misfit` if slots are so short that
    more than `MOST_SHOWN` configurations are needed.
    """
    largest, ports = demand.max(initial=0) / network["circuit_Bps"], network["ports"]
    if not largest or not ports:
        return np.zeros((0, *demand.shape), int), np.zeros(0), np.zeros(0, int)
    slot = largest if slot_s is None else float(positive("slot_s", slot_s))
    matchings = shifts(len(demand)) if network["directed"] else round_robin(len(demand))
    cycle = np.stack([matchings[first : first + ports].sum(0) for first in range(0, len(matchings), ports)])
    cycles = math.ceil(largest / slot * (1 - ROUNDING))
    if cycles * len(cycle) > MOST_SHOWN:
        need = f"{cycles:,} cycles of {len(cycle)} configurations"
        raise Misfit(f"slot_s must be longer: {slot:g} s needs {need}, but at most {MOST_SHOWN:,} are allowed.")
    configurations = np.tile(cycle, (cycles, 1, 1))
    return (
        configurations,
        np.full(len(configurations), slot),
        np.tile(np.arange(len(cycle)) % network["switches"], cycles),
    )


def shifts(servers: int) -> Int[np.ndarray, "rounds S S"]:
    """Return the matchings in which server i sends to server i + r, for r from 1 to S - 1."""
    identity = np.eye(servers, dtype=int)
    return np.array([np.roll(identity, r, axis=1) for r in range(1, servers)]).reshape(-1, servers, servers)
