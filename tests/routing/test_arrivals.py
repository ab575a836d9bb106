"""What has arrived when under a schedule: against a plain simulation of the switches, and laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.routing.arrived import arrivals
from mfabric_jax.routing.schedule import schedule_time
from mfabric_jax.timing.arrivals import block_ends
from tests.oracles import arrivals as plain
from tests.oracles import circuit_schedule
from tests.oracles.tree import tree
from tests.routing.schedules import draw, region

KINDS = [(4, 1, True, True, True), (4, 3, False, False, False)]


@functools.partial(jax.jit, static_argnames="kind")
def timed(one, kind):
    configurations, seconds, switch, demand, ports, packet, delay = one
    _, switches, all_stop, directed, first_free = kind
    where = region(4, 6, 1.0, 0.5)
    where = type(where)(4, where.nic_gbps, ports * switches, packet, delay)
    how = {"switches": switches, "all_stop": all_stop, "directed": directed, "first_free": first_free}
    schedule = CircuitSchedule(configurations, seconds, switch, **how)
    return arrivals(where, schedule, demand), schedule_time(where, schedule, demand)


def test_bytes_and_times_are_those_of_the_switches():
    for kind in KINDS:
        _, switches, all_stop, _, first_free = kind
        for seed in range(24):
            one = draw(seed, *kind)
            demand, delay, packet = one[3] + np.diag(np.arange(4.0)), one[6], one[5]
            parts, end = timed(tuple(jnp.asarray(x) for x in (*one[:3], demand, *one[4:])), kind)
            how = {"switches": switches, "delay": delay, "all_stop": all_stop, "first_free": first_free}
            steps = circuit_schedule.programmes(one[0].tolist(), one[1].tolist(), one[2].tolist(), **how)
            whole = np.array(plain.delivered(steps, one[3].tolist(), np.inf))
            left = np.where(one[3] - whole > 1e-12 * one[3], one[3] - whole, 0)
            flows = tree(left, np.full(4, packet), np.full(4, packet))
            assert len(parts.time) == len(one[1]) + 2
            np.testing.assert_allclose(parts.bytes[0], np.arange(4.0))
            got = np.cumsum(parts.bytes[1:], 0)
            for k, until in enumerate(sorted(ends_of(steps, first_free))):
                now = np.array(plain.delivered(steps, one[3].tolist(), until)) + left * (flows <= until * (1 + 1e-12))
                np.testing.assert_allclose(got[k], now.sum(0), atol=1e-9)
                assert (parts.time[1 + k] <= until * (1 + 1e-12)).all()
            np.testing.assert_allclose(parts.bytes.sum(0), demand.sum(0), rtol=1e-9)
            np.testing.assert_allclose(parts.time.max(), end, rtol=1e-9)


def ends_of(steps, first_free):
    """Of every configuration: a switch's steps are turn, configuration, turn, ..., the first turn left out if free."""
    for mine in steps:
        times = np.cumsum([seconds for seconds, _ in mine])
        yield from times[0 if first_free else 1 :: 2]


def test_the_way_back_over_one_switch_takes_what_the_way_there_took():
    for seed in range(24):
        one = draw(seed, *KINDS[0])
        parts, _ = timed(tuple(jnp.asarray(x) for x in one), KINDS[0])
        for k in range(len(one[1])):
            if parts.circuit_s[1 + k] > 0:
                assert parts.circuit_s[1 + k] <= one[1][k] * (1 + 1e-12)
                np.testing.assert_allclose(parts.reconfigure_s[1 + k], one[6] * (k > 0), atol=1e-12)
        one_part = parts.merge_parts(1)
        np.testing.assert_allclose(one_part.bytes[0], parts.bytes.sum(0))
        np.testing.assert_allclose(one_part.time[0], parts.time.max(0))


def test_derivatives_are_differences_through_experts_too():
    configurations, seconds, switch, demand, ports, packet, delay = draw(3, 4, 2, False, True, False)
    where = region(4, 2 * ports, packet, delay)

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1))
    def end(seconds, demand):
        schedule = CircuitSchedule(configurations, seconds, switch, switches=2, all_stop=False, first_free=True)
        return block_ends(arrivals(where, schedule, demand), 1.0, 0.1, 0.2).combine_s

    rng, at = np.random.default_rng(0), (jnp.asarray(seconds), jnp.asarray(demand))
    way = (
        jnp.asarray(rng.normal(size=seconds.shape) * (seconds > 0)),
        jnp.asarray(rng.normal(size=demand.shape) * (demand > 0)),
    )
    ahead, behind = (end(*(a + h * w for a, w in zip(at, way, strict=True)))[0] for h in (1e-6, -1e-6))
    _, found = end(*at)
    np.testing.assert_allclose(
        sum((f * w).sum() for f, w in zip(found, way, strict=True)), (ahead - behind) / 2e-6, rtol=1e-5
    )
    assert all(np.any(f != 0) for f in found)
