"""How tokens are sent, through comparisons, a function of cases, failures and whole clusters."""

import math

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax.cluster.whole_cluster import WholeCluster, cluster_rows, solve_cluster
from mfabric_jax.failures import failures
from mfabric_jax.simulation import iteration_of
from mfabric_jax.study import Failures
from tests.small import JOB, MODEL, refused, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
EVEN = JOB | {"traffic": "balanced", "fabrics": ("fat-tree",)}
REACHED = 1 - math.comb(4, 2) / math.comb(8, 2)  # of a token with 2 of 8 experts on 2 servers, each of these
COPIES = 2 * REACHED / 2  # over selections


def test_a_copy_a_server_makes_all_to_alls_shorter_by_hand():
    plain, once = (row(small(**EVEN, dispatch=how)) for how in (None, "per-server"))
    assert (plain["dispatch"], once["dispatch"]) == ("per-expert", "per-server")
    np.testing.assert_allclose(once["ep_comm_s"] / plain["ep_comm_s"], COPIES, rtol=1e-9)
    limited = row(small(**EVEN, dispatch="per-server", node_limit=1))
    np.testing.assert_allclose(limited["ep_comm_s"] / plain["ep_comm_s"], 1 / 2, rtol=1e-9)
    on_circuits = row(small(**EVEN | {"fabrics": ("mfabric",)}, dispatch="per-server"))
    for one in (once, limited, on_circuits):
        np.testing.assert_allclose(one["ep_over_balanced"], 1, rtol=1e-6)
        assert one["dropped_share"] == 0


def test_a_case_and_failures_start_from_the_same_iteration():
    config = small(**EVEN, dispatch="per-server")
    function, case = iteration_of(config, MODEL, "fat-tree")
    np.testing.assert_allclose(eqx.filter_jit(function)(case)["iteration_s"], row(config)["iteration_s"], rtol=1e-9)
    (found,) = failures(Failures(config, kinds=("nvswitch",), fabrics=("fat-tree",)))
    np.testing.assert_allclose(found["healthy_s"], row(config)["iteration_s"], rtol=1e-9)


def test_what_is_dropped_is_said_and_not_sent():
    given = JOB | {"traffic": "generated", "skew": 0.8, "fabrics": ("fat-tree",)}
    whole, cut = row(small(**given)), row(small(**given, capacity_factor=1.0))
    assert 0 < cut["dropped_share"] < 0.5
    assert cut["ep_comm_s"] < whole["ep_comm_s"]
    np.testing.assert_allclose(cut["rank_load_over_mean"], 1 / (1 - cut["dropped_share"]), rtol=0.2)
    assert whole["rank_load_over_mean"] > 1.3


def test_whole_clusters_send_copies():
    given = {"model": MODEL, "fabric": "fat-tree", "dp": 1, "pp": 2, "micro_batches": 2}
    plain, once = (cluster_rows(solve_cluster(WholeCluster(**given, dispatch=how))) for how in (None, "per-server"))
    (before,), (after,) = ([one for one in rows if one["traffic"] == "EP"] for rows in (plain, once))
    assert after["end_s"] < before["end_s"]


def test_settings_that_cannot_be():
    assert "node_limit needs dispatch 'per-server'" in refused(models=(MODEL,), node_limit=2)
    parts = {"models": (MODEL,), "dispatch": "per-server", "combine_start": "rank", "expert_load": "received"}
    assert "dispatch 'per-server' adds up a server's answers" in refused(**parts)
