"""Steps of real trainings: what was printed, the set-up that is simulated, and how an error is counted."""

import re
from collections import Counter

import pytest

from mfabric_jax import Case, InputError, cases, resolve
from mfabric_jax.apps.validation import training_rows, trainings
from mfabric_jax.apps.validation.sources import (
    SOURCES,
    calibrated_ratios,
    fit_factors,
    group_of,
    steps_of,
    summarize_sources,
)
from mfabric_jax.apps.validation.step_parts import PARTS as STEP_PARTS
from mfabric_jax.apps.validation.step_parts import step_parts
from mfabric_jax.apps.validation.training_steps import CLUSTER, PARTS, RATIOS, training_ratios, training_summary
from mfabric_jax.evaluate.resolving.set_up import memory_columns
from mfabric_jax.evaluate.rows.results import describe_cases
from mfabric_jax.report import remarks
from mfabric_jax.report.row_remarks import accuracy_words
from mfabric_jax.report.tables import trainings as table
from mfabric_jax.support.measured_errors import (
    MeasuredStep,
    calibration,
    errors_by_gpu,
    measured_steps,
    ratio_errors,
    step_band,
)
from mfabric_jax.workload.gpus import GPUS
from tests.measured_errors import band_in, calibration_in, errors_in, ratios_in

PEAK = 989e12  # BF16 of an H100, by which MFU is counted
EVERY = {one.name: one for one in trainings()}


def flops_a_token(model, sequence):
    """Six a parameter that a token meets, and the whole square of attention, forward and backward."""
    attention = model.attention.params(model.hidden) + 3 * model.hidden * (
        model.top_k * model.expert_hidden + model.shared_hidden
    )
    gate, head = model.hidden * model.experts, model.hidden * model.vocab
    square = 12 * model.blocks * model.attention.heads * model.attention.head_dim * sequence
    return 6 * (model.blocks * (attention + gate) + head) + square


def test_every_row_is_a_case_that_can_be_simulated():
    assert len(EVERY) >= 40
    assert sum(one.measured_s is not None for one in EVERY.values()) >= 40
    for one in EVERY.values():
        found = resolve(one.case)
        job, said = found.job, one.job
        assert one.gpu in GPUS
        assert job.gpus == one.gpus == job.dp * job.tp * job.ep * job.pp
        assert {name: getattr(job, name) for name in ("pp", "ep")} == {x: said["parallel"][x] for x in ("pp", "ep")}
        assert job.attention_tp == said["parallel"]["tp"]
        assert job.iteration_tokens == said["batch"]["global_batch"] * job.sequence
        assert job.recompute == said.get("recompute", "none")
        assert one.source
        assert one.printed


@pytest.mark.parametrize("name", EVERY)
def test_seconds_are_those_that_the_source_prints(name):
    one = EVERY[name]
    if one.measured_s is None:
        assert one.printed.startswith("held out")
        return
    number, unit = re.match(r"([\d.]+) (.*)", one.printed).groups()
    job = resolve(one.case).job
    if unit.startswith("s per step"):
        assert one.measured_s == float(number)
    elif unit.startswith("tokens/s"):
        assert one.measured_s == pytest.approx(job.iteration_tokens / one.gpus / float(number), rel=1e-3)
    else:
        rate = float(number) * (1e12 if unit.startswith("TFLOP/s") else PEAK / 100)
        flops = job.iteration_tokens * flops_a_token(job.architecture, job.sequence)
        assert one.measured_s == pytest.approx(flops / one.gpus / rate, rel=0.01)


def test_a_prediction_stands_beside_its_measurement():
    names = ["qwen2-57b-1024-1024", "megatron-1440", "gpt-oss-64-b300-ep8"]
    rows = list(training_rows(trainings(names)))
    assert [row["row"] for row in rows] == names
    for row in rows:
        assert row["predicted_s"] == pytest.approx(sum(row[part] for part in PARTS), rel=1e-5)
        assert row["predicted_s"] > 0
    measured, kept, other = rows
    assert measured["error"] == measured["predicted_s"] / 1.081 - 1
    assert (kept["measured_s"], kept["error"]) == (None, None)
    summary = training_summary(rows)
    assert [(one["gpu"], one["rows"]) for one in summary] == [("H100-SXM", 1), ("B300-HGX", 1)]
    assert summary[1]["worst_error"] == other["error"]
    assert summary[1]["mean_error"] == abs(other["error"])
    for row in (measured, other):
        assert (row["low_s"], row["high_s"]) == pytest.approx([end * row["predicted_s"] for end in step_band()])
        assert row["inside"] == (row["low_s"] <= row["measured_s"] <= row["high_s"])
    ratios = training_ratios(rows)
    said = table(rows, summary, ratios, summarize_sources(rows, ratios))
    assert "megatron-1440" in said
    assert f"{measured['error']:.1%}" in said
    assert "8 of 10 measured training steps lie within, each source weighted alike." in said
    assert "each source left out: mean " in " ".join(said.split())


