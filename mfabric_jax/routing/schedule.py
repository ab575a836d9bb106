"""The time of an all-to-all while optical switches reconfigure, and its lower bound."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from mfabric_jax import flows
from mfabric_jax.checks import not_negative, of_type, whole
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.routing.demand import between_servers, over
from mfabric_jax.support.array_module import Array, array_module


def schedule_time(
    region: Region, schedule: CircuitSchedule, demand: Float[Array, "S S"] | Sequence[Any]
) -> Float[Array, ""]:
    """Return the exact fluid completion time of one all-to-all whose circuits follow a schedule [s].

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored (it stays on the NVSwitch).

    Every switch begins at time 0 and shows its configurations in the order listed, for exactly their seconds. It
    reconfigures for delay_s before each, except before the first under `first_free`. Meanwhile none of its circuits
    carry; without `all_stop`, a pair keeps the smaller of its circuit counts before and after. Other switches do not
    wait. A circuit runs at nic_gbps in each direction and carries only bytes of its own pair (one hop, no relay),
    whenever it is up, until none are left.

    The schedule is known in advance, so at time 0 the packet NICs begin with the bytes that it leaves: what each pair
    has beyond the rate of its circuits times the seconds that they are up. These bytes share the NICs max-min fairly
    (`star_completion`). A remainder within rounding (K + 8 units of the last digit) counts as carried. The end is the
    later of the last byte on circuits and the last on packet NICs; whatever the switches do after it costs nothing. It
    is infinite if packet NICs do not reach bytes that circuits leave.

    A single configuration, `first_free` and as long as its slowest pair needs, gives `all_to_all_time` unsplit. A
    configuration that stays for the seconds T of split routing ends at T or later: split paces packets to end together,
    but here they share max-min fairly.

    Raise `InputError` for an illegal schedule (`CircuitSchedule.check_region`). One trace per shape. Works under
    `vmap`; differentiable in seconds, delay, bandwidth, demand and real-valued configurations.
    """
    return jnp.maximum(*schedule_part_times(region, schedule, demand))


def schedule_part_times(
    region: Region, schedule: CircuitSchedule, demand: Float[Array, "S S"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return when circuits and when packet NICs carry their last byte [s]; `schedule_time` is the later."""
    of_type("schedule", schedule, CircuitSchedule, hint="the schedule of a plan is plan.schedule")
    demand = between_servers(of_type("region", region, Region), demand)
    last, left = circuit_part(region, schedule.check_region(region), demand)
    port = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype), region.servers)
    return last.max(initial=0), flows.star_completion(left, port, port).max(initial=0)


def circuit_part(
    region: Region, schedule: CircuitSchedule, demand: Float[Array, "S S"]
) -> tuple[Float[Array, "S S"], Float[Array, "S S"]]:
    """Return when circuits carry their last byte of every pair [s] (0 without one), and the bytes that they leave."""
    if not len(schedule.seconds):
        return jnp.zeros_like(demand), demand
    arrays, nic = _numbers(region, schedule, demand.dtype), jnp.asarray(region.nic_Bps).astype(demand.dtype)
    return _circuit_part(demand, schedule.switch, *arrays, nic, switches=schedule.switches, all_stop=schedule.all_stop)


def spans(region: Region, schedule: CircuitSchedule, dtype: Any) -> "CarryingSpans":
    """Return the spans in which circuits carry: one per configuration, in order, then the spans of kept circuits."""
    numbers = _numbers(region, schedule, dtype)
    return _in_time(schedule.switch, *numbers, schedule.switches, schedule.all_stop)


def _numbers(region: Region, schedule: CircuitSchedule, dtype: Any) -> tuple[Array, Array, Array, Array]:
    """Return the configurations, their seconds, the first delay and the other delays [s]."""
    delay = region.delay_s if schedule.delay_s is None else schedule.delay_s
    values = schedule.configurations, schedule.seconds, 0.0 if schedule.first_free else delay, delay
    configurations, seconds, first, later = (jnp.asarray(value).astype(dtype) for value in values)
    return configurations, seconds, first, later


def _in_time(
    switch: Array,
    configurations: Array,
    seconds: Array,
    first_reconfigure_s: Array,
    delay: Any,
    switches: int,
    all_stop: bool,
) -> "CarryingSpans":
    here = switch[:, None] == jnp.arange(switches, dtype=switch.dtype)[None]
    number = _own(here, jnp.cumsum(here, axis=0))
    reconfigure_s = jnp.where(number == 1, first_reconfigure_s, delay)
    return _carrying_spans(configurations, seconds, reconfigure_s, here, all_stop)


