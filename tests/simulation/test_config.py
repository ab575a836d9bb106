"""Cases: what cannot be changed, axes of arrays, and the arithmetic that they need."""

import msgspec
import numpy as np
import pytest

from mfabric_jax import Case, InputError, load, resolve, simulate
from tests.small import configured, scenario, small

TINY = load(preset="paper").with_({"model.name": "llama-moe"})
TREE = {"network.fabric": "fat-tree"}


def test_axes_say_what_an_array_is(tmp_path):
    loads = np.arange(1, 2 * 3 * 16 + 1).reshape(2, 3, 16)  # iteration, layer, expert
    np.save(tmp_path / "plain.npy", np.repeat(loads[:, :, None, None], 16, axis=3))  # spread over sources
    np.save(tmp_path / "turned.npy", loads.transpose(2, 0, 1))

    def drawn(name, axes):
        trace = {"traffic.trace.path": str(tmp_path / name), "traffic.trace.axes": axes, "run.iterations": 2}
        return scenario(TINY.with_(trace)).tokens.count

    by_name = drawn("turned.npy", "expert,iteration,layer")
    np.testing.assert_array_equal(by_name, drawn("plain.npy", "iteration,layer,micro-batch,source,expert"))
    with pytest.raises(InputError, match="name its axes, such as --axes"):
        drawn("turned.npy", None)


def test_what_is_fine():
    with pytest.raises(AttributeError):
        Case().run.seed = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Case().run, seed=1) == Case().with_({"run.seed": 1}).run
    for few in ({"network.nic_use": "pooled"} | TREE, {"network.fabric": "mfabric"}):
        assert resolve(TINY.with_(few | {"network.nics": 4})).settings.server_nics == 4


def test_float64_needs_x64():
    sentence = r"^dtype float64 needs jax\.config\.update\('jax_enable_x64', True\)"
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=sentence):
        simulate(small())
