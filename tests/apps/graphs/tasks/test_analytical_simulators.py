"""Collectives on a ring, a switch and a full mesh: in closed form, and beside ASTRA-sim's analytical modes."""

import importlib
import json
import pathlib
import sys

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks.formats.registry import read_tasks
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks

FOLDER = pathlib.Path(__file__).parents[4] / "benchmarks"
NAME = "analytical_simulators"
MESSAGE = 2**20 / 8 / (50 * 2**30) * 1e9  # ns of an eighth of a MiB


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module(NAME)
    sys.modules.pop(NAME, None)


def test_routes_are_the_shortest(script):
    around = script.ring(5)
    assert around.crossed.tolist()[0] == [0, 1, 2, 2, 1]
    assert around.hops[3, 0].tolist() == [3, 4]  # 3 -> 4 -> 0
    assert around.hops[1, 4].tolist() == [5 + 0, 5 + 4]  # 1 -> 0 -> 4
    assert script.ring(4).hops[1, 3].tolist() == [1, 2]  # a tie ascends
    assert script.switch(3).hops[0, 2].tolist() == [0, 5]
    assert script.switch(3).crossed[1, 1] == 0
    assert len(np.unique(script.fully_connected(4).hops)) == 4 * 3 + 1


@pytest.mark.parametrize(
    ("coll", "topo", "impl", "nanoseconds"),
    [
        ("all_reduce", "Ring", "ring", 14 * (500 + MESSAGE)),
        ("all_reduce", "Switch", "ring", 14 * (1000 + MESSAGE)),
        ("all_reduce", "Switch", "halvingDoubling", 6 * 1000 + 14 * MESSAGE),
        ("all_reduce", "Switch", "direct", 2 * (1000 + 7 * MESSAGE)),
        ("all_gather", "FullyConnected", "direct", 500 + 8 * MESSAGE),
        ("all_to_all", "Switch", "direct", 1000 + 7 * MESSAGE),
        ("all_to_all", "Ring", "ring", 28 * (500 + MESSAGE)),
    ],
)
def test_times_in_closed_form(script, coll, topo, impl, nanoseconds):
    run = {"coll": coll, "topo": topo, "impl": impl, "n": 8, "MiB": 1, "splits": 1, "active": 1, "endpoint_ns": 10}
    network = script.NETWORKS[topo](8)
    flows = script.collective(run, network, charged=False)
    assert script.finishes(flows, network).max() == pytest.approx(nanoseconds, rel=1e-9)


@pytest.fixture(scope="module")
def times(shared_data):
    file = shared_data / "task_graphs" / "analytical_simulator_times.json"
    if not file.is_file():
        pytest.skip(f"no times at {file}")
    return json.loads(file.read_text())


def test_times_are_those_of_both_modes_where_nothing_is_shared(script, times):
    small = {"runs": [run for run in times["runs"] if run["n"] == 8], "chunk_pipelining_runs": []}
    alone = {"all_reduce": ("ring", "halvingDoubling"), "all_gather": ("ring", "direct"), "all_to_all": ("ring",)}
    compared = 0
    for row in script.rows(small):
        if row["impl"] in alone[row["coll"]] or row["topo"] == "FullyConnected":
            assert row["charged"] == pytest.approx(row["unaware"], rel=0.006)
            if row["topo"] != "Switch":  # where a message is whole in the switch before it goes on
                assert row["charged"] == pytest.approx(row["aware"], rel=0.006)
            compared += 1
        elif row["topo"] == "Ring":  # the aware mode queues where we share
            assert row["charged"] == pytest.approx(row["aware"], rel=0.021)
    assert compared == 36


def test_with_more_chunks_the_aware_mode_comes_to_the_shared_links(script, times):
    rows = list(script.rows({"runs": [], "chunk_pipelining_runs": times["chunk_pipelining_runs"]}))
    over = {(row["coll"], row["topo"], row["splits"]): row["aware"] / row["ours"] for row in rows}
    for coll, topo in (("all_reduce", "Switch"), ("all_to_all", "Switch")):
        assert over[coll, topo, 1] > over[coll, topo, 4] > over[coll, topo, 16] > over[coll, topo, 64]
        assert over[coll, topo, 64] == pytest.approx(1, rel=0.0025)
    assert over["all_reduce", "Ring", 64] == pytest.approx(1, rel=0.0005)


def test_one_send_at_a_time_as_the_fluid_model_has_it(script, times):
    rows = list(script.messages(times))
    assert len(rows) == 9
    for row in rows:
        assert row["all at once"] == pytest.approx(row["fluid"], abs=1)
        assert row["one at a time"] == pytest.approx(row["fluid_one_send_in_flight"], abs=1)


def test_a_whole_workload_takes_as_long(script, times, shared_data):
    """16 ranks of an MoE model. It adds what reductions take, some 2 %."""
    measured = times["stg_moe_16npus"]["runs"][0]
    assert (measured["topo"], measured["mode"]) == ("FullyConnected", "Aware")
    file = shared_data / "task_graphs" / "chakra_et" / "stg_moe_dp2tp2pp2ep2_16npus" / "workload.0.et"
    graph = read_tasks(file, tflops=300, memory_gigabytes_per_s=1600)
    network = script.fully_connected(16)
    flows = lower_tasks(graph, alpha_s=lambda src, dst: network.crossed[src, dst] * 510e-9)
    finish = script.finishes(flows, network)[: graph.tasks]
    for rank, (nanoseconds, _) in measured["ns"].items():
        assert finish[graph.rank == int(rank)].max() == pytest.approx(nanoseconds, rel=0.026)
