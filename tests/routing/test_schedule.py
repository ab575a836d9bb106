"""The time of an all-to-all under a schedule of circuits: against a plain simulation, by hand, and laws."""

import itertools

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linprog

from mfabric_jax import Circuits, InputError, Region, all_to_all_time
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.routing.schedule import lower_bound, schedule_time
from tests.lowering import text_for
from tests.routing.schedules import EACH, KINDS, SIZES, draw, drawn, made, matched, padded, region

KIND = (4, 2, False, True, False)  # of small tests: servers, switches, all_stop, directed, first_free


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_schedules_agree_with_a_plain_simulation(kind):
    simulated, times, bounds = drawn(kind)
    np.testing.assert_allclose(times, simulated, rtol=1e-9)
    assert (bounds <= times * (1 + 1e-9)).all()
    assert np.isfinite(times).mean() > 0.75
    assert len(times) * len(KINDS) >= 1000


def test_single_precision():
    for kind in (KIND[1:], (1, True, False, True)):
        simulated, times, bounds = drawn(kind, np.float32, (4, 5))
        assert times.dtype == bounds.dtype == np.float32
        np.testing.assert_allclose(times, simulated, rtol=1e-5, err_msg=str(kind))
        assert (bounds <= times * (1 + 1e-5)).all()


def test_a_batch_is_its_loop_and_one_trace():
    traced = eqx.filter_jit(chex.assert_max_traces(schedule_time, n=1))
    times = drawn(KIND[1:])[1].reshape(len(SIZES), EACH)[SIZES.index(KIND[0])]
    ones = [made(draw(seed, *KIND), KIND) for seed in range(EACH)]
    np.testing.assert_allclose(times, [traced(*one) for one in ones], rtol=1e-12)
    np.testing.assert_allclose(times[:3], [schedule_time(*one) for one in ones[:3]], rtol=1e-12)


# -------------------------------------------------------------------------------------------------------------- by hand
def table(servers, *pairs):
    found = np.zeros((servers, servers), int)
    for i, j in pairs:
        found[i, j] += 1
    return found


def timed(demand, configurations, seconds, switch=None, *, degree=1, packet=0.0, delay=2.0, **how):
    """Among four servers, some of which may have nothing."""
    schedule = CircuitSchedule(padded(np.array(configurations), 4), np.array(seconds), switch, **how)
    return float(schedule_time(region(4, degree, packet, delay), schedule, padded(demand, 4)))


def test_turns_by_hand():
    ahead, back = table(3, (0, 1), (1, 2), (2, 0)), table(3, (1, 0), (2, 1), (0, 2))
    demand = 3.0 * ahead + 5.0 * back
    assert timed(demand, [ahead, back], [3.0, 5.0]) == 2 + 3 + 2 + 5
    assert timed(demand, [ahead, back], [3.0, 5.0], first_free=True) == 3 + 2 + 5
    assert timed(demand, [ahead, back], [4.0, 9.0]) == 2 + 4 + 2 + 5, (
        "seconds are not cut, but the end is the last byte's"
    )
    assert timed(demand, [ahead, back], [3.0, 5.0], delay_s=0.5) == 9.0, "the schedule's own delay"
    assert timed(demand, [ahead, back], [3.0, 5.0], [0, 1], degree=2, switches=2) == 2 + 5, "switches turn side by side"
    assert timed(demand, [ahead, back, ahead], [1.0, 5.0, 2.0]) == 2 + 1 + 2 + 5 + 2 + 2
    assert timed(demand, [ahead, back], [3.0, 4.0]) == np.inf, "a byte is left that nothing carries"
    assert timed(demand, [ahead, back], [3.0, 4.0], packet=0.25) == 11.0, "packets carry it in 4 s beside"
    assert timed(demand, [ahead, back], [3.0, 4.0], packet=1 / 16) == 16.0, "it needs 16 s from time 0"
    assert timed(0 * demand, [ahead, back], [3.0, 5.0]) == 0


def test_circuits_that_stay_carry_during_turns():
    first, then = table(4, (0, 1), (2, 3)), table(4, (0, 1), (2, 0))
    demand = 6.0 * table(4, (0, 1)) + 1.0 * table(4, (2, 3), (2, 0))
    assert timed(demand, [first, then], [1.0, 5.0]) == 2 + 1 + 2 + 5
    assert timed(demand, [first, then], [1.0, 5.0], all_stop=False) == 2 + 6
    two, one = 2 * table(2, (0, 1)), table(2, (0, 1))
    assert timed(9.0 * one, [two, one, two], [1.0, 1.0, 9.0], degree=2, all_stop=False) == 2 + 1 + 2 + 1 + 2 + 1


