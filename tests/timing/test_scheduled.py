"""Circuits that turn while an all-to-all runs, in an iteration: beside plain Python, and beside circuits that stay."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, simulate
from mfabric_jax.circuit_schedules import CircuitSchedule, get, planned
from mfabric_jax.circuit_schedules.ending import part_ends_s, problem_and_schedule
from mfabric_jax.evaluate.composed import iteration_of
from mfabric_jax.evaluate.whole_cluster import choose_circuits
from mfabric_jax.policies import Plan, uniform
from mfabric_jax.timing import exchanges
from mfabric_jax.timing.passes import places
from mfabric_jax.timing.scheduled import ends_of_switches, schedule_exchanges
from mfabric_jax.traffic import dispatched_bytes, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes
from tests.small import row, several, small
from tests.timing.jobs import DRAWN, TOKENS, region

RTOL = 1e-9


# ----------------------------------------------------------------------------------------------- an oracle of one stage
def shown_by(schedule):
    """First and last circuits, turns of the busiest switch and circuits set up, by plain loops."""
    servers = schedule.configurations.shape[-1]
    first, last = np.zeros((2, servers, servers))
    turns, anew = [0], 0.0
    for lane in range(schedule.switches):
        before, count = None, 0
        columns = map(np.asarray, (schedule.configurations, schedule.seconds, schedule.switch))
        for configuration, seconds, switch in zip(*columns, strict=True):
            if switch != lane or seconds == 0:
                continue
            if before is None:
                first += configuration
            if before is not None or not schedule.first_free:
                count += 1
                anew += np.maximum(configuration - (0 if before is None else before), 0).sum() / 2
            before = configuration
        turns.append(count)
        last += 0 if before is None else before
    return first, last, max(turns), anew


@pytest.mark.parametrize("seed", range(12))
def test_what_switches_show_beside_plain_loops(seed):
    random = np.random.default_rng(seed)
    many, switches = seed % 6, 1 + seed % 3
    configurations = random.integers(0, 3, (many, 4, 4)) * (1 - np.eye(4, dtype=int))
    seconds = random.choice([0.0, 1.0, 2.0], many)
    lanes = random.integers(0, switches, many)
    schedule = CircuitSchedule(configurations, seconds, lanes, switches=switches, first_free=seed % 2 == 0)
    for one in (schedule, jax.tree.map(np.asarray, schedule)):
        for found, wanted in zip(ends_of_switches(one), shown_by(schedule), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def drawn_by_hand(demand, sizes, plan, nic_Bps):
    """Seconds of circuits and packets, turns before and while, circuits set up [P Q L 2], slot by slot in running
    order; `plan(demand, known)`: (circuits_s, packets_s, first, last, turns, anew, free)."""
    where = places(DRAWN)
    shape = (*where.layer.shape, 2)
    found = {
        name: np.zeros(shape) for name in ("optical", "electrical", "switch", "new_circuits", "reconfigurations_during")
    }
    for stage in range(shape[0]):
        before = None
        for _ in range(2):  # the second time, the circuits are those that an identical iteration left
            for q in range(shape[1]):
                for block in range(shape[2]):
                    layer, batch = where.layer[stage, q, block], where.micro_batch[stage, q, block]
                    if layer < 0:
                        continue
                    back = where.backward[stage, q, block]
                    for which in range(2):
                        size = sizes[1 - which] if back else sizes[which]
                        got = plan(demand[layer % len(demand), batch % demand.shape[1]] * size, back or which == 1)
                        circuits_s, packets_s, first, last, turns, anew, free = got
                        new = np.maximum(first - (0 if before is None else before), 0).sum() / 2 if free else 0.0
                        at = stage, q, block, which
                        found["optical"][at] = circuits_s * nic_Bps / size
                        found["electrical"][at] = packets_s * nic_Bps / size
                        found["switch"][at] = free and new > 0
                        found["new_circuits"][at] = new + anew
                        found["reconfigurations_during"][at] = turns
                        before = last
    return found


def demand_of_job():
    demand = server_bytes(dispatched_bytes(DRAWN, TOKENS), DRAWN.ranks_per_server)
    return demand, server_bytes(even_bytes(DRAWN, np.dtype(float)), DRAWN.ranks_per_server)


@pytest.mark.parametrize("name", ["spectra", "keep-or-reconfigure"])
def test_every_slot_has_a_schedule_for_its_own_bytes(name):
    where = jax.tree.map(np.asarray, region(degree=2, delay=0.01))
    nic_Bps = where.nic_Bps
    demand, even = demand_of_job()
    planner = planned.planner_of(lambda known: get(name, switches=2, first_free=known), where)
    found = schedule_exchanges(DRAWN, demand, even, planner, nic_Bps)
    known = {}

    def plan(one, ahead):
        key = one.tobytes(), bool(ahead)
        if key not in known:
            schedule = get(name, switches=2, first_free=bool(ahead))(one, where)
            times = part_ends_s(*problem_and_schedule(where, schedule, one))
            known[key] = (*times, *shown_by(schedule), schedule.first_free)
        return known[key]

    wanted = drawn_by_hand(demand, (1.0, 2.0), plan, nic_Bps)
    for field, value in wanted.items():
        np.testing.assert_allclose(getattr(found, field), value, rtol=RTOL, err_msg=field)
    assert found.switch.any()
    assert found.reconfigurations_during.any()
    calm = plan(even, False)
    np.testing.assert_allclose(found.balanced, max(calm[:2]) * nic_Bps, rtol=RTOL)


class Stays:
    """Uniform circuits for as long as any all-to-all needs, there when it begins."""

    def __call__(self, demand, region, *, previous=None, key=None):
        count = uniform(None, region).circuits.count
        kept = CircuitSchedule(count[None], jnp.full(1, 1e9, demand.dtype), directed=False, first_free=True)
        return Plan.of_schedule(kept)


def test_one_configuration_that_stays_is_circuits_that_stay():
    where = region(delay=2.0)
    found, stayed = exchanges(DRAWN, where, TOKENS, Stays()), exchanges(DRAWN, where, TOKENS, uniform)
    for field in ("optical", "electrical", "inside", "switch", "balanced"):
        np.testing.assert_allclose(getattr(found, field), getattr(stayed, field), rtol=RTOL, err_msg=field)
    assert not found.reconfigurations_during.any()


SCHEDULER = """
import numpy as np
from mfabric_jax.circuit_schedules import CircuitSchedule


