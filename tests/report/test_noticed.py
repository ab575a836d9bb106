"""What is said of optical switches: too slow, not needed, turning too often, all alike."""

from mfabric_jax.report import comparison, html_report, remarks
from mfabric_jax.report.noticed import job_words
from tests.report import synthetic

BASE = {"model": "m", "fabric": "mfabric", "ocs": "telescent", "policy": "greedy", "nic_gbps": 400.0}
BASE |= {"iteration_s": 10.0, "reconfig_s": 0.0, "circuit_changes": 5.0, "turns_over_allowed": None}


def said(*rows, effective=None):
    return remarks([BASE | row for row in rows], effective)


def test_a_switch_that_takes_most_of_the_iteration_is_warned_of():
    (line,) = said({"reconfig_s": 38_404.0, "iteration_s": 38_416.2})
    assert line == (
        "Warning: on mfabric with telescent, m waits for the optical switch for 100% of an iteration (38,404 of 38,416 "
        "s): it is too slow for circuits that follow the traffic; keep them (--set circuits.span.length=run) or take a "
        "faster one."
    )
    assert said({"reconfig_s": 4.9}) == []
    assert len(said({"reconfig_s": 5.1})) == 1


def test_circuits_that_never_change_need_no_switch():
    (line,) = said({"circuit_changes": 0.0, "ocs": "unnamed"}, {"circuit_changes": 0.0, "ocs": "unnamed", "model": "n"})
    assert line == "Circuits of mfabric never change here for m, n: links wired once do the same, no switch is needed."
    assert said({"circuit_changes": 0.0, "nic_gbps": 100.0, "iteration_s": 40.0}, {"circuit_changes": 1.0}) == []
    assert said({"circuit_changes": None, "fabric": "fat-tree", "ocs": "none"}) == []
    assert said({"circuit_changes": 0.0, "policy": "uniform"}) == []  # which says so itself
    of_one = said({"ocs": "unnamed", "circuit_changes": 0.0}, {"ocs": "unnamed", "policy": "joint"})
    assert of_one[0].startswith("Circuits of mfabric (greedy) never change here for m:")


def test_experts_that_compute_as_if_even_are_named():
    (line,) = said(
        {"expert_load": "balanced", "rank_load_over_mean": 1.9}, {"expert_load": "balanced", "rank_load_over_mean": 1.3}
    )
    assert line.startswith("The busiest rank receives more than the mean (m 1.9 times), and experts compute as if even")
    assert said({"expert_load": "received", "rank_load_over_mean": 1.9}) == []
    (dropped,) = said({"dropped_share": 0.125})
    assert dropped.startswith("Experts drop what is above their capacity, of all selections: ")
    assert dropped.endswith(" 12.5%.")
    assert said({"expert_load": "balanced", "rank_load_over_mean": 1.1}) == []


JOB = {"gpus": 512, "dp": 4, "tp": 1, "pp": 4, "ep": 32, "micro_batches": 17, "micro_batch": 8, "sequence": 4096}
JOB |= {"tokens_per_iteration": 71_303_168, "compute_precision": "bf16", "precision": "fp8"}
JOB_WORDS = (
    "512 GPUs = DP 4 x TP 1 x PP 4 x EP 32, 17 micro-batches of 8 x 4096 tokens, 71.3 M tokens an iteration, "
    "computed in bf16, sent in fp8"
)


def test_the_job_stands_above_tables_and_on_the_page(tmp_path):
    assert ", ".join(job_words([JOB])) == JOB_WORDS
    assert job_words([{"model": "m"}]) == []
    assert job_words([JOB, JOB | {"micro_batches": 4}])[1] == "17 and 4 micro-batches of 8 x 4096 tokens"
    rows = [row | JOB for row in synthetic.rows(models=("llama-moe",))]
    assert f"llama-moe: {JOB_WORDS}, compute from" in " ".join(comparison(rows).split())
    page = html_report(rows, {}, tmp_path / "a.html").read_text()
    assert f"<strong>llama-moe</strong>: {JOB_WORDS}" in page
    space = [row | {"delay_s": delay} for delay in (0.1, 0.2) for row in rows]
    page = html_report(space, {"delay_s": "varies"}, tmp_path / "b.html").read_text()
    assert f"<strong>llama-moe</strong>: {JOB_WORDS}" in page


