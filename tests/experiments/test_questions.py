"""Experiments that judge rows: made-up rows and hand-made inputs, and small runs."""

import csv
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from experiments import (
    authors_baselines,
    cost_by_cluster_size,
    experts_or_light,
    iteration_time,
    reconfiguration_delay,
    replaced_experts,
    scale_up_domains,
    several_jobs,
    worth_of_switching,
)
from experiments.authors_baselines import DESIGNS, MFABRIC, RAILS, RINGS
from experiments.rows import picked
from experiments.script import COMPARED
from mfabric_jax import load, resolve
from mfabric_jax.case.paths import differences, flat
from mfabric_jax.evaluate.resolving.resolved import BANDWIDTHS, PUBLISHED
from mfabric_jax.fabric import cluster_cost
from tests.small import as_a_user, only


def judged(module, rows, tmp_path, *, suffix=""):
    """{claim: (found, published, word)}; the rows have a table and a picture."""
    assert module.SCRIPT.table(rows)
    assert module.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000
    lines = module.SCRIPT.verdicts(rows)
    return {line.claim.removesuffix(suffix): (line.found, line.published, line.word) for line in lines}


def test_iteration_times_beside_published_ones(tmp_path):
    """One model whose fat-tree times are the published ones."""
    slower = {"fat-tree": 1.0, "rail-optimized": 1.0, "oversub-fat-tree": 1.2, "topoopt": 1.5, "mfabric": 1.1}
    made = []
    published = zip(BANDWIDTHS, PUBLISHED["qwen-moe"], strict=True)
    for (gbps, seconds), (fabric, factor) in product(published, slower.items()):
        cost = 1.0 if fabric != "mfabric" else 1 / (2 * 1.1)
        row = {"preset": "paper", "model": "qwen-moe", "fabric": fabric, "nic_gbps": gbps, "efficiency": 2.0}
        made.append(row | {"iteration_s": factor * seconds, "perf_per_dollar": 1 / (factor * seconds * cost)})
    rows = [row | iteration_time.ratios_of(row, made) for row in made]
    tree, topoopt = (next(row for row in rows if row["fabric"] == name) for name in ("fat-tree", "topoopt"))
    assert tree["over_800"] == tree["published_over_800"] == pytest.approx(5.094)
    assert (topoopt["published_over_800"], topoopt["over_fat_tree"]) == (None, pytest.approx(1.5))
    verdicts = judged(iteration_time, rows, tmp_path, suffix=", paper")
    assert verdicts["perf/$ over fat-tree, 400 Gbps"] == ("2.0", "1.9 to 2.3", "reproduced")
    assert verdicts["perf/$ over rail-optimized, 400 Gbps"] == ("2.0", "2.3 to 2.4", "differs by -13%")
    assert verdicts["speed over topoopt at most"] == ("1.4", "2.5", "differs by -45%")
    assert verdicts["speed over topoopt, mean, qwen-moe"] == ("1.36", "1.50", "differs by -9%")
    assert verdicts["fat-tree cells, fitted over published"][0] == "1.00"
    assert " 0.0%" in iteration_time.table(rows)  # nothing off the published ratios


