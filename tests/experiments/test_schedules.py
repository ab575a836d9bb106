"""Experiments on circuits over time: small runs, their rows and what they claim."""

import numpy as np
import pytest

from experiments import experts_as_tokens_arrive, map_of_relays, map_of_schedules, schedulers
from tests.experiments.test_questions import judged


def test_joint_is_not_behind_other_schedulers(tmp_path):
    names = ("solstice", "spectra", "joint")
    config = schedulers.Config(("MoE 0.4",), servers=(6,), delays=(0.05,), schedulers=names, draws=2, programmes=20)
    rows = list(schedulers.run(config))
    assert [row["scheduler"] for row in rows] == 4 * list(names)
    assert all(row["time"] >= row["bound"] * (1 - 1e-9) for row in rows)
    for each in np.reshape([row["time"] for row in rows], (4, 3)):
        assert each[2] == min(each)
    claim = "joint over the best of the others, every draw"
    assert judged(schedulers, rows, tmp_path)[claim][2] == "reproduced"
    late = [row | {"time": row["time"] * (2 if row["scheduler"] == "joint" else 1)} for row in rows]
    assert judged(schedulers, late, tmp_path)[claim][2].startswith("differs by")


def test_short_delays_pay_and_long_ones_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(map_of_schedules, "SCHEDULERS", ("spectra", "joint"))
    monkeypatch.setattr(map_of_schedules, "PROGRAMMES", 5)
    config = map_of_schedules.Config(("MoE 0.8",), (2,), gigabytes=(0.4,), delays_s=(1e-6, 0.1), servers=6)
    short, long = map_of_schedules.run(config)
    assert short["over_best"] > 1 > long["over_best"]
    assert short["best"] == "schedule"
    assert short["quotient"] == pytest.approx(1e-6 / (0.4e9 / (8 * 50e9)))
    assert map_of_schedules.table([short, long])
    assert judged(map_of_schedules, [short, long], tmp_path) == {}


def test_parts_hide_dispatch_until_their_fixed_costs_add_up(tmp_path):
    config = experts_as_tokens_arrive.Config(4, ("whole-pair",), (0.01,), (0.0, 0.5), (1, 2, 3), draws=1)
    rows = list(experts_as_tokens_arrive.run(config))
    over = {(row["batch"], row["parts"]): row["over_one"] for row in rows}
    assert over[0.0, 1] == over[0.5, 1] == 1
    assert over[0.0, 3] < over[0.0, 2] < 1
    assert over[0.5, 3] > over[0.0, 3]
    assert rows[0]["configurations"] >= 3
    assert judged(experts_as_tokens_arrive, rows, tmp_path) == {}


def test_ours_is_not_behind_other_all_to_alls_that_relay(tmp_path, monkeypatch):
    monkeypatch.setattr(map_of_relays, "PROGRAMMES", 5)
    monkeypatch.setitem(map_of_relays.NETWORKS, "5 servers", (5, 2, True))
    config = map_of_relays.Config(("MoE 0.8",), ("5 servers",), gigabytes=(4e-6, 0.4), delays_s=(0.0, 1e-3))
    rows = list(map_of_relays.run(config))
    assert [map_of_relays.size_of(row) for row in rows] == ["4 kB", "4 kB", "400 MB", "400 MB"]
    assert rows[0]["stages"] == 1
    assert rows[1]["reconfigurations"] == 1 < rows[1]["stages"]
    for row in rows:
        every = [row[f"{name}_s"] for name in ("direct", "valiant", "bruck", "ternary")]
        assert row[f"{row['best'].lower()}_s"] == min(every) == pytest.approx(row["over"] * row["ours_s"])
    claim = "ours over the best of the others, every cell"
    assert judged(map_of_relays, rows, tmp_path)[claim][2] == "reproduced"
    late = [row | {"over": 0.9} for row in rows]
    assert judged(map_of_relays, late, tmp_path)[claim][2].startswith("differs by")
