"""What breaks in a graph, by hand on a leaf-spine: 4 leaves with a server of 4 GPUs and 4 links up each."""

import json

import numpy as np
import pytest

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.fabric import degrade
from mfabric_jax.fabric.graph import graph_text
from mfabric_jax.fabric.graph_failures import absent_parts, broken_links, graph_devices, wait_reason
from mfabric_jax.fabric.graph_file import GraphFile, load_graph
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.routing.graphs import add_rates, paths_on_links

JOB = {"model.name": "llama-moe", "job.parallel.tp": 1, "job.parallel.pp": 1, "job.parallel.ep": 16}
QUICK = {"run.iterations": 1, "job.batch.micro_batches": 2, "network.fabric": "graph"}


def drawings(folder):
    """What draws (graph, case) of a leaf-spine."""

    def make(kind="leaf-spine", **numbers):
        numbers = {"gpus": 16, "radix": 8, "gpus_per_server": 4} | numbers
        file = folder / "drawn.json"
        file.write_text(graph_text(make_graph(kind, GraphNumbers(**numbers))))
        sizes = {"job.parallel.gpus": 16, "gpu.gpus_per_server": numbers["gpus_per_server"]}
        return GraphFile(str(file)), Case().with_(JOB | QUICK | sizes | {"network.graph": str(file)})

    return make


@pytest.fixture
def drawn(tmp_path):
    return drawings(tmp_path)


def names(asked, links):
    network = load_graph(asked).network
    return [network.link_name(link) for link in links]


def test_which_links_break(drawn):
    asked, _ = drawn()
    assert names(asked, broken_links(asked, "electrical-nic", 5)) == ["gpu 5 -> edge 1", "edge 1 -> gpu 5"]
    assert names(asked, broken_links(asked, "link", 5)) == ["edge 1 -> spine 0", "spine 0 -> edge 1"]
    ends = {
        kind: {end for name in names(asked, broken_links(asked, kind, 5)) for end in name.split(" -> ")}
        for kind in ("switch", "spine")
    }
    assert ends["spine"] == {"spine 0", *(f"edge {leaf}" for leaf in range(4))}
    assert "edge 1" in ends["switch"]
    assert len(broken_links(asked, "electrical-nics", 5)) == 8
    of_servers = {
        "electrical-nic": 16,
        "electrical-nics": 4,
    }
    of_servers |= {"gpu": 16, "server": 4, "nic-link": 16, "plane-link": 16}
    assert graph_devices(asked) == of_servers | {"link": 16, "spine-link": 0, "switch": 4, "spine": 4}


def test_a_nic_that_is_split_loses_one_of_its_links(drawn):
    """16 GPUs of one NIC on four planes; each server of 4 at its own leaf: 12 bytes leave each GPU, 3 on each plane."""
    whole, case = drawn("planes", planes=4, split=True)
    assert absent_parts(whole)["plane-link"] == "its NICs are on one plane"
    case = case.with_({"network.nic_gbps": 400.0})
    resolved = resolve(case)
    group = resolved.fabric.group(resolved.site, 400.0)
    assert (group.planes, absent_parts(group.graph_file)["plane"]) == (
        4,
        "a graph does not say which of its switches form a plane",
    )
    left = degrade(group, "plane-link", server=1, gpu=4).group
    assert len(left.graph_file.failed) == 2
    after = paths_on_links(add_rates(left, resolved.job, "spray"), resolved.job, "spray").times_now(
        left, np.ones((1, 16, 16))
    )
    assert after[0] == pytest.approx(12 / 3 * 4 / group.nic_Bps, rel=1e-9)  # three links of a quarter NIC each


@pytest.mark.parametrize(("kind", "load"), [("electrical-nic", 12 + 12 / 3), ("link", 48 / 3), ("spine", 48 / 3)])
def test_what_is_left_carries_all(drawn, kind, load):
    # In an even all-to-all of one byte a pair, 12 bytes leave each GPU and 48 each leaf.
    _, case = drawn()
    resolved = resolve(case)
    group = resolved.fabric.group(resolved.site, 400.0)
    even = np.ones((1, 16, 16))
    assert paths_on_links(group, resolved.job, "spray").times_now(group, even)[0] == pytest.approx(12 / group.nic_Bps)
    left = degrade(group, kind, server=1, gpu=4).group
    after = paths_on_links(add_rates(left, resolved.job, "spray"), resolved.job, "spray").times_now(left, even)
    assert after[0] == pytest.approx(load / group.nic_Bps, rel=1e-9)


def test_what_cuts_gpus_off_stops_the_job_until_the_repair(drawn):
    asked, _ = drawn()
    assert absent_parts(asked)["electrical-nics"] == "after the failure gpu 0 cannot reach gpu 4"
    assert wait_reason(asked, "server", 0) == "a graph has no spare server, so the job waits for the repair"
    assert wait_reason(asked, "electrical-nic", 0) is None
    assert (
        wait_reason(asked._replace(relay="no"), "electrical-nic", 0) is not None
    )  # its NVSwitch leads to GPUs that do not forward
    alone, case = drawn(gpus_per_server=1)
    assert wait_reason(alone, "electrical-nic", 3).startswith("after the failure gpu 0 cannot reach gpu 3")
    assert absent_parts(alone)["nvswitch"] == "it has no nvswitch"
    resolved = resolve(case)
    group = resolved.fabric.group(resolved.site, 400.0)
    assert degrade(group, "electrical-nic", gpu=3).waits == wait_reason(alone, "electrical-nic", 3)


def test_graphs_without_switches_lose_links_between_gpus(drawn):
    asked, _ = drawn("torus", shape=(4, 4), gpus_per_server=1)
    assert names(asked, broken_links(asked, "link", 0)) == ["gpu 0 -> gpu 1", "gpu 1 -> gpu 0"]
    assert absent_parts(asked)["switch"] == "it has no switch behind its NICs"
    assert "link" not in absent_parts(asked)


def test_ranks_of_a_server_stay_on_one_nvswitch(drawn, tmp_path):
    _, case = drawn()
    file = tmp_path / "ranks.json"
    file.write_text(json.dumps({"gpus": [0, 1, 2, 4, 3, *range(5, 16)]}))
    with pytest.raises(InputError, match=r"network\.on-graph\.ranks must keep the 4 ranks .* has ranks 0 and 3 on two"):
        resolve(case.with_({"network.on-graph.ranks": str(file)}))