@functools.partial(jax.jit, static_argnames=("switches", "all_stop"))
def _circuit_part(
    demand: Array,
    switch: Array,
    configurations: Array,
    seconds: Array,
    first_reconfigure_s: Array,
    delay: Any,
    nic: Any,
    *,
    switches: int,
    all_stop: bool,
):
    shown = _in_time(switch, configurations, seconds, first_reconfigure_s, delay, switches, all_stop)
    room = nic * (shown.count * shown.length[:, None, None]).sum(0)
    rounding = (len(seconds) + 8) * float(jnp.finfo(demand.dtype).eps)
    left = jnp.where(demand - room <= rounding * demand, 0, demand - room)
    last = jnp.where((shown.count > 0) & (shown.length > 0)[:, None, None], shown.end[:, None, None], 0).max(0)
    early, is_done = _empty_times(shown, demand / nic, rounding)
    return jnp.where((demand != 0) & (room > 0), jnp.where(is_done, early, last), 0), left


class CarryingSpans(NamedTuple):
    """Spans of time in which circuits carry: their ends and lengths [I] s, circuits of every pair [I S S]."""

    end: Float[Array, "I"]
    length: Float[Array, "I"]
    count: Float[Array, "I S S"]


def _own(here: Bool[Array, "K W"], value: Array) -> Array:
    """Return the value of each configuration's own switch, from values [K W] of all switches."""
    return jnp.where(here, value, 0).sum(1)


def _carrying_spans(
    configurations: Float[Array, "K S S"],
    seconds: Float[Array, "K"],
    reconfigure_s: Float[Array, "K"],
    here: Bool[Array, "K W"],
    all_stop: bool,
) -> CarryingSpans:
    """Return the spans of configurations, and of the circuits kept while a switch reconfigures to them;
    `reconfigure_s` [K]: the delay before each."""
    end = _own(here, jnp.cumsum(jnp.where(here, (reconfigure_s + seconds)[:, None], 0), axis=0))
    if all_stop:
        return CarryingSpans(end, seconds, configurations)
    number = jnp.where(here, jnp.arange(1, len(seconds) + 1)[:, None], 0)  # 0: no configuration yet
    latest = jnp.concatenate([jnp.zeros_like(number[:1]), lax.cummax(number, axis=0)[:-1]])
    before = jnp.concatenate([jnp.zeros_like(configurations[:1]), configurations])[_own(here, latest)]
    kept = jnp.minimum(before, configurations)
    both = (jnp.concatenate(pair) for pair in ((end, end - seconds), (seconds, reconfigure_s), (configurations, kept)))
    return CarryingSpans(*both)


def _empty_times(
    shown: CarryingSpans, need: Float[Array, "S S"], rounding: float
) -> tuple[Float[Array, "S S"], Bool[Array, "S S"]]:
    """Return when each pair's circuits have been up for `need` [S S] circuit seconds, and whether they ever are."""
    time = jnp.concatenate([shown.end - shown.length, shown.end])
    order = jnp.argsort(time, stable=True)  # at equal times, begins come before ends
    time = time[order]
    count = jnp.cumsum(jnp.concatenate([shown.count, -shown.count])[order], axis=0)[:-1]
    carried = jnp.cumsum(count * jnp.diff(time)[:, None, None], axis=0)
    enough = carried >= (need * (1 - rounding))[None]
    index = jnp.argmax(enough, axis=0)
    rate = _at(count, index)
    before = _at(jnp.concatenate([jnp.zeros_like(carried[:1]), carried[:-1]]), index)
    return time[index] + (need - before) / jnp.where(rate > 0, rate, 1), enough.any(0)


def _at(values: Float[Array, "E S S"], index: Int[Array, "S S"]) -> Float[Array, "S S"]:
    return jnp.take_along_axis(values, index[None], axis=0)[0]


# -------------------------------------------------------------------------------------------------------- lower bounds
def lower_bound(
    demand: Float[Array, "S S"],
    region: Region,
    switches: int = 1,
    delay_s: Float[Array, ""] | float | None = None,
    all_stop: bool = True,
    directed: bool = True,
    first_free: bool = False,
) -> Float[Array, ""]:
    """Return a lower bound on `schedule_time` for any whole circuits on these switches [s]; arguments as in
    `CircuitSchedule`.

    A line is what one server sends, or receives; if circuits carry both directions, the mean of the two is also a line.
    With m configurations, circuits connect a line to at most m times its ports partners; packet NICs carry the bytes of
    all others, at best of the smallest. Circuits lose the seconds of delays, and the configurations of a switch follow
    one another. The bound takes the best m. If a reconfiguration stops all circuits, m is common to all lines.
    Otherwise a line loses only the ports that change, once for each new partner, and each line has its own best m.
    O(S^2 log S). For one all-stop switch without packet NICs this is the known L / B + k delay (largest line L, most
    partners k).
    """
    demand = between_servers(of_type("region", region, Region), demand)
    whole("switches", switches)
    delay = region.delay_s if delay_s is None else not_negative("delay_s", delay_s)
    how = {"switches": switches, "all_stop": all_stop, "directed": directed, "first_free": first_free}
    return _lower_bound(demand, region, delay, **how)


