"""`Region` and `Electrical`: what they refuse, in words, and what they may carry as data."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.fabric import ELECTRICAL, NAMES, Electrical, Region

NAN, INF = float("nan"), float("inf")


def test_numbers_that_are_none():
    for field, value in itertools.product(("optical_degree", "electrical_nics", "delay_s"), (-1, NAN, INF)):
        with pytest.raises(InputError, match=f"{field} must be finite and not negative, got {value}"):
            Region(2, 400.0, **{field: value})
    for value in (0, -100.0, NAN, INF, np.asarray([100.0, 0.0])):
        for fabric in (lambda gbps: Region(2, gbps), lambda gbps: Electrical("fat-tree", gbps)):
            with pytest.raises(InputError, match="nic_gbps must be finite and above 0, got"):
                fabric(value)
    for value in ("400", None, True):
        with pytest.raises(InputError, match=f"nic_gbps must be a number, got {value!r}"):
            Region(2, value)
    for value in (0, -2, 2.0, True, "2"):
        with pytest.raises(InputError, match=f"servers must be a whole number of at least 1, got {value!r}"):
            Region(value, 400.0)
        with pytest.raises(InputError, match=f"nics must be a whole number of at least 1, got {value!r}"):
            Electrical("fat-tree", 400.0, nics=value)


def test_electrical_refuses():
    for over in (0, -3.0, NAN, INF):
        with pytest.raises(InputError, match=f"oversubscription must be finite and above 0, got {over}"):
            Electrical("oversub-fat-tree", 400.0, oversubscription=over)
    with pytest.raises(InputError, match=r"fabric 'fattree' is unknown \(did you mean 'fat-tree'\?\); allowed: fat-"):
        Electrical("fattree", 400.0)
    with pytest.raises(InputError, match=r"nic_use 'pool' is unknown \(did you mean 'pooled'\?\); allowed: own, p"):
        Electrical("fat-tree", 400.0, nic_use="pool")


def test_own_needs_a_nic_for_every_gpu():
    Electrical("fat-tree", 400.0, nics=8).check_gpus(8)
    Electrical("fat-tree", 400.0, nics=4, nic_use="pooled").check_gpus(8)
    with pytest.raises(InputError, match="a server has 8 GPUs and 4 NICs; use nic_use 'pooled' or 8 NICs"):
        Electrical("fat-tree", 400.0, nics=4).check_gpus(8)


def test_rates_by_hand():
    region = Region(2, 400.0)
    assert (region.optical_degree, region.electrical_nics, region.delay_s) == (6, 2, 0.025)
    assert region.nic_Bps == 50e9
    assert region.eps_Bps == 100e9
    assert Electrical("fat-tree", 100.0).eps_Bps == 8 * 12.5e9
    assert Electrical("oversub-fat-tree", 100.0, oversubscription=4.0).eps_Bps == 2 * 12.5e9
    assert Electrical("fat-tree", 100.0, nics=4).eps_Bps == 4 * 12.5e9
    assert Electrical("fat-tree", 100.0).delay_s == 0


def test_names():
    assert set(NAMES) == {*ELECTRICAL, "topoopt", "mfabric", "mfabric-cpo"}
    assert {name: over for name, over in ELECTRICAL.items() if over} == {"oversub-fat-tree": 3.0}


def test_fields_of_a_region_are_data():
    traces = []

    @jax.jit
    def ports(region):
        traces.append(region)
        return jnp.stack([region.nic_Bps, region.eps_Bps, region.optical_degree * 1.0, region.delay_s])

    values = [(100.0, 6, 2.0, 0.025), (400.0, 3, 1.0, 0.0), (800.0, 0, 0.0, 1.0)]
    regions = [Region(4, *(jnp.asarray(x) for x in value)) for value in values]
    one = [ports(region) for region in regions]
    assert len(traces) == 1
    want = [[gbps * 1.25e8, nics * gbps * 1.25e8, degree, delay] for gbps, degree, nics, delay in values]
    np.testing.assert_allclose(one, want)
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *regions)
    assert together.servers == 4
    np.testing.assert_allclose(jax.vmap(ports)(together), want)
