"""Models of one's own: files of fields, `NAME:field=value`, and the set-ups that they get."""

import dataclasses
import re

import pytest

from mfabric_jax.workload import Architecture, GroupedQuery, Workload, fullest_stage, get, get_gpu
from mfabric_jax.workload.attention import Latent, Linear, Mixed
from tests.mistakes import refused

MINE = """
blocks = 48
hidden = 5120
attention = { heads = 40, kv_heads = 8, head_dim = 128 }
experts = 64
top_k = 6
expert_hidden = 1536
vocab = 128000
"""
DEGREES = "ep = 16\ntp = 1\npp = 4\ndp = 4\n"


@pytest.fixture
def own(tmp_path):
    """The path of a file with this text."""

    def written(text, name="mine.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return written


def test_every_field_of_a_file(own):
    more = 'name = "of-mine"\nsource = "me"\nshared_hidden = 512\ntied = true\n'
    more += "dense_blocks = [0, 2]\ndense_hidden = 8192\n"
    job = get(own(MINE + DEGREES + more + 'precision = "fp8"\nrecompute = "block"\ngrad_bytes = 4\n'))
    attention = GroupedQuery(40, 8, 128)
    assert job.architecture == Architecture(
        *("of-mine", 48, 5120, attention, 64, 6, 1536, "me", 512, (0, 2), 8192, 128000, True)
    )
    assert (job.model, job.dp, job.tp, job.pp, job.ep, job.gpus) == ("of-mine", 4, 1, 4, 16, 256)
    assert (job.dispatch_bytes, job.combine_bytes, job.grad_bytes) == (1 + 4 / 128, 2, 4)
    assert (job.recompute, job.micro_batch, job.micro_batches) == ("block", 1, 17)  # 3 / (17 + 3) = 15 %
    assert job.known_as == ""


def test_other_kinds_of_attention(own):
    latent = "{ heads = 8, query_rank = 0, kv_rank = 64, nope_dim = 32, rope_dim = 16, value_dim = 32 }"
    linear = '{ kind = "linear", heads = 40, head_dim = 128, blocks = 42 }'
    several = f"[{linear}, {{ heads = 40, kv_heads = 8, head_dim = 128, blocks = 6 }}]"
    known = "{ heads = 40, kv_heads = 8, head_dim = 128 }"
    assert get(own(MINE.replace(known, latent) + DEGREES)).architecture.attention == Latent(8, 0, 64, 32, 16, 32)
    mixed = Mixed(((Linear(40, 128), 42), (GroupedQuery(40, 8, 128), 6)))
    assert get(own(MINE.replace(known, several) + DEGREES, "b.toml")).architecture.attention == mixed


def test_degrees_follow_from_one_another(own):
    assert get("qwen-moe", ep=16).gpus == 8 * 1 * 4 * 16
    assert get("qwen-moe", gpus=2048).dp == 16
    assert get("qwen-moe:ep=16:dp=16", ep=8, dp=1).gpus == 1024  # its own before those for all
    path = own(MINE + "ep = 16\ntp = 1\npp = 4\ngpus = 512\n")
    assert (get(path).dp, get(path, ep=32).dp, get(path, dp=2).gpus) == (8, 4, 128)
    job = Workload("w", get(path).architecture, 4, 1, 4, 16, gpus=256, micro_batches=9)
    assert get(job) == job
    assert get(job, pp=8) == dataclasses.replace(job, pp=8, gpus=512)


def test_a_model_without_degrees_gets_some_that_fit(own):
    for experts, blocks, gpus in ((64, 48, None), (60, 94, None), (128, 94, 512), (384, 61, 2048), (160, 92, 1024)):
        text = MINE.replace("experts = 64", f"experts = {experts}").replace("blocks = 48", f"blocks = {blocks}")
        job = get(own(text, f"e{experts}.toml"), **({} if gpus is None else {"gpus": gpus}))
        assert gpus in (None, job.gpus)
        assert job.ep >= 8 or experts == 60  # that no group of whole servers divides on 1,024 GPUs
        assert fullest_stage(job)[1].total <= 0.92 * 80e9
        assert job.dp * job.ep * job.micro_batches == pytest.approx(4096, rel=0.1)  # sequences of an iteration
        # The same whatever the fabric: a scale-up domain of 64 GPUs changes what a server is, no degree.
        assert get(own(text, f"e{experts}.toml"), tp=job.tp, ep=job.ep, pp=job.pp, dp=job.dp).gpus == job.gpus
    assert get(own(MINE), tp=2, pp=6).tp == 2


def test_degrees_are_found_for_the_memory_of_the_gpu_and_beside_those_given(own):
    path = own(MINE)
    with_less, with_more = (dataclasses.replace(get_gpu("H100-SXM"), memory_bytes=size) for size in (40e9, 180e9))
    small, large = (get(path, gpus=256, server=server) for server in (with_less, with_more))
    assert fullest_stage(small)[1].total <= 0.92 * 40e9 < fullest_stage(large)[1].total <= 0.92 * 180e9
    inside = get(path, gpus=256, tp=1, ep=8, server=with_more)
    assert (inside.ep, inside.tp, inside.servers_per_region) == (8, 1, 1)
    assert get(f"{path}:micro-batches=7", gpus=256).micro_batches == 7


MISTAKES = (
    (
        MINE.replace("top_k = 6", "topk = 6"),
        r"'.*mine\.toml': field of a model 'topk' is unknown \(did you mean 'top_k'",
    ),
    (MINE.replace("top_k = 6\n", ""), r"'.*mine\.toml': a model needs top_k\."),
    (MINE.replace("kv_heads = 8, ", ""), "grouped-query attention needs kv_heads"),
    (MINE.replace("kv_heads = 8", "kv_head = 8"), "field of grouped-query attention 'kv_head' is unknown"),
    (MINE.replace("{ heads = 40, kv_heads = 8, head_dim = 128 }", "8"), "attention must be a table such as"),
    (MINE.replace("hidden = 5120", "hidden = -1", 1), "hidden must be a whole number of at least 1, got -1"),
    (MINE + "dense_blocks = [99]\ndense_hidden = 8", "dense_blocks must be different places from 0 to 47"),
    (MINE + 'name = "a:b"', "name of .* must be text without : and , in it"),
    (MINE + 'precision = "fp4"', "precision 'fp4' is unknown"),
    (MINE + "ep = 48", "mine: no set-up has ep 48"),
    (MINE + "gpus = 250", r"^mine: no set-up has gpus 250; 248 or 256 GPUs would do\.$"),
    (MINE + "dp = 'x'", "dp must be a whole number of at least 1, got 'x'"),
    (MINE + "gpus = 1.5", "gpus must be a whole number of at least 1, got 1.5"),
    (MINE + "ep = [1]", r"ep must be one number or word, got \[1\]"),
    (MINE + "dp = 9223372036854775808", "dp must be at most 16,777,216, got 9223372036854775808"),
    (MINE + DEGREES + "gpus = 512", "^mine: dp x tp x pp x ep must equal gpus, "),
    (MINE + DEGREES.replace("ep = 16", "ep = 48"), "mine: ep must divide the 64 experts, got 48"),
    ("top_k = 1\ntop_k = 2", "is not TOML"),
)


def test_mistakes_of_a_file_name_it_or_the_model(own):
    for text, words in MISTAKES:
        said = refused(get, own(text))
        assert re.search(words, said), said
    for model, words in (
        ("qwen-moe:eep=16", "workload setting 'eep' is unknown"),
        ("qwen-moe:ep=x", "qwen-moe:ep=x: ep must be a whole number of at least 1, got 'x'"),
        ("qwen-mo:ep=16", "model 'qwen-mo' is unknown .*or a .toml or .json file"),
        ("nowhere.json", "cannot read 'nowhere.json'"),
    ):
        assert re.search(words, refused(get, model)), refused(get, model)