def shifts(demand, region):
    servers = region.servers
    each = [np.roll(np.eye(servers, dtype=int), shift, axis=1) for shift in range(1, servers)]
    slot_s = np.asarray(demand).max() / float(region.nic_Bps) / 6 / 2
    return CircuitSchedule(6 * np.stack(each + each), np.full(2 * servers - 2, slot_s), first_free=True)


def stays(demand, region):
    count = np.zeros((region.servers, region.servers), int)
    free = np.full(region.servers, 6)
    while True:
        left = [(count[i, j], i, j) for i in range(len(free)) for j in range(i) if free[i] and free[j]]
        if not left:
            return CircuitSchedule(count[None], [1e9], directed=False, first_free=True)
        _, i, j = min(left)
        count[i, j] += 1
        count[j, i] += 1
        free[[i, j]] -= 1


def wrong(demand, region):
    return CircuitSchedule(7 * np.roll(np.eye(region.servers, dtype=int), 1, axis=1)[None], [1.0])


def fails(demand, region):
    raise ValueError("no idea")


def bare(demand, region):
    return 3
"""

POLICY = (
    SCHEDULER
    + """
import jax.numpy as jnp
from mfabric_jax.policies import Plan


def in_jax(demand, region, *, previous=None, key=None):
    servers = region.servers
    each = np.stack([np.roll(np.eye(servers, dtype=int), shift, axis=1) for shift in range(1, servers)])
    slot_s = demand.max() / region.nic_Bps / 6 / 2
    whole = np.concatenate([each, each])
    return Plan.of_schedule(CircuitSchedule(6 * whole, jnp.full(len(whole), slot_s), first_free=True))
"""
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "own.py"
    file.write_text(POLICY)
    return lambda function: f"{file}:{function}"


def test_a_scheduler_of_ones_own_in_a_comparison(own):
    """What stays gives the rows of circuits that stay; the same schedule by a policy in JAX gives the same rows."""
    free = {"circuits.delay_s": 1e-5}
    stayed = row(small(free | {"circuits.policy": "uniform"}))
    mine = row(small(free | {"circuits.schedule": own("stays")}))
    for column in ("iteration_s", "ep_comm_s", "reconfig_s", "ep_over_balanced", "usd_per_million_tokens"):
        assert mine[column] == pytest.approx(stayed[column], rel=RTOL), column
    assert (mine["policy"], mine["reconfigurations"]) == ("none", 0)
    turned, traced = (
        row(small(free | given)) for given in ({"circuits.schedule": own("shifts")}, {"circuits.policy": own("in_jax")})
    )
    for column in ("iteration_s", "ep_comm_s", "reconfig_s", "ep_over_balanced", "circuit_changes", "reconfigurations"):
        assert traced[column] == pytest.approx(turned[column], rel=1e-6), column
    assert turned["reconfigurations"] > 0
    assert turned["ep_comm_s"] != pytest.approx(stayed["ep_comm_s"], rel=1e-3)


WRONG = {
    "wrong": "configurations[0] of the schedule has more circuits at a server than its ports on one switch.",
    "fails": "called as scheduler(demand, region), raised ValueError: no idea",
    "bare": "must return a CircuitSchedule, got int.",
}


@pytest.mark.parametrize("function", WRONG)
def test_a_wrong_scheduler_is_told_before_anything_is_computed(own, function):
    with pytest.raises(InputError, match=re.escape(WRONG[function])):
        simulate(small({"circuits.schedule": own(function)}))
    with pytest.raises(InputError, match=r"circuits\.switches must be 1 with a scheduler of your own"):
        simulate(small({"circuits.schedule": own("stays"), "circuits.switches": 2}))


def test_a_function_of_numbers_has_no_schedule():
    with pytest.raises(InputError, match=r"circuits\.schedule must be none for a traced function"):
        iteration_of(small({"circuits.schedule": "spectra"}))


def test_bandwidths_and_delays_have_schedules_of_their_own():
    axes = {"network.nic_gbps": [100.0, 400.0], "circuits.delay_s": [1e-6, 1e-3, 0.1]}
    every = several({"circuits.schedule": "whole-pair", "traffic.drawn": 1}, axes)
    found = [one["iteration_s"] for one in simulate(every).rows()]
    alone = [row(one)["iteration_s"] for one in every]
    np.testing.assert_allclose(found, alone, rtol=1e-12)
    assert len(set(found)) == len(found)


def test_what_lays_out_flows_one_by_one_has_no_schedules():
    case = small({"circuits.schedule": "spectra"})
    with pytest.raises(InputError, match=r"circuits\.schedule must be none with"):
        choose_circuits(case, np.ones((1, 4, 4)), 6, "float64")
