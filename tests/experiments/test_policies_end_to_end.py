"""Iterations under better circuits and routes: ratios are those of direct runs; what is asked for is checked first."""

from experiments import script
from experiments.policies_end_to_end import BASE, SCRIPT, WAYS, Config, run, table
from mfabric_jax.case.paths import get

WAY = "threshold, unsplit"
SMALL = {"models": ("llama-moe",), "traffic": ("skewed",), "ways": (BASE, WAY), "nic_gbps": (100.0, 400.0)}


class Simulated:
    """In place of `simulate`: seconds that tell fabric, policy and bandwidth."""

    def __init__(self, asked):
        self.asked = asked

    def rows(self):
        return [made_up(case) for case in self.asked]


def made_up(case):
    fabric, gbps = case.network.fabric, case.network.nic_gbps
    use = case.network.nic_use if fabric == "fat-tree" else "pooled"
    slow = {"own": 7.0, "pooled": 6.0}[use]
    slow = slow if fabric == "fat-tree" else {"greedy": 10.0, "threshold": 8.0}[case.circuits.policy]
    row = {"model": case.model.name, "fabric": fabric, "nic_gbps": gbps, "nic_use": use}
    row |= {"iteration_s": slow + 100 / gbps, "dp_comm_s": 0.1}
    row["network_cost_usd"] = 3.0 if fabric == "fat-tree" else 2.0
    return row | {"ep_comm_s": 1.0 + (fabric == "mfabric"), "reconfig_s": 0.5 * (fabric == "mfabric")}


def test_what_a_way_sets():
    config = Config(trace="x")
    assert config.kinds() == ("measured", "skewed", "recorded")
    for way, settings in WAYS.items():
        asked = config.setting("qwen-moe", "recorded", way)
        assert {case.model.name for case in asked} == {"qwen-moe-ep16"}
        assert {case.traffic.source.path for case in asked} == {"x"}
        assert {case.network.nic_gbps for case in asked} == set(config.nic_gbps)
        assert all(get(case, path) == value for case in asked for path, value in settings.items())


def test_ratios_are_over_greedy_and_over_the_fat_tree(monkeypatch, tmp_path):
    monkeypatch.setattr(script, "simulate", Simulated)
    rows = list(run(Config(**SMALL)))
    assert [(row["way"], row["nic_gbps"]) for row in rows] == [(BASE, 100), (BASE, 400), (WAY, 100), (WAY, 400)]
    assert [row["iteration_s"] for row in rows] == [11.0, 10.25, 9.0, 8.25]
    assert [row["over_greedy"] for row in rows] == [1.0, 1.0, 9 / 11, 8.25 / 10.25]
    assert [row["over_own"] for row in rows] == [11 / 8, 10.25 / 7.25, 9 / 8, 8.25 / 7.25]
    assert [row["over_pooled"] for row in rows] == [11 / 7, 10.25 / 6.25, 9 / 7, 8.25 / 6.25]
    assert [row["ep_over_pooled"] for row in rows] == [2.0] * 4
    assert [row["fat_tree_cost"] for row in rows] == [1.5] * 4
    assert [row["beyond_ep_s"] for row in rows] == [2.5, 2.5, 0.5, 0.5]
    assert f"iteration time over that of {BASE}" in table(rows)
    assert f"{rows[2]['over_greedy']:.3f}" in table(rows)
    assert SCRIPT.draw(rows, tmp_path / "picture.png").stat().st_size > 5000
    (line,) = SCRIPT.verdicts(rows)
    assert (line.claim, line.found) == (f"time over greedy's, {WAY}, skewed", "0.805 to 0.818")
