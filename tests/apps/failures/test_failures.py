"""What failures cost: rows, when they strike, what helps against them, and mistakes."""

import dataclasses
import functools
import importlib
import itertools
import re

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, cases, resolve
from mfabric_jax.apps.failures import failures
from mfabric_jax.apps.failures.failure_rows import PUBLISHED
from mfabric_jax.apps.failures.iterations import failures_of_cases
from mfabric_jax.evaluate.exchanges import exchanges_between
from mfabric_jax.evaluate.forecasts import planning_selections
from mfabric_jax.evaluate.rules import CircuitSpan
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.failures import KINDS, PLANES, Degraded, degrade
from mfabric_jax.fabric.region import Circuits, Region
from mfabric_jax.policies import Plan, greedy, topoopt, uniform
from mfabric_jax.policies.wirings import ALL_TO_ALLS, wire_group
from mfabric_jax.routing.fixed import add_paths, fixed_time
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.timing import Iteration
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.units import to_gbps
from mfabric_jax.workload import get
from tests.mistakes import check_refused
from tests.oracles.tree import tree
from tests.small import MODEL, configured, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")

module = importlib.import_module("mfabric_jax.apps.failures.iterations")

JOB_OF_16 = {f"job.parallel.{name}": degree for name, degree in (("tp", 4), ("pp", 1), ("dp", 4), ("ep", 8))}  # servers
DEGREE, KINDS_ASKED = "network.mfabric.optical_degree", "failures.kinds"


@functools.cache
def rows(case):
    """{kind: row}, solved once."""
    return {one["failure"]: one for one in failures(case)}


def base(changes=None, model=MODEL):
    """One micro-batch: stages run one after the other. Two iterations."""
    given = {"job.batch.micro_batches": 1, "run.iterations": 2, "network.fabric": "mfabric"}
    return small(given | (changes or {}), model)


def hurt(kind, changes=None):
    """The row of one failure."""
    return rows(base({KINDS_ASKED: [kind]} | (changes or {})))[kind]


def timed_as(monkeypatch, before, after):
    """No simulation: iterations take `before` seconds each and, once failed, `after`; stage 2 is the busiest."""
    monkeypatch.setattr(module, "solve", lambda one: Exchanges(*[np.zeros(())] * 7))
    for name in ("_solve_circuits", "_with_stages"):
        monkeypatch.setattr(module, name, lambda *_: None)
    times = {
        whole: Iteration(*[np.asarray(each, float)] * 8)._replace(stage=np.full(len(each), 2))
        for whole, each in ((True, before), (False, after))
    }
    monkeypatch.setattr(module, "_hit_iterations", lambda one, hits: [times[left is None] for _, left, _ in hits])


ALL = base()


