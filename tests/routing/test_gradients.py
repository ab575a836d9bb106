"""Gradients of all stages at once: by hand, and beside loads that plain Python sums up."""

import collections

import numpy as np
import pytest

from mfabric_jax.routing.gradients import gradient_nics


def on_links(links, way):
    """The most at once over links {name: NICs}; `way(a, b)`: the links that bytes from a to b cross."""

    def most(src, dst, part):
        load = collections.Counter()
        for a, b in zip(src.tolist(), dst.tolist(), strict=True):
            for link in way(a, b):
                load[link] += part
        return min(links[link] / carried for link, carried in load.items())

    return most


def between_all(a, b):
    return [(a, b)]


@pytest.mark.parametrize(("servers", "stage"), [(4, 4), (8, 4), (6, 2), (6, 3)])
def test_a_full_mesh_takes_equal_parts(servers, stage):
    """A link of one NIC between every two servers: a ring uses one link of a server, equal parts all of its stage."""
    links = {(a, b): 1.0 for a in range(servers) for b in range(servers)}
    assert gradient_nics(on_links(links, between_all), np.inf, servers, stage) == pytest.approx(stage - 1)


@pytest.mark.parametrize(("servers", "stage"), [(6, 6), (12, 6)])
def test_a_line_of_leaves_takes_the_ring(servers, stage):
    """Three servers of one NIC at a leaf, one uplink each: a ring crosses it once, equal parts 3 x 3/5 times."""
    links = {name: 1.0 for leaf in range(servers // 3) for name in (("up", leaf), ("down", leaf))}
    links |= {name: 1.0 for a in range(servers) for name in (("out", a), ("in", a))}

    def way(a, b):
        across = [("up", a // 3), ("down", b // 3)] if a // 3 != b // 3 else []
        return [("out", a), *across, ("in", b)]

    most = on_links(links, way)
    assert gradient_nics(most, np.inf, servers, stage) == 1.0
    i, j = (x.ravel() for x in np.mgrid[:stage, :stage])
    assert most(i[i != j], j[i != j], 1 / (stage - 1)) == pytest.approx(5 / 9)


def test_all_stages_reduce_at_once():
    """Two stages of two share one link: half of it each."""
    links = {"shared": 1.0}
    assert gradient_nics(on_links(links, lambda a, b: ["shared"] if a < b else []), np.inf, 4, 2) == 0.5


def test_nothing_is_faster_than_the_ports():
    """Where a ring fills the ports of servers no other way is tried."""
    asked = []

    def most(src, dst, part):
        asked.append(part)
        return 2.0

    assert gradient_nics(most, 2.0, 8, 4) == 2.0
    assert asked == [1.0]
