"""A dispatch as nccl-tests reads it: the bytes of the tokens by hand, in whole numbers, a line for each rank."""

import numpy as np

from mfabric_jax.traffic import Tokens
from mfabric_jax.traffic.alltoallv import ExchangeIndex, buffer_bytes, dispatch_matrix, write_alltoallv
from tests.traffic.jobs import job

# Two ranks of two experts, [iteration, layer, micro-batch, source rank, expert]; a selection is 2 bytes (bf16).
COUNT = np.array([[3, 0, 1, 12], [8, 8, 0, 0]])
TOKENS = Tokens(np.stack([np.zeros((2, 4)), COUNT]).reshape(1, 2, 1, 2, 4), "made up")


def test_the_matrix_is_the_dispatch_that_was_asked_for(tmp_path):
    demand = dispatch_matrix(job(ep=2, experts=4), TOKENS, ExchangeIndex(block=1))
    np.testing.assert_array_equal(demand, [[6, 26], [32, 0]])
    assert not dispatch_matrix(job(ep=2, experts=4), TOKENS, ExchangeIndex()).any()
    path = write_alltoallv(demand + 0.4, tmp_path / "matrix.txt")
    assert path.read_text() == "6 26\n32 0\n"
    np.testing.assert_array_equal(np.loadtxt(path), [[6, 26], [32, 0]])


def test_a_buffer_holds_the_largest_line_of_whole_steps():
    # Cells become 16 and 32, 32 and 0: rows 48 and 32, columns 48 and 32.
    assert buffer_bytes(np.array([[6, 26], [32, 0]])) == 48
