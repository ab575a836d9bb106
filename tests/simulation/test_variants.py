"""Ways in which a fabric stands beside others: preset usual, what is said over it, and micro-batches for a bubble."""

import pytest

from mfabric_jax import load, resolve, simulate


def scenarios(preset="usual", **changes):
    """What is solved of one model at one bandwidth."""
    given = {"model.name": "llama-moe", "network.nic_gbps": 400} | changes
    return [group.work for group in simulate(load(preset=preset, changes=given)).groups]


def shown(preset="usual", **changes):
    """Fabric, variant, use of NICs, policy, routing and rule for the first all-to-all of every row."""
    return [
        (
            one.fabric.name,
            one.variant,
            one.group.nic_use,
            one.settings.case.circuits.policy,
            one.settings.case.circuits.routing,
            one.settings.first,
        )
        for one in scenarios(preset, **changes)
    ]


def test_the_fat_tree_and_mfabric_are_shown_twice():
    greedy = ("greedy", "unsplit", "block")
    for preset in ("usual", "as-0.1"):
        assert shown(preset, **{"network.fabric": ["fat-tree", "mfabric", "torus"]}) == [
            ("fat-tree", "own NICs", "own", *greedy),
            ("fat-tree", "pooled NICs", "pooled", *greedy),
            ("mfabric", "as published", "pooled", *greedy),
            ("mfabric", "at its best", "pooled", "joint", "relay", "pays"),
            ("torus", "as set", "pooled", *greedy),
        ]


@pytest.mark.parametrize(
    ("said", "fabric"),
    [
        ({"circuits.policy": "uniform"}, "mfabric"),
        ({"circuits.routing": "split"}, "mfabric"),
        ({"network.nic_use": "own"}, "fat-tree"),
    ],
)
def test_once_where_something_says_in_which_way(said, fabric):
    assert [name for name, *_ in shown(**said)].count(fabric) == 1
    assert [variant for name, variant, *_ in shown(**said) if name == fabric] == ["as set"]


def test_a_preset_chooses_micro_batches_for_a_bubble():
    (one,) = scenarios("as-0.1", **{"network.fabric": "torus"})
    assert one.workload.micro_batches == 17
    (one,) = scenarios("as-0.1", **{"network.fabric": "torus", "job.batch.micro_batches": 6})
    assert one.workload.micro_batches == 6


def test_experts_compute_what_they_receive_unless_a_preset_says_otherwise():
    torus = {"network.fabric": "torus"}
    for preset, experts in (("usual", "received"), ("as-0.1", "received")):
        assert {one.settings.case.compute.experts.name for one in scenarios(preset, **torus)} == {experts}
    said = torus | {"compute.experts": "balanced"}
    assert {one.settings.case.compute.experts.name for one in scenarios("usual", **said)} == {"balanced"}
    assert resolve(load(preset="paper")).case.compute.experts.name == "balanced"
