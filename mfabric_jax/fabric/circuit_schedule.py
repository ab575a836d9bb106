"""Circuit schedules: the successive configurations of a region's optical switches, and how long each stays."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from mfabric_jax.checks import MOST_WHOLE, InputError, Misfit, concrete, not_negative, whole
from mfabric_jax.fabric.region import Region
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.arrays import counts, floats, indices
from mfabric_jax.support.platforms import soundness

UNEQUAL = "optical_degree must be a multiple of the {} switches, which share a server's ports equally"


class CircuitSchedule(eqx.Module):
    """Configurations of the parallel optical switches of one region, each for some seconds.

    - `configurations` [K S S]: circuits from server i to server j in configuration k; whole numbers if legal.
    - `seconds` [K]: how long it stays, without the reconfiguration before it.
    - `switch` [K]: its switch, from 0; every switch takes its configurations in the order listed.
    - `delay_s`: time of a reconfiguration; None: the region's delay.
    - `switches`: number of parallel switches, each with optical_degree / switches ports of every server.
    - `all_stop`: a reconfiguration stops all circuits of its switch; otherwise those that stay carry on.
    - `directed`: the two fibres of a transceiver may lead to different peers, so the ports limit rows and columns of a
      configuration separately. Otherwise a circuit joins two servers in both directions, and configurations are
      symmetric.
    - `first_free`: every switch already shows its first configuration at time 0; otherwise it needs a reconfiguration.

    The last four are static. Shapes are checked here; values are checked when a region is known.
    """

    configurations: Int[Array, "K S S"] | Float[Array, "K S S"]
    seconds: Float[Array, "K"]
    switch: Int[Array, "K"]
    delay_s: Float[Array, ""] | float | None
    switches: int = eqx.field(static=True)
    all_stop: bool = eqx.field(static=True)
    directed: bool = eqx.field(static=True)
    first_free: bool = eqx.field(static=True)

    def __repr__(self) -> str:
        shape = getattr(self.configurations, "shape", ())
        if len(shape) != 3:
            return f"<Schedules {shape}>"
        times = f" for {np.asarray(self.seconds).sum():.4g} s" if concrete(self.seconds) else ""
        return f"<Schedule: {shape[-3]} configurations of {shape[-1]} servers on {self.switches} switches{times}>"

    def __init__(
        self,
        configurations: ArrayLike | Sequence[Any],
        seconds: ArrayLike | Sequence[Any],
        switch: ArrayLike | Sequence[Any] | None = None,
        *,
        switches: int = 1,
        delay_s: Float[Array, ""] | float | None = None,
        all_stop: bool = True,
        directed: bool = True,
        first_free: bool = False,
    ):
        self.configurations = counts("configurations", configurations)
        shape = self.configurations.shape
        if len(shape) != 3 or shape[1] != shape[2]:
            raise InputError(f"configurations must be [K S S], circuits from server to server, got {list(shape)}.")
        self.seconds = floats("seconds", seconds)
        switch = np.zeros(shape[0], np.int32) if switch is None else switch
        self.switch = indices("switch", switch, -MOST_WHOLE, MOST_WHOLE)  # the range is checked with the region
        for field, value in (("seconds", self.seconds), ("switch", self.switch)):
            if value.shape != shape[:1]:
                wanted = f"[K] = [{shape[0]}], one for each configuration"
                raise InputError(f"{field} must have the shape {wanted}, got {list(value.shape)}.")
        self.delay_s = delay_s if delay_s is None else not_negative("delay_s", delay_s)
        self.switches = whole("switches", switches)
        self.all_stop, self.directed, self.first_free = bool(all_stop), bool(directed), bool(first_free)

    def check_region(self, region: Region) -> "CircuitSchedule":
        """Return self if the region can run the schedule.

        Otherwise raise `InputError` with the first configuration that breaks a rule, and the rule. Traced values raise
        a runtime error with the rule, on CPUs only; on accelerators `seconds`, and all times that follow, are NaN.
        """
        servers = self.configurations.shape[-1]
        if servers != region.servers:
            raise InputError(f"configurations must be [K S S] with S = {region.servers} servers, got S = {servers}.")
        values = (self.configurations, self.seconds, self.switch, region.optical_degree)
        if all(concrete(value) for value in values):
            self._refuse([np.asarray(value) for value in values])
            return self
        unequal = jnp.any(jnp.asarray(region.optical_degree) % self.switches != 0)
        rules = _violations(values, self.switches, self.directed)
        broken = jnp.stack([unequal, *(mask.any() for mask in rules.values())])
        words = [UNEQUAL.format(self.switches), *(f"a configuration of the schedule has {rule}" for rule in rules)]
        seconds = self.seconds * soundness(broken, words).astype(self.seconds.dtype)
        return eqx.tree_at(lambda schedule: schedule.seconds, self, seconds)

    def _refuse(self, values: Sequence[np.ndarray]) -> None:
        if np.any((degree := values[-1]) % self.switches != 0):
            raise Misfit(f"{UNEQUAL.format(self.switches)}, got {degree.tolist()}.")
        for rule, mask in _violations(values, self.switches, self.directed).items():
            if mask.any():
                raise InputError(f"configurations[{int(np.argmax(mask))}] of the schedule has {rule}.")


def _violations(values: Sequence[Any], switches: int, directed: bool) -> dict[str, Any]:
    """Configurations [K] that break each rule; `values`: configurations, seconds, switch, ports of every server."""
    configurations, seconds, switch, degree = values
    xp = array_module(*values)
    out, into = (configurations.sum(axis) for axis in (2, 1))
    ports = xp.asarray(degree // switches).astype(out.dtype)
    server = np.arange(configurations.shape[-1])
    reverse = xp.swapaxes(configurations, 1, 2)
    rules = {
        "a negative count of circuits": ~(configurations >= 0).all((1, 2)),
        "a server joined to itself": (configurations[:, server, server] != 0).any(1),
        "more circuits at a server than its ports on one switch": ((out > ports) | (into > ports)).any(1),
        "seconds that are negative or not finite": ~((seconds >= 0) & (seconds < xp.inf)),
        f"a switch that is not from 0 to {switches - 1}": (switch < 0) | (switch >= switches),
    }
    if not directed:
        rules["circuits in only one direction, which need directed = True"] = (configurations != reverse).any((1, 2))
    return rules
