"""Rings of circuits by hand."""

import numpy as np

from mfabric_jax.fabric.rings import ascending_steps, ring_circuits, totient_steps


def test_steps():
    for servers, rings, ascending, totient in [
        (8, 2, [1, 3], [1, 3]),
        (8, 3, [1, 3, 5], [1, 3, 1]),  # 5 is 3 the other way
        (6, 2, [1, 5], [1, 1]),
        (16, 3, [1, 3, 5], [1, 3, 7]),  # 16^(1/3) = 2.52: 2.52, then 7.56
        (32, 3, [1, 3, 5], [1, 3, 9]),  # 3.17: 3.17, then 9.52
        (2, 3, [1, 1, 1], [1, 1, 1]),
        (1, 2, [1, 1], [1, 1]),
    ]:
        assert ascending_steps(servers, rings) == ascending, (servers, rings)
        assert totient_steps(servers, rings) == totient, (servers, rings)


def test_circuits():
    ring = [[0, 1, 0, 0, 0, 1], [1, 0, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 0, 1, 0], [0, 0, 0, 1, 0, 1]]
    np.testing.assert_array_equal(ring_circuits(6, [1]), [*ring, [1, 0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(ring_circuits(6, [5]), ring_circuits(6, [1]))
    np.testing.assert_array_equal(ring_circuits(2, [1, 1]), [[0, 4], [4, 0]])
    assert not ring_circuits(1, [1]).any()
    eight = ring_circuits(8, [1, 3, 5])
    np.testing.assert_array_equal(eight[0], [0, 1, 0, 2, 0, 2, 0, 1])
    assert (eight == eight.T).all()
    assert (eight.sum(axis=1) == 6).all()
