"""Traffic and all-to-alls that set-ups share: those of equal EP groups, whatever their pipelines."""

import dataclasses

import jax
import numpy as np
import pytest

from mfabric_jax import Case, resolve
from mfabric_jax.evaluate import arranged, asking, problem
from mfabric_jax.evaluate.problem import Shared, problem_of
from mfabric_jax.evaluate.resolving import traffic as drawn
from mfabric_jax.evaluate.resolving.traffic import draw_loads, traffic_of
from mfabric_jax.evaluate.solving import solve, times_of
from mfabric_jax.traffic import dispatch, sent_tokens
from mfabric_jax.workload import Workload, get

JOB = get("qwen-moe", dp=1, tp=1, pp=2, ep=16, gpus=32)
JOB = dataclasses.replace(JOB, dispatch="per-server", sequence=256, micro_batch=2, micro_batches=4)
CHANGES = [  # every field of a job has another value in one of them
    *({name: 1.0} for name in ("dispatch_bytes", "combine_bytes", "grad_bytes", "accumulated_bytes", "kept_bytes")),
    *({name: 1.0} for name in ("moment_bytes", "weight_bytes", "gathered_bytes")),
    *({"sequence": 128}, {"micro_batch": 4}, {"micro_batches": 8}, {"schedule": "zb-h1"}, {"recompute": "block"}),
    *({"cp": 2}, {"folded": 2}, {"tp_reduces": "all"}, {"sequence_parallel": False}, {"predicted": 1}),
    *({"layout_of_blocks": "ends"}, {"sharding": "none"}, {"head": "counted"}, {"optimizer_step": "counted"}),
    *({"redundant_experts": 16}, {"dispatch": "per-expert"}, {"node_limit": 1}, {"capacity_factor": 1.1}),
    *({"known_as": "another"}, {"model": "another"}, {"gpus_per_server": 4}, {"sharp": True}, {"nvls": 0.8}),
    *({"dp": 2, "gpus": 64}, {"pp": 1, "gpus": 16}, {"tp": 2, "gpus": 64}, {"ep": 8, "gpus": 16}),
    *({"schedule": "interleaved", "chunks": 2}, {"schedule": "dualpipe", "overlap_passes": True}),
    {"architecture": dataclasses.replace(JOB.architecture, top_k=2)},
]
FEW = {"traffic.drawn": 2, "compute.experts": "received"}
SOURCES = [
    {},
    {"traffic.source": "generated", "traffic.generated.skew": 0.8},
    {"traffic.source": "authors"},
    {"traffic.knobs": "log-normal"},
    {"run.replicas": "all"},
    {"placement.rule": "hierarchical"},
    {"traffic.alike": "everything"},
]


def forget():
    for cached in (drawn._read_or_draw, drawn._of_ranks, dispatch._compute_sent):
        cached.cache_clear()


def traffic_in(case, job):
    """What ranks send, and how full they get, of a job whose cases and traffic may be known."""
    every = traffic_of(case, job)
    return jax.tree.leaves(([(each.count, sent_tokens(job, each)) for each in every], draw_loads(case, job)))


