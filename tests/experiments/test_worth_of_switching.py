"""What switching is worth: delays are paid where nothing hides them, borders are where both ways take as long."""

import dataclasses

import numpy as np
import pytest

from experiments import worth_of_switching as worth
from experiments.worth_of_switching import SCRIPT, USUAL, Config, Times, border, drifting, rare_border, run, with_delay

SECONDS = {"uniform": 3e-3, "static": 2e-3, "iteration": 1.5e-3, "ahead": 2e-3, "block": 1e-3}
TIMES = Times(SECONDS, 1e-3)
CONFIG = Config(hidden_s=5e-3, micro_batches=2)


def test_what_is_waited_for():
    total = with_delay(CONFIG, SECONDS, 8e-3, 1e-3)
    assert total["static"] == 2e-3
    assert total["block"] == pytest.approx(1e-3 + (8e-3 + 1e-3 + 3e-3) / 4)
    assert total["ahead"] == pytest.approx(2e-3 + (4e-3 + 3e-3) / 4)
    assert total["iteration"] == pytest.approx(1.5e-3 + 8e-3 / (4 * 16 * 2))


@pytest.mark.parametrize(("decision_s", "found"), [(0.0, 4e-3), (1e-3, 3e-3), (4.1e-3, 0.0)])
def test_borders_are_where_both_take_as_long(decision_s, found):
    late = TIMES._replace(seconds=SECONDS | {"ahead": 2.1e-3})
    assert border(CONFIG, late, decision_s) == pytest.approx(found, abs=1e-9)
    assert rare_border(CONFIG, TIMES) == pytest.approx(0.5e-3 * 4 * 16 * 2)


def test_demand_drifts_block_by_block():
    still = drifting(USUAL | {"memory": 1.0, "servers": 4}, 3, 0)
    assert still.shape == (3, worth.BLOCKS, 4, 4)
    np.testing.assert_allclose(still[0], still[2], rtol=1e-5)
    assert not np.allclose(still[0, 0], still[0, 1])
    moving = drifting(USUAL | {"memory": 0.0, "servers": 4}, 2, 0)
    assert not np.allclose(moving[0], moving[1], rtol=0.1)


def test_rows_table_and_picture(monkeypatch, tmp_path):
    monkeypatch.setattr(worth, "times_of", lambda config, place, routing: TIMES)
    config = dataclasses.replace(CONFIG, varied=("usual", "servers"), delays_s=(1e-6, 1e-3, 1.0))
    rows = list(run(config))
    assert len(rows) == 2 * 4 * 2 * 3
    first, last = rows[0], rows[-1]
    assert (first["best"], last["best"]) == ("block", "static")
    assert first["gain"] == pytest.approx(2 / (1 + 1e-3 / 4), rel=1e-3)
    assert last["gain"] < 1
    told = SCRIPT.table(rows)
    assert "servers 32" in told
    assert "decided in 5 ms" in told
    assert SCRIPT.draw(rows, tmp_path / "picture.png").stat().st_size > 5000
    assert len(SCRIPT.verdicts(rows)) == 12
