"""Hints beside a comparison: what they state holds for the case they are about."""

import re

import pytest

from mfabric_jax import Case
from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
from mfabric_jax.evaluate.resolving.set_up import dispatcher_words
from mfabric_jax.traffic.dispatch import even_bytes

WIDE = {
    **{"model.name": "llama-moe", "model.recipe": "none", "job.parallel.gpus": 32, "job.parallel.ep": 16},
    **{"job.parallel.tp": 1, "job.parallel.pp": 1, "job.batch.micro_batches": 4},
}


def resolved(**changed):
    return resolve_without_jax(Case().with_(WIDE | {path.replace("__", "."): value for path, value in changed.items()}))


@pytest.mark.parametrize("dispatcher", ["deepep", "hybridep"])
def test_a_dispatcher_that_sends_once_a_server_names_the_setting_that_makes_it_faster(dispatcher):
    one = resolved(job__dispatcher=dispatcher, job__dispatch="per-expert")
    words = dispatcher_words(one)
    before, after = (float(size) for size in re.findall(r"([0-9.]+) GB", words))
    other = resolved(job__dispatcher=dispatcher, job__dispatch="per-server")
    leaves = [even_bytes(each.job, float)[:8, 8:].sum() / 1e9 for each in (one, other)]
    assert [before, after] == pytest.approx(leaves, rel=0.005)
    assert after < before
    assert "--set job.dispatch=per-server" in words
    assert dispatcher_words(other) is None


def test_no_word_on_dispatchers_where_nothing_leaves_a_server_or_each_expert_has_its_copy():
    assert dispatcher_words(resolved(job__dispatcher="nccl", job__dispatch="per-expert")) is None
    inside = resolved(job__dispatcher="deepep", job__dispatch="per-expert", job__parallel__ep=8)
    assert dispatcher_words(inside) is None
