"""Overlapped turns against the published instance, closed forms, and every use of switches tried by hand."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.circuit_schedules.swot import (
    CollectiveSteps,
    ParallelSwitches,
    all_reduce,
    bruck,
    find_overlap,
    one_shot,
    pairwise,
    reduce_scatter,
    strawman,
    without_reconfiguration,
)
from mfabric_jax.units import us

FREE, PAID = (ParallelSwitches(2, 50e9, us(200), us(20), first_free=free) for free in (True, False))


@pytest.mark.parametrize(("switches", "all_turn", "best"), [(FREE, 1480, 1140), (PAID, 1680, 1340)])
def test_the_published_instance(switches, all_turn, best):
    """README of overlap4ocs: 8 nodes, 2 switches, 32 MB; its figures have the first configuration free."""
    steps = all_reduce(8, 32e6)
    assert without_reconfiguration(steps, switches) == pytest.approx(us(680))
    assert strawman(steps, switches) == pytest.approx(us(all_turn))
    found = find_overlap(steps, switches)
    assert found.seconds == pytest.approx(us(best), rel=1e-6)
    assert found.bound_s == pytest.approx(us(best), rel=1e-6)
    assert clocked(steps, switches, found) == pytest.approx(us(best), rel=1e-6)


def test_closed_forms_of_a_large_reduce_scatter():
    """256 nodes, 512 MB, 8 switches of 12.5 GB/s: 41.16, 6.86 and 5.26 ms."""
    steps, switches = reduce_scatter(256, 512e6), ParallelSwitches(8, 12.5e9, us(200), us(20))
    times = [one_shot(steps, switches), strawman(steps, switches), without_reconfiguration(steps, switches)]
    np.testing.assert_allclose(times, us(np.array([41160, 6860, 5260])), rtol=1e-9)


def clocked(steps, switches, found):
    """When the last step ends; every rule of the model is checked on the way, with what each switch holds."""
    held, free = [None] * switches.count, [0.0] * switches.count
    barrier, tiny = 0.0, 1e-9
    for i, (size, wanted) in enumerate(zip(*steps, strict=True)):
        ends = [barrier]
        assert found.sending_s[i].sum() == pytest.approx(size / switches.circuit_Bps)
        for lane in np.flatnonzero(found.sending_s[i] > tiny):
            start = found.start_s[i, lane]
            turn = held[lane] != wanted and not (held[lane] is None and switches.first_free)
            assert start >= barrier - tiny
            assert start >= free[lane] + turn * switches.delay_s - tiny
            held[lane] = wanted
            free[lane] = start + found.sending_s[i, lane] + switches.step_s
            ends.append(free[lane])
        barrier = max(ends)
    return barrier


def best_of_all_uses(steps, switches):
    """Oracle: for every choice of who serves which step, a linear programme of starts and sending."""
    count, lanes = len(steps.step_bytes), switches.count
    some = [use for use in itertools.product((0, 1), repeat=lanes) if any(use)]
    return min(of_one_use(steps, switches, uses) for uses in itertools.product(some, repeat=count))


def of_one_use(steps, switches, uses):
    count, lanes = len(uses), switches.count
    x = np.arange(count * lanes).reshape(count, lanes)  # sending; then starts; then ends of steps
    width = 2 * x.size + count
    rows, high, equal, size = [], [], [], []

    def later(one, other, by):  # one >= sum of other + by
        row = np.zeros(width)
        row[one] -= 1
        row[other] += 1
        rows.append(row)
        high.append(-by)

    for i in range(count):
        equal.append(np.isin(np.arange(width), x[i][np.array(uses[i]) > 0]).astype(float))
        size.append(steps.step_bytes[i] / switches.circuit_Bps)
        for lane in np.flatnonzero(uses[i]):
            later(2 * x.size + i, [x[i, lane], x.size + x[i, lane]], switches.step_s)
            if i:
                later(x.size + x[i, lane], [2 * x.size + i - 1], 0)
    for lane in range(lanes):
        served = [i for i in range(count) if uses[i][lane]]
        if served and not switches.first_free:
            later(x.size + x[served[0], lane], [], switches.delay_s)
        for before, i in itertools.pairwise(served):
            turn = switches.delay_s * (steps.configuration[before] != steps.configuration[i])
            later(x.size + x[i, lane], [x[before, lane], x.size + x[before, lane]], switches.step_s + turn)
    done = linprog(np.eye(width)[-1], A_ub=rows, b_ub=high, A_eq=equal, b_eq=size)
    assert done.status == 0
    return done.fun


@pytest.mark.parametrize("seed", range(6))
def test_as_good_as_every_use_of_switches(seed):
    random = np.random.default_rng(seed)
    steps = CollectiveSteps(random.uniform(0.2, 3, 3 + seed % 2), random.integers(0, 2, 3 + seed % 2))
    switches = ParallelSwitches(2, 1.0, random.uniform(0.1, 2), random.choice([0.0, 0.1]), bool(seed % 2))
    found = find_overlap(steps, switches)
    assert found.seconds == pytest.approx(best_of_all_uses(steps, switches), rel=1e-6)
    assert found.seconds <= strawman(steps, switches) * (1 + 1e-9)
    assert clocked(steps, switches, found) <= found.seconds * (1 + 1e-6)


def test_a_switch_that_sits_a_step_out_holds_its_configuration():
    # Configurations 0, 1, 0 of 1, 1, 1 bytes; turns of 10. Each switch keeps one: 1 + 1 + 1, where turning costs 20.
    steps = CollectiveSteps(np.ones(3), np.array([0, 1, 0]))
    assert find_overlap(steps, ParallelSwitches(2, 1.0, 10.0, first_free=True)).seconds == pytest.approx(3.0)


def test_steps_of_collectives():
    for got, sizes, order in [
        (reduce_scatter(8, 8.0), [4, 2, 1], [0, 1, 2]),
        (all_reduce(4, 8.0), [4, 2, 2, 4], [0, 1, 1, 0]),
        (pairwise(5, 8.0), [2] * 4, [0, 1, 2, 3]),
        (bruck(4, 8.0), [8, 8], [0, 1]),
    ]:
        np.testing.assert_array_equal(got.step_bytes, sizes)
        np.testing.assert_array_equal(got.configuration, order)


def test_nothing_to_send_takes_no_time():
    assert find_overlap(CollectiveSteps(np.zeros(2), np.arange(2)), ParallelSwitches(2, 1.0, 1.0)).seconds == 0.0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: reduce_scatter(6, 1.0), InputError, "nodes must be a power of two, got 6"),
        (lambda: one_shot(pairwise(5, 1.0), FREE), Misfit, "one-shot needs a switch for every configuration"),
        (
            lambda: strawman(CollectiveSteps(np.ones(2), np.zeros(3)), FREE),
            InputError,
            "must have one value per step",
        ),
        (
            lambda: without_reconfiguration(CollectiveSteps(-np.ones(1), np.zeros(1)), FREE),
            InputError,
            "step_bytes must be finite and not",
        ),
        (
            lambda: strawman(all_reduce(4, 1.0), ParallelSwitches(0, 1.0, 1.0)),
            InputError,
            "switches must be a whole number",
        ),
        (lambda: find_overlap(all_reduce(4, 1.0), FREE, limit_s=0), InputError, "limit_s must be finite and above 0"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
