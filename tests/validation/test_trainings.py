"""Steps of real trainings: what was printed, the set-up that is simulated, and how an error is counted."""

import re

import pytest

from mfabric_jax import InputError, resolve
from mfabric_jax.report.tables import trainings as table
from mfabric_jax.validation import training_rows, trainings
from mfabric_jax.validation.training_steps import PARTS, training_summary
from mfabric_jax.workload.gpus import GPUS

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
        assert job.recompute == "none"
        assert one.source
        assert one.printed


@pytest.mark.parametrize("name", EVERY)
def test_seconds_are_those_that_the_source_prints(name):
    one = EVERY[name]
    if one.measured_s is None:
        assert one.printed.startswith("kept apart")
        return
    number, unit = re.match(r"([\d.]+) (.*)", one.printed).groups()
    job = resolve(one.case).job
    if unit.startswith("s a step"):
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
    said = table(rows, summary)
    assert "megatron-1440" in said
    assert f"{measured['error']:.1%}" in said


def test_an_unknown_row_is_named():
    with pytest.raises(InputError, match="row 'grok' is unknown"):
        trainings(["grok"])
