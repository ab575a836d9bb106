"""All-to-alls over circuits alone: against walks over all shortest paths, and in batches."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.routing.fixed import forward_time, wired
from tests.batches import assert_batch_is_its_loop
from tests.mistakes import refused
from tests.oracles import dense

NIC = 8e-9  # Gbps: 1 byte/s
WIDE = 16  # hops that every table here fits in: one shape, one program
seconds = eqx.filter_jit(eqx.debug.assert_max_traces(forward_time, max_traces=3))  # two sizes, single precision


def joined(count, nic_gbps=NIC):
    """The wired fabric, its tables padded to one width; bandwidth is data."""
    fabric = wired(DirectLinks(len(count), jnp.asarray(nic_gbps)), count)
    more = ((0, 0), (0, WIDE - fabric.hops.shape[1]))
    share = jnp.pad(fabric.share, more, constant_values=1)
    return dataclasses.replace(fabric, hops=jnp.pad(fabric.hops, more, constant_values=-1), share=share)


def circuits(servers, *pairs):
    """Circuits between pairs (a, b) or (a, b, how many)."""
    count = np.zeros((servers, servers), int)
    for a, b, *many in pairs:
        count[a, b] = count[b, a] = (many or [1])[0]
    return count


def draw(seed, servers):
    """A tree and some chords, one to three circuits each; skewed demand, some pairs without."""
    rng = np.random.default_rng([seed, servers])
    count = circuits(servers, *((n, rng.integers(n), rng.integers(1, 4)) for n in range(1, servers)))
    for a, b in rng.integers(servers, size=(seed % (2 * servers), 2)):
        if a != b:
            count[a, b] = count[b, a] = rng.integers(1, 4)
    demand = rng.uniform(0.1, 1, (servers, servers)) ** 3 * (rng.random((servers, servers)) < 0.7)
    return count, demand


def ways(count, src, dst):
    """{(a, b): part} of the bytes from `src` to `dst`, which every server divides among all that are one hop closer."""
    servers, hops, near = range(len(count)), {dst: 0}, [dst]
    for at in near:
        for b in servers:
            if count[b][at] and b not in hops:
                hops[b] = hops[at] + 1
                near.append(b)
    part, here = {}, {src: 1.0}
    for _ in range(hops[src]):
        after = {}
        for a, held in here.items():
            closer = [b for b in servers if count[a][b] and hops[b] == hops[a] - 1]
            for b in closer:
                part[a, b] = part.get((a, b), 0) + held / len(closer)
                after[b] = after.get(b, 0) + held / len(closer)
        here = after
    return part


def table(count):
    """[L F] part of every pair's bytes on every link; both row-major pairs of servers."""
    servers = len(count)
    found = np.zeros((servers**2, servers**2))
    for src, dst in np.argwhere(~np.eye(servers, dtype=bool)):
        for (a, b), part in ways(count.tolist(), src, dst).items():
            found[a * servers + b, src * servers + dst] = part
    return found


def plain(count, demand):
    size = np.where(np.eye(len(demand)), 0, demand).ravel()
    return dense.completion(count.ravel().astype(float), table(count), size, 0.0).max()


def test_agrees_with_a_plain_simulation_and_one_server_has_nothing_to_do():
    for servers, seed in [*((5, seed) for seed in range(20)), *((8, seed) for seed in range(10))]:
        count, demand = draw(seed, servers)
        got = seconds(joined(count), demand)
        np.testing.assert_allclose(got, plain(count, demand), rtol=1e-9)
        load = table(count) @ np.where(np.eye(servers), 0, demand).ravel()
        assert got >= np.max(load[count.ravel() > 0] / count[count > 0]) * (1 - 1e-12)  # the busiest circuit
    assert forward_time(wired(DirectLinks(1, NIC), [[0]]), jnp.ones((1, 1))) == 0


def test_a_batch_over_bandwidths_circuits_and_demands_equals_its_loop():
    drawn = [draw(seed, 5) for seed in range(8)]
    cases = [(joined(count, NIC * (1 + n)), demand) for n, (count, demand) in enumerate(drawn)]
    assert_batch_is_its_loop(forward_time, cases, seconds, rtol=1e-12)
    np.testing.assert_allclose(seconds(*cases[-1]), plain(*drawn[-1]) / len(drawn), rtol=1e-9)


def test_single_precision_stays_single():
    # Rates are rounded at every one of up to 20 events: 1e-4 is far above what that loses.
    count, demand = draw(8, 5)
    got = seconds(joined(count), demand.astype(np.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, plain(count, demand), rtol=1e-4)


def test_the_slope_in_every_demand():
    count, demand = draw(7, 5)
    demand += 0.1
    slope = jax.jit(jax.grad(lambda d: forward_time(joined(count), d)))(demand)
    for a, b in np.ndindex(5, 5):
        step = np.zeros((5, 5))
        step[a, b] = 1e-6
        want = (plain(count, demand + step) - plain(count, demand - step)) / 2e-6
        np.testing.assert_allclose(slope[a, b], want, rtol=1e-5, atol=1e-7)


def test_circuits_that_do_not_join_all():
    for count, sentence in [
        (circuits(4), "no path leads from server 0 to server 1"),
        (circuits(4, (0, 1), (2, 3)), "no path leads from server 0 to server 2"),
        (circuits(3, (0, 1), (1, 2)), "count must be of whole groups of 4 servers, got [3, 3]."),
    ]:
        assert sentence in refused(wired, DirectLinks(4, NIC), count)
    said = refused(forward_time, DirectLinks(4, NIC), jnp.ones((4, 4)))
    assert said.startswith("direct links need circuits before they carry anything; see wired(")
