"""Move the experts or the light: designs, borders by hand, table and picture of rows made by hand."""

import pytest

from experiments import experts_or_light
from experiments.experts_or_light import DESIGNS, LIGHT, SCRIPT, Config, borders, crossing, run
from mfabric_jax import resolve


@pytest.mark.parametrize(
    ("over", "found"),
    [((1.0, 1.0, 1.0), None), ((-1.0, -1.0, -1.0), 0.0), ((3.0, 1.0, -1.0), 0.3), ((-1.0, 2.0, -2.0), 0.3)],
)
def test_the_border_is_where_a_design_is_ahead_for_good(over, found):
    assert crossing((0.0, 0.2, 0.4), over) == pytest.approx(found)


def test_designs_differ_in_what_they_say():
    config = Config(iterations=3)
    neither, circuits, both = (config.setting(DESIGNS[name]) for name in ("neither", "circuits", "both, copies"))
    assert (neither.network.fabric, neither.network.nic_use) == ("fat-tree", "pooled")
    assert neither.placement.rule.name == "contiguous"
    chosen = circuits.circuits
    assert (circuits.network.fabric, chosen.policy, chosen.routing) == ("mfabric", "joint", "relay")
    rule = both.placement.rule
    assert (rule.name, rule.every, rule.redundant_experts) == ("hierarchical", 3, 64)
    job = resolve(both).job
    assert (job.tp, job.pp, job.ep, job.dp, job.moe_layers) == (1, 1, 64, 16, 8)


def test_rows_table_and_picture(monkeypatch, tmp_path):
    seen = []

    def timed(config, design, tokens):
        seen.append(tokens.count)
        heavy = tokens.rank_load_over_mean(64).mean()
        seconds = (1.0 if design.circuits else 1.2) + (0.1 if design.copies else 0.3 * (heavy - 1))
        row = {"iteration_s": seconds, "rank_load_over_mean": heavy, "network_cost_usd": 2.0}
        return row | {"switch_turns": 3.0 if design.circuits else None}

    monkeypatch.setattr(experts_or_light, "timed", timed)
    rows = list(run(Config(skews=(0.0, 0.8), drifts=(0.1,), iterations=2)))
    assert len(rows) == 2 * len(DESIGNS)
    assert all(one is seen[0] for one in seen[: len(DESIGNS)])  # the same traffic for all designs
    (border,) = borders(rows)
    assert 0 < border["placement, copies"] < 0.8
    assert border["placement"] is None
    assert rows[1]["design"] == LIGHT
    told = SCRIPT.table(rows)
    assert "the skew from which on placing experts beats circuits alone" in told
    assert SCRIPT.draw(rows, tmp_path / "picture.png").stat().st_size > 5000
    assert len(SCRIPT.verdicts(rows)) == len(DESIGNS) + 1
