"""Arrival times of an all-to-all's bytes at every server, in parts: equal parts, or one for each configuration."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax.checks import InputError, of_type, whole
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.flows import star_completion
from mfabric_jax.routing.demand import between_servers
from mfabric_jax.routing.schedule import CarryingSpans, circuit_part, spans
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats, floats_or_nan, known_values
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY, NOT_NEGATIVE


class Arrivals(NamedTuple):
    """Parts of one all-to-all in order of arrival, and how long they take to return.

    - `time` [P S] s: when the last byte of a part arrives at a server; 0 where it has none. `bytes` [P S].
    - `reconfigure_s`, `circuit_s` [P]: how long circuits reconfigure before the part, and how long they carry it.
    - `packet_s` [P]: how long the part's return takes on packet NICs alone.
    """

    time: Float[Array, "P S"]
    bytes: Float[Array, "P S"]
    reconfigure_s: Float[Array, "P"]
    circuit_s: Float[Array, "P"]
    packet_s: Float[Array, "P"]

    def merge_parts(self, parts: int) -> "Arrivals":
        """Merge neighbouring parts into at most `parts` groups of about equal size, which arrive with their last
        part."""
        first = np.array_split(np.arange(len(self.time)), min(whole("parts", parts), len(self.time)))
        turn_s, both_s = self.reconfigure_s, self.reconfigure_s + self.circuit_s
        rows = [
            Arrivals(
                self.time[some].max(0),
                self.bytes[some].sum(0),
                turn_s[some[0]],
                both_s[some].sum() - turn_s[some[0]],
                self.packet_s[some].sum(),
            )
            for some in first
        ]
        return jax.tree.map(lambda *each: jnp.stack(each), *rows)


def equal_parts(first_s: Any, second_s: Any, received: Float[Array, "S"], parts: int) -> Arrivals:
    """Return an all-to-all in equal parts, one after another: all arrive in `first_s` and return in `second_s` [s].

    `received` [S]: bytes of all parts at every server.
    """
    received = floats_or_nan("received", received, NOT_NEGATIVE)
    if received.ndim != 1:
        raise InputError(f"received must be [S], bytes at every server, got {list(received.shape)}.")
    times = ("first_s", first_s), ("second_s", second_s)
    first_s, second_s = (floats_or_nan(name, time, FROM_0_TO_INFINITY, received.dtype) for name, time in times)
    part = (1 + np.arange(whole("parts", parts)))[:, None] / parts
    ends = jnp.asarray(part, received.dtype) * first_s
    each = jnp.broadcast_to(second_s / parts, parts)
    shape = (parts, len(received))
    none = jnp.zeros_like(each)
    return Arrivals(jnp.broadcast_to(ends, shape), jnp.broadcast_to(received / parts, shape), none, each, none)


def arrivals(region: Region, schedule: CircuitSchedule, demand: Float[Array, "S S"]) -> Arrivals:
    """Return the K + 2 parts of an all-to-all whose circuits follow K configurations; exact, like `schedule_time`.

    - `demand` [S S]: bytes from server i to server j; the diagonal stays in its server and is the first part, at 0 s.

    A part is what circuits deliver between the ends of two configurations (of any switch), plus the packets of every
    pair whose last packet arrives in that time. The last part is the packets that arrive after the last configuration.
    The return replays the same times over reversed circuits. Times are infinite if circuits leave bytes that packet
    NICs cannot reach. Errors and derivatives are those of `schedule_time`. Works under `vmap`.
    """
    of_type("schedule", schedule, CircuitSchedule)
    between = between_servers(of_type("region", region, Region), demand, rule=FROM_0_TO_INFINITY)
    own = floats_or_nan("demand of a server to itself", floats("demand", demand).diagonal(), NOT_NEGATIVE)
    parts = _arrivals(region, schedule.check_region(region), between, own)
    if known_values(between) is not None:
        return parts
    unknown = jnp.isnan(between).any() | jnp.isnan(own).any()
    return jax.tree.map(lambda part: jnp.where(unknown, jnp.nan, part), parts)


@jax.jit
def _arrivals(
    region: Region, schedule: CircuitSchedule, demand: Float[Array, "S S"], own: Float[Array, "S"]
) -> Arrivals:
    dtype, servers = demand.dtype, region.servers
    last, left = circuit_part(region, schedule, demand)
    port = jnp.broadcast_to(jnp.asarray(region.eps_Bps, dtype), servers)
    packets = star_completion(left, port, port)
    shown = spans(region, schedule, dtype)
    ends = jnp.sort(shown.end[: len(schedule.seconds)])
    before = jnp.concatenate([jnp.zeros(min(len(ends), 1), dtype), ends[:-1]])
    sent = jnp.diff(_delivered_bytes(shown, jnp.asarray(region.nic_Bps, dtype), ends, demand - left), axis=0, prepend=0)
    rounding = (len(ends) + 8) * float(jnp.finfo(dtype).eps)
    sent = jnp.where(sent > rounding * demand[None], sent, 0)
    sent = jnp.concatenate([sent, jnp.zeros((1, servers, servers), dtype)])
    until = jnp.concatenate([ends, jnp.full(1, jnp.inf, dtype)])
    since = jnp.concatenate([jnp.full(min(len(ends), 1), -1, dtype), ends])[: len(until)]
    now = (packets[None] > since[:, None, None]) & (packets[None] <= until[:, None, None]) & (left > 0)[None]
    on_packets = jnp.where(now, left[None], 0)
    there = jnp.where(sent > 0, jnp.minimum(until[:, None, None], last[None]), 0)
    time = jnp.maximum(there, jnp.where(now, packets[None], 0)).max(1)
    carries = (shown.count > 0).any((1, 2)) & (shown.length > 0)
    to_come = carries[None] & (shown.end[None] > before[:, None])
    begin = jnp.where(to_come, (shown.end - shown.length)[None], jnp.inf).min(1, initial=jnp.inf)
    dark_s = jnp.maximum(jnp.where(jnp.isfinite(begin), begin, 0) - before, 0)
    used = (there > 0).any((1, 2))[:-1]
    carried = jnp.where(used, there[:-1].max((1, 2), initial=0) - before - dark_s, 0)
    back = jax.vmap(lambda size: star_completion(size.T, port, port).max(initial=0))(on_packets)
    none = jnp.zeros(1, dtype)
    return Arrivals(
        jnp.concatenate([jnp.zeros((1, servers), dtype), time]),
        jnp.concatenate([own[None], (sent + on_packets).sum(1)]),
        jnp.concatenate([none, jnp.where(used, dark_s, 0), none]),
        jnp.concatenate([none, carried, none]),
        jnp.concatenate([none, back]),
    )


def _delivered_bytes(
    shown: CarryingSpans, nic: Any, times: Float[Array, "K"], most: Float[Array, "S S"]
) -> Float[Array, "K S S"]:
    """Return the bytes that circuits have delivered by these times, at most `most`."""

    def bytes_at(time: Array):
        lasted = jnp.clip(time - (shown.end - shown.length), 0, shown.length)
        return jnp.minimum(most, nic * (shown.count * lasted[:, None, None]).sum(0))

    return jax.lax.map(bytes_at, times)