def test_baselines_beside_packet_level_and_published_ratios(tmp_path):
    """Two models on all designs at two bandwidths; mFabric costs half, others the same."""
    over = {MFABRIC: 0.54, RAILS: 1.5, RINGS: 3.3}
    rows = []
    for model in ("llama-moe", "qwen-moe"):
        made = []
        for gbps, design in product((100.0, 400.0), DESIGNS):
            seconds = over.get(design, 1.0) * 400 / gbps
            row = {"design": design, "shares": "authors", "model": model, "nic_gbps": gbps, "iteration_s": seconds}
            row |= {"all_to_all_s": seconds, "perf_per_dollar": (2 if design == MFABRIC else 1) / seconds}
            made.append(row)
        rows += [row | authors_baselines.ratios_of(row, made) for row in made]
    verdicts = judged(authors_baselines, rows, tmp_path)
    packets = "all-to-all over fat-tree's, {}, llama-moe, authors, packet level"
    assert verdicts[packets.format(MFABRIC)] == ("0.54", "0.54", "reproduced")
    assert verdicts[packets.format(RAILS)] == ("1.50", "1.57", "reproduced")  # 4 % less, which draws explain
    # mFabric is 1.5 / 0.54 times faster for half of the money.
    assert verdicts["perf/$ over rail-optimized, 400 Gbps, authors"] == ("5.56", "2.30 to 2.40", "differs by +131%")
    assert verdicts["perf/$ of mfabric, waits always over fat-tree, 100 Gbps, authors"][0] == "1.00"
    assert verdicts["speed over topoopt, rings, mean, qwen-moe, authors"][0] == "6.11"


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_is_preset_released_but_for_what_it_says(design):
    own = {"traffic.source": "authors", "network.fabric": design.split(",")[0], "model.name": "llama-moe"}
    released = load(preset="released").with_(own)
    asked = authors_baselines.Config().setting("authors", "llama-moe", design)
    own = {path: value for path, value in DESIGNS[design].items() if flat(released).get(path) != value}
    assert differences(next(iter(asked)), released) == own | {"network.nic_gbps": 100.0}


@pytest.mark.parametrize("name", ["sensitivity", "better_circuits"])
def test_every_variant_of_a_case_file_is_a_case_of_its_own(name):
    found = load(Path(iteration_time.__file__).with_name(f"{name}.toml"))
    settings = [resolve(case).case for case in found]
    assert len({str(case) for case in settings}) == len(settings) > 100


def test_delays(tmp_path):
    config = reconfiguration_delay.Config("llama-moe", ("block", "one matrix"), delays_s=(0.025, 1e-6), iterations=1)
    with as_a_user():
        rows = list(reconfiguration_delay.run(config))
    assert [row["delay_s"] for row in rows] == [1e-6, 0.025, 1e-6, 0.025]
    ratio = rows[1]["iteration_s"] / rows[0]["iteration_s"]
    assert (rows[0]["over_fastest"], rows[1]["over_fastest"]) == (1, pytest.approx(ratio))
    verdicts = judged(reconfiguration_delay, rows, tmp_path)
    assert verdicts["25 ms over the least delay, Block (the text)"][0] == f"{ratio:.3f}"


