"""Mistakes in how a graph of tasks is run, and in the case that it runs on."""

from mfabric_jax.apps.graphs.replay import Replay, replay
from mfabric_jax.apps.graphs.replay.replay_paths import prepare
from mfabric_jax.apps.graphs.tasks.graph import Tasks
from tests.apps.graphs.replay.test_replay import OPTICAL, all_to_all, case, ring

SHARP, BY_SWITCHES = {"network.in-network.sharp": True}, "all-reduce=in-network"


def run(changes=None, graph=None, **settings):
    return lambda: list(replay(graph or ring(), case(changes), Replay(**settings)))


APART = {"region_servers": 1, "circuits_for": "all-to-all"}
REFUSED = [
    (run(ranks_on="anywhere"), "ranks_on 'anywhere' is unknown"),
    (run(first_gpu=-1), "first_gpu must be a whole number"),
    (run(compute_scale=-1.0), "compute_scale must be finite and not negative"),
    (run(algorithms="all-reduce=star"), "'star' is unknown"),
    (run(circuits_for="stage"), "circuits_for 'stage' is unknown"),
    (run(graph=Tasks(4).graph()), "a graph must have at least one task, got none"),
    (lambda: Replay(graph="own.json", servers=3), "servers is not used on a graph"),
    (run(ranks_on="ranks.json", first_gpu=5), "first_gpu is not used with a file"),
    (run({"network.paths": "weighted"}), "routing 'weighted' is unknown"),
    (run({"network.fabric": "mfabric"}), "network.nics must be at least 2 on mfabric"),
    (run(OPTICAL | {"circuits.policy": "static"}), "circuits.policy must not be static for a single all-to-all"),
    (run(OPTICAL | {"network.mfabric.optical_degree": 2}), "must be below the 2 NICs of a server"),
    (run(OPTICAL, region_servers=3), "region_servers must divide the 4 servers, got 3"),
    (run(servers=20_000), "servers must be at most 16,384 in a replay, got 20,000 for 4 ranks."),
    (run({"network.nics": 2, "network.rails.speeds": (1.0, 0.5)}), "rails.speeds must be empty for replay and jobs"),
    (run(servers=1), "servers must hold 4 GPUs"),
    (run(algorithms=BY_SWITCHES), "algorithms may name in-network only if network.in-network.sharp is true"),
    (run(SHARP), "network.in-network.sharp is not used, since algorithms names no in-network"),
    (run(SHARP | OPTICAL, algorithms=BY_SWITCHES), "must not name in-network in a replay on mfabric"),
    (
        run(SHARP | {"network.fabric": "torus"}, algorithms=BY_SWITCHES),
        "needs a switch tree that adds up gradients, and",
    ),
    (lambda: prepare(ring(), case(SHARP), Replay(graph="own.json", algorithms=BY_SWITCHES)), "in-network on a graph"),
    (run(algorithms="all-gather=in-network"), "algorithm of all-gather 'in-network' is unknown"),
    (run(OPTICAL, all_to_all(4, 1e6), **APART), "needs all-to-alls between servers of a region"),
]