def memory(name, changes=None):
    """Of a GPU of the fullest stage of a row, changed."""
    found = resolve(EVERY[name].case.with_(changes or {}))
    return memory_columns(found, found.job)


@pytest.mark.parametrize("name", EVERY)
def test_what_ran_fits(name):
    assert memory(name)["fits"]


TOO_MUCH = [  # what a row needs without what it had [GB], and of which part that is mostly
    # 17 chunks of 4 layers in flight, 4,096 tokens of 128 x (192 + 192 + 128) elements of queries, keys and values: 37
    # GB more, and normed inputs and gated products, a byte each.
    ("deepseek-v3-2048", {"job.recompute": "none"}, 113, "attention"),
    # 32 experts over the 8 of half as many servers: twice their weights, 2 and 4 bytes each.
    ("deepseek-v3-2048", {"job.parallel.ep": 32}, 74, "inner"),
    # Up-projections kept: 56 layers in flight x 2,048 tokens x 131 KB.
    ("deepseek-v3-512-bf16", {"job.recompute": "none"}, 79, "inner"),
    # Of a pair of passes on 2,048 tokens: 0.5 GB of rows for each (8 x 7,168 x 4 bytes a token), and one block more, of
    # 201 KB of attention and 255 KB of experts a token: 0.9 GB.
    ("deepseek-v3-1024-fp8", {"job.recompute": "none", "job.precision.kept": "bf16"}, 90, "inner"),
    # 5.2 billion parameters of a GPU: 10.4 GB of their gradients more in float32.
    ("grok-1-512", {"job.precision.accumulated": "fp32"}, 75, "inner"),
    ("gpt-oss-64-b200-ep8", {"job.precision.accumulated": "fp32"}, 194, "gradients"),
    ("gpt-oss-64-b200-ep8", {"job.recompute": "none"}, 181, "inner"),
    ("gpt-oss-64-b200-ep8", {"gpu.name": "H100-SXM"}, 161, "inner"),
    # 14 layers a stage: 4.9 billion parameters of a GPU for 2.5.
    ("mixtral-8x22b-128", {"job.parallel.pp": 4}, 81, "inner"),
    # 12 bytes of a parameter on every GPU: 30 GB of 2.5 billion.
    ("mixtral-8x22b-128", {"job.sharding": "none"}, 84, "inner"),
    ("llama3-8x70b-256", {"job.sharding": "none"}, 91, "optimizer"),
    ("megascale-240", {"job.sharding": "none"}, 97, "optimizer"),
    ("mixtral-8x7b-256", {"gpu.name": "H100-SXM"}, 111, "inner"),
]


@pytest.mark.parametrize(("name", "changes", "gigabytes", "part"), TOO_MUCH)
def test_what_lacks_its_recomputation_sharding_or_gpu_does_not_fit(name, changes, gigabytes, part):
    found = memory(name, changes)
    assert not found["fits"]
    assert found["memory_gb"] == pytest.approx(gigabytes, abs=0.6)
    parts = {key: size for key, size in found.items() if key.startswith("memory_") and key != "memory_gb"}
    assert sum(parts.values()) == pytest.approx(found["memory_gb"])
    assert max(parts, key=lambda key: parts[key]) == f"memory_{part}_gb"


def test_ratios_are_of_rows_of_one_source():
    for pairs in RATIOS.values():
        for one, other in pairs:
            assert EVERY[one].source == EVERY[other].source
    rows = [{"row": name, "predicted_s": 2.0 + number, "measured_s": 1.0 + number} for number, name in enumerate(EVERY)]
    found = training_ratios(rows)
    assert len(found) == sum(map(len, RATIOS.values()))
    one = found[0]
    first, second = (next(row for row in rows if row["row"] == one[side]) for side in ("row", "over"))
    assert one["predicted"] == first["predicted_s"] / second["predicted_s"]
    assert one["error"] == pytest.approx(one["predicted"] / (first["measured_s"] / second["measured_s"]) - 1)
    assert training_ratios(rows[:1]) == []


