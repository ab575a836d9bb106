"""Every scheduler by its name: legal, above the bound, and as late as its own clock says."""

import jax
import numpy as np
import pytest

from mfabric_jax import Region
from mfabric_jax.circuit_schedules import NAMES, get, lower_bound, schedule_time
from mfabric_jax.circuit_schedules.ending import end_s, schedule_end_s
from mfabric_jax.circuit_schedules.families import moe
from mfabric_jax.circuit_schedules.placing import problem_of

B = 1e9  # bytes/s of a circuit


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("switches", "packet", "all_stop"), [(1, 0.0, True), (2, 0.25, False)])
def test_times_are_those_of_the_schedule(name, switches, packet, all_stop):
    servers = 4 if name == "exact" else 6
    demand = moe(servers, seed=3) * B
    where = Region(servers, B * 8e-9, switches, packet, 0.01)
    how = {"switches": switches, "all_stop": all_stop}
    more = {"programmes": 20} if name == "joint" else {}
    with jax.enable_x64(True):
        schedule = get(name, **how, **more)(demand, where)
        time = float(schedule_time(where, schedule, demand))
        bound = float(lower_bound(demand, where, **how))
    facts = {"circuit_Bps": B, "packet_Bps": packet * B, "ports": 1, "delay_s": 0.01, "directed": True}
    problem = problem_of(demand, **facts, **how, first_free=False)
    plain = np.asarray(schedule.configurations), np.asarray(schedule.seconds), np.asarray(schedule.switch)
    assert bound * (1 - 1e-9) <= time < np.inf
    assert time == pytest.approx(end_s(problem, plain), rel=1e-9)
    assert schedule_end_s(where, schedule, demand) == end_s(problem, plain)


def test_seconds_in_single_precision_leave_no_bytes():
    demand = moe(16, seed=0)
    with jax.enable_x64(False):
        where = Region(16, 8e-9, 1, 0.0, 0.05)
        schedule = get("spectra")(demand, where)
        assert schedule.seconds.dtype == np.float32
        time = schedule_end_s(where, schedule, demand)
    assert time == pytest.approx(float(np.asarray(schedule.seconds, float).sum() + 15 * 0.05), rel=1e-5)
