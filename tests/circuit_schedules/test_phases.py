"""Bruck's and the ternary all-to-all: every block followed, times by hand, and the best of all groups of phases."""

import itertools
import math

import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules import bruck, phases, staged_time, ternary
from mfabric_jax.circuit_schedules.families import FAMILIES
from mfabric_jax.circuit_schedules.stages import stages_end_s


def region(servers, delay, ports=1, packet=0.0):
    return Region(servers, 8e-9, ports, packet, delay)  # circuits of 1 byte/s


def uniform(servers):
    return 1 - np.eye(servers)


def digits_of(distance, servers, base):
    """Oracle: digits of a distance, the lowest first; base None: balanced ternary digits of the shorter direction."""
    if base is not None:
        digits = []
        while distance:
            distance, digit = divmod(distance, base)
            digits.append(digit)
        return digits
    left, digits = distance if 2 * distance <= servers else distance - servers, []
    while left:
        digit = {0: 0, 1: 1, 2: -1}[left % 3]
        digits.append(digit)
        left = (left - digit) // 3
    return digits


def follow_blocks(demand, base):
    """Oracle: bytes from server to server in each phase that moves any, and where every block ends."""
    servers, sent, ends = len(demand), {}, {}
    for i, j in itertools.permutations(range(servers), 2):
        held = i
        for phase, digit in enumerate(digits_of((j - i) % servers, servers, base)):
            goal = (held + digit * (base or 3) ** phase) % servers
            if goal != held and demand[i][j]:
                sent.setdefault(phase, {}).setdefault((held, goal), []).append(demand[i][j])
            held = goal
        ends[i, j] = held
    return [{pair: math.fsum(blocks) for pair, blocks in sent[phase].items()} for phase in sorted(sent)], ends


def stages_of(base, demand, where, switches=1, **how):
    if base is None:
        return ternary(demand, where, switches, **how)
    return bruck(demand, where, switches, base=base, **how)


def least_phases(servers, base):
    return next(count for count in range(servers) if base**count >= servers)