def test_parts_of_a_step_add_up_and_pairs_take_what_their_kernels_take():
    parts = step_parts(EVERY["deepseek-v3-2048"].case)
    (row,) = training_rows([EVERY["deepseek-v3-2048"]])
    assert sum(parts[name] for name in STEP_PARTS) == pytest.approx(row["predicted_s"], rel=1e-6)
    assert parts["overlapped_s"] > 0.6 * row["predicted_s"]
    assert 0 <= parts["exposed"] < 0.1
    found = resolve(EVERY["deepseek-v3-2048"].case)
    seconds = found.of_kernels(found.job)
    back = seconds.backward
    computed = seconds.attention_s + sum(back.attention) + seconds.moe_s + sum(back.moe)
    slower = 1 / (1 - found.case.job.overlap.comm_cores)
    assert parts["layer_s"] * (1 - parts["exposed"]) == pytest.approx(computed * slower, rel=0.02)


def test_an_unknown_row_is_named():
    with pytest.raises(InputError, match="row 'grok' is unknown"):
        trainings(["grok"])


def test_measured_errors_of_gpus_are_said():
    found = errors_by_gpu()
    assert {gpu: one.steps for gpu, one in found.items()} == Counter(
        one.gpu for one in EVERY.values() if one.measured_s is not None
    )
    (row,) = training_rows([EVERY["gpt-oss-64-b300-ep8"]])  # the only step of its GPU in EP 8
    assert abs(found["B300-HGX"].worst) >= abs(row["error"]) - 0.002
    said = accuracy_words(["H200-SXM", "A100-80GB-SXM", "H200-SXM"])
    less = f"{-found['H200-SXM'].mean:.1%} below the one step measured"
    assert said.startswith(
        f"Predictions for H200-SXM are {less}; measured with even routing (mfabric validate training, "
    )
    assert said.endswith(". No step of A100-80GB-SXM was measured (mfabric validate training).")
    several = next(gpu for gpu, one in found.items() if one.steps > 1)
    assert f"measured steps on average ({found[several].steps} steps), " in accuracy_words([several])
    assert {CLUSTER[name] for name in ("traffic.generated.skew", "compute.experts")} == {0.0, "balanced"}
    rows = [{"model": "m", "fabric": "f", "iteration_s": 1.0}]
    kernels = {"compute.rate": "kernels", "compute.kernels.table": None, "gpu.name": "H200-SXM"}
    for other in ({"compute.rate": "efficiency"}, {"compute.kernels.table": "mine.toml"}):
        for some, told in ((rows, kernels | other), ([rows[0] | other], kernels)):
            assert not [one for one in remarks(some, {"resolved": told}) if "validate training" in one]
    for differs in ({}, {"gpu.name": ["H200-SXM"]}, {"compute.rate": ["efficiency", "kernels"]}):
        assert accuracy_words(["H200-SXM"]) in remarks(rows, {"resolved": kernels | differs})
    whole = {"resolved": describe_cases(cases(Case()))["resolved"]}
    assert accuracy_words(["B200-HGX"]) in remarks([rows[0] | {"gpu.name": "B200-HGX"}], whole)
    skewed = [rows[0] | {"gpu.name": "B200-HGX", "rank_load_over_mean": load} for load in (1.591, 1.0, 1.2)]
    for some, over in ((skewed, "1.00 to 1.59"), (skewed[:1], "1.59")):
        words = f"{accuracy_words(['B200-HGX'])} In these rows the busiest rank receives {over} times the mean."
        assert words in remarks(some, whole)


def test_every_row_is_of_a_listed_source():
    groups = {name: one.group for name, one in EVERY.items()}
    assert set(groups.values()) == set(SOURCES)
    assert (groups["megascale-240"], groups["megatron-240"]) == tuple(list(SOURCES)[6:8])  # two systems of one paper
    assert groups["qwen3-235b-256"] == groups["deepseek-v3-1024-fp8"]  # one repository
    assert group_of("a paper, table 1", "row") == "a paper, table 1"


