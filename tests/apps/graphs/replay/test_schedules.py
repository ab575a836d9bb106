"""All-to-alls of a replay whose circuits turn while they run, against the time of their schedules."""

import numpy as np
import pytest

from mfabric_jax.apps.graphs.replay.replayed import (
    gain_rows,
    gains,
    path_rows,
    rank_rows,
    replay_row,
    spans,
    time_spent,
)
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules import get, schedule_time
from mfabric_jax.fabric import Region
from mfabric_jax.routing.schedule import schedule_part_times
from tests.apps.graphs.replay.test_replay import NEAR, OPTICAL, all_to_all, one

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


SCHEDULED = [
    *((name, {}) for name in ("spectra", "whole-pair", "keep-or-reconfigure", "rotor")),
    *(("solstice", how) for how in ({}, {"switches": 2}, {"all_stop": False}, {"directed": False})),
    ("rotor", {"switches": 2, "all_stop": False}),
]


@pytest.mark.parametrize(("name", "how"), SCHEDULED, ids=str)
def test_an_all_to_all_ends_with_its_schedule(name, how):
    demand = drawn(len(name))
    done = one(messages(demand), fabric(name, **how), circuits_for="all-to-all")
    assert done.makespan_s == pytest.approx(closed_s(name, demand, **how), **NEAR)


def parts_s(name, demand):
    """Seconds of circuits and of packet NICs, the first turn free."""
    region = Region(len(demand), 400.0, 2, 1, DELAY_S)
    return np.array(schedule_part_times(region, get(name, first_free=True)(demand, region), demand))


@pytest.mark.parametrize("compute_s", [0.0, 0.1e-3, 1e-3])
def test_all_to_alls_in_sequence(compute_s):
    demands = drawn(7), drawn(8)
    settings = {"circuits_for": "all-to-all"}
    graph = messages(*demands, compute_s=compute_s)
    paid = sum(closed_s("spectra", demand) for demand in demands)
    done = one(graph, fabric("spectra"), **settings)
    assert done.makespan_s == pytest.approx(paid + 2 * compute_s, **NEAR)
    # ahead: the first turn goes beside the computation before; packet NICs do not wait for it
    first, second = (parts_s("spectra", demand) for demand in demands)
    begins = np.array([[DELAY_S, 0.0], [max(DELAY_S, compute_s), compute_s]])
    end = (begins + np.array([first, second])).max(axis=1).sum() + compute_s
    assert one(graph, fabric("spectra"), **settings, first="ahead").makespan_s == pytest.approx(end, **NEAR)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert sum(held.values()) == pytest.approx(done.makespan_s, **NEAR)
    assert held["reconfiguration"] >= 2 * DELAY_S * (1 - 1e-9)
    steps = path_rows(done)
    assert steps[-1]["finish_s"] == done.makespan_s
    assert {"reconfiguration", "configuration before"} <= {row["held_by"] for row in steps}
    assert replay_row(done)["bytes"] == pytest.approx(sum(demand.sum() for demand in demands), **NEAR)
    np.testing.assert_allclose(np.sum(time_spent(done), axis=0), done.makespan_s, rtol=1e-12)
    assert max(bar["end_s"] for bar in spans(done)) == pytest.approx(done.makespan_s, **NEAR)


def test_servers_of_several_gpus_and_groups_that_share_a_region():
    # Two groups of two servers with two GPUs each; 25 MB to every other rank, 100 MB a circuit.
    tasks = Tasks(8, (tuple(range(4)), tuple(range(4, 8))))
    for rank in range(8):
        send = {"op": Op.ALL_TO_ALL, "group": rank // 4, "match": rank // 4, "bytes": 100e6}
        tasks.add(TaskKind.COLLECTIVE, rank, "all", **send)
    changes = fabric("spectra", ports=1) | {"gpu.gpus_per_server": 2}
    for paths in ("spray", "ecmp"):
        done = one(tasks.graph(), changes | {"network.paths": paths}, circuits_for="all-to-all")
        assert done.makespan_s == pytest.approx(DELAY_S + 2e-3, **NEAR)
        assert sum(row["sent_bytes"] for row in rank_rows(done)) == pytest.approx(8 * 75e6, **NEAR)


OWN = """
import numpy as np
from mfabric_jax.circuit_schedules import CircuitSchedule

def stays(demand, region):
    ring = np.roll(np.eye(region.servers, dtype=int), 1, axis=1)
    return CircuitSchedule([ring + ring.T], [1.0], first_free=True)

def one_way(demand, region):
    ring = np.roll(np.eye(region.servers, dtype=int), 1, axis=1)
    return CircuitSchedule([2 * ring], [1.0], first_free=True)
"""


def test_circuits_that_stay_are_those_of_today(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    demand = np.where(np.roll(np.eye(4), 1, axis=1) + np.roll(np.eye(4), -1, axis=1), 4e8, 1e7) * (1 - np.eye(4))
    graph, all_to_all = messages(demand, demand, compute_s=1e-3), {"circuits_for": "all-to-all"}
    today = one(graph, fabric("none"), **all_to_all)
    assert today.makespan_s == pytest.approx(2 * (8e-3 + 1e-3), **NEAR)
    for first in ("block", "ahead"):
        done = one(graph, fabric(f"{tmp_path}/own.py:stays"), **all_to_all, first=first)
        assert done.makespan_s == pytest.approx(today.makespan_s, **NEAR)
        assert replay_row(done)["exposed_comm_s"] == pytest.approx(replay_row(today)["exposed_comm_s"], **NEAR)
    done = one(graph, fabric(f"{tmp_path}/own.py:one_way"), **all_to_all)  # the way back is on packet NICs
    assert done.makespan_s == pytest.approx(2 * 4.1e8 / 50e9 + 2e-3, **NEAR)


def test_latency_comes_on_top():
    graph, demand = all_to_all(4, 4e8), 1e8 * (1 - np.eye(4))
    late = one(graph, fabric("spectra"), circuits_for="all-to-all", alpha_s=1e-4).makespan_s
    assert late == pytest.approx(closed_s("spectra", demand) + 1e-4, **NEAR)


def test_what_schedules_are_refused_beside(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    graph, own = all_to_all(4, 1e6), fabric(f"{tmp_path}/own.py:stays")
    refused = (
        (fabric("spectra"), "run", "circuits_for must be 'all-to-all' with circuits.schedule spectra, got 'run'"),
        (fabric("spectra") | {"network.payload": "transport"}, "all-to-all", "network.payload must be goodput"),
        (own | {"circuits.switches": 2}, "all-to-all", "circuits.switches must be 1 with a scheduler of your own"),
        (fabric("spectra", switches=3), "all-to-all", "optical_degree must be a multiple of the 3 switches"),
        (fabric("spectra"), "all-to-all", None),
    )
    for changes, circuits_for, words in refused[:-1]:
        with pytest.raises(InputError, match=words):
            one(graph, changes, circuits_for=circuits_for)
    with pytest.raises(InputError, match="needs all-to-alls between servers of a region"):
        one(graph, fabric("spectra"), circuits_for="all-to-all", region_servers=1)
