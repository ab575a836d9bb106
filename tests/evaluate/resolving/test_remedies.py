"""Every remedy makes the set-up fit, as the complete set-up of a run."""

import re

import pytest

from mfabric_jax import load, resolve
from mfabric_jax.evaluate.resolving.set_up import too_large_words
from mfabric_jax.workload import fullest_stage


def paper(model, changes):
    facts = {"model.name": model, "gpu.name": "H100-SXM", "gpu.nvlink_gigabytes_per_s": None}
    return load(preset="paper", changes=facts | changes)


def path_of(field):
    group = "batch." if "batch" in field else "" if field in ("recompute", "sharding") else "parallel."
    return f"job.{group}{field}"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("llama-moe", {"job.batch.bubble": 0.15}),
        ("llama-moe", {f"job.parallel.{name}": one for name, one in {"tp": 1, "pp": 8, "ep": 16, "dp": 16}.items()}),
        ("qwen-moe", {"job.batch.micro_batches": 8}),
    ],
)
def test_whatever_a_remedy_changes_the_run_that_follows_it_fits(model, changes):
    case = paper(model, changes)
    asked = resolve(case)
    said = too_large_words(asked)
    assert said is not None
    several = said.partition("what fits: ")[2].removesuffix(".").split("; ")
    assert len(several) >= 3
    for words in several:
        flags = {field.replace("-", "_"): value for field, value in re.findall(r"([\w-]+) (\w+)(?=,| \()", words)}
        flags = {path_of(field): int(value) if value.isdigit() else value for field, value in flags.items()}
        job = resolve(case.with_(flags)).job
        needs = fullest_stage(job)[1].total
        assert needs <= 0.92 * 80e9, words
        assert f"({needs / 1e9:.1f}".removesuffix(".0") in words
        assert job.gpus == asked.job.gpus, words
        assert f"{job.micro_batches} micro-batches" in words or job.micro_batches == asked.job.micro_batches


def test_a_remedy_that_needs_more_gpus_says_so():
    degrees = {"job.parallel.tp": 1, "job.parallel.pp": 4, "job.parallel.ep": 8, "job.parallel.dp": 1}
    said = too_large_words(resolve(paper("deepseek-r1", degrees)))
    assert said is not None
    found = re.search(r"what fits: .*gpus (\d+).* on (\d+) GPUs instead of 32", said)
    assert found, said
    assert found[1] == found[2] != "32"
    never = resolve(paper("deepseek-r1", degrees | {"job.parallel.pp": 1, "job.batch.micro_batch": 1}))
    assert too_large_words(never).endswith("no other set-up fits, either.")
