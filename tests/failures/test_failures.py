"""What failures cost: rows, when they strike, what helps against them, and mistakes."""

import dataclasses
import functools
import importlib
import itertools
import re

import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.fabric.failures import KINDS, Degraded
from mfabric_jax.failures import failures
from mfabric_jax.failures._failures import effective_failures
from mfabric_jax.failures.failure_rows import PUBLISHED
from mfabric_jax.schedule import Iteration
from mfabric_jax.schedule.all_to_alls import Exchanges
from mfabric_jax.study import Failures
from tests.mistakes import check_refused
from tests.small import MODEL, configured, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
module = importlib.import_module("mfabric_jax.failures._failures")


@functools.cache
def rows(config):
    """{kind: row}, solved once."""
    found = list(failures(config))
    assert [one["failure"] for one in found] == [kind for kind in config.kinds if kind != "switch"]
    return {one["failure"]: one for one in found}


def base(model=MODEL, **settings):
    """One micro-batch: stages run one after the other. Two iterations."""
    return small(model, **{"micro_batches": 1, "iterations": 2} | settings)


def hurt(kind, *, where=None, **settings):
    """The row of one failure."""
    return rows(Failures(base(**settings), kinds=(kind,), **where or {}))[kind]


def timed_as(monkeypatch, before, after):
    """No simulation: iterations take `before` seconds each and, once failed, `after`; stage 2 is the busiest."""
    monkeypatch.setattr(module, "solve", lambda one: Exchanges(*[np.zeros(())] * 7))
    for name in ("_solve_stage", "_with_stage"):
        monkeypatch.setattr(module, name, lambda *_: None)
    times = {True: Iteration(*[np.asarray(before, float)] * 8), False: Iteration(*[np.asarray(after, float)] * 8)}
    monkeypatch.setattr(module, "_timed", lambda one, solved, left, stage: (times[left is None], 2))


ALL = Failures(base())


def test_what_a_row_holds():
    assert set(rows(ALL)) == set(KINDS) - {"switch"}
    healthy = row(base(fabrics=("mfabric",)))["iteration_s"]
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
    assert abs(hurt("optical-nic", optical_degree=0)["slow_down"]) < 1e-12  # none can fail
    monkeypatch.setattr(module, "degraded", lambda region, kind, **_: Degraded(kind, region, 0))
    for routing in ("unsplit", "split"):
        (one,) = failures(Failures(base(routing=routing), kinds=("link",)))
        assert abs(one["slow_down"]) < 1e-12
        assert one["failed_s"] == pytest.approx(one["healthy_s"], rel=1e-12)


def test_spare_electrical_nics_and_more_links_help():
    for kind in ("electrical-nic", "server"):
        assert 0 < hurt(kind, electrical_nics=4)["slow_down"] < rows(ALL)[kind]["slow_down"]
    assert hurt("link", where={"radix": 4})["slow_down"] > rows(ALL)["link"]["slow_down"] > 0
    one, every = (hurt(kind, electrical_nics=1, optical_degree=2) for kind in ("electrical-nic", "electrical-nics"))
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
EVEN = base(traffic="generated", skew=0.0, drift=0.0, delay_s=0.0, nvswitch_gigabytes_per_s=1e9)


def test_by_hand():
    healthy, job = row(dataclasses.replace(EVEN, fabrics=("mfabric",))), EVEN.workload(MODEL)
    send_s = 2 * job.tokens * job.architecture.hidden * 2 / (2 * 12.5e9)  # activations of 2 ranks over 2 NICs
    for kind, (ep, dp, send) in LONGER.items():
        want = ep * healthy["ep_comm_s"] + dp * healthy["dp_comm_s"] + 2 * send * send_s
        if kind == "gpu":
            want = healthy["tp_comm_s"] * (1e18 / 25e9 - 1)  # over 2 NICs, not the NVSwitch
        one = rows(Failures(EVEN, stage=0))[kind]
        np.testing.assert_allclose(one["failed_s"] - one["healthy_s"], want, rtol=1e-5, atol=1e-8, err_msg=kind)
        np.testing.assert_allclose(one["healthy_s"], healthy["iteration_s"], rtol=1e-12)


def test_a_row_depends_on_the_stage_server_and_seed_not_on_fabrics_and_further_bandwidths():
    busiest = rows(ALL)["server"]["stage"]
    same, other = (hurt("server", where={"stage": (busiest + n) % 4}) for n in (0, 1))
    assert same == rows(ALL)["server"]
    assert other["stage"] == (busiest + 1) % 4
    assert other["failed_s"] != same["failed_s"]
    assert other["healthy_s"] == same["healthy_s"]
    last = hurt("optical-nic", where={"server": 3})
    assert last["server"] == 3
    assert last["failed_s"] != rows(ALL)["optical-nic"]["failed_s"]
    config = Failures(base(fabrics=("fat-tree",), nic_gbps=(100.0, 400.0)), kinds=("server",))
    assert list(failures(config)) == [rows(ALL)["server"]]
    assert hurt("server", seed=1)["failed_s"] != rows(ALL)["server"]["failed_s"]


