"""Mistakes in files of jobs and in what is done about them."""

from mfabric_jax.apps.graphs.jobs.cassini import Mltcp
from mfabric_jax.apps.graphs.jobs.compared import compare_jobs
from mfabric_jax.apps.graphs.jobs.jobs_file import jobs_of
from mfabric_jax.apps.graphs.jobs.placed import scene_from
from mfabric_jax.apps.graphs.jobs.sharing import JobsStudy

SENDS = {"compute_s": 1.0, "gigabytes": 1.0, "links": ["a"]}
ON_SERVERS = {"gigabytes": 1.0, "servers": [0, 2]}


def of_jobs(*jobs, **table):
    return lambda: scene_from(jobs_of({"links": {"a": 8.0}, "jobs": list(jobs)} | table))


def on_fabric(*jobs, **fabric):
    return lambda: scene_from(jobs_of({"fabric": fabric, "jobs": list(jobs)}))


def placed(servers, *jobs):
    table = {"servers": servers, "rack": 2, "case": {"network.nic_gbps": 8.0}}
    return lambda: compare_jobs(jobs_of({"fabric": table, "jobs": list(jobs)}), JobsStudy(placements=1))


REFUSED = [
    (of_jobs(SENDS, links={"a": 0.0}), "a of links"),
    (of_jobs(), "at least one job"),
    (of_jobs(SENDS | {"links": ["b"]}), "link of job 0 'b'"),
    (of_jobs(SENDS | {"links": ["a", "a"]}), "twice"),
    (of_jobs(SENDS | {"compute": 1.0}), "did you mean 'compute_s'"),
    (of_jobs(SENDS | {"compute_s": -1.0}), "compute_s of phase 0 of job 0"),
    (of_jobs(SENDS | {"case": {"model": "llama-moe"}}), "must not give compute_s with case"),
    (of_jobs({"graph": "x.et"}), "needs a fabric"),
    (of_jobs({"case": {"model": "llama-moe"}}), "must be given, since it sends"),
    (of_jobs({"name": "x"}), "must compute or send"),
    (of_jobs(SENDS | {"servers": [0, 1]}), "need a fabric"),
    (of_jobs(*[SENDS | {"name": "x"}] * 2), "unique"),
    (
        on_fabric(ON_SERVERS, servers=4, case={"network": {"fabric": "graph"}}),
        "network.fabric graph is not read by jobs",
    ),
    (
        on_fabric(ON_SERVERS, servers=4, rack=2, case={"network.rails.speeds": [1, 0.5]}),
        "network.rails.speeds must be empty for replay and jobs, got [1.0, 0.5].",
    ),
    (
        of_jobs({"case": {"network": {"fabric": "fat-tree", "rails": {"speeds": [1, 0.5] * 4}}}, "links": ["a"]}),
        "network.rails.speeds must be empty for replay and jobs, got [1.0, 0.5",
    ),
    (of_jobs({"case": 3}), "case of job 0 must be the name of a file, or a table of settings"),
    (of_jobs({"case": {"gpu": ["H100-SXM", "B200-HGX"]}}), "must be one case, got 2 that differ in gpu.name"),
    (on_fabric(SENDS, servers=8), "not used on a fabric"),
    (on_fabric({"gigabytes": 1.0, "servers": [0]}, servers=8), "two or more"),
    (on_fabric({"gigabytes": 1.0, "servers": [0, 8]}, servers=8), "below 8"),
    (on_fabric(graph="x.json", servers=8), "must not give both graph"),
    (on_fabric(servers=4, rack=2, tiers=3), "field of fabric 'tiers' is unknown"),
    (
        placed(3, ON_SERVERS, {"gigabytes": 1.0, "servers": [1, 2]}),
        "need 4 servers, one for each server of a job; got 3",
    ),
    (lambda: compare_jobs(jobs_of({"links": {"a": 8.0}, "jobs": [SENDS]}), JobsStudy(placements=1)), "need a fabric"),
    (lambda: JobsStudy(steps=1), "steps"),
    (lambda: JobsStudy(adjust=0.5), "adjust must be from 0 to below 0.5"),
    (lambda: Mltcp(intercept=0.0), "intercept"),
]
