"""How tokens are sent, through rows, a function of numbers and failures."""

import math

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax.failures import failures
from mfabric_jax.simulation import iteration_of
from tests.small import JOB, refused, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
TREE = {"network.fabric": "fat-tree"}
EVEN = JOB | TREE | {"traffic.knobs": "balanced"}
ONCE = {"job.dispatch": "per-server"}
REACHED = 1 - math.comb(4, 2) / math.comb(8, 2)  # of a token with 2 of 8 experts on 2 servers, each of these
COPIES = 2 * REACHED / 2  # over selections


def test_a_copy_a_server_makes_all_to_alls_shorter_by_hand():
    plain, once = (row(small(EVEN | how)) for how in ({}, ONCE))
    assert (plain["dispatch"], once["dispatch"]) == ("per-expert", "per-server")
    np.testing.assert_allclose(once["ep_comm_s"] / plain["ep_comm_s"], COPIES, rtol=1e-9)
    limited = row(small(EVEN | {"job.per-server.node_limit": 1}))
    np.testing.assert_allclose(limited["ep_comm_s"] / plain["ep_comm_s"], 1 / 2, rtol=1e-9)
    on_circuits = row(small(EVEN | ONCE | {"network.fabric": "mfabric"}))
    for one in (once, limited, on_circuits):
        np.testing.assert_allclose(one["ep_over_balanced"], 1, rtol=1e-6)
        assert one["dropped_share"] == 0


def test_a_case_and_failures_start_from_the_same_iteration():
    asked = small(EVEN | ONCE)
    function, numbers = iteration_of(asked)
    np.testing.assert_allclose(eqx.filter_jit(function)(numbers)["iteration_s"], row(asked)["iteration_s"], rtol=1e-9)
    (found,) = failures(asked.with_({"failures.kinds": ("nvswitch",)}))
    np.testing.assert_allclose(found["healthy_s"], row(asked)["iteration_s"], rtol=1e-9)


def test_what_is_dropped_is_said_and_not_sent():
    given = JOB | TREE | {"traffic.generated.skew": 0.8}
    whole, cut = row(small(given)), row(small(given | {"job.capacity_factor": 1.0}))
    assert 0 < cut["dropped_share"] < 0.5
    assert cut["ep_comm_s"] < whole["ep_comm_s"]
    np.testing.assert_allclose(cut["rank_load_over_mean"], 1 / (1 - cut["dropped_share"]), rtol=0.2)
    assert whole["rank_load_over_mean"] > 1.3


def test_servers_that_add_answers_up_wait_for_all_their_ranks():
    said = refused(ONCE | {"compute.received.combine": "rank"})
    assert said.startswith("job.dispatch must be per-expert beside compute.received.combine rank")
