"""What failures cost: rows, when they strike, what helps against them, and mistakes."""

import functools
import importlib
import itertools
import re

import numpy as np
import pytest

from mfabric_jax import InputError, cases, resolve
from mfabric_jax.fabric.failures import KINDS, Degraded
from mfabric_jax.failures import failures
from mfabric_jax.failures._failures import plans
from mfabric_jax.failures.failure_rows import PUBLISHED
from mfabric_jax.schedule import Iteration
from mfabric_jax.schedule.all_to_alls import Exchanges
from tests.mistakes import check_refused
from tests.small import MODEL, configured, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
module = importlib.import_module("mfabric_jax.failures._failures")


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
    for name in ("_solve_stage", "_with_stage"):
        monkeypatch.setattr(module, name, lambda *_: None)
    times = {True: Iteration(*[np.asarray(before, float)] * 8), False: Iteration(*[np.asarray(after, float)] * 8)}
    monkeypatch.setattr(module, "_timed", lambda one, solved, left, stage: (times[left is None], 2))


ALL = base()


def test_what_a_row_holds():
    assert list(rows(ALL)) == [kind for kind in KINDS if kind != "switch"]
    healthy = row(ALL)["iteration_s"]
    for kind, one in rows(ALL).items():
        assert (one["model"], one["failure"], one["nic_gbps"], one["gpus"]) == (MODEL, kind, 100.0, 1024)
        assert (one["policy"], one["routing"], one["dtype"]) == ("greedy", "unsplit", "float64")
        assert (one["server"], one["at"], one["iterations"]) == (0, 0, 2)
        assert 0 <= one["stage"] < 4
        np.testing.assert_allclose(one["healthy_s"], healthy, rtol=1e-12)  # that of compare
        np.testing.assert_allclose(one["run_slow_down"], one["failed_s"] / one["healthy_s"] - 1, rtol=1e-9)
        assert one["slow_down"] > 0 or kind == "controller"  # circuits that stay pay no reconfiguration
        for run in ("healthy_", ""):  # what explains it: the parts of both iterations
            parts = sum(one[f"{run}{part}"] for part in ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s"))
            np.testing.assert_allclose(parts, one[f"{run}s" if run else "failed_s"], rtol=1e-9)
    cost = {kind: one["slow_down"] for kind, one in rows(ALL).items()}
    assert cost["server"] > max(cost["gpu"], cost["optical-nic"])
    assert cost["electrical-nics"] >= cost["electrical-nic"] > cost["link"]


def test_nothing_failed_costs_nothing(monkeypatch):
    # The failed stage is solved by other means than the healthy ones; with all of its NICs it takes as long.
    assert abs(hurt("optical-nic", {DEGREE: 0, "network.nics": 2})["slow_down"]) < 1e-12  # none can fail
    monkeypatch.setattr(module, "degraded", lambda region, kind, **_: Degraded(kind, region, 0))
    for routing in ("unsplit", "split"):
        (one,) = failures(base({"circuits.routing": routing, KINDS_ASKED: ["link"]}))
        assert abs(one["slow_down"]) < 1e-12
        assert one["failed_s"] == pytest.approx(one["healthy_s"], rel=1e-12)


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
        assert (one["stage"], one["at"], one["iterations"]) == (2, 1, 4)
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
    assert rows(ALL)["nvswitch"]["tp_comm_s"] == pytest.approx(1.2 * rows(ALL)["nvswitch"]["healthy_tp_comm_s"])


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
        (only_one | {KINDS_ASKED: ["electrical-nic"]}, "mfabric: what is relayed then is modelled for routing unsplit"),
        ({"circuits.turn": "always"}, "circuits.turn must be on-demand or reuse or predict beside failures"),
        ({"run.replicas": 2}, "run.replicas must be 1 beside failures, got 2."),
        ({"circuits.policy": "static"}, "circuits.policy must not be static beside failures"),
        ({"placement.longest-processing-time.every": 2}, "every must be 0 beside failures, got 2."),
    ):
        check_refused(re.escape(sentence), plans, base(changes))
    for name in ("iteration", "stage", "server"):
        check_refused(f"failures.{name} must be a whole number at least 0", base, {f"failures.{name}": -1})
    (plan,) = plans(base({"circuits.routing": "split"}))
    assert "electrical-nics (what is relayed then is modelled for routing unsplit alone)" in plan.notes[0]
    timed_as(monkeypatch, [1, 1], [2, 2])
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=r"^dtype float64 needs jax\.config\.update"):
        next(failures(base({KINDS_ASKED: ["link"]})))
