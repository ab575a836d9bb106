"""The recorded gate trace on both kinds of fabric: a rank's own NICs make the busiest rank the bottleneck."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError, all_to_all_time, simulate
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.routing.fixed import spray_time
from mfabric_jax.traffic import recorded, server_bytes
from mfabric_jax.workload import get
from tests.small import row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")

RECORDS = (2011, 2301)
EVERY = 10  # of the 30 records there
BATCH = 96


@pytest.fixture(scope="module")
def folder(shared_data):
    return shared_data / "smartmoe_gate_trace"


@jax.jit
@jax.vmap
def seconds(demand):
    """All-to-alls [BATCH R R] of 16 ranks on two servers: fat-tree with own and with pooled NICs, and mFabric."""
    region, all_circuits = Region(2, 400.0), Circuits(6 - 6 * jnp.eye(2, dtype=jnp.int32))
    trees = [spray_time(Electrical(400.0, nic_use=use), demand, 8) for use in ("own", "pooled")]
    return jnp.stack([*trees, all_to_all_time(region, all_circuits, server_bytes(demand, 8))])


def test_time_over_balanced_is_the_busiest_rank_over_the_mean(folder):
    workload = get("qwen-moe-ep16")
    tokens = recorded(workload, folder, RECORDS)
    count = np.asarray(tokens.count[::EVERY], float)  # every layer and micro-batch
    assert count.shape[:4] == (3, workload.moe_layers, 4, 16)
    demand = count.reshape(-1, BATCH, 16, 16, count.shape[-1] // 16).sum(axis=-1)  # one byte a selection
    own, pooled, optical = np.concatenate([seconds(batch) for batch in demand]).T
    balanced = np.asarray(seconds(np.full_like(demand[0], demand.mean())))[0, 0]
    load = tokens.rank_load_over_mean(workload.ep)[::EVERY].reshape(-1)
    ratio = own / balanced / load
    assert np.median(load) > 5  # far from balanced, so this says something
    assert np.median(ratio) == pytest.approx(1, abs=0.02)
    assert np.all(np.abs(np.quantile(ratio, [0.1, 0.9]) - 1) < 0.02)
    # Two servers: what leaves one goes over 6 circuits or over 8 NICs. Against own NICs mFabric gains by pooling.
    np.testing.assert_allclose(optical / pooled, 8 / 6, rtol=1e-9)
    assert np.median(optical / own) == pytest.approx(0.28, abs=0.03)


def test_recorded_rows_from_a_file(tmp_path):
    # The same balanced counts, recorded and generated.
    np.save(tmp_path / "run.npy", np.ones((2, 3, 4, 16, 16)))
    traced = {"network.fabric": "fat-tree", "traffic.trace.path": str(tmp_path / "run.npy")}
    even = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0}
    got = row(small(traced, "llama-moe"))
    want = row(small({"network.fabric": "fat-tree"} | even, "llama-moe"))
    times = [name for name in got if name.endswith("_s")]
    np.testing.assert_allclose([got[name] for name in times], [want[name] for name in times], rtol=1e-9)
    np.savez(tmp_path / "run.npz", tokens=np.ones((1, 2, 1, 4, 16)))  # of other ranks
    with pytest.raises(InputError, match=r"ep of the workload must divide the 4 source ranks of .*run\.npz, got 16"):
        simulate(small(traced | {"traffic.trace.path": str(tmp_path / "run.npz")}, "llama-moe"))
