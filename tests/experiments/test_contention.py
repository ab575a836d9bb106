"""A small model without sharing, and with; table and figure of its rows."""

import pytest

from experiments.contention import PICTURE, Config, run, table, verdicts
from mfabric_jax.report import style


def test_sharing_adds_and_no_sharing_adds_nothing(tmp_path):
    with style.look():
        config = Config(models=("llama-moe",), fabrics=("mfabric",), presets=("paper",), overlap=(False,))
        (row,) = list(run(config))
        assert abs(row["none"]) < 1e-12
        assert row["EP+DP"] == pytest.approx(0, abs=1e-9)  # gradients come after the last all-to-all of a stage
        assert 0 < row["PP+DP"] <= row["all"] + 1e-12
        assert "llama-moe" in table([row])
        assert verdicts([row])[0].word == "reproduced"
        assert PICTURE.draw([row], tmp_path / "c.png").stat().st_size > 1000
