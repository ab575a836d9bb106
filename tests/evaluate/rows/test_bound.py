"""`circuits.reconfigure = bound`: no policy, routing and turn within the fabric's degrees ends an iteration before
it."""

import numpy as np
import pytest

from mfabric_jax import InputError, cases, report, simulate
from mfabric_jax.evaluate.resolving.limits import check_modelled
from mfabric_jax.evaluate.solving import solve
from mfabric_jax.routing import degree_bound
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic import dispatched_bytes, server_bytes
from tests.small import scenario, small

PASSES = {"job.schedule": "dualpipe", "job.overlap": "passes", "job.parallel.pp": 2, "job.parallel.dp": 4}
PASSES |= {"job.batch.micro_batches": 4, "job.parallel.tp": 4, "job.parallel.ep": 8}
JOBS = ({}, {"job.overlap": "parts"}, {"compute.experts": "received", "compute.received.combine": "rank"}, PASSES)
WAYS = {"circuits.policy": ["greedy", "greedy-next"], "circuits.routing": ["unsplit", "split", "relay"]}


def drawn(seed):
    """A small case on mFabric with traffic, degree, delay and job of its own."""
    rng = np.random.default_rng(seed)
    changes = {
        "network.fabric": "mfabric",
        "traffic": "generated",
        "traffic.generated.skew": float(rng.uniform(0.2, 2)),
    }
    changes |= {"network.mfabric.optical_degree": int(rng.choice([2, 3, 6])), "run.seed": int(seed)}
    changes |= {"circuits.delay_s": float(rng.choice([0, 1e-4, 0.02])), "circuits.packets_wait": bool(rng.integers(2))}
    return small(changes | JOBS[seed % len(JOBS)])


@pytest.mark.parametrize("seed", range(len(JOBS)))
def test_no_circuits_beat_it(seed):
    case = drawn(seed)
    turns = ["on-demand", "always"] + (["pays"] if case.job.overlap.name != "passes" else [])
    (bound,) = simulate(case.with_({"circuits.reconfigure": "bound"})).rows()
    rows = simulate(cases(case, WAYS | {"circuits.reconfigure": turns})).rows()
    assert bound["reconfig_s"] == 0
    assert min(row["iteration_s"] for row in rows) >= bound["iteration_s"] * (1 - 1e-12)


def test_it_is_the_degree_bound_of_every_all_to_all():
    one = scenario(drawn(0).with_({"circuits.reconfigure": "bound"}))
    sent = dispatched_bytes(one.workload, one.own_selections[0])
    demand = np.asarray(server_bytes(sent, one.workload.ranks_per_server))
    where = places(one.workload)
    layer, micro_batch = where.pick(*demand.shape[:2])
    at = tuple(np.argwhere(where.layer >= 0)[0])
    want = degree_bound(one.group, demand[layer[at], micro_batch[at]]) * one.group.nic_Bps
    np.testing.assert_allclose(solve(one).load[(0, *at)], [float(want)] * 2, rtol=1e-12)


def test_it_is_one_row_whatever_the_policy_and_is_not_ranked():
    given = drawn(0).with_({"job.batch.micro_batches": 1})
    rows = simulate(
        cases(given, {"circuits.reconfigure": ["bound", "on-demand"], "circuits.policy": ["greedy", "uniform"]})
    ).rows()
    assert [(row["policy"], row["routing"]) for row in rows] == [
        *(("bound", "any"), ("greedy", "unsplit"), ("uniform", "unsplit")),
    ]
    assert rows[0]["reconfigurations"] is None
    assert "Not ranked for being a bound" in report.comparison(rows)


def test_failures_have_none():
    with pytest.raises(InputError, match=r"circuits\.reconfigure must be"):
        check_modelled("failures", small({"network.fabric": "mfabric", "circuits.reconfigure": "bound"}))
