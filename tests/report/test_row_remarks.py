"""What is said of rows: switches that are too slow or not needed, experts, batches, trees, idle settings."""

import pytest

from mfabric_jax.report import comparison, html_report, remarks
from mfabric_jax.report.row_remarks import job_words
from tests.report import synthetic

BASE = {"model": "m", "fabric": "mfabric", "ocs": "telescent", "policy": "greedy", "nic_gbps": 400.0}
BASE |= {"iteration_s": 10.0, "reconfig_s": 0.0, "circuit_changes": 5.0, "reconfigurations_over_allowed": None}
STILL, ELECTRICAL = {"circuit_changes": 0.0, "ocs": "unnamed"}, {"fabric": "fat-tree", "ocs": "none"}
BATCH, REGION = {"tokens_per_iteration": 2_000_000}, {"region_servers": 2}
MESH = {"policy": "uniform", "circuit_changes": 0.0}
BALANCED = {"expert_load": "balanced", "rank_load_over_mean": 1.3}
OCS = [
    {"ocs": ocs, "nic_gbps": g, "iteration_s": 1000.123 / g}
    for ocs in ("calient", "lightmatter", "polatis")
    for g in (100.0, 400.0)
]
NO_EFFECT = (
    "ocs has no effect on iteration_s: calient, lightmatter, polatis give equal times where other settings are equal."
)
SLOW = (
    "Warning: on mfabric with telescent, m waits for the optical switch for 100.0% of an iteration (38404 of 38416 s): "
    "it is too slow for circuits that follow the traffic; keep circuits (--set circuits.reconfigure=span --set "
    "circuits.span.length=run) or take a faster switch."
)
KEPT = "--set circuits.reconfigure=span --set circuits.span.length=run"
WAITS = "Warning: on {} with telescent, m waits for the optical switch for {} of an iteration{}: it "
WITHOUT_BUBBLE = (
    f"{WAITS.format('mfabric', '97.7%', ' without its bubble (104 of 106 s)')}is too slow for circuits that "
    f"follow the traffic; keep circuits ({KEPT}) or take a faster switch."
)
SCHEDULED = (
    f"{WAITS.format('mfabric', '60.0%', ' (6 of 10 s)')}is too slow for circuits that change during an "
    f"all-to-all; choose them once (--set circuits.schedule=none {KEPT}) or take a faster switch."
)
PHASES = (
    f"{WAITS.format('photonic-rails', '60.0%', ' (6 of 10 s)')}reconfigures between phases of "
    "communication under all settings; take a faster switch, or a fabric with fixed links."
)
NEVER = "Circuits of mfabric (greedy) never change in these rows for {}: fixed links would give the same times."
BUSY = (
    "The busiest rank receives more than the mean (m 1.9 times), but experts compute as if loads were even; "
    "--set compute.experts=received makes them compute what they receive."
)


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        ([{"reconfig_s": 38_404.0, "iteration_s": 38_416.2}], SLOW),
        ([{"reconfig_s": 4.9}], None),
        ([{"reconfig_s": 103.79, "iteration_s": 284.25, "bubble_s": 177.98}], WITHOUT_BUBBLE),
        ([{"reconfig_s": 3.0, "bubble_s": 3.9}], None),
        ([{"reconfig_s": 6.0, "schedule": "solstice"}], SCHEDULED),
        (
            [{"reconfig_s": 6.0, "fabric": "photonic-rails", "circuits_for": "none", "circuit_changes": None}],
            PHASES,
        ),
        (
            [{"reconfigurations_over_allowed": 2.5}],
            "Warning: mfabric with telescent reconfigures 2.5 times as often as it may (m).",
        ),
        ([{"reconfigurations_over_allowed": 0.9}], None),
        (
            [STILL, STILL | {"model": "n"}],
            NEVER.format("m, n"),
        ),
        (
            [STILL, {"ocs": "unnamed", "policy": "joint", "iteration_s": 11.0}],
            NEVER.format("m"),
        ),
        ([STILL | {"nic_gbps": 100.0, "iteration_s": 40.0}, STILL | {"circuit_changes": 1.0}], None),
        ([STILL | {"circuits_for": "run"}, STILL | {"circuits_for": "all-to-all"}], NEVER.format("m")),
        ([STILL | {"reconfig_s": 0.5}], None),  # fixed links would be faster
        ([STILL | {"circuits_for": "iteration"}], None),  # they change from one to the next
        ([ELECTRICAL | {"circuit_changes": None}], None),
        ([MESH], None),  # the policy says so itself
        ([{}, MESH | {"model": "n"}], None),
        ([BALANCED | {"rank_load_over_mean": 1.9}, BALANCED], BUSY),
        ([BALANCED | {"rank_load_over_mean": 1.1}], None),
        ([{"expert_load": "received", "rank_load_over_mean": 1.9}], None),
        ([{"dropped_share": 0.125}], "Experts drop selections beyond their capacity (share of all): m 12.5%."),
        (
            [BATCH, {"model": "n", "tokens_per_iteration": 71_303_168}],
            "Models differ in tokens per iteration (m 2 M, n 71.3 M): compare their tokens_per_s, not their seconds.",
        ),
        ([BATCH, BATCH | {"model": "n"}], None),
        ([BATCH, {"tokens_per_iteration": 4_000_000}], None),
        (
            [REGION, REGION | {"iteration_s": 11.0}],
            "A region of m is two servers, one pair: every policy that uses all circuits sets the same ones.",
        ),
        (
            [{"region_servers": 1.0}],
            "A region of m fits into one server: no all-to-all leaves it.",
        ),
        ([{"region_servers": 4}], None),
        ([{"region_servers": None}], None),
        ([REGION | ELECTRICAL | {"circuit_changes": None}], None),
        (OCS, NO_EFFECT),
        ([*OCS, ELECTRICAL | {"nic_gbps": 100.0, "iteration_s": 9.0}], NO_EFFECT),
        ([*OCS[:-1], OCS[-1] | {"iteration_s": 9.0}], None),
        ([OCS[0], OCS[3]], None),  # nothing else is equal
    ],
)
def test_a_remark_where_something_is_to_be_noticed(rows, wanted):
    assert remarks([BASE | row for row in rows]) == ([] if wanted is None else [wanted])


