"""Two-hop round robin: the closed form of full and half rate, and every byte followed in exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import get, schedule_time, staged_time, valiant
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.families import FAMILIES

DELAY = 0.05


def region(servers, switches=1):
    return Region(servers, 8e-9, switches, 0.0, DELAY)  # circuits of 1 byte/s


def ended(where, stages):
    return float(staged_time(where, stages))


@pytest.mark.parametrize("switches", [1, 2, 4])
def test_uniform_demand_loses_nothing(switches):
    demand, where = np.full((5, 5), 2.0), region(5, switches)
    stages = valiant(demand, where, switches)
    assert len(stages) == 1
    assert ended(where, stages) == pytest.approx(4 / switches * (2 + DELAY))
    assert ended(where, stages) == pytest.approx(
        float(schedule_time(where, get("rotor", switches)(demand, where), demand))
    )


@pytest.mark.parametrize("switches", [1, 2, 4])
def test_a_permutation_has_half_the_rate(switches):
    """Direct it would have one slot in S - 1."""
    demand, where = 3.0 * np.roll(np.eye(9), -1, axis=1), region(9, switches)
    closed = 2 * (8 / 9 * 3 / switches + 8 / switches * DELAY)
    assert ended(where, valiant(demand, where, switches)) == pytest.approx(closed)
    direct = float(schedule_time(where, get("rotor", switches)(demand, where), demand))
    assert direct > 3.5 * closed


@pytest.mark.parametrize("slot_s", [None, 0.02])
def test_any_demand_has_half_the_rate_at_least(slot_s):
    """2 (S - 1) / S L / (u B) over the duty cycle, and what the last slots leave unused; never behind one hop."""
    for family in FAMILIES.values():
        for switches in (1, 2):
            demand, where = family(7, 5), region(7, switches)
            stages = valiant(demand, where, switches, slot_s=slot_s)
            time = sum(schedule_end_s(where, stage.schedule, stage.demand) for stage in stages)
            slot = slot_s or 1 / 7
            duty, slots = slot / (slot + DELAY), math.ceil(round(1 / 7 / slot, 9))
            assert time <= 2 * slots * slot * 6 / switches / duty * (1 + 1e-6)
            one_hop = get("rotor", switches, slot_s=slot_s)(demand, where)
            assert time <= schedule_end_s(where, one_hop, demand) * (1 + 1e-6) + slots * DELAY


def followed(demand, threshold, switches):
    """Oracle: every piece as (where it is, where it goes), slot after slot of one cycle a stage; seconds of a
    slot of both and their turns, the end, and what arrived [S][S]."""
    servers = len(demand)
    others = [(i, j) for i in range(servers) for j in range(servers) if i != j]
    arrived = {pair: Fraction(0) for pair in others}
    stage_1 = {pair: [] for pair in others}  # pieces (origin, destination, bytes) on the circuit of a pair
    held = []  # (origin, at, destination, bytes)
    for i, j in others:
        whole = Fraction(demand[i, j])
        own, part = min(whole, threshold), (whole - min(whole, threshold)) / servers
        stage_1[i, j].append((i, j, own))
        for x in range(servers):
            if x == i:
                held.append((i, i, j, part))
            else:
                stage_1[i, x].append((i, j, part))
    slot, now = cycle(stage_1, servers, switches, Fraction(0))
    for (_, x), pieces in stage_1.items():
        for origin, goal, bytes_ in pieces:
            if x == goal:
                arrived[origin, goal] += bytes_
            else:
                held.append((origin, x, goal, bytes_))
    stage_2 = {pair: [] for pair in others}
    for origin, at, goal, bytes_ in held:
        stage_2[at, goal].append((origin, goal, bytes_))
        arrived[origin, goal] += bytes_
    slot_2, now = cycle(stage_2, servers, switches, now)
    return slot + slot_2 + Fraction(DELAY) * (1 + bool(slot_2)), now, arrived


def cycle(pieces, servers, switches, now):
    """A slot's seconds, and when the last byte arrives: shift r is the slot (r - 1) // switches of its switch."""
    total = {pair: sum(bytes_ for *_, bytes_ in here) for pair, here in pieces.items()}
    slot, last = max(total.values()), now
    for (i, j), bytes_ in total.items():
        if bytes_:
            before = ((j - i) % servers - 1) // switches
            last = max(last, now + before * (slot + Fraction(DELAY)) + Fraction(DELAY) + bytes_)
    return slot, last


@pytest.mark.parametrize("switches", [1, 3])
def test_every_byte_followed(switches):
    """The threshold of the shortest slots, of all that the oracle tries; everything arrives."""
    relayed = 0
    for family in (*FAMILIES.values(), lambda servers, seed: FAMILIES["moe"](servers, seed, skew=1.5)):
        demand = np.round(family(6, 2) * 64) / 64
        ends = []
        for threshold in {Fraction(x) for x in demand.ravel().tolist()} | {Fraction(0)}:
            slots, end, arrived = followed(demand, threshold, switches)
            assert all(arrived[i, j] == Fraction(demand[i, j]) for i, j in arrived)
            ends.append((float(slots), float(end)))
        stages = valiant(demand, region(6, switches), switches)
        relayed += len(stages) == 2
        best = [end for slots, end in ends if slots <= min(ends)[0] * (1 + 1e-9)]
        assert np.isclose(ended(region(6, switches), stages), best, rtol=1e-6).any()
    assert relayed >= 2


def test_nothing_to_send():
    assert ended(region(4), valiant(4 * np.eye(4), region(4))) == 0