def test_a_step_is_divided_into_computation_and_communication():
    """20 s: 6 compute, 2 communicate; the 12 s of bubble count as both, 3 to 1."""
    row = {"row": "x", "source": "g", "gpu": "H", "predicted_s": 20.0, "measured_s": 25.0, "compute_s": 6.0}
    row |= {"tp_comm_s": 0.5, "ep_comm_s": 1.0, "dp_comm_s": 0.5}
    assert steps_of([row, row | {"row": "y", "measured_s": None}]) == {"x": MeasuredStep("g", "H", 15.0, 5.0, 25.0)}


def test_factors_that_were_hidden_in_steps_are_found():
    parts = {"a": [(10, 1), (10, 5)], "b": [(4, 8)], "c": [(6, 6)]}
    steps = [MeasuredStep(name, "H", x, y, 1.2 * x + 2.1 * y) for name, some in parts.items() for x, y in some]
    assert fit_factors(steps) == pytest.approx((1.2, 2.1), rel=3e-3)  # between two values that were tried
    assert calibrated_ratios(steps) == pytest.approx(1, abs=2e-3)
    assert calibrated_ratios(steps[:2]) is None
    # Sources weigh alike: three steps of a that take twice as long count as b, whose take half.
    alike = [MeasuredStep("a", "H", 1, 1, 4)] * 3 + [MeasuredStep("b", "H", 1, 1, 1)]
    assert sum(fit_factors(alike)) == pytest.approx(2, rel=1e-9)
    assert calibrated_ratios(alike) == pytest.approx([4, 4, 4, 0.25])


def test_errors_are_summarized_by_source():
    rows = [
        {
            "row": name,
            "source": EVERY[name].source,
            "gpu": one.gpu,
            "compute_s": one.compute_s,
            "tp_comm_s": one.communication_s,
        }
        | {"ep_comm_s": 0.0, "dp_comm_s": 0.0, "predicted_s": one.predicted_s, "measured_s": one.measured_s}
        | {"error": 1 / one.ratio - 1, "inside": step_band().low <= one.ratio <= step_band().high}
        for name, one in measured_steps().items()
    ]
    *by_source, whole, alike = summarize_sources(rows, training_ratios(rows))
    assert [line["group"] for line in by_source] == list(dict.fromkeys(one.group for one in measured_steps().values()))
    assert whole["rows"] == len(rows) == sum(line["rows"] for line in by_source)
    assert whole["calibrated"] == pytest.approx(calibration().mean_error, abs=1e-4)
    for name in ("inside", "left_out", "bias"):
        assert whole[name] * len(rows) == pytest.approx(sum(line[name] * line["rows"] for line in by_source))
        assert alike[name] == pytest.approx(sum(line[name] for line in by_source) / len(by_source))
    assert alike["inside"] >= 0.8  # by how the band is made
    assert whole["ratios"] == ratio_errors().count
    assert summarize_sources(rows[:1], [])[0]["left_out"] == by_source[0]["left_out"]
    assert summarize_sources([rows[0] | {"measured_s": None, "error": None}], []) == []


def test_stored_numbers_follow_from_stored_steps():
    steps = measured_steps()
    assert {name: (one.group, one.gpu) for name, one in steps.items()} == {
        name: (one.group, one.gpu) for name, one in EVERY.items() if one.measured_s is not None
    }
    for name, one in steps.items():
        assert one.measured_s == pytest.approx(EVERY[name].measured_s, rel=1e-4)
    for stored, of_steps in ((step_band(), band_in), (ratio_errors(), ratios_in), (calibration(), calibration_in)):
        assert stored == pytest.approx(of_steps(steps), abs=3e-3)
    assert set(errors_by_gpu()) == set(errors_in(steps))
    for gpu, one in errors_in(steps).items():
        assert errors_by_gpu()[gpu] == pytest.approx(one, abs=2e-4)


@pytest.mark.slow
def test_stored_steps_are_those_of_a_run_now():
    stored, of_now = measured_steps(), steps_of(list(training_rows(EVERY.values())))
    assert list(stored) == list(of_now)
    for name, one in of_now.items():
        kept = stored[name]
        assert (kept.compute_s, kept.communication_s) == pytest.approx((one.compute_s, one.communication_s), rel=2e-3)
