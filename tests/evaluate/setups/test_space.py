"""The space of set-ups against loops over all degrees."""

import pytest

from mfabric_jax.workload.space import degrees_of, dispatchers_of, kinds_of, shardings_of
from tests.evaluate.setups.spaces import LONG, SMALL, asked, every


@pytest.mark.parametrize("settings", [SMALL, LONG, SMALL | {"job.parallel.ep": 4, "job.schedule": "zb-v"}])
def test_the_space_is_everything_that_a_workload_allows(settings):
    _, job, *_ = asked(settings | {"network.fabric": "fat-tree"})
    got = [
        kind._replace(sharding=sharding, dispatcher=dispatcher, dispatch=dispatch)
        for degrees in degrees_of(job)
        for kind in kinds_of(job, degrees)
        for sharding in shardings_of(job, kind)
        for dispatcher, dispatch in dispatchers_of(job, degrees.ep)
    ]
    assert len(got) == len({*got})
    assert {*got} == {*every(job)}
    assert len(got) > 20
