"""Clusters of 8 servers of 4 GPUs, each built once, with legal circuits where their fabric has any."""

import functools

import numpy as np

from mfabric_jax.fabric import NAMES, cluster

SERVERS, GPUS = 8, 4
COUNT = SERVERS * GPUS
CLUSTERS = tuple(name for name in NAMES if name != "twisted-torus")  # of which there is none of 8 servers
CIRCUITS = {"topoopt": 1, "mfabric": 2, "acos": 2, "mfabric-cpo": 1}  # regions


def circuits(groups, servers, seed=0, most=2):
    """Legal circuits, some pairs without any; neighbours are joined, so that all servers are."""
    rng = np.random.default_rng(seed)
    count = np.triu(rng.integers(0, most + 1, (groups, servers, servers)) * rng.integers(0, 2, (servers, servers)), 1)
    ahead = np.arange(servers - 1)
    count[:, ahead, ahead + 1] = np.maximum(count[:, ahead, ahead + 1], 1)
    return count + count.transpose(0, 2, 1)


PLAIN = {"rail-optimized": {"pxn": False}, "multi-plane": {"planes": 1}}


@functools.cache
def built(name, **settings):
    """A cluster of 8 servers of 4 GPUs; edge switches of 4 hosts, 6 where they are oversubscribed."""
    regions = circuits(CIRCUITS[name], SERVERS // CIRCUITS[name]) if name in CIRCUITS else None
    given = {"gpus_per_server": GPUS, "radix": 8, "link_delay_s": 0.0} | PLAIN.get(name, {}) | settings
    return cluster(name, SERVERS, 100.0, regions=regions, **given)


def all_pairs(gpus=COUNT):
    src, dst = np.mgrid[:gpus, :gpus]
    return src.ravel(), dst.ravel()
