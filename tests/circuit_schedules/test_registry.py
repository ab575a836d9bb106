"""Schedulers by name: what is asked, what is refused; the round robin by its closed form."""

import importlib
import math
import sys
import types

import jax
import numpy as np
import pytest

from mfabric_jax import InputError, Region
from mfabric_jax.circuit_schedules import NAMES, get, lower_bound, registry, schedule_time
from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.registry import settings_of


def region(servers, degree=1, packet=0.0, delay=2.0):
    return Region(servers, 8e-9, degree, packet, delay)


def drawn(servers, seed=0):
    demand = np.random.default_rng(seed).uniform(0.5, 3, (servers, servers))
    np.fill_diagonal(demand, 7.0)  # stays inside of servers
    return demand


# ---------------------------------------------------------------------------------------------------------- round robin
@pytest.mark.parametrize("switches", [1, 2, 4])
@pytest.mark.parametrize("slot_s", [None, 0.7])
def test_uniform_round_robin_is_the_closed_form(switches, slot_s):
    servers, size, delay = 5, 2.1, 0.5
    demand, where = np.full((servers, servers), size), region(servers, switches, delay=delay)
    schedule = get("rotor", switches=switches, slot_s=slot_s)(demand, where)
    slot = slot_s or size
    cycles = math.ceil(round(size / slot, 9))
    time = schedule_time(where, schedule, demand)
    np.testing.assert_allclose(time, cycles * (servers - 1) / switches * (slot + delay), rtol=1e-12)
    if cycles == 1:
        np.testing.assert_allclose(time, lower_bound(demand, where, switches), rtol=1e-12)


@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("servers", [2, 6, 7])
def test_round_robin_carries_everything(servers, directed):
    demand = drawn(servers)
    for switches, ports in ((1, 1), (1, 2), (3, 2)):
        where = region(servers, switches * ports)
        how = {"switches": switches, "directed": directed, "all_stop": switches == 1, "first_free": ports == 2}
        schedule = get("rotor", slot_s=0.9, delay_s=0.25, **how)(demand, where)
        met = np.asarray(schedule.configurations).sum(0)
        cycles = math.ceil(demand[~np.eye(servers, dtype=bool)].max() / 0.9)
        np.testing.assert_array_equal(met, cycles * (1 - np.eye(servers)))
        time = schedule_end_s(where, schedule, demand)
        assert lower_bound(demand, where, delay_s=0.25, **how) <= time < np.inf
        assert (schedule.delay_s, schedule.switches, schedule.directed) == (0.25, switches, directed)


def test_nothing_to_send_or_no_circuits():
    assert get("rotor")(np.zeros((3, 3)), region(3)).configurations.shape == (0, 3, 3)
    where, demand = region(3, degree=0, packet=1.0), np.ones((3, 3))
    assert float(schedule_time(where, get("rotor")(demand, where), demand)) == 2.0


# ------------------------------------------------------------------------------------------------------------- registry
def test_every_name_is_a_function_of_the_common_arguments():
    assert "rotor" in NAMES
    for name in NAMES:
        called = name.replace("-", "_")
        function = getattr(importlib.import_module(f"mfabric_jax.circuit_schedules.{called}"), called)
        assert function.__doc__
        schedule = get(name)(drawn(4), region(4, packet=0.5))
        assert np.isfinite(schedule_end_s(region(4, packet=0.5), schedule, drawn(4)))
    assert settings_of("rotor") == ["slot_s"]


def test_a_scheduler_gets_facts_in_si(monkeypatch):
    seen = {}

    def whole_pair(demand, *, depth=3, **facts):
        seen.update(facts, demand=demand)
        return np.zeros((0, 3, 3), int), np.zeros(0), np.zeros(0, int)

    name = "mfabric_jax.circuit_schedules.whole_pair"
    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(whole_pair=whole_pair))
    monkeypatch.setattr(registry, "NAMES", ("whole-pair",))
    schedule = get("whole-pair", switches=2, all_stop=False, first_free=True)(np.ones((3, 3), int), region(3, 4, 0.5))
    np.testing.assert_array_equal(seen.pop("demand"), 1.0 - np.eye(3))
    want = {"circuit_Bps": 1.0, "packet_Bps": 0.5, "switches": 2, "ports": 2, "delay_s": 2.0}
    assert seen == want | {"all_stop": False, "directed": True, "first_free": True}
    assert schedule.delay_s is None, "the region's own, which may change"
    assert settings_of("whole-pair") == ["depth"]


def test_mistakes_are_refused():
    demand = np.ones((3, 3))
    for ask, words in [
        (lambda: get("rotator"), "scheduler 'rotator' is unknown (did you mean 'rotor'?); allowed: "),
        (lambda: get("rotor", slots=1), "scheduler 'rotor' has no setting 'slots'; it has slot_s."),
        (lambda: get("rotor", switches=0), "switches must be a whole number of at least 1"),
        (lambda: get("rotor", delay_s=-1.0), "delay_s must be finite and not negative"),
        (lambda: get("rotor", slot_s=0.0)(demand, region(3)), "slot_s must be finite and above 0"),
        (
            lambda: get("rotor", slot_s=0.00001)(demand, region(3)),
            "slot_s must be longer: 1e-05 s needs 100,000 cycles",
        ),
        (lambda: get("rotor")(np.ones((2, 2)), region(3)), "demand must be [S S] with S = 3 servers, got [2, 2]."),
        (lambda: get("rotor")(-demand, region(3)), "demand must be finite and not negative"),
        (lambda: get("rotor", switches=2)(demand, region(3, 3)), "optical_degree must be a multiple of the 2 switches"),
        (
            lambda: get("rotor")(demand, region(3, np.array([1, 2, 1]))),
            "optical_degree must be the same at all servers",
        ),
        (lambda: jax.jit(lambda d: get("rotor")(d, region(3)).seconds)(demand), "schedulers run on the host"),
    ]:
        with pytest.raises(InputError) as caught:
            ask()
        assert words in str(caught.value)
