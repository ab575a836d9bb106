"""The paper's figures as experiments: made-up rows and hand-made inputs, and two small runs."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import (
    batch_size,
    block_timeline,
    expert_load,
    failures,
    matrices_and_locality,
    optical_degree,
    pareto,
    scale_to_32768,
    testbed,
    traffic_shares,
)
from experiments.script import only
from mfabric_jax import resolve, simulate, traffic, workload
from tests.small import as_a_user


def drawn(module, rows, tmp_path):
    assert module.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000


def words(module, rows):
    return {one.claim: one.word for one in module.verdicts(rows)}


def test_shares_of_bytes(tmp_path):
    rows = list(traffic_shares.run(traffic_shares.Config()))
    for model, set_up in {(row["model"], row["set_up"]) for row in rows}:
        share = {row["parallelism"]: row["share"] for row in rows if (row["model"], row["set_up"]) == (model, set_up)}
        assert share["PP+DP"] == pytest.approx(share["PP"] + share["DP"])
        assert sum(share[kind] for kind in ("TP", "EP", "PP", "DP")) == pytest.approx(1)
    measured = next(row for row in rows if row["set_up"] == "as measured")
    assert (measured["gpus"], measured["dp"]) == (128, 1)
    drawn(traffic_shares, rows, tmp_path)
    facts = {"model": "mixtral-8x7b", "set_up": "as measured", "measured_low": 0.6, "measured_high": 0.6}
    one = [facts | {"parallelism": "TP", "share": share} for share in (0.64, 0.66)]  # published in tens
    assert [verdict.word for verdict in traffic_shares.verdicts(one)] == ["reproduced", "differs by +10%"]


def test_what_a_switch_hides_by_hand():
    """One block forward and backward; all-to-alls of 2 ms; the switch of 25 ms turns before both first ones."""
    job = workload.get("llama-moe", blocks=1, dp=1, pp=1, gpus=16, micro_batches=1)
    two, shape = np.full((1, 2, 1, 2), 0.002), (1, 2, 1)
    blocks = SimpleNamespace(
        moe=np.ones(shape, bool),
        present=np.ones(shape, bool),
        optical_s=two,
        electronic_s=two / 2,
        switch=np.broadcast_to([True, False], (*shape, 2)),
    )
    over = two.copy()
    over[0, :, 0, 0] += (0.025, 0.005)
    slots = SimpleNamespace(start=np.zeros_like(two), over=over)
    forward, second, backward, _ = block_timeline._switches(job, slots, blocks, 0.025)
    assert (forward["turns"], forward["all_to_alls"], second["turns"], second["hidden"]) == (1, 1, 0, None)
    assert (forward["hidden"], backward["hidden"]) == pytest.approx((0.0, 0.8))
    assert (forward["direction"], backward["direction"]) == ("forward", "backward")


def block_rows(hidden=1.0, experts_s=0.12):
    facts = {"model": "mixtral-8x7b", "first": "reuse", "rate": 0.05, "experts_s": experts_s, "rate_for_100_ms": 0.06}
    switch = facts | {"row": "switch", "all_to_alls": 4, "delay_s": 0.025, "paid_s": 0.0}
    rows = [
        switch | {"direction": way, "which": which, "turns": turns, "hidden": hidden if turns else None}
        for way in ("forward", "backward")
        for which, turns in (("first", 0), ("second", 3))
    ]
    parts = ("compute", "attention"), ("EPS", "all-to-all"), ("OCS", "reconfigure")
    return rows + [
        facts
        | {"row": "segment", "direction": way, "track": track, "kind": kind, "label": kind}
        | {"start_s": 0.01 * place, "end_s": 0.01 * (place + 1)}
        for place, (way, (track, kind)) in enumerate(product(("forward", "backward"), parts))
    ]


def test_blocks_beside_the_claim(tmp_path):
    rows = block_rows()
    found = words(block_timeline, rows)
    assert found["mixtral-8x7b, H800 at 5%: experts compute"] == "reproduced"
    assert found["mixtral-8x7b reuse at 5%, forward second: hidden"] == "reproduced"
    found = words(block_timeline, block_rows(hidden=0.4))
    assert found["mixtral-8x7b reuse at 5%, backward second: hidden"] == "differs by -60%"
    found = words(block_timeline, block_rows(0.4, experts_s=0.01))
    assert found["mixtral-8x7b, H800 at 5%: experts compute"] == "differs by -90%"
    assert found["mixtral-8x7b reuse at 5%, backward second: hidden"] == "measured"
    assert block_timeline.table(rows).count("second") == 2  # what never turns is left out
    drawn(block_timeline, rows, tmp_path)


def test_load_of_a_recording(tmp_path):
    count = np.array([[1, 3], [3, 1], [2, 2], [2, 2]], float).reshape(4, 1, 1, 1, 2)
    traffic.save_tokens(traffic.Tokens(count, "made up"), tmp_path / "trace.npz")
    rows = expert_load.run(expert_load.Config(trace=str(tmp_path / "trace.npz")))
    assert [(row["max_over_mean"], row["deviation"]) for row in rows] == [(1.5, 0.5)] * 2 + [(1, 0)] * 2
    assert expert_load.verdicts(rows)[0].word == "reproduced"
    assert expert_load.verdicts(rows[::-1])[0].word != "reproduced"
    drawn(expert_load, rows, tmp_path)
    rows = list(expert_load.run(expert_load.Config(iterations=150)))
    first = expert_load.verdicts(rows)[0]
    assert float(first.found) < 0.5
    assert first.word == "measured"  # that generated load evens out is no finding


def test_flows_are_the_bytes_of_an_iteration():
    config = matrices_and_locality.Config(models=("mixtral-8x7b",))
    job = config.job("mixtral-8x7b")
    flows = matrices_and_locality.all_flows(job, config.tokens(job))
    size = {label: flows.size[flows.of(label)].sum() for label in flows.labels}
    whole = workload.iteration_bytes(job)
    assert size["TP"] == pytest.approx(whole["TP"])
    assert size["PP"] == pytest.approx(whole["PP"])
    assert size["EP"] == pytest.approx(whole["EP"], rel=0.05)  # skewed, not balanced
    region = workload.place_ranks(job).region
    leaves = region[flows.src] != region[flows.dst]
    assert {label for label in flows.labels if (flows.of(label) & leaves).any()} == {"PP"}


def test_matrices_and_locality(tmp_path):
    rows = list(matrices_and_locality.run(matrices_and_locality.Config(models=("qwen-moe-ep16",), dp=2)))
    value = {row["statistic"]: row["value"] for row in rows if row["row"] == "statistic"}
    assert value["leaves_region"] == value["leaves_region_no_tp"]  # no tensor parallelism here
    pairs = [row for row in rows if row["row"] == "cluster"]
    leaving = sum(row["bytes"] for row in pairs if not row["same_region"])
    assert leaving / sum(row["bytes"] for row in pairs) == pytest.approx(value["leaves_region"])
    assert words(matrices_and_locality, rows)[f"qwen-moe-ep16: {matrices_and_locality.STATISTICS['ep_in_region']}"]
    drawn(matrices_and_locality, rows, tmp_path)


@pytest.mark.slow
def test_a_small_testbed(tmp_path):
    config = testbed.Config(("llama-moe",), routings=("unsplit",), delays_ms=(40.0,), reactivation_s=(0.0, 1.0))
    tree, here = (only(case).problem.group for case in config.setting("llama-moe", "unsplit"))
    job = resolve(next(iter(config.setting("llama-moe", "unsplit")))).job
    assert (job.gpus, job.servers_per_region, job.dp, job.architecture.blocks) == (32, 2, 2, 16)
    assert (tree.nics, here.optical_degree, here.electrical_nics) == (4, 3, 1)
    with as_a_user():
        rows = list(testbed.run(config))
    kept, _, always, slow = rows
    assert kept["changes"] == kept["reconfig_s"] == 0
    assert kept["over_eps"] == pytest.approx(kept["mfabric_s"] / kept["eps_s"])
    most = 32 * 1.04  # 16 blocks, forward and backward
    assert 0.9 * most < slow["reconfig_s"] < most  # computation covers a little
    assert kept["mfabric_s"] < always["mfabric_s"] < slow["mfabric_s"]
    assert "never change" in testbed.table(rows)
    drawn(testbed, rows, tmp_path)


def test_per_dollar_and_front(tmp_path):
    """Per dollar mFabric is worth 1.5 of the fat-tree and dominated by nobody but the patch panel."""
    cells = ("fat-tree", 3.0, 1.0), ("mfabric", 2.0, 1.0), ("topoopt", 1.0, 0.9)
    rest = dict.fromkeys(("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s"), 0.1)
    rest |= {"model": "qwen-moe", "nic_gbps": 400.0, "gpus": 8}
    names = ("fabric", "network_cost_usd", "iteration_s")
    made = [rest | dict(zip(names, cell, strict=True)) | {"perf_per_dollar": 1 / (cell[1] * cell[2])} for cell in cells]
    rows = pareto.beside(made)
    assert [row["mfabric_per_dollar"] for row in rows] == pytest.approx([1.5, 1.0, 0.45])
    verdicts = {one.claim: one for one in pareto.verdicts(rows)}
    assert verdicts["per dollar over fat-tree, 400 Gbps"].off == pytest.approx(1.5 / 1.9 - 1)
    assert verdicts["models with mFabric on the front of 3 fabrics"].found == "0 of 1"
    assert pareto.verdicts(pareto.beside(made[:2]))[-1].found == "1 of 1: 400G"
    assert "0.45" in pareto.table(rows)
    drawn(pareto, rows, tmp_path)


def test_failures_beside_published_ones(tmp_path):
    keys = ("delay_ms", "failure", "slow_down", "published")
    rows = [
        {"model": "mixtral-8x22b"} | dict(zip(keys, values, strict=True))
        for values in ((25.0, "gpu", 0.0512, 0.051), (25.0, "server", 0.03, None), (0.0, "gpu", 0.102, 0.051))
    ]
    assert words(failures, rows) == {
        "mixtral-8x22b: gpu, delay 25 ms": "reproduced",
        "mixtral-8x22b: gpu, delay 0 ms": "differs by +100%",
    }
    assert "+10.2%" in failures.table(rows)
    drawn(failures, rows, tmp_path)


def test_one_solve_serves_every_size(tmp_path):
    config = scale_to_32768.Config(("llama-moe",), ("fat-tree", "mfabric"), gpus=(64, 128))
    with as_a_user():
        rows = list(scale_to_32768.run(config))
        _, large = config.setting("llama-moe", 128)
        (alone,) = simulate(large).rows()
    tree, here = rows[2:]
    assert [row["gpus"] for row in rows] == [64, 64, 128, 128]
    assert here["iteration_s"] == pytest.approx(alone["iteration_s"], rel=1e-5)
    assert here["perf_per_dollar"] == pytest.approx(alone["perf_per_dollar"], rel=1e-5)
    ratio = here["perf_per_dollar"] / tree["perf_per_dollar"]
    assert here["per_dollar_over_tree"] == pytest.approx(ratio)
    (verdict,) = scale_to_32768.verdicts(rows)
    assert verdict.word == ("reproduced" if ratio > 1 else f"differs by {ratio - 1:+.0%}")
    drawn(scale_to_32768, rows, tmp_path)


def test_splits_have_one_price_and_the_best_is_named(tmp_path):
    splits = optical_degree.Config().splits()
    usual = optical_degree.price(6, 2, 400.0)
    assert splits[6, 2] == pytest.approx(400)
    for (optical, electrical), gbps in splits.items():
        assert optical_degree.price(optical, electrical, gbps) == pytest.approx(usual, rel=1e-6)
    assert splits[6, 1] > splits[6, 2] > splits[6, 3] > splits[7, 3]
    assert optical_degree.equal_gbps(1, 1, usual) is None  # would need more than 800 Gbps
    rows = [
        {"model": "qwen-moe", "delay_ms": 25.0, "optical": optical, "electrical": electrical, "nic_gbps": 400.0}
        | {"server_usd": 1.0, "iteration_s": seconds, "over_default": seconds / 2}
        for (optical, electrical), seconds in {(6, 2): 2.0, (7, 1): 1.5, (5, 3): 3.0}.items()
    ]
    (verdict,) = optical_degree.verdicts(rows)
    assert verdict.found == "7 + 1 at 400G: 0.75 of 6 + 2"
    assert "1.500" in optical_degree.table(rows)
    drawn(optical_degree, rows, tmp_path)


def test_batch_sizes_by_hand(tmp_path):
    rows = [
        {"model": model, "micro_batch": size, "first": "block", "fat_tree_s": float(size), "mfabric_s": 0.5 + size}
        | {"over_fat_tree": (0.5 + size) / size, "per_dollar": 1.0, "turns": turns, "s_per_sequence": 1 + 0.5 / size}
        | {"hidden": 1 - 1 / size if turns else None}
        for model, turns in (("mixtral-8x22b", 4), ("mixtral-8x7b", 0))
        for size in (1, 8)
    ]
    found = {one.claim: one.found for one in batch_size.verdicts(rows)}
    assert found["mixtral-8x22b, block: over fat-tree at 1 to 8"] == "1.50 to 1.06"
    assert found["mixtral-8x22b, block: hidden at 1 to 8"] == "0% to 88%"
    assert "mixtral-8x7b, block: hidden at 1 to 8" not in found
    drawn(batch_size, rows, tmp_path)