@pytest.mark.parametrize("base", [2, 3, 5, None])
def test_every_block_arrives_by_its_digits(base):
    families = [FAMILIES[name] for name in ("moe", "one-hot", "permutation")]
    for servers in (2, 3, 4, 7, 8, 9, 10, 13, 27):
        for family in [*families, lambda servers, seed: uniform(servers)]:
            demand = family(servers, 3)
            sent_in, ends = follow_blocks(demand.tolist(), base)
            assert all(end == j for (_, j), end in ends.items())
            stages = stages_of(base, demand, region(servers, 0.1, 4), 2)
            assert len(stages) == len(sent_in)
            for stage, sent in zip(stages, sent_in, strict=True):
                expected = np.zeros_like(demand)
                for pair, bytes_ in sent.items():
                    expected[pair] = bytes_
                np.testing.assert_allclose(stage.demand, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("base", [2, 3, 4, 7, None])
def test_as_many_phases_as_digits(base):
    for servers in range(2, 41):
        stages = stages_of(base, uniform(servers), region(servers, 1.0))
        assert len(stages) == least_phases(servers, base or 3)


def test_bruck_by_hand():
    """Four servers: shifts by 1 and by 2 carry 2 bytes each. Two ports show both at once, with half the circuits."""
    assert stages_end_s(region(4, 10), bruck(uniform(4), region(4, 10))) == pytest.approx(2 * (10 + 2))
    for delay, end in ((10, 10 + 2 + 2), (1, 2 * (1 + 1))):
        where = region(4, delay, 2)
        assert stages_end_s(where, bruck(uniform(4), where)) == pytest.approx(end)
        assert stages_end_s(where, bruck(uniform(4), where, 2)) == pytest.approx(end)


def test_ternary_by_hand():
    """Nine servers: in both phases each of two shifts carries 3 bytes. Rings of 9 and of 3 servers need 3 matchings."""
    for ports, delay, how, end in (
        (2, 10, {}, 2 * (10 + 3)),
        (2, 10, {"directed": False}, 2 * (10 + 3)),
        (4, 10, {}, 10 + 3 + 3),
        (4, 10, {"first_free": True}, 3 + 3),
        (4, 1, {}, 2 * (1 + 1.5)),
        (4, 10, {"directed": False}, 10 + 3 + 3),
        (1, 10, {}, 4 * (10 + 3)),
        (1, 10, {"first_free": True}, 4 * (10 + 3) - 10),
        (1, 10, {"directed": False}, 6 * (10 + 3)),
        (3, 10, {"directed": False}, 2 * (10 + 3)),
        (1, 10, {"delay_s": 1.0}, 4 * (1 + 3)),
    ):
        where = region(9, delay, ports)
        assert stages_end_s(where, ternary(uniform(9), where, **how)) == pytest.approx(end)


def test_two_servers():
    """A circuit of both directions carries the whole all-to-all of two servers."""
    where = region(2, 3)
    for directed in (True, False):
        for stages in (bruck(uniform(2), where, directed=directed), ternary(uniform(2), where, directed=directed)):
            assert stages_end_s(where, stages) == pytest.approx(3 + 1)
    with_two = region(2, 3, 2)
    assert stages_end_s(with_two, ternary(uniform(2), with_two, directed=False)) == pytest.approx(3 + 0.5)


def shares_of_ports(ports, count):
    """Oracle: all ways to deal ports to `count` shifts, at least a port each."""
    return [deal for deal in itertools.product(range(1, ports + 1), repeat=count) if sum(deal) <= ports]


def best_end(sent_in, servers, ports, delay):
    """Oracle: the earliest end over all groups of consecutive phases and all ways to deal ports to their shifts."""
    slowest = [{} for _ in sent_in]
    for longest, sent in zip(slowest, sent_in, strict=True):
        for (i, j), bytes_ in sent.items():
            longest[(j - i) % servers] = max(bytes_, longest.get((j - i) % servers, 0))

    def group_end(group):
        shifts = sorted({shift for longest in group for shift in longest})
        ends = [
            sum(max(longest[shift] / deal[shifts.index(shift)] for shift in longest) for longest in group)
            for deal in shares_of_ports(ports, len(shifts))
        ]
        return delay + min(ends, default=math.inf)

    cuts = itertools.product([False, True], repeat=max(len(sent_in) - 1, 0))
    totals = []
    for cut in cuts:
        edges = [0, *(k + 1 for k, new in enumerate(cut) if new), len(sent_in)]
        totals.append(sum(group_end(slowest[a:b]) for a, b in itertools.pairwise(edges)))
    return min(totals)


@pytest.mark.parametrize("base", [2, None])
@pytest.mark.parametrize(("most_deals", "behind"), [(phases.MOST_DEALS, 1e-6), (0, 0.05)])
def test_groups_and_ports_are_the_best_of_all(base, most_deals, behind, monkeypatch):
    """By steps, ports are dealt a little worse than in the best of all ways."""
    monkeypatch.setattr(phases, "MOST_DEALS", most_deals)
    grouped = 0
    for servers, ports in ((8, 3), (8, 5), (9, 4), (9, 6), (13, 5), (16, 6)):
        for family in ("moe", "uniform", "zipf"):
            demand = FAMILIES[family](servers, 1)
            sent, _ = follow_blocks(demand.tolist(), base)
            for delay in (0.0, 0.02, 0.3, 5.0):
                where = region(servers, delay, ports)
                stages = stages_of(base, demand, where)
                best = best_end(sent, servers, ports, delay)
                assert best * (1 - 1e-6) <= stages_end_s(where, stages) <= best * (1 + behind)
                grouped += sum(stage.schedule.first_free for stage in stages)
    assert grouped > 20


@pytest.mark.parametrize("directed", [True, False])
def test_a_free_stage_shows_the_circuits_before_it(directed):
    free = 0
    for servers, ports, switches in ((9, 4, 1), (9, 4, 2), (16, 6, 3), (16, 8, 8)):
        for delay in (0.001, 1.0):
            where, demand = region(servers, delay, ports), FAMILIES["moe"](servers, 0)
            for base in (2, 3, None):
                stages = stages_of(base, demand, where, switches, directed=directed)
                assert not stages[0].schedule.first_free
                assert float(staged_time(where, stages)) == pytest.approx(stages_end_s(where, stages), rel=1e-5)
                for before, after in itertools.pairwise(stages):
                    after.schedule.check_region(where)
                    if after.schedule.first_free:
                        free += 1
                        np.testing.assert_array_equal(before.schedule.configurations, after.schedule.configurations)
                        np.testing.assert_array_equal(before.schedule.switch, after.schedule.switch)
    assert free > 10


def test_edges():
    for base in (2, None):
        assert stages_of(base, np.zeros((5, 5)), region(5, 1.0)) == []
        one_pair = np.zeros((9, 9))
        one_pair[0, 8] = 4.0  # Bruck: 8 = 2^3; ternary: -1
        (stage,) = stages_of(base, one_pair, region(9, 1.0))
        assert stage.demand[0, 8] == stage.demand.sum() == 4
        for bytes_ in (1e3, 1e12):
            for delay in (0.0, 1.0):
                where = Region(10, 400, 4, 0.0, delay)
                stages = stages_of(base, bytes_ * uniform(10), where, 4)
                assert math.isfinite(stages_end_s(where, stages))
                assert float(staged_time(where, stages)) == pytest.approx(stages_end_s(where, stages), rel=1e-5)
    with pytest.raises(InputError, match="ports must be a whole number of at least 1"):
        ternary(uniform(4), region(4, 1.0, 0, 2.0))
    with pytest.raises(InputError, match="base must be at least 2"):
        bruck(uniform(4), region(4, 1.0), base=1)


def test_stages_pay_latency():
    where = region(9, 0.0)
    stages = ternary(uniform(9), where)
    assert stages_end_s(where, stages, step_s=7.0) - stages_end_s(where, stages) == pytest.approx(2 * 7)
    assert float(staged_time(where, stages, 7.0)) == pytest.approx(stages_end_s(where, stages, 7.0))