def test_several_switches_add_up_on_a_pair():
    one = table(2, (0, 1))
    got = timed(10.0 * one, [one, one, one], [3.0, 4.0, 9.0], [0, 1, 0], degree=2, switches=2, first_free=True)
    assert got == 3 + 2 + 3, "6 bytes until 3, 1 more until 4, none until 5, the last 3 alone"


def test_nothing_shown_is_all_packets():
    demand = np.array([[0.0, 3.0], [1.0, 0.0]])
    assert timed(demand, np.zeros((0, 2, 2), int), np.zeros(0), packet=2.0) == 1.5


# ------------------------------------------------------------------------------------------- beside one set of circuits
@pytest.mark.parametrize("packet", [0.0, 0.7])
def test_one_configuration_is_unsplit(packet):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = matched(rng, 5, False) + matched(rng, 5, False)
        demand = rng.uniform(0, 4, (5, 5)) * (count > 0 if not packet else 1) * (rng.random((5, 5)) < 0.8)
        where = region(5, 2, packet, 1.0)
        slowest = np.where(count > 0, demand / np.maximum(count, 1), 0).max()
        got = schedule_time(where, CircuitSchedule(count[None], [slowest], directed=False, first_free=True), demand)
        unsplit = all_to_all_time(where, Circuits(count), demand)
        np.testing.assert_allclose(got, unsplit, rtol=1e-9)
        paid = schedule_time(where, CircuitSchedule(count[None], [slowest], directed=False), demand)
        assert got <= paid <= unsplit + 1


def test_for_the_seconds_of_split_the_end_is_not_before():
    later = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        servers = 2 + 3 * (seed % 2)
        count, demand = matched(rng, servers, False), rng.exponential(1, (servers, servers)) ** 3
        count, demand, where = padded(count, 5), padded(demand, 5), region(5, 1, 0.7, 1.0)
        split = float(all_to_all_time(where, Circuits(count), demand, routing="split"))
        got = float(
            schedule_time(where, CircuitSchedule(count[None], [split], directed=False, first_free=True), demand)
        )
        assert got >= split * (1 - 1e-9)
        if servers == 2:
            np.testing.assert_allclose(got, split, rtol=1e-9)
        later += got > split * (1 + 1e-6)
    assert later, "max-min sharing ends after packets that are paced"


# ---------------------------------------------------------------------------------------------------------- derivatives
@eqx.filter_jit
def slopes(at, along, where, schedule):
    """The time, its slope along a direction, and the slopes of everything."""

    def time(changes):
        seconds, size, delay, counts = changes
        moved = eqx.tree_at(lambda s: (s.seconds, s.configurations), schedule, (seconds, counts))
        return schedule_time(eqx.tree_at(lambda r: r.delay_s, where, delay), moved, size)

    return *jax.jvp(time, (at,), (along,)), jax.grad(time)(at)


@pytest.mark.parametrize("seed", [1, 3, 4])
def test_derivatives_are_differences(seed):
    where, schedule, demand = made(draw(seed, *KIND), KIND)
    if not seed % 2:  # no packet NICs: everything is carried
        demand = 0.9 * demand
    real = 0.99 * schedule.configurations.astype(float)
    at = (schedule.seconds + 0.01, jnp.asarray(demand), jnp.asarray(where.delay_s) + 0.01, real)
    along = jax.tree.map(lambda x: jnp.asarray(np.random.default_rng(seed).uniform(0.5, 1, x.shape)), at)
    along = (along[0], along[1] * at[1], along[2], -0.1 * along[3] * real)  # what is 0 stays 0
    step = 1e-6
    ahead, behind = (
        slopes(jax.tree.map(lambda x, d, way=way: x + way * step * d, at, along), along, where, schedule)[0]
        for way in (1, -1)
    )
    _, forward, gradient = slopes(at, along, where, schedule)
    reverse = sum(jnp.vdot(g, d) for g, d in zip(gradient, along, strict=True))
    np.testing.assert_allclose(forward, (ahead - behind) / (2 * step), rtol=1e-5)
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)
    assert abs(forward) > 1e-3


