"""All-to-alls of a replay whose circuits turn while they run, against the time of their schedules."""

import numpy as np
import pytest

from mfabric_jax.circuit_schedules import get, schedule_time
from mfabric_jax.fabric import Region
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks
from tests.replay.test_replay import NEAR, OPTICAL, one

DELAY_S = 2e-4


def fabric(schedule, ports=2, **circuits):
    """Servers with two packet NICs and `ports` optical ones of 400 Gbps, one GPU each."""
    circuits = {"schedule": schedule, "delay_s": DELAY_S} | circuits
    nics = {"network.nics": ports + 1, "network.mfabric.optical_degree": ports}
    return OPTICAL | nics | {f"circuits.{name}": value for name, value in circuits.items()}


def messages(*demands, compute_s=0.0):
    """All-to-alls of these bytes [S S], one after the other, with computation in between."""
    ranks = len(demands[0])
    tasks = Tasks(ranks, (tuple(range(ranks)),))
    here: list = [()] * ranks
    for step, demand in enumerate(demands):
        sent: list[list[int]] = [[] for _ in range(ranks)]
        for i, j in zip(*np.nonzero(demand), strict=True):
            match = int((step * ranks + i) * ranks + j)
            sent[i].append(tasks.add(TaskKind.SEND, i, after=here[i], peer=j, bytes=demand[i, j], match=match))
            sent[j].append(tasks.add(TaskKind.RECV, j, peer=i, match=match))
        for rank in range(ranks):
            barrier = {"op": Op.BARRIER, "group": 0, "match": 10_000 + step}
            done = tasks.add(TaskKind.COLLECTIVE, rank, after=sent[rank] or here[rank], **barrier)
            here[rank] = tasks.add(TaskKind.COMPUTE, rank, after=done, seconds=compute_s)
    return tasks.graph()


def drawn(seed, servers=4):
    """Bytes of ms at a NIC, some pairs without any."""
    random = np.random.default_rng(seed)
    demand = 50e6 * random.lognormal(0, 1, (servers, servers)) * (random.random((servers, servers)) < 0.8)
    np.fill_diagonal(demand, 0)
    demand[np.arange(servers), np.roll(np.arange(servers), 1)] += 1e6
    return demand


def closed_s(name, demand, ports=2, first_free=False, **how):
    region = Region(len(demand), 400.0, ports, 1, DELAY_S)
    return float(schedule_time(region, get(name, first_free=first_free, **how)(demand, region), demand))


@pytest.mark.parametrize("how", [{}, {"switches": 2}, {"all_stop": False}, {"directed": False}], ids=str)
@pytest.mark.parametrize("name", ["whole-pair", "spectra", "solstice", "rotor", "keep-or-turn"])
def test_an_all_to_all_ends_with_its_schedule(name, how):
    demand = drawn(len(name))
    done = one(messages(demand), fabric(name, **how), circuits_for="all-to-all")
    assert done.makespan_s == pytest.approx(closed_s(name, demand, **how), **NEAR)
