"""Drawn schedules on regions of circuits of 1 byte/s, and the plain simulation of them."""

import functools
import itertools

import jax
import numpy as np

from mfabric_jax import Region
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.routing.schedule import lower_bound, schedule_time
from tests.oracles import circuit_schedule as plain

SHOWN = 6  # configurations of a drawn schedule
KINDS = [  # switches, all_stop, directed, first_free
    (switches, all_stop, (switches + all_stop + first_free) % 2 == 0, first_free)
    for switches, all_stop, first_free in itertools.product((1, 2, 3), (True, False), (True, False))
]
SIZES, EACH = range(2, 7), 17  # servers, and draws of a kind with as many: 1,020 together


def region(servers, degree, packet, delay, dtype=float):
    """Numbers are arrays: other ones are no other program."""
    nic, packet, delay = (np.asarray(value, dtype) for value in (8e-9, packet, delay))
    return Region(servers, nic, np.asarray(degree, np.int32), packet, delay)


def matched(rng, servers, directed):
    """A permutation without what stays, or a matching, in part."""
    table, order = np.zeros((servers, servers), int), rng.permutation(servers)
    if directed:
        table[np.arange(servers), order] = 1
        np.fill_diagonal(table, 0)
        return table * (rng.random((servers, 1)) < 0.9)
    for a, b in order[: servers // 2 * 2].reshape(-1, 2):
        table[a, b] = table[b, a] = rng.random() < 0.9
    return table


def draw(seed, servers, switches, all_stop, directed, first_free):
    """(configurations, seconds, switch, demand, ports, packet, delay): some hold what was shown before, for no time,
    or as long as a pair needs; half have no packet NICs, most of these leave nothing to them."""
    rng = np.random.default_rng([seed, servers, switches, all_stop, first_free])
    ports, packet, delay = int(rng.integers(1, 3)), (0.0, 0.5, 0.0, 2.0)[seed % 4], (0.0, 0.3, 1.0)[seed % 3]
    configurations = np.array([sum(matched(rng, servers, directed) for _ in range(ports)) for _ in range(SHOWN)])
    for k in range(1, SHOWN):
        if rng.random() < 0.3:
            configurations[k] = configurations[k - 1]
    switch = rng.integers(switches, size=SHOWN)
    demand = rng.uniform(0.1, 4, (servers, servers)) * (rng.random((servers, servers)) < 0.7)
    np.fill_diagonal(demand, 0)
    seconds = rng.exponential(1.0, SHOWN) * (rng.random(SHOWN) < 0.9)
    seconds[seed % SHOWN] = demand.max()
    if not packet and seed % 8:
        how = {"switches": switches, "delay": delay, "all_stop": all_stop, "first_free": first_free}
        room = np.array(plain.room(plain.programmes(configurations.tolist(), seconds, switch, **how), 1.0))
        demand = room * np.where(rng.random(demand.shape) < 0.3, 1, rng.random(demand.shape))
    return configurations, seconds, switch, demand, ports, packet, delay


def simulated(one, kind):
    """When the plain simulation of a draw ends."""
    configurations, seconds, switch, demand, _, packet, delay = one
    _, switches, all_stop, _, first_free = kind
    how = {"switches": switches, "delay": delay, "all_stop": all_stop, "first_free": first_free}
    steps = plain.programmes(configurations.tolist(), seconds.tolist(), switch.tolist(), **how)
    return plain.completion(steps, demand.tolist(), nic=1.0, packet=packet)


def made(one, kind, dtype=float):
    """(region, schedule, demand) of a draw."""
    configurations, seconds, switch, demand, ports, packet, delay = one
    servers, switches, all_stop, directed, first_free = kind
    how = {"switches": switches, "all_stop": all_stop, "directed": directed, "first_free": first_free}
    schedule = CircuitSchedule(configurations, seconds.astype(dtype), switch.astype(np.int32), **how)
    return region(servers, ports * switches, packet, delay, dtype), schedule, demand.astype(dtype)


def bound(where, schedule, demand):
    how = {name: getattr(schedule, name) for name in ("switches", "all_stop", "directed", "first_free")}
    return lower_bound(demand, where, **how)


def padded(table, servers):
    """[.. S S] with servers behind that have no circuits and send nothing."""
    return np.pad(table, [(0, 0)] * (np.ndim(table) - 2) + [(0, servers - np.shape(table)[-1])] * 2)


@functools.cache
def drawn(kind, dtype=float, sizes=SIZES):
    """[EACH of every size] of one kind: what the simulation, `schedule_time` and `lower_bound` say; all are padded to
    the most servers, which makes one program of them."""
    most, ones, simulations = max(sizes), [], []
    for servers in sizes:
        for seed in range(EACH):
            configurations, seconds, switch, demand, *numbers = one = draw(seed, servers, *kind)
            simulations.append(simulated(one, (servers, *kind)))
            one = padded(configurations, most), seconds, switch, padded(demand, most), *numbers
            ones.append(made(one, (most, *kind), dtype))
    batch = jax.tree.map(lambda *x: np.stack(x), *ones)
    times, bounds = jax.vmap(schedule_time)(*batch), jax.vmap(bound)(*batch)
    return np.array(simulations), np.asarray(times), np.asarray(bounds)
