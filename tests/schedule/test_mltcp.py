"""MLTCP's function, its pieces, and where it brings two equal jobs."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.schedule.mltcp import Mltcp


def test_the_function_by_hand():
    rule = Mltcp()
    np.testing.assert_allclose(rule.weight([0, 0.5, 1]), [0.25, 1.125, 2.0], rtol=1e-12)
    assert Mltcp(slope=4.0).weight(1.0) == 4.25


def test_pieces_have_the_function_at_their_middle_and_go_on_in_the_next_phase():
    rule = Mltcp(slope=2, intercept=1, pieces=2)
    # 8 bytes an iteration, 4 in each of two phases: middles at 1/8, 3/8 and 5/8, 7/8.
    np.testing.assert_allclose(rule.piece_weights([0, 4], [4, 4], [8, 8]), [[1.25, 1.75], [2.25, 2.75]], rtol=1e-12)
    np.testing.assert_allclose(rule.piece_weights([0], [0], [0]), [[1, 1]])


def test_two_equal_jobs_drift_apart_until_they_do_not_meet():
    # 1 s of communication. The one ahead by 0.1 sends at r / (1 + r), r = F(0.1) / F(0) = 0.425 / 0.25 = 1.7, the whole
    # overlap long, so the other, (1 - 0.1) / 1.7 through when it ends, ends 1 - 0.9 / 1.7 later.
    rule, offset = Mltcp(), 0.1
    assert rule.next_offset(offset, 1.0) == pytest.approx(1 - 0.9 / 1.7, abs=1e-12)
    for _ in range(20):
        offset = rule.next_offset(offset, 1.0)
    assert offset == pytest.approx(1, abs=1e-9)
    assert rule.next_offset(0.0, 1.0) == 0  # together they stay together
    assert Mltcp(slope=0).next_offset(0.3, 1.0) == 0.3  # fair sharing moves nobody


def test_bad_input_is_one_sentence():
    for wrong in ({"slope": -1.0}, {"intercept": 0.0}, {"pieces": 0}, {"pieces": 2.5}):
        with pytest.raises(InputError):
            Mltcp(**wrong)