def test_costs_equal_direct_calls_and_only_trees_with_room_fit(tmp_path):
    rows = list(cost_by_cluster_size.run(cost_by_cluster_size.Config(servers=(128, 512), nic_gbps=(100.0, 400.0))))
    assert len(rows) == (4 * 2 + 2) * 2 * 2
    assert {row["fabric"] for row in rows} == set(COMPARED)
    for row in rows:
        cost = cluster_cost(row["fabric"], row["servers"], row["nic_gbps"], tiers=row["tiers"] or 3)
        assert (row["network_cost_usd"], row["usd_per_gpu"]) == (cost, cost / row["gpus"])
    verdicts = judged(cost_by_cluster_size, rows, tmp_path)
    assert verdicts["cost of fat-tree over mFabric, 400 Gbps"] == ("2.289", "2.289", "reproduced")
    for fabric, tiers, most in (  # servers of which the 64-port tree has room for the NICs
        ("fat-tree", 2, 64 * 32 // 8),
        ("oversub-fat-tree", 2, 64 * 48 // 8),
        ("rail-only", 2, 64 * 32),
        ("mfabric", 3, 64 * 32 * 32 // 2),
    ):
        config = cost_by_cluster_size.Config((fabric,), servers=(1, most, most + 1), nic_gbps=(400.0,))
        fits = [row["fits"] for row in picked(cost_by_cluster_size.run(config), tiers=tiers)]
        assert fits == [True, True, False], fabric
    assert {row["fits"] for row in picked(rows, fabric="topoopt")} == {None}


def test_scale_up_takes_as_long_as_nvlink_is_slow_and_compute_half_at_twice_the_rate(tmp_path, monkeypatch):
    """Mixtral's groups of 8 fit a domain: all-to-alls stay on NVLink. Here it stands for the published model."""
    monkeypatch.setattr(scale_up_domains, "PUBLISHED_MODEL", "mixtral-8x7b")
    config = scale_up_domains.Config(model="mixtral-8x7b", efficiency=(0.25, 0.5), micro_batches=1)
    rows = list(scale_up_domains.run(config))
    # A GPU's bandwidth but for 0.8 Tbps of Ethernet; half of that on mFabric.
    share = {(8.0, "nvl72"): 7.2, (8.0, "mfabric-cpo"): 3.6, (16.0, "nvl72"): 15.2, (16.0, "mfabric-cpo"): 7.6}
    sent = [row["ep_comm_s"] * share[row["gpu_tbps"], row["fabric"]] for row in rows]
    assert sent == pytest.approx([sent[0]] * 8, rel=1e-5)
    for row in rows:
        place = {key: row[key] for key in ("gpu_tbps", "efficiency")}
        domain, optics = (only(rows, **place, fabric=fabric) for fabric in scale_up_domains.FABRICS)
        assert row["speed_up"] == domain["iteration_s"] / optics["iteration_s"]
        assert row["published"] == (1.3 if row["gpu_tbps"] == 8 else None)
    (slow,), (fast,) = ({row["compute_s"] for row in rows if row["efficiency"] == rate} for rate in (0.25, 0.5))
    assert slow == pytest.approx(2 * fast, rel=1e-5)
    made = [row | {"speed_up": 1.2 if row["efficiency"] == 0.5 else 1.5} for row in rows]
    verdicts = judged(scale_up_domains, made, tmp_path)
    claim = "time of NVL72 over mFabric, {} Tbps a GPU, {}"
    assert verdicts[claim.format(8, "50% of peak")] == ("1.20", "1.30", "differs by -8%")
    assert verdicts[claim.format(16, "25% to 50%")] == ("1.20 to 1.50", None, "measured")


@pytest.mark.parametrize(
    ("over", "found"),
    [((1.0, 1.0, 1.0), None), ((-1.0, -1.0, -1.0), 0.0), ((3.0, 1.0, -1.0), 0.3), ((-1.0, 2.0, -2.0), 0.3)],
)
def test_the_border_is_where_a_design_is_ahead_for_good(over, found):
    assert experts_or_light.crossing((0.0, 0.2, 0.4), over) == pytest.approx(found)


def test_designs_see_the_same_traffic(monkeypatch, tmp_path):
    seen = []

    def timed(config, design, tokens):
        seen.append(tokens.count)
        heavy = tokens.rank_load_over_mean(64).mean()
        seconds = (1.0 if design.circuits else 1.2) + (0.1 if design.copies else 0.3 * (heavy - 1))
        row = {"iteration_s": seconds, "rank_load_over_mean": heavy, "network_cost_usd": 2.0}
        return row | {"reconfigurations": 3.0 if design.circuits else None}

    monkeypatch.setattr(experts_or_light, "timed", timed)
    config = experts_or_light.Config(skews=(0.0, 0.8), drifts=(0.1,), iterations=2)
    rows, designs = list(experts_or_light.run(config)), experts_or_light.DESIGNS
    assert len(rows) == 2 * len(designs)
    assert all(count is seen[0] for count in seen[: len(designs)])
    (border,) = experts_or_light.borders(rows)
    assert 0 < border["placement, copies"] < 0.8
    assert border["placement"] is None
    assert judged(experts_or_light, rows, tmp_path) == {}
    rule = config.setting(designs["both, copies"]).placement.rule
    assert (rule.name, rule.every, rule.redundant_experts) == ("hierarchical", 2, 64)


SECONDS = {"uniform": 3e-3, "static": 2e-3, "iteration": 1.5e-3, "ahead": 2e-3, "block": 1e-3}
TIMES = worth_of_switching.Times(SECONDS, 1e-3)
SWITCHING = worth_of_switching.Config(varied=("usual", "servers"), delays_s=(1e-6, 1e-3, 1.0), micro_batches=2)


def test_what_is_waited_for():
    total = worth_of_switching.with_delay(SWITCHING, SECONDS, 8e-3, 1e-3)
    assert total["static"] == 2e-3
    assert total["block"] == pytest.approx(1e-3 + (8e-3 + 1e-3 + 3e-3) / 4)
    assert total["ahead"] == pytest.approx(2e-3 + (4e-3 + 3e-3) / 4)
    assert total["iteration"] == pytest.approx(1.5e-3 + 8e-3 / (4 * 16 * 2))


@pytest.mark.parametrize(("decision_s", "found"), [(0.0, 4e-3), (1e-3, 3e-3), (4.1e-3, 0.0)])
def test_switching_pays_up_to_where_both_take_as_long(decision_s, found):
    late = TIMES._replace(seconds=SECONDS | {"ahead": 2.1e-3})
    assert worth_of_switching.border(SWITCHING, late, decision_s) == pytest.approx(found, abs=1e-9)
    assert worth_of_switching.rare_border(SWITCHING, TIMES) == pytest.approx(0.5e-3 * 4 * 16 * 2)


def test_demand_drifts_block_by_block():
    usual = worth_of_switching.USUAL | {"servers": 4}
    still = worth_of_switching.drifting(usual | {"memory": 1.0}, 2, 0)
    np.testing.assert_allclose(still[0], still[1], rtol=1e-5)
    assert not np.allclose(still[0, 0], still[0, 1])
    moving = worth_of_switching.drifting(usual | {"memory": 0.0}, 2, 0)
    assert not np.allclose(moving[0], moving[1], rtol=0.1)


def test_what_switching_gains(monkeypatch, tmp_path):
    monkeypatch.setattr(worth_of_switching, "times_of", lambda config, place, routing: TIMES)
    rows = list(worth_of_switching.run(SWITCHING))
    assert len(rows) == 2 * 4 * 2 * 3
    assert (rows[0]["best"], rows[-1]["best"]) == ("block", "static")
    assert rows[0]["gain"] == pytest.approx(2 / (1 + 1e-3 / 4), rel=1e-3)
    assert rows[-1]["gain"] < 1
    assert judged(worth_of_switching, rows, tmp_path) == {}


def test_jobs_beside_published_gains(tmp_path):
    rows, made = [], [("together", 0, "fair", 1, 1), ("together", 0, "cassini", 1.6, 1.2)]
    made += [("together", 0, "mltcp", 1.2, 1.5), ("together", 0, "best", 1.6, 2)]
    made += [("24 servers", mix, "cassini", 1 + mix / 10, 1) for mix in (0, 1)] + [("24 servers", 0, "mltcp", 1.5, 1)]
    for case, mix, way, mean_gain, p99_gain in made:
        usual = {"slowdown": 1.5 / mean_gain, "p99_slowdown": 2 / p99_gain, "fairness": 1.0, "slowdown_bound": 1.0}
        gains = {"mean_gain": mean_gain, "p99_gain": p99_gain}
        rows.append({"case": case, "jobs": 2, "mix": mix, "way": way} | gains | usual)
    verdicts = judged(several_jobs, rows, tmp_path)
    assert verdicts["cassini, mean iteration, gain over fair, the most"] == ("1.60", "1.60", "reproduced")
    assert verdicts["mltcp, mean iteration, gain over fair, the most"] == ("1.50", "2.00", "differs by -25%")
    assert verdicts["cassini, mean iteration, gain over fair, 24 servers"][0] == "1.00 to 1.10"


def test_drawn_jobs_fit_their_links():
    config = several_jobs.Config()
    for seed in range(3):
        jobs = several_jobs.cluster_jobs(config, seed)
        servers = [server for job in jobs.jobs for server in job.servers]
        assert len(set(servers)) == len(servers) >= config.servers - 1
        phases = [job.phases[0] for job in several_jobs.unequal_jobs(config, 4, seed).jobs]
        sending = [phase.gigabytes / several_jobs.BYTES for phase in phases]
        assert sum(s / (phase.compute_s + s) for s, phase in zip(sending, phases, strict=True)) == pytest.approx(0.9)
    equal = several_jobs.equal_jobs(config, 8).jobs
    assert sum(job.phases[0].gigabytes for job in equal) == pytest.approx(0.9 * 0.24 * several_jobs.BYTES)


def written(file, *lines):
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(lines)


def test_waits_and_bytes_of_replaced_experts_by_hand(tmp_path):
    """Two iterations of two layers: FSDP with a hot position, LAER even; all seconds 1, 2 and 4, or half of it."""
    hot, models, ranks = 1.5, replaced_experts.VARIANTS, replaced_experts.RANKS
    loads = {"FSDP": [round(120 * (hot if rank % 4 == 0 else (4 - hot) / 3)) for rank in range(ranks)]}
    loads["LAER"] = [120] * ranks
    places = list(product(models, loads, range(ranks)))
    counts = [
        (rank, method, model, layer, step, loads[method][rank])
        for (model, method, rank), layer, step in product(places, range(2), range(2))
    ]
    heading = ("rank", "method", "model_name", "layer", "iter", "token_num")
    written(tmp_path / "token_analysis_backup.csv", heading, *counts)
    measured = {"FSDP": (1, 2, 4), "LAER": (0.5, 2, 3)}
    seconds = [(rank, model, method, *measured[method]) for model, method, rank in places]
    heading = ("rank", "model_name", "method", "alltoall_time", "expert_time", "total_time")
    written(tmp_path / "breakdown_analysis_backup.csv", heading, *seconds)
    rows = list(replaced_experts.run(replaced_experts.Config(folder=str(tmp_path))))
    static = rows[0]
    assert (static["method"], static["busiest"]) == ("FSDP", pytest.approx(hot))
    # 2 x 8192 tokens, top 2, 3 products of 4096 x 14336; 2 chunks, 32 blocks, forward once and backward twice
    selections = 2 * 8192 * 2
    expert_s = 2 * 32 * 3 * selections * 2 * 3 * 4096 * 14336 / (0.5 * 312e12)
    assert static["expert_s"] == pytest.approx(expert_s)
    crossing_s = 2 * 32 * 4 * selections * 4096 * 2 * 3 / 4 * hot / 300e9
    assert static["alltoall_s"] == pytest.approx((hot - 1) * expert_s + crossing_s)
    busiest = {row["method"]: row["busiest"] for row in rows[:3]}
    assert (busiest["LAER"], busiest["ours"]) == (1, pytest.approx(1.2))
    laer = only(replaced_experts.ratios(rows)[:2], **{"re-placed by": "LAER"})
    assert (laer["measured_alltoall_s"], laer["total_s"] > 1) == (2, True)
    assert judged(replaced_experts, rows, tmp_path)


def test_measured_gains_are_foretold_within_an_eighth(shared_data):
    rows = list(replaced_experts.run(replaced_experts.Config(folder=str(shared_data / "laer_moe"))))
    measured = [row for row in replaced_experts.ratios(rows) if row["measured_total_s"] is not None]
    assert len(measured) == 4
    for row, name in product(measured, replaced_experts.SECONDS):
        assert row[name] == pytest.approx(row[f"measured_{name}"], rel=0.125), (row, name)