@pytest.mark.parametrize("changes", SOURCES)
def test_traffic_is_shared_by_the_jobs_that_have_the_same_alone(changes, monkeypatch):
    case = Case().with_(FEW | changes)
    jobs = [JOB, *(dataclasses.replace(JOB, **change) for change in CHANGES)]
    changed = {field for job in jobs for field, value in vars(job).items() if value != getattr(JOB, field)}
    assert {field.name for field in dataclasses.fields(Workload)} <= changed
    alone = []
    for job in jobs:
        forget()
        alone.append(traffic_in(case, job))
    forget()
    draw, times = drawn._tokens, []
    monkeypatch.setattr(drawn, "_tokens", lambda *given: (times.append(given), draw(*given))[1])
    for job, want in zip(jobs, alone, strict=True):
        got = traffic_in(case, job)
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)
    assert 5 <= len(times) <= (len(jobs) if "placement.rule" in changes else len(jobs) // 3)


SMALL = {"model.name": "qwen-moe", "model.recipe": "none", "network.nic_gbps": 400.0, "traffic.drawn": 2}
SMALL |= {"job.parallel.gpus": 128, "job.parallel.tp": 2, "job.parallel.ep": 16, "job.dispatch": "per-server"}
SMALL |= {"job.batch.sequence": 256, "job.batch.micro_batches": 8}
SET_UPS = [
    {"job.parallel.pp": 2},
    {"job.parallel.pp": 4},
    {"job.parallel.pp": 2, "job.schedule": "interleaved", "job.interleaved.chunks": 2, "job.layout": "ends"},
    {"job.parallel.pp": 2, "job.schedule": "zb-h1", "job.recompute": "none"},
    {"job.parallel.pp": 1, "job.batch.micro_batches": 3},
]
DUAL = {"job.parallel.pp": 2, "job.schedule": "dualpipe"}  # passes overlap: not with every rule for circuits
WAYS = [
    {"network.fabric": "fat-tree"},
    {"network.fabric": "fat-tree", "network.paths": "ecmp", "network.ecmp.busy": "group"},
    {"network.fabric": "rail-optimized", "job.dispatch": "per-expert"},
    {"network.fabric": "mfabric"},
    {"network.fabric": "mfabric", "circuits.reconfigure": "reuse", "job.dispatch": "per-expert"},
    {"network.fabric": "mfabric", "circuits.reconfigure": "pays"},
    {"network.fabric": "mfabric", "circuits.reconfigure": "bound"},
    {"network.fabric": "mfabric", "circuits.policy": "static", "circuits.routing": "split"},
    {"network.fabric": "mfabric", "compute.experts": "received", "run.iterations": 2, "circuits.cold_start": True},
]
SOLVED_BY = [
    *((arranged, name) for name in ("fixed_times_now", "inside_times_now", "in_chunks")),
    *((asking, name) for name in ("unsplit_times_now", "_choose", "in_chunks")),
    *((dispatch, name) for name in ("_chances", "_reached")),
]


def noting(asked, name, work):
    """The function `work`, which also adds its name to those asked for."""

    def noted(*given, **more):
        asked.append(name)
        return work(*given, **more)

    return noted


def solved(asked):
    one = problem_of(resolve(Case().with_(asked)), (asked["network.nic_gbps"],))
    exchanges = solve(one)
    return jax.tree.leaves((exchanges, times_of(one, exchanges)))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: " ".join(map(str, way.values())))
def test_another_pipeline_solves_nothing_again_and_gets_the_same(monkeypatch, way):
    set_ups = SET_UPS if "circuits.reconfigure" in way else [*SET_UPS, DUAL]
    alone = []
    for set_up in set_ups:
        forget()
        monkeypatch.setattr(problem, "_SOLVED", Shared())
        alone.append(solved(SMALL | set_up | way))
    forget()
    monkeypatch.setattr(problem, "_SOLVED", Shared())
    asked = []
    for module, name in SOLVED_BY:
        work = getattr(module, name)
        monkeypatch.setattr(module, name, noting(asked, name, work))
    for number, (set_up, want) in enumerate(zip(set_ups, alone, strict=True)):
        for got, expected in zip(solved(SMALL | set_up | way), want, strict=True):
            np.testing.assert_array_equal(got, expected)
        if number == 0:
            assert asked
            asked.clear()
    assert not [name for name in asked if way.get("circuits.reconfigure") != "pays" or name not in PAYS]


PAYS = ("unsplit_times_now",)  # of the circuits in place, which depend on the order of passes


def test_a_smaller_group_or_other_tokens_are_solved_anew(monkeypatch):
    monkeypatch.setattr(problem, "_SOLVED", Shared())
    others = ({}, {"job.parallel.ep": 8}, {"run.seed": 1}, {"job.batch.sequence": 512}, {"job.dispatch": "per-expert"})
    for change in others:
        solved(SMALL | {"network.fabric": "fat-tree"} | change)
    assert len(problem._SOLVED._known) == 3 * len(others)  # on links, inside servers, and of the fullest rank


def test_results_used_last_stay():
    shared, made = Shared(24), []

    def get(key):
        return shared.get(key, lambda: (made.append(key), np.zeros(1))[1])

    for key in "abcabca":
        get(key)
    assert made == ["a", "b", "c"]
    get("d")  # instead of b
    for key in "cadb":
        get(key)
    assert made == ["a", "b", "c", "d", "b"]
