"""Policies in comparisons: functions of the user's own, circuits for the mean, relay routing."""

import dataclasses

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.policies import greedy, topoopt
from mfabric_jax.study import Failures
from mfabric_jax.study._compare import effective
from tests.study.small import as_a_user, row, small

MFABRIC = small(fabrics=("mfabric",))


@pytest.fixture(scope="module", autouse=True)
def as_users_have_it():
    with as_a_user():
        yield


def chained(demand, region, *, previous=None, key=None):
    """A function of the user's own."""
    return topoopt(demand, region)


def test_a_function_is_a_policy():
    own, named = (row(dataclasses.replace(MFABRIC, policy=policy)) for policy in (chained, "topoopt"))
    assert own | {"policy": "topoopt"} == named
    assert own["policy"] == "chained"
    assert effective(dataclasses.replace(MFABRIC, policy=chained))["policy"] == "chained"
    assert row(MFABRIC)["ep_comm_s"] != own["ep_comm_s"]


def test_circuits_for_the_mean_are_set_once():
    # The iteration begins with the uniform topology: one change in every stage, in its first block.
    uneven = dataclasses.replace(MFABRIC, delay_s=1.0, traffic="generated", skew=2.0)
    static, always = (row(dataclasses.replace(uneven, policy=policy)) for policy in ("static", "greedy"))
    assert always["reconfig_s"] > 10
    assert static["reconfig_s"] <= 1.0
    with pytest.raises(InputError, match="policy must not be 'static' for failures"):
        Failures(dataclasses.replace(MFABRIC, policy="static"))


def test_relay_routing_is_no_slower_than_split():
    split, relay = (row(dataclasses.replace(MFABRIC, routing=routing)) for routing in ("split", "relay"))
    assert relay["routing"] == "relay"
    assert relay["ep_comm_s"] <= split["ep_comm_s"] * (1 + 1e-9)
    assert greedy.__name__ == relay["policy"]