def test_what_a_row_holds():
    assert list(rows(ALL)) == [kind for kind in KINDS if kind not in PLANES]
    healthy = row(ALL)["iteration_s"]
    assert (rows(ALL)["switch"]["remedy"], rows(ALL)["switch"]["failed_s"]) == ("repair", None)
    for kind, one in rows(ALL).items():
        if kind == "switch":
            continue
        assert (one["model"], one["failure"], one["nic_gbps"], one["gpus"]) == (MODEL, kind, 100.0, 1024)
        assert (one["policy"], one["routing"], one["dtype"]) == ("greedy", "unsplit", "float64")
        assert (one["server"], one["failed_iteration"], one["iterations"]) == (0, 0, 2)
        assert 0 <= one["stage"] < 4
        np.testing.assert_allclose(one["healthy_s"], healthy, rtol=1e-12)  # that of compare
        np.testing.assert_allclose(one["run_slow_down"], one["failed_s"] / one["healthy_s"] - 1, rtol=1e-9)
        assert one["slow_down"] > 0 or kind in ("controller", "spine-link")  # circuits that stay pay no reconfiguration
        for run in ("healthy_", ""):  # what explains it: the parts of both iterations
            parts = sum(one[f"{run}{part}"] for part in ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s"))
            np.testing.assert_allclose(parts, one[f"{run}s" if run else "failed_s"], rtol=1e-9)
    cost = {kind: one["slow_down"] for kind, one in rows(ALL).items()}
    assert cost["nic-link"] == cost["electrical-nic"]
    assert cost["optical-link"] == cost["optical-nic"]
    assert cost["spine"] >= cost["link"]
    assert cost["server"] > max(cost["gpu"], cost["optical-nic"])
    assert cost["electrical-nics"] >= cost["electrical-nic"] > cost["link"]


def test_nothing_failed_costs_nothing(monkeypatch):
    # The failed stage is solved by other means than the healthy ones; with all of its NICs it takes as long.
    assert abs(hurt("optical-nic", {DEGREE: 0, "network.nics": 2})["slow_down"]) < 1e-12  # none can fail
    monkeypatch.setattr(module, "degrade", lambda region, kind, **_: Degraded(kind, region, 0))
    for routing in ("unsplit", "split"):
        (one,) = failures(base({"circuits.routing": routing, KINDS_ASKED: ["link"]}))
        assert abs(one["slow_down"]) < 1e-12
        assert one["failed_s"] == pytest.approx(one["healthy_s"], rel=1e-12)


FIELDS = ("optical", "electrical", "switch", "new_circuits", "balanced")


@pytest.mark.parametrize("span", [None, "stage", "iteration", "run"])
def test_the_stage_that_is_hit_takes_what_an_iteration_on_what_is_left_takes(span):
    """With long spans, circuits are planned for what is left from the traffic of the iteration before."""
    kept = {} if span is None else {"circuits.reconfigure": "span", "circuits.span.length": span}
    one = scenario(base({"network.nics": 8} | kept))
    seen = {} if span is None else {"span": CircuitSpan(span, jnp.asarray(planning_selections(one)[:1]))}
    region, (tokens, *_) = group_numbers(one.group, "float64"), np.asarray(one.own_selections, float)
    degree = int(one.group.optical_degree)

    def solved(group):
        left = module._solve_circuits(one, Degraded("optical-nic", group, 0), 1)
        given = one.workload, group_numbers(group, "float64"), jnp.asarray(tokens), greedy
        return left, exchanges_between(*given, acks=one.resolved.carried_by.acks_back, **seen)

    loads = []
    for less in (0, 1, degree):
        degrees, nics = np.full(4, degree), np.full(4, float(region.electrical_nics))
        degrees[0], nics[0] = degree - less, nics[0] - 0.5 * (less > 0)
        group = dataclasses.replace(one.group, optical_degree=degrees, electrical_nics=nics)
        got, want = solved(group)
        for name in FIELDS:
            np.testing.assert_allclose(getattr(got, name)[0], getattr(want, name), rtol=1e-9, err_msg=name)
        loads.append(got.load)
    assert np.asarray(want.count)[..., 0, :].sum() == 0  # the last: server 0 has no circuits
    assert not np.allclose(loads[0], loads[1])
    assert not np.allclose(loads[1], loads[2])


def test_work_that_moves_to_a_spare_server_by_hand():
    """A quarter of rank 2 (server 1) sits on a fifth server: all that it sends and receives, to its own server too."""
    one = scenario(base({DEGREE: 0, "network.nics": 2}))
    job, (tokens, *_) = one.workload, np.asarray(one.own_selections, float)
    got = module._solve_circuits(one, degrade(one.group, "gpu", server=1, gpus_per_rank=4), 0)
    port = np.full(5, 2.0)  # at unit bandwidth
    sits = [[(rank // 2, 1.0)] for rank in range(8)]
    sits[2] = [(4, 0.25), (1, 0.75)]
    for stage, layer in ((0, 0), (2, job.stage_layers(2)[-1])):
        sent = np.zeros((5, 5))
        for source, sink in itertools.product(range(8), repeat=2):
            size = tokens[layer % len(tokens), 0, source, sink] * job.dispatch_bytes_per_selection
            for (i, a), (j, b) in itertools.product(sits[source], sits[sink]):
                sent[i, j] += size * a * b * (source != sink) * (i != j)
        block = job.stage_layers(stage).index(layer)
        seconds = [tree(sent, port, port).max()] * 2
        np.testing.assert_allclose(got.electrical[0, stage, 0, block], seconds, rtol=1e-9)
        np.testing.assert_allclose(got.electrical[0, stage, 1, -1 - block], seconds, rtol=1e-9)  # backward
    np.testing.assert_array_equal(got.optical, 0)


def test_spare_electrical_nics_and_more_links_help():
    spare, bare = {DEGREE: 6, "network.nics": 10}, {DEGREE: 2, "network.nics": 3}
    for kind in ("electrical-nic", "server"):
        assert 0 < hurt(kind, spare)["slow_down"] < rows(ALL)[kind]["slow_down"]
    assert hurt("link", {"network.radix": 16})["slow_down"] > rows(ALL)["link"]["slow_down"] > 0
    one, every = (hurt(kind, bare) for kind in ("electrical-nic", "electrical-nics"))
    assert one["slow_down"] == every["slow_down"] > 0  # one is all there are


# Four servers of 2 ranks, 2 circuits a pair, balanced traffic: 4 d bytes a pair take 2 d. The first stage ends last:
# what a part of it takes longer, the iteration does. Parts: all-to-all, gradients, a send to the next stage and back.
LONGER = {
    "electrical-nic": (0, 1, 1),
    "electrical-nics": (0, 1, 1),  # all servers have circuits to each other
    "optical-nic": (1, 0, 0),  # one pair keeps 1 circuit: 4 d
    "link": (0, 1 / 31, 1 / 31),
    "gpu": (0, 0, 0),  # a spare of 1/4 rank: all-reduces alone
    "server": (2, 0, 0),  # 3 pairs over 2 electrical NICs: 6 d
    "optical-switch": (2, 0, 0),  # all servers alike
    "controller": (0, 0, 0),  # the circuits would not change
    "nvswitch": (0, 0, 0),  # NVLink as good as infinite
}

BALANCED = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "circuits.delay_s": 0.0}

EVEN = BALANCED | {"gpu.nvlink_gigabytes_per_s": 1e9, "failures.stage": 0}


def test_by_hand():
    healthy, job = row(base(EVEN)), resolve(base(EVEN)).job
    send_s = 2 * job.tokens * job.architecture.hidden * 2 / (2 * 12.5e9)  # activations of 2 ranks over 2 NICs
    for kind, (ep, dp, send) in LONGER.items():
        want = ep * healthy["ep_comm_s"] + dp * healthy["dp_comm_s"] + 2 * send * send_s
        if kind == "gpu":
            want = healthy["tp_comm_s"] * (1e18 / 25e9 - 1)  # over 2 NICs, not the NVSwitch
        one = rows(base(EVEN))[kind]
        np.testing.assert_allclose(one["failed_s"] - one["healthy_s"], want, rtol=1e-5, atol=1e-8, err_msg=kind)
        np.testing.assert_allclose(one["healthy_s"], healthy["iteration_s"], rtol=1e-12)


def test_a_row_depends_on_the_stage_server_and_seed_not_on_cases_beside_it():
    busiest = rows(ALL)["server"]["stage"]
    same, other = (hurt("server", {"failures.stage": (busiest + n) % 4}) for n in (0, 1))
    assert same == rows(ALL)["server"]
    assert other["stage"] == (busiest + 1) % 4
    assert other["failed_s"] != same["failed_s"]
    assert other["healthy_s"] == same["healthy_s"]
    last = hurt("optical-nic", {"failures.server": 3})
    assert last["server"] == 3
    assert last["failed_s"] != rows(ALL)["optical-nic"]["failed_s"]
    several = cases(base({KINDS_ASKED: ["server"]}), {"network.nic_gbps": [400, 100]})
    assert [*failures(several)][1] == rows(ALL)["server"]
    assert hurt("server", {"run.seed": 1})["failed_s"] != rows(ALL)["server"]["failed_s"]


def test_published_figures_stand_beside_their_own_set_up(monkeypatch):
    timed_as(monkeypatch, [1, 1], [2, 2])
    beside_gpu, at = {("mixtral-8x22b", "gpu"): 0.051}, {"network.nic_gbps": 400, "traffic.alike": "everything"}
    assert set(beside_gpu) <= set(PUBLISHED)
    for changes, want in (
        (at, beside_gpu),
        (at | {"job.parallel.dp": 1}, {}),
        (at | {"network.fabric": "fat-tree"}, {}),
    ):
        found = failures(base(changes, "mixtral-8x22b"))
        assert {(r["model"], r["failure"]): r["published"] for r in found if r["published"] is not None} == want


def test_iterations_before_the_failure_are_healthy_and_cases_and_kinds_come_in_order(monkeypatch):
    timed_as(monkeypatch, [1, 2, 4, 1], [9, 3, 8, 1.5])
    heard, models, kinds = [], ["llama-moe", MODEL], ["server", "link"]
    asked = base({"run.iterations": 4, "failures.iteration": 1, KINDS_ASKED: kinds})
    found = list(failures(cases(asked, {"model.name": models}), progress=heard.append))
    assert [(one["model"], one["failure"]) for one in found] == list(itertools.product(models, kinds))
    assert heard == [f"{one['model']}: {one['failure']}" for one in found]
    for one in found:
        assert (one["stage"], one["failed_iteration"], one["iterations"]) == (2, 1, 4)
        assert (one["healthy_s"], one["failed_s"]) == (2, 12.5 / 3)
        np.testing.assert_allclose(one["slow_down"], (1.5 + 2 + 1.5) / 3 - 1, rtol=1e-12)
        np.testing.assert_allclose(one["run_slow_down"], 13.5 / 8 - 1, rtol=1e-12)


def test_an_optical_switch_that_is_lost_is_a_stage_without_circuits_and_a_controller_leaves_them():
    lost, never = rows(ALL)["optical-switch"], row(base({DEGREE: 0, "network.nics": 2}))
    assert hurt("optical-switch", {"failures.stage": rows(ALL)["server"]["stage"]}) == lost
    np.testing.assert_allclose(lost["ep_comm_s"], never["ep_comm_s"], rtol=1e-9)  # of the stage that was hit
    assert lost["reconfig_s"] == 0
    assert rows(ALL)["controller"]["reconfig_s"] == 0
    assert hurt("controller", {"circuits.policy": "uniform"})["slow_down"] == 0  # circuits that never change anyway
    nvswitch = hurt("nvswitch", {"failures.stage": "busiest"})  # the parts of an iteration are that stage's
    assert nvswitch["tp_comm_s"] == pytest.approx(1.2 * nvswitch["healthy_tp_comm_s"])


def test_the_stage_that_is_hit_is_the_one_where_it_costs_most():
    kinds = ["electrical-nic", "optical-nic", "controller"]
    every = [rows(base({KINDS_ASKED: kinds, "failures.stage": stage})) for stage in range(4)]
    busiest = rows(base({KINDS_ASKED: kinds, "failures.stage": "busiest"}))
    for kind, worst in rows(base({KINDS_ASKED: kinds})).items():
        assert worst["failed_s"] == max(of_stage[kind]["failed_s"] for of_stage in every)
        assert worst == every[worst["stage"]][kind]
        assert busiest[kind] == every[busiest[kind]["stage"]][kind]
    costs = [of_stage["electrical-nic"]["slow_down"] for of_stage in every]
    assert max(costs) > busiest["electrical-nic"]["slow_down"]


def test_a_broken_gpu_costs_what_the_cheaper_remedy_does():
    for fabric, cheaper in (("fat-tree", "spare-server"), ("mfabric", "spare-gpu")):
        found = {
            remedy: next(iter(failures(on(fabric, {"failures.gpu_remedy": remedy}, kinds=["gpu"]))))
            for remedy in ("cheaper", "spare-gpu", "spare-server")
        }
        assert {remedy: one["remedy"] for remedy, one in found.items()} == {
            **{"cheaper": cheaper, "spare-gpu": "spare-gpu", "spare-server": "spare-server"}
        }
        assert found["cheaper"] == found[cheaper]
        assert found["cheaper"]["failed_s"] == min(one["failed_s"] for one in found.values())
        assert found["spare-gpu"]["failed_s"] != found["spare-server"]["failed_s"]
    (server,) = failures(on("fat-tree", kinds=["server"]))
    assert found["spare-gpu"]["spare_part_usd"] > 0
    assert server["remedy"] == "spare-server"


def test_a_gpu_on_a_spare_is_faster_where_unsplit_routing_leaves_nics_idle_and_the_row_says_so():
    # Two servers of 8 ranks and 6 + 2 NICs, even traffic of b: 64 b over 6 circuits, the electrical NICs idle. On the
    # spare: 56 b over 6 circuits, 15 b over the spare's two NICs. Split routing has all 8 NICs busy: 8 b, then as now.
    for routing, part, why in (("unsplit", 7 / 8, "NICs of the spare, and those that were idle"), ("split", 1, None)):
        (one,) = failures(base(EVEN | {"circuits.routing": routing, KINDS_ASKED: ["gpu"]}, "llama-moe"))
        assert one["faster_by"] == why
        saved = (1 - part) * one["healthy_ep_comm_s"]  # of the stage that ends last
        assert one["healthy_s"] - one["failed_s"] == pytest.approx(saved, rel=1e-6, abs=1e-9)
    assert {one["faster_by"] for one in rows(base(EVEN)).values()} == {None}


def test_mistakes_get_a_sentence_at_once(monkeypatch):
    only_one = {"circuits.routing": "best-path", DEGREE: 6, "network.nics": 7}
    for changes, sentence in (
        ({KINDS_ASKED: ["gpu", "sever"]}, "failures.kinds 'sever' is unknown (did you mean 'server'?); allowed: elec"),
        ({"failures.iteration": 2}, "failures.iteration must be below the 2 iterations of the run, got 2."),
        ({"failures.stage": 4}, "failures.stage must be below the 4 pipeline stages of mixtral-8x7b, got 4."),
        ({"failures.server": 4}, "failures.server must be below the 4 servers of a region of mixtral-8x7b, got 4."),
        (
            only_one | {KINDS_ASKED: ["electrical-nics"]},
            "mfabric: relaying after this failure is modelled only for routing unsplit",
        ),
        (
            {"circuits.reconfigure": "always"},
            "circuits.reconfigure must be on-demand or reuse or predict or span for failures",
        ),
        ({"run.replicas": 2}, "run.replicas must be 1 for failures, got 2."),
        ({"circuits.policy": "static"}, "circuits.policy must not be static for failures"),
        ({"placement.longest-processing-time.every": 2}, "every must be 0 for failures, got 2."),
    ):
        check_refused(re.escape(sentence), failures_of_cases, base(changes))
    for name, allowed in (("iteration", ""), ("stage", "busiest, "), ("server", "")):
        said = f"failures.{name} must be {allowed}a whole number of at least 0"
        check_refused(said, base, {f"failures.{name}": -1})
    (plan,) = failures_of_cases(base({"circuits.routing": "split"}))
    assert "electrical-nics (relaying after this failure is modelled only for routing unsplit)" in plan.notes[0]
    timed_as(monkeypatch, [1, 1], [2, 2])
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=r"^dtype float64 needs jax\.config\.update"):
        next(failures(base({KINDS_ASKED: ["link"]})))


JOB = get("llama-moe")  # TP 1: a rank is a GPU with a NIC of its own; 2 servers of 8
SLICED = get("mixtral-8x7b")  # TP 4: two ranks on each of 4 servers
ALIKE = jnp.ones((16, 16))


def on(fabric, changes=None, model=MODEL, kinds=None):
    """A case of one micro-batch, and what fails in it."""
    given = {"network.fabric": fabric, "job.batch.micro_batches": 1} | (changes or {})
    return small(given | ({} if kinds is None else {"failures.kinds": kinds}), model)


def seconds(kind, *, rails=False, radix=4, job=JOB, **group):
    sizes = {"servers": job.servers_per_region, "ranks_per_server": job.ranks_per_server, "gpus_per_rank": job.tp}
    return degrade(Electrical(to_gbps(1.0), 8, **group), kind, radix=radix, nvswitches=6, rails=rails, **sizes)


def all_to_all_s(left, demand):
    """At 1 byte/s a NIC."""
    return fixed_time(left.group, demand, JOB.ranks_per_server if len(demand) == JOB.ep else SLICED.ranks_per_server)


def test_ports_by_hand():
    # Every rank sends 8 bytes to the other server: 8 s over its own NIC.
    for kind, want, more in (
        ("server", 8, {}),
        ("nvswitch", 8, {}),
        ("electrical-nic", 16, {}),  # a peer's NIC carries both
        ("electrical-nic", 64 / 7, {"nic_use": "pooled"}),
        ("link", 16, {}),  # radix 4: one of two links up
        ("link", 48, {"oversubscription": 3.0, "radix": 8}),  # two links up, six down
        ("switch", 8, {}),  # of a tree: spares take over
    ):
        left = seconds(kind, **more)
        np.testing.assert_allclose(all_to_all_s(left, ALIKE), want, rtol=1e-6, err_msg=kind)
    rail = seconds("switch", rails=True)
    np.testing.assert_allclose(all_to_all_s(rail, ALIKE), 16, rtol=1e-6)
    assert (rail.eps_left, seconds("nvswitch").nvlink_left) == (7 / 8, 5 / 6)


def test_a_gpu_that_is_moved_has_one_nic_of_the_spare_and_its_old_server_keeps_no_other_gpus_nic():
    # Its rank is on a spare server: what it sends to all 15 others leaves by the spare's NIC.
    np.testing.assert_allclose(all_to_all_s(seconds("gpu"), ALIKE), 15, rtol=1e-6)
    alone = ALIKE * (jnp.arange(16) == 0)[:, None]  # with PXN by the NIC of every destination's rank: two each
    np.testing.assert_allclose(all_to_all_s(seconds("gpu", pxn=True), alone), 2, rtol=1e-6)
    np.testing.assert_allclose(all_to_all_s(seconds("gpu", pxn=True), ALIKE), 15, rtol=1e-6)
    # TP 4: a quarter of a rank's bytes to 6 ranks elsewhere on every NIC, and to the one that was beside it.
    left, even = seconds("gpu", job=SLICED), jnp.ones((8, 8))
    np.testing.assert_allclose(all_to_all_s(seconds("server", job=SLICED), even), 6 / 4, rtol=1e-6)
    np.testing.assert_allclose(all_to_all_s(left, even), 7 / 4, rtol=1e-6)
    hot = even.at[0].set(4)  # the rank that is hit has most, and no more NICs than it had
    np.testing.assert_allclose(all_to_all_s(left, hot), 4 * 7 / 4, rtol=1e-6)
    np.testing.assert_allclose(all_to_all_s(seconds("electrical-nic", job=SLICED), even), 6 / 3, rtol=1e-6)
    # All-reduces among its slices: over one NIC of eight, behind an edge 3:1 also over one; pooled, over all.
    parts = [{}, {"oversubscription": 3.0}, {"nic_use": "pooled"}]
    assert [seconds("gpu", job=SLICED, **part).tp_on_eps for part in parts] == [1 / 8, 3 / 8, 1]
    assert seconds("gpu").tp_on_eps == 0


def test_all_reduces_are_no_faster_over_nics_than_on_the_nvlink():
    pooled = {"gpu.nvlink_gigabytes_per_s": 10.0, "network.nic_use": "pooled"}  # NICs: 100 GB/s
    (row,) = failures(on("fat-tree", BALANCED | pooled, kinds=["gpu"]))
    assert row["tp_comm_s"] == pytest.approx(row["healthy_tp_comm_s"], rel=1e-9)
    assert row["slow_down"] >= -1e-9


def test_rows_of_packet_fabrics_and_of_direct_links():
    config = on("fat-tree", kinds=["electrical-nic", "server"])
    nic, server = failures(config)
    assert (nic["fabric"], nic["failure"], nic["model"]) == ("fat-tree", "electrical-nic", MODEL)
    assert abs(server["slow_down"]) < 1e-9
    assert nic["slow_down"] > 0
    (link,) = failures(on("torus", kinds=["link"]))
    assert link["failure"] == "link"
    assert link["slow_down"] > 0
    (link,) = failures(on("oversub-fat-tree", kinds=["link"]))
    assert link["devices"] == round(1024 / 3)  # of the bill, whatever ports the last edge switch leaves empty
    assert list(failures(config, start=1)) == [server]


def test_the_healthy_cluster_is_that_of_compare():
    # Between stages TopoOpt has fewer NICs than gradients, and no acknowledgements take their part of them.
    case = on("topoopt", {"network.transport": "ndp"}, "llama-moe", kinds=["server"])
    (server,) = failures(case)
    compared = row(case)["iteration_s"]
    assert server["healthy_s"] == pytest.approx(compared, rel=1e-12)
    assert server["failed_s"] == pytest.approx(compared, rel=1e-9)  # a spare takes all circuits


def test_a_nic_of_a_patch_panel_is_wired_around_and_a_spare_takes_all_circuits():
    demand = jnp.ones((4, 4)) * (1 - jnp.eye(4))
    whole = add_paths(DirectLinks(4, to_gbps(1.0), 4, panels=True), topoopt(demand, Region(4, 1.0, 4)).circuits.count)
    kinds = ("gpu", "server", "optical-nic")
    left = {kind: degrade(whole, kind).group for kind in kinds}
    for kind in ("gpu", "server"):
        assert left[kind] is whole
    again = wire_group("demand", left["optical-nic"], 4, demand, ALL_TO_ALLS)
    before, after = (group.mesh.count for group in (whole, again))
    assert after[0].sum() == before[0].sum() - 1
    assert (after.sum(axis=1) <= 4).all()
    assert after[0, 1] >= 1  # its part of the ring


def test_kinds_that_a_fabric_lacks_are_said_and_those_that_none_has_are_refused():
    def asked(fabrics, kinds=None):
        given = {} if kinds is None else {"failures.kinds": kinds}
        return failures_of_cases(cases(small(given, "llama-moe"), {"network.fabric": fabrics}))

    notes = [note for plan in asked(["fat-tree", "torus", "mfabric"]) for note in plan.notes]
    assert notes[0] == (
        "fat-tree has no failure electrical-nics (its servers have no other network that could relay) and "
        "no failure optical-nic, optical-link, optical-switch, controller (it has no optical switch)."
    )
    assert notes[1].startswith(
        "torus has no failure electrical-nic, nic-link, switch, spine (it has no packet switches)"
    )
    assert len(notes) == 2  # mfabric has every kind
    assert [plan.notes for plan in asked(["fat-tree", "mfabric"], ["link", "nvswitch"])] == [[], []]
    for kinds, fabrics, said in (
        (
            ["optical-switch"],
            ["fat-tree", "full-mesh"],
            "'optical-switch' exists on none of the fabrics .fat-tree: it has",
        ),
        (["electrical-nics"], ["mfabric-cpo"], "'electrical-nics' exists on none .*no circuit leads to a server"),
    ):
        check_refused(said, asked, fabrics, kinds)
    check_refused(
        "server must be below the 1 servers of a region", failures_of_cases, on("nvl72", {"failures.server": 1})
    )
    check_refused("nvswitches must be at least 2", failures_of_cases, on("fat-tree", {"gpu.nvswitches": 1}))


def test_scale_up_domains_by_hand():
    # The 16 GPUs of a group share a domain of 64. Even traffic of b a pair: 15 b on the NVLink, until one GPU is on a
    # spare, which has one NIC for 15 b. Stage 0 ends last: what its 2 x 2 all-to-alls a block take longer, all do.
    job = resolve(on("nvl72", BALANCED, "llama-moe")).job
    pair_bytes = job.selections * job.dispatch_bytes_per_selection / job.ep
    for fabric, nvlink in (("nvl72", 1e12 - 12.5e9), ("mfabric-cpo", (1e12 - 12.5e9) / 2)):
        kinds = ["electrical-nic", "gpu", "server", "nvswitch"]
        nic, gpu, server, nvswitch = failures(on(fabric, BALANCED | {"failures.stage": 0}, "llama-moe", kinds=kinds))
        inside_s, all_to_alls = 15 * pair_bytes / nvlink, 4 * job.moe_layers / job.pp
        assert gpu["healthy_ep_comm_s"] == pytest.approx(all_to_alls * inside_s)
        longer_s = all_to_alls * (15 * pair_bytes / 12.5e9 - inside_s)
        assert gpu["failed_s"] - gpu["healthy_s"] == pytest.approx(longer_s, rel=1e-6)
        assert nvswitch["failed_s"] - nvswitch["healthy_s"] == pytest.approx(all_to_alls * inside_s / 17, rel=1e-5)
        assert server["slow_down"] == pytest.approx(0, abs=1e-9)
        longer_s = nic["failed_s"] - nic["healthy_s"]  # gradients and sends alone: 64 NICs, then 63
        assert 0 < longer_s < 0.05 * nic["healthy_s"]
        assert nic["ep_comm_s"] == pytest.approx(nic["healthy_ep_comm_s"])
        assert (nic["devices"], gpu["spare_usd"], gpu["spare_part_usd"]) == (job.gpus, None, 15000)


@pytest.mark.parametrize("fabric", ["torus", "full-mesh", "railx", "twisted-torus", "dragonfly"])
def test_where_no_spare_has_the_place_of_a_server_the_job_waits(fabric):
    rows = list(
        failures(on(fabric, JOB_OF_16, kinds=["gpu", "server", *(["switch"] if fabric == "dragonfly" else [])]))
    )
    for one in rows:
        assert (one["remedy"], one["slow_down"], one["failed_s"], one["spare_usd"]) == ("repair", None, None, None)
        assert one["waits"].endswith("so the job waits for the repair")


def test_a_link_of_a_torus_whose_groups_are_one_server_slows_gradients():
    job = {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("pp", 1), ("dp", 16), ("ep", 8))}
    (link,) = failures(on("torus", job, kinds=["link"]))
    assert link["ep_comm_s"] == link["healthy_ep_comm_s"]
    assert link["dp_comm_s"] == pytest.approx(2 * link["healthy_dp_comm_s"], rel=1e-3)  # one of two NICs of its ring


def test_oversubscription_of_a_tree_is_that_of_compare():
    case = on("fat-tree", JOB_OF_16 | {"network.oversubscription": 2.0}, kinds=["link", "spine"])
    link, spine = failures(case)
    assert link["healthy_s"] == pytest.approx(row(case)["iteration_s"], rel=1e-12)
    assert link["devices"] == 64  # 128 NICs
    assert spine["slow_down"] >= link["slow_down"] > 0
    check_refused(
        "network.oversubscription must be auto or 1 on torus",
        failures_of_cases,
        on("torus", {"network.oversubscription": 2.0}),
    )


def test_the_only_electrical_nic_of_a_server_without_relays_is_replaced_with_its_server():
    alone = {"circuits.routing": "best-path", DEGREE: 6, "network.nics": 7}
    nic, server = failures(base(alone | {KINDS_ASKED: ["electrical-nic", "server"]}))
    assert nic["remedy"] == "spare-server"
    assert nic["failed_s"] == server["failed_s"]


def by_delay(demand, region, *, previous=None, key=None):
    """Greedy where the switch is quick, else uniform circuits."""
    quick = region.delay_s < 0.01
    chosen, fixed = (policy(demand, region).circuits.count for policy in (greedy, uniform))
    return Plan(Circuits(jnp.where(quick, chosen, fixed)))


def test_a_policy_that_reads_the_delay_is_asked_at_that_of_the_case():
    for delay_s, alike in ((1e-3, "greedy"), (0.1, "uniform")):
        rest = {KINDS_ASKED: ["optical-nic"], "circuits.delay_s": delay_s, "traffic.generated.skew": 1.5}
        (own,), (usual,) = (list(failures(base(rest | {"circuits.policy": one}))) for one in (by_delay, alike))
        for column in ("healthy_s", "failed_s"):
            assert own[column] == pytest.approx(usual[column], rel=1e-9)
