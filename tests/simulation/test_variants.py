"""What a comparison shows where nobody says in which way: usual variants, and micro-batches for a small bubble."""

import dataclasses

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.cli import _parse
from mfabric_jax.simulation.scenario import scenarios
from mfabric_jax.study.settings import SetUp

ONE = ("--models", "llama-moe", "--nic-gbps", "400")


def shown(*words):
    """Fabric, variant, use of NICs, policy, routing and rule for the first all-to-all of every row."""
    config = _parse("compare", [*ONE, *words]).config
    return [
        (one.fabric.name, one.variant, one.group.nic_use, one.settings.policy, one.settings.routing, one.settings.first)
        for one in scenarios(dataclasses.replace(config, fabrics=("fat-tree", "mfabric", "torus")))
    ]


def test_the_fat_tree_and_mfabric_are_shown_twice():
    greedy = ("greedy", "unsplit", "block")
    assert shown() == [
        ("fat-tree", "own NICs", "own", *greedy),
        ("fat-tree", "pooled NICs", "pooled", *greedy),
        ("mfabric", "as published", "pooled", *greedy),
        ("mfabric", "at its best", "pooled", "joint", "relay", "pays"),
        ("torus", "as set", "pooled", *greedy),
    ]


@pytest.mark.parametrize(
    "words", [("--preset", "paper"), ("--policy", "uniform"), ("--nic-use=own",), ("--routing", "split")]
)
def test_once_where_something_says_in_which_way(words):
    assert [(name, variant) for name, variant, *_ in shown(*words)] == [
        (name, "as set") for name in ("fat-tree", "mfabric", "torus")
    ]


def test_no_two_variants_share_their_all_to_alls():
    own = [one for one in scenarios(_parse("compare", list(ONE)).config) if one.fabric.name == "mfabric"]
    assert len({one.between_key for one in own}) == 2


def test_micro_batches_for_a_bubble():
    # (pp - 1) / (m + pp - 1) <= 0.15: pp 4 takes m = 17 (3 / 20), pp 8 takes 40 (7 / 47), 39 would be 15.2 %.
    config = _parse("compare", list(ONE)).config
    assert config.workload("llama-moe").micro_batches == 17
    assert config.workload("mixtral-8x22b").micro_batches == 40
    assert config.workload("deepseek-v3").micro_batches == 240  # its own are more
    assert config.workload("llama-moe:micro_batches=5").micro_batches == 5
    assert _parse("compare", [*ONE, "--micro-batches", "6"]).config.workload("llama-moe").micro_batches == 6
    assert _parse("compare", [*ONE, "--preset", "paper"]).config.workload("llama-moe").micro_batches == 4
    assert SetUp(bubble=0.5).workload("mixtral-8x22b").micro_batches == 8  # 7 would do


@pytest.mark.parametrize(
    ("command", "words", "settings"),
    [
        ("failures", ("--models", "llama-moe"), lambda options: options.setting),
        ("timeline", ("--model", "llama-moe"), lambda options: options.config),
        ("cluster", ("--model", "llama-moe"), lambda options: options.config),
        ("traffic", ("llama-moe",), lambda options: options),
    ],
)
def test_every_command_takes_as_many_micro_batches(command, words, settings):
    def micro_batches(*more):
        return settings(_parse(command, [*words, *more])).workload("llama-moe").micro_batches

    assert micro_batches() == 17
    assert micro_batches("--micro-batches", "6") == 6
    assert micro_batches("--bubble", "0.5") == 4
    if command in ("failures", "timeline"):
        assert micro_batches("--preset", "paper") == 4


def test_failures_take_no_variants():
    with pytest.raises(InputError, match="option"):
        _parse("failures", ["--variants", "usual"])


@pytest.mark.parametrize("more", [{}, {"micro_batches": 3}])
def test_a_bubble_is_a_part_of_an_iteration(more):
    with pytest.raises(InputError, match="bubble must be"):
        SetUp(bubble=1.5, **more).workload("llama-moe")


def test_experts_compute_what_they_receive_unless_a_preset_says_otherwise():
    assert _parse("compare", list(ONE)).config.expert_load == "received"
    assert _parse("compare", [*ONE, "--expert-load", "balanced"]).config.expert_load == "balanced"
    assert _parse("compare", [*ONE, "--preset", "paper"]).config.expert_load == "balanced"