# ------------------------------------------------------------------------------------------------------------- legality
PAIR = table(3, (0, 1), (1, 0))
WRONG = [
    ({"configurations": [PAIR, 2 * PAIR]}, "configurations[1] of the schedule has more circuits at a server than"),
    ({"configurations": [table(3, (0, 1), (2, 1)), PAIR]}, "configurations[0] of the schedule has more circuits"),
    ({"configurations": [PAIR, table(3, (0, 0))]}, "configurations[1] of the schedule has a server joined to itself"),
    ({"configurations": [PAIR, -PAIR]}, "configurations[1] of the schedule has a negative count"),
    (
        {"configurations": [table(3, (0, 1)), PAIR], "directed": False},
        "configurations[0] of the schedule has circuits in only one direction",
    ),
    ({"seconds": [1.0, -1.0]}, "configurations[1] of the schedule has seconds that are negative or not finite"),
    ({"seconds": [np.nan, 1.0]}, "configurations[0] of the schedule has seconds that are negative or not finite"),
    ({"switch": np.array([0, 2])}, "configurations[1] of the schedule has a switch that is not from 0 to 1"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_illegal_schedules_are_refused(changes, words):
    usual = {"configurations": [PAIR, PAIR], "seconds": [1.0, 1.0], "switch": np.array([0, 1])} | changes
    schedule = CircuitSchedule(
        np.array(usual["configurations"]),
        np.array(usual["seconds"]),
        usual["switch"],
        switches=2,
        directed=usual.get("directed", True),
    )
    where, demand = region(3, 2, 1.0, 1.0), np.ones((3, 3))
    with pytest.raises(InputError) as caught:
        schedule_time(where, schedule, demand)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    with pytest.raises(RuntimeError, match=words.partition(" has ")[2][:30]):
        eqx.filter_jit(schedule_time)(where, schedule, demand).block_until_ready()


def test_servers_may_have_unequal_ports():
    where = region(3, 0, 1.0, 2.0)
    where = eqx.tree_at(lambda r: r.optical_degree, where, np.array([2, 2, 0], np.int32))
    where = eqx.tree_at(lambda r: r.electrical_nics, where, np.array([1.0, 1.0, 0.0]))
    demand = 4.0 * table(3, (0, 1)) + 3.0 * table(3, (1, 0))
    pair = table(3, (0, 1), (1, 0))
    schedule = CircuitSchedule(np.array([pair, pair]), [1.0, 1.0], np.array([0, 1]), switches=2)
    assert schedule_time(where, schedule, demand) == 3.0, "2 of 4 bytes on circuits after the turn, 2 on packets"
    assert schedule_time(where, schedule, demand + table(3, (0, 2))) == np.inf
    with pytest.raises(InputError, match="more circuits at a server"):
        schedule_time(where, CircuitSchedule(table(3, (0, 2))[None], [1.0], switches=2), demand)
    assert lower_bound(demand, where, 2) == (4 + 2 * 2) / 3, "both ports are dark for one turn"
    assert lower_bound(demand + table(3, (0, 2)), where, 2) == np.inf


def test_a_batch_with_one_illegal_schedule_ends_in_an_error():
    where, good = region(3, 1, 1.0, 1.0), np.stack([PAIR, PAIR])[:, None]
    timed_all = eqx.filter_jit(
        jax.vmap(lambda tables: schedule_time(where, CircuitSchedule(tables, [1.0]), np.ones((3, 3))))
    )
    np.testing.assert_array_equal(timed_all(good), 2.0)
    with pytest.raises((RuntimeError, ValueError), match="a server joined to itself"):
        timed_all(good + np.array([0, 1])[:, None, None, None] * np.eye(3, dtype=int)).block_until_ready()


def test_shapes_that_do_not_fit_are_refused():
    for build, words in [
        (lambda: CircuitSchedule(PAIR, [1.0]), "configurations must be [K S S]"),
        (lambda: CircuitSchedule(PAIR[None], [1.0, 2.0]), "seconds must have the shape [K] = [1]"),
        (lambda: CircuitSchedule(PAIR[None], [1.0], [0.0]), "switch must be integers"),
        (lambda: CircuitSchedule(PAIR[None], [1.0], switches=0), "switches must be a whole number of at least 1"),
        (lambda: CircuitSchedule(PAIR[None], [1.0], delay_s=-1.0), "delay_s must be finite and not negative"),
        (lambda: CircuitSchedule(PAIR[None], [1.0]).check_region(region(4, 1, 0.0, 0.0)), "S = 4 servers, got S = 3"),
        (
            lambda: CircuitSchedule(PAIR[None], [1.0], switches=2).check_region(region(3, 3, 0.0, 0.0)),
            "a multiple of the 2 switches",
        ),
    ]:
        with pytest.raises(InputError) as caught:
            build()
        assert words in str(caught.value)


# --------------------------------------------------------------------------------------------------------------- bounds
def test_bounds_by_hand():
    uniform = 3.0 * (1 - np.eye(5))
    for switches, want in [(1, 12 + 4 * 2), (2, 6 + 2 * 2), (4, 3 + 2)]:
        where = region(5, switches, 0.0, 2.0)
        assert lower_bound(uniform, where, switches) == want, "L / (s B) + delta k / s"
        assert lower_bound(uniform, where, switches, first_free=True) == want - 2
    assert lower_bound(uniform, region(5, 1, 0.0, 2.0), delay_s=0.5) == 12 + 4 * 0.5
    lines = 8.0 * table(4, (0, 1)) + 1.0 * table(4, (2, 0), (2, 1), (2, 3))
    assert lower_bound(lines, region(4, 1, 0.0, 2.0)) == 9 + 3 * 2, "L of one line, k of another"
    assert lower_bound(lines, region(4, 1, 0.0, 2.0), all_stop=False) == 9 + 2 * 2, "a line at a time"
    assert lower_bound(lines, region(4, 1, 3.0, 1000.0)) == 3, "packets alone"
    assert lower_bound(lines, region(4, 0, 0.0, 2.0)) == np.inf
    assert lower_bound(0 * lines, region(4, 0, 0.0, 2.0)) == 0
    star = np.array([[0, 1.0, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    both, ways = (lower_bound(star, region(4, 1, 0.0, 2.0), directed=directed) for directed in (False, True))
    assert (both, ways) == (2 + 3 * 2, 2 + 2 * 2), "three partners, two of them to send to"


def best_possible(demand, packet, delay, switches, all_stop, first_free, tables):
    """The least time of any schedule of at most three configurations: a linear program for every sequence."""
    best, size = np.inf, demand.size
    port = np.concatenate([np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))])
    for shown in range(4):
        for chosen in itertools.product(range(len(tables)), repeat=shown):
            # Of two alike in a row on a switch one may stay as long; where all stops, their order is nothing.
            pairs = [(chosen[k - switches], chosen[k]) for k in range(switches, shown)]
            if any(a == b or (all_stop and a > b) for a, b in pairs):
                continue
            where = np.arange(shown) % switches
            turns = np.array([delay * (k // switches + (not first_free)) for k in range(shown)])
            kept = np.zeros((3, 3))
            for k in range(switches, shown):
                if not all_stop:
                    kept += delay * np.minimum(tables[chosen[k - switches]], tables[chosen[k]])
            flat = np.array([tables[c].ravel() for c in chosen]).reshape(shown, size).T
            need = (demand - kept).ravel()
            rows = [np.hstack([-flat, -np.eye(size), np.zeros((size, 1))])]  # seconds, bytes on packets, the end
            rows += [np.hstack([np.zeros((6, shown)), port, np.full((6, 1), -packet)])]
            last = np.array([np.append(where == w, np.append(np.zeros(size), -1)) for w in range(switches)])
            dark = [-turns[where == w].max(initial=0) for w in range(switches)]
            found = linprog(
                np.append(np.zeros(shown + size), 1),
                np.vstack([*rows, last]),
                np.concatenate([-need, np.zeros(6), dark]),
            )
            best = min(best, found.fun) if found.status == 0 else best
    return best


@pytest.mark.parametrize("switches", [1, 2])
def test_no_schedule_of_three_servers_beats_the_bound(switches):
    tables = [table(3, (0, 1), (1, 2), (2, 0)), table(3, (1, 0), (2, 1), (0, 2))]
    tables += [table(3, pair, pair[::-1]) for pair in ((0, 1), (0, 2), (1, 2))]
    ratios = []
    for packet, all_stop, first_free in itertools.product((0.0, 0.6), (True, False), (True, False)):
        seed = ((packet > 0) + all_stop + first_free) % 2
        rng = np.random.default_rng(seed)
        demand = np.round(rng.uniform(0.5, 3, (3, 3)), 2) * (1 - np.eye(3)) * (rng.random((3, 3)) < (1, 0.6)[seed])
        how = {"switches": switches, "all_stop": all_stop, "first_free": first_free}
        best = best_possible(demand, packet, 0.5, tables=tables, **how)
        found = float(lower_bound(demand, region(3, switches, packet, 0.5), **how))
        assert found <= best * (1 + 1e-9), (demand, how)
        ratios.append(found / best)
    assert max(ratios) > 0.999
    assert np.mean(ratios) > 0.8, "far below the best, a bound says nothing"


def test_accelerators_do_not_ask_the_host_about_circuits():
    """There, unlike on CPUs, illegal circuits are told by seconds that are no number: nothing calls back."""
    servers = 4
    demand, count = jnp.ones((servers, servers)), jnp.ones((servers, servers), jnp.int32)

    def seconds(demand, count):
        return all_to_all_time(Region(servers, 400.0), Circuits(count), demand)

    traced = jax.jit(seconds).trace(demand, count)
    said = {name: text_for(traced, name) for name in ("cpu", "cuda")}
    assert "callback" in said["cpu"]
    assert "callback" not in said["cuda"]
    legal = jnp.zeros((servers, servers), jnp.int32).at[0, 1].set(1).at[1, 0].set(1)
    assert bool(Circuits(legal).is_legal(6))
    assert not bool(Circuits(count).is_legal(6))