def test_models_of_other_batches_are_named():
    batch = {"tokens_per_iteration": 2_000_000}
    (line,) = said(batch, batch | {"model": "n", "tokens_per_iteration": 71_303_168})
    assert line == (
        "Models differ in tokens an iteration (m 2 M, n 71.3 M): between them compare tokens_per_s, not seconds."
    )
    assert said(batch, batch | {"model": "n"}) == []
    assert said(batch, {"tokens_per_iteration": 4_000_000}) == []


def test_a_tier_that_is_not_needed_is_named():
    tall = said({"gpus": 2048, "policy": "uniform"}, effective={"tiers": 3})
    assert tall == [
        "Trees of packet switches have three tiers, as the paper's; two tiers of switches with 64 ports have room for "
        "2,048 NICs, and cost less: --set network.tiers=fewest."
    ]
    many = {"tiers": 3, "nics": 16, "server": {"gpus_per_server": 8, "nics": None}}
    assert said({"gpus": 2048, "policy": "uniform"}, effective=many) == []
    assert said({"gpus": 2048, "policy": "uniform", "tiers": 2}, effective={"tiers": 3}) == []
    for gpus, tiers in ((2056, 3), (2048, 2)):
        assert said({"gpus": gpus, "policy": "uniform"}, effective={"tiers": tiers}) == []


def test_a_static_mesh_within_one_percent_is_named():
    (line,) = said({}, {"policy": "uniform", "circuit_changes": 0.0, "iteration_s": 10.05})
    assert (
        line == "m on mfabric at 400 Gbps: circuits that never change (uniform) do as well as greedy (+0.5% in time)."
    )
    assert said({}, {"policy": "uniform", "circuit_changes": 0.0, "iteration_s": 10.2}) == []
    assert said({}, {"policy": "uniform", "iteration_s": 10.0, "model": "n", "circuit_changes": 0.0}) == []


def test_a_switch_that_turns_more_often_than_it_may_is_warned_of():
    assert said({"turns_over_allowed": 2.5}) == [
        "Warning: mfabric with telescent turns 2.50 times as often as it may (m)."
    ]
    assert said({"turns_over_allowed": 0.9}) == []


def test_regions_of_one_or_two_servers_are_told():
    pair = "A region of m is two servers, one pair: every policy that uses all circuits sets the same ones."
    assert said({"region_servers": 2}, {"region_servers": 2, "iteration_s": 11.0}) == [pair]
    inside = "A region of m fits into one server: no all-to-all leaves it, and circuits carry nothing."
    assert said({"region_servers": 1.0}) == [inside]
    assert said({"region_servers": 4}) == said({"region_servers": None}) == []
    assert said({"region_servers": 2, "ocs": "none", "fabric": "fat-tree", "circuit_changes": None}) == []


def test_a_setting_that_changes_nothing_is_not_several_designs():
    names = ("calient", "lightmatter", "polatis")
    every = [{"ocs": ocs, "nic_gbps": g, "iteration_s": 1000.123 / g} for ocs in names for g in (100.0, 400.0)]
    (line,) = said(*every)
    assert (
        line
        == "ocs has no effect on iteration_s: calient, lightmatter, polatis give the same wherever all else is equal."
    )
    assert said(*every[:-1], every[-1] | {"iteration_s": 9.0}) == []
    assert said(*every[:1], every[3]) == []  # nothing else is equal
    assert said(*every, {"fabric": "fat-tree", "ocs": "none", "nic_gbps": 100.0, "iteration_s": 9.0}) == [line]


def test_rows_of_other_things_have_no_remarks():
    assert remarks([{"seconds": 1.0, "policy": "greedy"}]) == []
    assert remarks([]) == []
    assert remarks([{"iteration_s": None}]) == []