def test_published_figures_stand_beside_their_own_set_up(monkeypatch):
    config = Failures()
    assert {model for model, _ in PUBLISHED} == set(config.setting.models)
    assert (config.setting.nic_gbps, config.kinds) == ((400.0,), tuple(KINDS))
    timed_as(monkeypatch, [1, 1], [2, 2])
    beside_gpu = {("mixtral-8x22b", "gpu"): 0.051}
    for settings, want in (
        ({"nic_gbps": (400.0, 100.0)}, beside_gpu),
        ({"nic_gbps": (100.0, 400.0)}, {}),
        ({"nic_gbps": (400.0,), "gpus": 512, "dp": 1}, {}),
    ):
        found = failures(Failures(base("mixtral-8x22b", **settings)))
        assert {(r["model"], r["failure"]): r["published"] for r in found if r["published"] is not None} == want


def test_iterations_before_the_failure_are_healthy_and_models_and_kinds_come_in_order(monkeypatch):
    timed_as(monkeypatch, [1, 2, 4, 1], [9, 3, 8, 1.5])
    heard, setting, kinds = [], base(models=("llama-moe", MODEL), iterations=4), ("server", "link")
    found = list(failures(Failures(setting, kinds=kinds, at=1), progress=heard.append))
    assert [(one["model"], one["failure"]) for one in found] == list(itertools.product(setting.models, kinds))
    assert heard == [f"{one['model']}: {one['failure']}" for one in found]
    for one in found:
        assert (one["stage"], one["at"], one["iterations"]) == (2, 1, 4)
        assert (one["healthy_s"], one["failed_s"]) == (2, 12.5 / 3)
        np.testing.assert_allclose(one["slow_down"], (1.5 + 2 + 1.5) / 3 - 1, rtol=1e-12)
        np.testing.assert_allclose(one["run_slow_down"], 13.5 / 8 - 1, rtol=1e-12)


def test_an_optical_switch_that_is_lost_is_a_stage_without_circuits_and_a_controller_leaves_them():
    lost, never = rows(ALL)["optical-switch"], row(base(fabrics=("mfabric",), optical_degree=0))
    hit = rows(Failures(base(), kinds=("optical-switch",), stage=rows(ALL)["server"]["stage"]))["optical-switch"]
    assert hit == lost
    np.testing.assert_allclose(lost["ep_comm_s"], never["ep_comm_s"], rtol=1e-9)  # of the stage that was hit
    assert lost["reconfig_s"] == 0
    assert rows(ALL)["controller"]["reconfig_s"] == 0
    assert hurt("controller", policy="uniform")["slow_down"] == 0  # circuits that never change anyway
    assert rows(ALL)["nvswitch"]["tp_comm_s"] == pytest.approx(1.2 * rows(ALL)["nvswitch"]["healthy_tp_comm_s"])


def test_a_gpu_on_a_spare_is_faster_where_unsplit_routing_leaves_nics_idle_and_the_row_says_so():
    # Two servers of 8 ranks and 6 + 2 NICs, even traffic of b: 64 b over 6 circuits, the electrical NICs idle. On the
    # spare: 56 b over 6 circuits, 15 b over the spare's two NICs. Split routing has all 8 NICs busy: 8 b, then as now.
    for routing, part, why in (("unsplit", 7 / 8, "NICs of the spare, and those that were idle"), ("split", 1, None)):
        setting = dataclasses.replace(EVEN, models=("llama-moe",), routing=routing)
        (one,) = failures(Failures(setting, kinds=("gpu",), stage=0))
        assert one["faster_by"] == why
        saved = (1 - part) * one["healthy_ep_comm_s"]  # of the stage that ends last
        assert one["healthy_s"] - one["failed_s"] == pytest.approx(saved, rel=1e-6, abs=1e-9)
    assert {one["faster_by"] for one in rows(Failures(EVEN, stage=0)).values()} == {None}


def test_the_effective_configuration():
    got = effective_failures(Failures(base(delay_s=0.5), kinds=("gpu",), stage=2, server=1, radix=32))
    want = {"kinds": ("gpu",), "stage": 2, "server": 1, "at": 0, "radix": 32, "models": (MODEL,), "delay_s": 0.5}
    assert {name: got[name] for name in want} == want
    assert got["workloads"][MODEL]["gpus"] == 1024
    assert "setting" not in got


def test_mistakes_get_a_sentence_at_once(monkeypatch):
    two, only_one = {"models": (MODEL, "llama-moe")}, {"routing": "best-path", "electrical_nics": 1}
    for settings, where, sentence in (
        ({}, {"kinds": ("gpu", "sever")}, "kinds 'sever' is unknown (did you mean 'server'?); allowed: electrical-n"),
        ({}, {"at": 2}, "at must be below the 2 iterations of the run, got 2."),
        ({}, {"stage": 4}, "stage must be below the 4 pipeline stages of mixtral-8x7b, got 4."),
        ({}, {"server": 4}, "server must be below the 4 of a region of mixtral-8x7b, got 4."),
        (two, {"server": 2}, "server must be below the 2 of a region of llama-moe, got"),
        *[({}, {name: -1}, f"{name} must be a whole number of at least 0, got") for name in ("at", "stage", "server")],
        (
            only_one,
            {"kinds": ("electrical-nic",)},
            "mfabric: what is relayed then is modelled for routing unsplit alone",
        ),
    ):
        check_refused(re.escape(sentence), Failures, base(**settings), **where)
    said, *_ = Failures(base(routing="split")).notes
    assert "electrical-nics (what is relayed then is modelled for routing unsplit alone)" in said
    timed_as(monkeypatch, [1, 1], [2, 2])
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=r"^dtype float64 needs jax\.config\.update"):
        next(failures(Failures(base(), kinds=("link",))))
