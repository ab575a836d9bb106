"""Dollars of a fabric whose circuits never turned, on patch panels."""

import pytest

from mfabric_jax import cases
from mfabric_jax.evaluate.rows.points import EvaluatedBlock
from mfabric_jax.fabric.cost import PATCH_PANEL, REGIONAL_OCS, Prices
from mfabric_jax.report.ranking import rankings
from tests.small import row, small

NEVER = {"circuits.reconfigure": "span", "circuits.span.length": "run", "circuits.policy": "greedy"}
TURNS = {"traffic.source": "generated", "traffic.generated.skew": 1.0, "traffic.generated.drift": 0.4}
TURNS |= {"network.nics": 4, "network.mfabric.optical_degree": 2}


def test_panels_in_the_place_of_switches_by_hand():
    one = row(small(NEVER | {"gpu.name": "H800-SXM"}))
    prices = Prices()
    ports = {
        part: PATCH_PANEL.counts.get(part, 0) - REGIONAL_OCS.counts.get(part, 0) for part in ("ocs_port", "panel_port")
    }
    less = one["gpus"] // 8 * 6 * sum(count * prices.price_of(part, 100.0) for part, count in ports.items())
    assert less < 0
    assert one["panel_network_cost_usd"] == pytest.approx(one["network_cost_usd"] + less)
    assert one["panel_usd_per_million_tokens"] < one["usd_per_million_tokens"]


@pytest.mark.parametrize("changes", [{"network.fabric": "fat-tree"}, TURNS])
def test_none_where_a_switch_reconfigures_or_is_none(changes):
    one = row(small(changes))
    assert one["panel_network_cost_usd"] is None
    assert one["panel_usd_per_million_tokens"] is None


def test_a_ranking_says_it():
    shown = [row(small(changes | {"gpu.name": "H800-SXM"})) for changes in (NEVER, {"network.fabric": "fat-tree"})]
    (ranking,) = rankings(shown, {}).values()
    (said,) = [line for line in ranking.remarks if "never reconfigures" in line]
    assert "a patch panel would cut the network" in said
    other = shown[0] | {"seed": 1, "panel_network_cost_usd": None}  # the same design, whose switch turned once
    (ranking,) = rankings([*shown, other], {}).values()
    assert not [line for line in ranking.remarks if "never reconfigures" in line]


def test_columns_say_the_same():
    (block,) = cases(small(NEVER), {"network.nic_gbps": [100.0, 400.0]}).blocks
    swept = EvaluatedBlock(block).columns()["panel_network_cost_usd"]
    want = [row(small(NEVER | {"network.nic_gbps": gbps}))["panel_network_cost_usd"] for gbps in (100.0, 400.0)]
    assert swept.tolist() == pytest.approx(want)
