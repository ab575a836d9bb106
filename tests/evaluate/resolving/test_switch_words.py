"""The sentence on switch trees whose tiers follow from the ports of a switch."""

from mfabric_jax import Case, resolve
from mfabric_jax.evaluate.resolving.set_up import switch_words


def tree_of(gpus, **network):
    case = Case().with_({"model.name": "mixtral-8x7b", "job.parallel.gpus": gpus, "job.search": "recipe"})
    return resolve(case.with_({f"network.{name}": value for name, value in network.items()}))


def words_of(gpus, **network):
    return switch_words([tree_of(gpus, **network)])


def test_trees_of_several_tiers_say_their_switches():
    said = words_of(1024, fabric="fat-tree")
    assert said.startswith("fat-tree has 2 tiers of 64-port switches. ")  # 64 x 32 = 2,048 NICs fit two tiers
    assert words_of(4096, fabric="fat-tree").startswith("fat-tree has 3 tiers of 64-port switches. ")
    assert words_of(4096, fabric="fat-tree", radix=128).startswith("fat-tree has 2 tiers of 128-port switches. ")


def test_a_single_switch_and_stated_tiers_need_no_sentence():
    assert words_of(64, fabric="fat-tree") is None
    assert words_of(1024, fabric="fat-tree", tiers=3) is None
    assert words_of(1024, fabric="torus") is None  # no packet switch


def test_trees_of_the_same_switches_share_a_sentence():
    alike = [tree_of(1024, fabric=name) for name in ("fat-tree", "rail-only", "fat-tree")]
    said = switch_words([*alike, tree_of(4096, fabric="fat-tree")])
    assert said.startswith("fat-tree and rail-only have 2 tiers of 64-port switches; fat-tree has 3 tiers of 64-port ")


def test_one_switch_is_named_beside_several_tiers_and_ratios_are_said():
    every = [tree_of(1024, fabric="rail-only", radix=128), tree_of(1024, fabric="oversub-fat-tree")]
    said = "rail-only has 1 tier of 128-port switches; oversub-fat-tree (3:1) has 2 tiers of 64-port switches. "
    assert switch_words(every).startswith(said)