JOB = {"gpus": 512, "dp": 4, "tp": 1, "pp": 4, "ep": 32, "micro_batches": 17, "micro_batch": 8, "sequence": 4096}
JOB |= {"tokens_per_iteration": 71_303_168, "compute_precision": "bf16", "precision": "fp8"}
JOB_WORDS = (
    "512 GPUs = DP 4 x TP 1 x PP 4 x EP 32, 17 micro-batches of 8 x 4096 tokens, 71.3 M tokens an iteration, "
    "computed in bf16, sent in fp8"
)


def test_the_job_stands_above_tables_and_on_the_page(tmp_path):
    assert ", ".join(job_words([JOB])) == JOB_WORDS
    assert job_words([{"model": "m"}]) == []
    source = "arXiv 2412.19437, sections 3.2 to 3.4, but other degrees"
    assert f"set-up of {source} (--set model.recipe=none drops it)" in job_words([JOB | {"recipe": source}])
    assert job_words([JOB, JOB | {"micro_batches": 4}])[1] == "17 and 4 micro-batches of 8 x 4096 tokens"
    rows = [row | JOB for row in synthetic.rows(models=("llama-moe",))]
    assert f"Simulated: llama-moe, {JOB_WORDS}, while GPUs compute:" in " ".join(comparison(rows).split())
    page = html_report(rows, {}, tmp_path / "a.html").read_text()
    assert f"<dt>llama-moe</dt><dd>{JOB_WORDS}</dd>" in page


def test_rows_of_other_things_have_no_remarks():
    assert remarks([{"seconds": 1.0, "policy": "greedy"}]) == []
    assert remarks([]) == []
    assert remarks([{"iteration_s": None}]) == []


def test_a_quote_that_serves_no_bandwidth_of_the_rows_is_told():
    rows = synthetic.rows()
    quoted = {"switch.800.usd": (28000, None), "switch.800.ports": (64, None)}
    told = [line for line in remarks(rows, {"own_prices": {"p.toml": quoted}}) if "quotes" in line]
    assert told == [
        "p.toml quotes switches for NICs of 800 Gbps only; NICs of 100, 200, 400 Gbps take the usual price of "
        "a port (nic_gbps in [switch.GBPS] sets which NICs a switch serves)."
    ]
    one = [row for row in rows if row["nic_gbps"] == 400]
    twin = quoted | {"switch.800.nic_gbps": (400, None)}
    assert not [line for line in remarks(one, {"own_prices": {"p.toml": twin}}) if "quotes" in line]
