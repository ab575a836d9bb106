"""Every value of every recipe arrives in the job, with its source, unless the user states another."""

import json

import pytest

from mfabric_jax.case import Case
from mfabric_jax.case.paths import flat, settings
from mfabric_jax.commands import show
from mfabric_jax.commands.words import read
from mfabric_jax.evaluate.resolving.resolve import Recipe, recipes, resolve_without_jax
from mfabric_jax.workload.catalog import NAMES

ATTENTION = {"heads": 32, "kv_heads": 8, "head_dim": 128}
FILLER = {"top_k": 2, "expert_hidden": 1024, "attention": ATTENTION, "vocab": 32000, "next_tokens": 1}
OTHERS = {  # of the user's, beside what recipes state
    "job.schedule": "1f1b",
    "job.overlap": "none",
    "job.dispatch": "per-expert",
    "job.interleaved.chunks": 2,
    "job.per-server.node_limit": 3,
    "job.dispatcher": "nccl",
    "job.recompute": "attention",
    "job.layout": "even",
    "job.mtp": False,
    "job.sharding": "none",
    "job.precision.accumulated": "bf16",
    "job.batch.micro_batch": 2,
}
EVERY = [(name, model) for name in ("makers", "paper") for model in recipes(name)]


def named(folder, model: str, recipe: Recipe) -> str:
    """The model of a recipe by its name, or as a file with its dimensions."""
    if model in NAMES:
        return model
    path = folder / f"{model}.json"
    path.write_text(json.dumps(FILLER | dict(recipe.dimensions)), encoding="utf-8")
    return str(path)


def check_arrived(case: Case, name: str, recipe: Recipe) -> None:
    """That a case has all of a recipe but for what it states itself, and settings of alternatives that it excludes."""
    found, source = resolve_without_jax(case), f"recipe {name} ({recipe.source.partition(',')[0]})"
    own, values = flat(case), flat(found.case)
    for path, value in recipe.statement.items():
        if own.get(path) not in (None, "fit"):
            assert values[path] == own[path], path
        elif path in values:
            assert (values[path], found.why[path]) == (value, source), path
        else:
            choice = settings()[path].choice
            assert own[choice] not in (None, recipe.statement[choice]), path


@pytest.mark.parametrize(("name", "model"), EVERY)
def test_every_value_of_a_recipe_arrives_with_its_source(name, model, tmp_path):
    recipe = recipes(name)[model]
    case = Case().with_({"model.name": named(tmp_path, model, recipe), "model.recipe": name})
    check_arrived(case, name, recipe)
    for path, value in recipe.statement.items():  # a user who states one of them as the recipe does
        check_arrived(case.with_({path: value}), name, recipe)


@pytest.mark.parametrize(("name", "model"), EVERY)
def test_what_a_user_states_wins_over_a_recipe_alone(name, model, tmp_path):
    recipe = recipes(name)[model]
    case = Case().with_({"model.name": named(tmp_path, model, recipe), "model.recipe": name})
    for path in recipe.statement.keys() & OTHERS.keys():
        check_arrived(case.with_({path: OTHERS[path]}), name, recipe)


def test_show_says_that_a_recipe_chose_the_chunks(tmp_path):
    path = named(tmp_path, "qwen3-235b", recipes("makers")["qwen3-235b"])
    lines = list(show.as_toml(read("show", ["--model", path], show.Options)[0]))
    (chunks,) = (line for line in lines if line.startswith("job.interleaved.chunks"))
    assert chunks.split("#")[0].strip() == "job.interleaved.chunks = 4"
    assert chunks.endswith("# auto: recipe makers (NVIDIA Megatron MoE model zoo)")


def test_a_recipe_s_chunks_run(tmp_path):
    """94 blocks, embedding and head over 8 stages of 4 chunks: three in each place, two beside embedding and head."""
    path = named(tmp_path, "qwen3-235b", recipes("makers")["qwen3-235b"])
    job = resolve_without_jax(Case().with_({"model.name": path, "gpu.name": "H200-SXM"})).job
    assert (job.schedule, job.chunks, job.overlap_passes, job.gpus) == ("interleaved", 4, True, 1024)
    assert job.place_blocks == (2, *(3,) * 30, 2)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"chunks": 3}, {"job.schedule": "interleaved", "job.interleaved.chunks": 3}),
        ({"node_limit": 4}, {"job.dispatch": "per-server", "job.per-server.node_limit": 4}),
        ({"precision": "fp8", "combine_bytes": 1.5}, {"job.precision.dispatch": "fp8", "job.precision.combine": 1.5}),
        ({"schedule": "interleaved"}, {"job.schedule": "interleaved", "job.interleaved.chunks": 2}),
    ],
)
def test_a_model_file_states_alternatives_by_their_settings(said, expected, tmp_path):
    path = tmp_path / "own.json"
    dimensions = {"blocks": 24, "hidden": 2048, "experts": 32}
    path.write_text(json.dumps(FILLER | dimensions | {"pp": 2, "ep": 16, "tp": 1} | said), encoding="utf-8")
    found = resolve_without_jax(Case().with_({"model.name": str(path)}))
    assert {name: flat(found.case)[name] for name in expected} == expected