@functools.partial(jax.jit, static_argnames=("switches", "all_stop", "directed", "first_free"))
def _lower_bound(
    demand: Array, region: Region, delay: Any, *, switches: int, all_stop: bool, directed: bool, first_free: bool
):
    nic, delay = (jnp.asarray(value, demand.dtype) for value in (region.nic_Bps, delay))
    packet = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype), region.servers)
    lines = lines_of(demand, region.degrees, packet, directed)
    return bound_of(lines, nic, delay, switches, all_stop, first_free)


class ServerLines(NamedTuple):
    """What servers send or receive, as arrays of NumPy or of JAX.

    `bytes` [N S] of each partner, rising; `degree` [N]: most circuits; `packet` [N]: packet NICs [bytes/s].
    """

    bytes: Float[Array, "N S"]
    degree: Int[Array, "N"]
    packet: Float[Array, "N"]

    def packet_seconds(self, partners: Int[Array, "M N"]) -> Float[Array, "M N"]:
        """Return the seconds in which packet NICs carry the bytes of all but the largest `partners` partners."""
        xp, servers = array_module(*self), self.bytes.shape[1]
        rising = xp.concatenate([xp.zeros_like(self.bytes[:, :1]), xp.cumsum(self.bytes, axis=1)], axis=1)
        leftover = xp.take_along_axis(rising.T, servers - xp.clip(partners, 0, servers), axis=0)
        return over(leftover, xp.broadcast_to(self.packet[None], leftover.shape))

    def load_seconds(self, nic: Float[Array, ""], lost: Float[Array, "M N"]) -> Float[Array, "M N"]:
        """Return the seconds of all NICs together if circuits lose `lost` circuit seconds."""
        total = self.bytes.sum(1)[None] + nic * lost
        speed = nic * self.degree.astype(nic.dtype) + self.packet
        return over(total, array_module(*self).broadcast_to(speed[None], total.shape))


def lines_of(
    demand: Float[Array, "S S"], degree: Int[Array, "S"], packet: Float[Array, "S"], directed: bool
) -> ServerLines:
    xp = array_module(demand, degree, packet)
    kinds = [demand, demand.T] if directed else [demand, demand.T, (demand + demand.T) / 2]
    return ServerLines(xp.sort(xp.concatenate(kinds), axis=1), *(xp.tile(x, len(kinds)) for x in (degree, packet)))


def bound_of(
    lines: ServerLines, nic: Any, delay: Any, switches: int, all_stop: bool, first_free: bool
) -> Float[Array, ""]:
    """Return the `lower_bound` of lines; `nic`, `delay`: arrays of one number."""
    return (_all_stop_bound if all_stop else _partial_stop_bound)(lines, nic, delay, switches, first_free)


def _all_stop_bound(lines: ServerLines, nic: Any, delay: Any, switches: int, first_free: bool) -> Float[Array, ""]:
    xp, shown = array_module(*lines), _counts(lines)  # number of configurations on all switches
    some, ports = shown > 0, lines.degree[None] // switches
    reconfigurations = xp.maximum(shown - switches, 0) if first_free else xp.maximum(shown, switches)
    loaded = lines.load_seconds(nic, delay * (reconfigurations * ports).astype(nic.dtype))
    line = xp.maximum(xp.where(some, loaded, 0), lines.packet_seconds(shown * ports)).max(1, initial=0)
    in_turn = xp.maximum(-(-shown[:, 0] // switches) - int(first_free), 0)
    return xp.maximum(line, delay * in_turn.astype(nic.dtype)).min()


def _partial_stop_bound(lines: ServerLines, nic: Any, delay: Any, switches: int, first_free: bool) -> Float[Array, ""]:
    xp, met, degree = array_module(*lines), _counts(lines), lines.degree[None]  # met: partners on circuits
    changed = xp.maximum(met - degree, 0) if first_free else xp.maximum(met, degree)
    loaded = lines.load_seconds(nic, delay * changed.astype(nic.dtype))
    in_turn = xp.maximum(-(-met // xp.maximum(degree, 1)) - int(first_free), 0)
    circuits = xp.where(degree > 0, xp.maximum(loaded, delay * in_turn.astype(nic.dtype)), xp.inf)
    besides = lines.packet_seconds(xp.broadcast_to(met, circuits.shape))
    return xp.maximum(xp.where(met > 0, circuits, 0), besides).min(0).max(initial=0)


def _counts(lines: ServerLines) -> Int[Array, "M 1"]:
    return array_module(*lines).arange(lines.bytes.shape[1] + 1, dtype=lines.degree.dtype)[:, None]
