"""Rows of failures of a graph, on the leaf-spine of `tests/evaluate/rows/test_graph_failures.py`."""

import importlib

import pytest

from mfabric_jax.apps.failures import failures
from mfabric_jax.checks import InputError
from tests.evaluate.rows.test_graph_failures import drawings


@pytest.fixture
def drawn(tmp_path):
    return drawings(tmp_path)


def test_rows_of_failures(drawn):
    _, case = drawn()
    rows = {row["failure"]: row for row in failures(case.with_({"failures.server": 1}))}
    assert list(rows) == ["electrical-nic", "nic-link", "link", "gpu", "server", "nvswitch", "switch", "spine"]
    assert [kind for kind, row in rows.items() if row["remedy"] == "repair"] == ["gpu", "server", "switch"]
    for kind in ("electrical-nic", "nic-link", "link", "spine"):
        assert rows[kind]["slow_down"] > 0.01
        assert rows[kind]["ep_comm_s"] > rows[kind]["healthy_ep_comm_s"] * 1.05
    assert [rows[kind]["devices"] for kind in ("nic-link", "link", "switch", "spine")] == [16, 16, 4, 4]


def test_rows_say_which_graph(drawn):
    _, case = drawn()
    rows = list(failures(case.with_({"failures.kinds": ("link",), "run.dtype": "float32"})))
    assert [row["network.graph"] for row in rows] == [case.network.graph]


def test_stages_at_places_where_a_failure_is_not_simulated_are_left_out(drawn, monkeypatch):
    module = importlib.import_module("mfabric_jax.apps.failures.iterations")
    _, case = drawn()
    two = {"job.parallel.pp": 2, "job.parallel.ep": 8, "failures.kinds": ("link",)}
    stages, simulated = [], module._remaining_fabric

    def left(config, one, kind, stage):
        stages.append(stage)
        if stage == 0:
            raise InputError("not here")
        return simulated(config, one, kind, stage)

    monkeypatch.setattr(module, "_remaining_fabric", left)
    (row,) = failures(case.with_(two))
    assert row["stage"] == 1
    assert set(stages) == {0, 1}
    with pytest.raises(InputError, match="not here"):
        next(failures(case.with_(two | {"failures.stage": 0})))
