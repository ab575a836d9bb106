"""Iteration time and reconfiguration delay: made-up rows by hand, and small runs; the case files of the docs."""

from itertools import product
from pathlib import Path

import pytest

from experiments import iteration_time, reconfiguration_delay
from mfabric_jax import load, resolve
from mfabric_jax.resolving.settings import BANDWIDTHS, PUBLISHED
from tests.small import as_a_user


def drawn(module, rows, tmp_path):
    assert module.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000


def made_up(per_dollar_400=2.0, mfabric=1.1):
    """One model whose fat-tree times are the published ones."""
    slower = {"fat-tree": 1.0, "rail-optimized": 1.0, "oversub-fat-tree": 1.2, "topoopt": 1.5, "mfabric": mfabric}
    rows = []
    published = zip(BANDWIDTHS, PUBLISHED["qwen-moe"], strict=True)
    for (gbps, seconds), (fabric, factor) in product(published, slower.items()):
        cost = 1.0 if fabric != "mfabric" else 1 / (per_dollar_400 * mfabric)
        row = {"preset": "paper", "model": "qwen-moe", "fabric": fabric, "nic_gbps": gbps, "efficiency": 2.0}
        rows.append(row | {"iteration_s": factor * seconds, "perf_per_dollar": 1 / (factor * seconds * cost)})
    return [row | iteration_time._beside(row, rows) for row in rows]


def test_verdicts_by_hand(tmp_path):
    rows = made_up()
    tree, topoopt = (next(row for row in rows if row["fabric"] == name) for name in ("fat-tree", "topoopt"))
    assert tree["over_800"] == tree["published_over_800"] == pytest.approx(5.094)
    assert (topoopt["published_over_800"], topoopt["over_fat_tree"]) == (None, pytest.approx(1.5))
    lines = {line.claim.removesuffix(", paper"): line for line in iteration_time.verdicts(rows)}
    said = {claim: (line.found, line.published, line.word) for claim, line in lines.items()}
    per_dollar = "perf/$ over {}, {} Gbps"
    assert said[per_dollar.format("fat-tree", 400)] == ("2.0", "1.9 to 2.3", "reproduced")
    assert said[per_dollar.format("fat-tree", 100)] == ("2.0", "1.2 to 1.5", "differs by +33%")
    assert said[per_dollar.format("rail-optimized", 400)] == ("2.0", "2.3 to 2.4", "differs by -13%")
    assert said["speed over topoopt at most"] == ("1.4", "2.5", "differs by -45%")
    assert said["speed over topoopt, mean, qwen-moe"] == ("1.36", "1.50", "differs by -9%")
    assert said["fat-tree cells, fitted over published"][0] == "1.00"
    assert " 0.0%" in iteration_time.table(rows)  # nothing off the published ratios
    drawn(iteration_time, rows, tmp_path)


@pytest.mark.parametrize("name", ["sensitivity", "better_circuits"])
def test_every_variant_of_a_case_file_is_a_case_of_its_own(name):
    found = load(Path(iteration_time.__file__).with_name(f"{name}.toml"))
    settings = [resolve(case).case for case in found]
    assert len({str(case) for case in settings}) == len(settings) > 100


def test_delays(tmp_path):
    config = reconfiguration_delay.Config("llama-moe", ("block", "one matrix"), delays_s=(0.5, 1e-6), iterations=1)
    with as_a_user():
        rows = list(reconfiguration_delay.run(config))
    assert [row["delay_s"] for row in rows] == [1e-6, 0.5, 1e-6, 0.5]
    assert (rows[0]["over_fastest"], rows[1]["iteration_s"] >= rows[0]["iteration_s"]) == (1, True)
    assert rows[1]["over_fastest"] == pytest.approx(rows[1]["iteration_s"] / rows[0]["iteration_s"])
    rows = [
        {"way": way, "delay_s": delay, "iteration_s": 2 + paid * delay, "reconfig_s": 0.0, "over_fastest": 1.0}
        for way, paid in (("block", 3), ("pays", 0))
        for delay in (1e-6, 0.025, 1.0)
    ]
    lines = reconfiguration_delay.table(rows).splitlines()
    assert [line.split("  ")[0].strip() for line in lines[-3:]] == ["1 us", "25 ms", "1 s"]
    drawn(reconfiguration_delay, rows, tmp_path)
    found = [(one.claim, one.found) for one in reconfiguration_delay.verdicts(rows)]
    labels = [reconfiguration_delay.LABELS[way] for way in ("block", "pays")]
    assert found == [(f"25 ms over the least delay, {label}", "1.000") for label in labels]
