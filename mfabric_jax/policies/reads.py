"""What circuits depend on besides the demand. Each distinct demand is planned once if they depend on nothing else."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array

SEEN = 16  # demands of `history`
KEYWORDS = ("history", "state", "block", "backward")  # of policies that remember, or know which block they serve
FIRST = (np.int32(0), np.bool_(False))  # block and direction where there are no blocks


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A trained policy with its training `configuration`; called like any policy and equal only to itself.

    `kind`: that of its file; None: it is from no file.
    """

    model: Any
    configuration: Mapping[str, Any]
    kind: str | None = None

    def __call__(
        self, demand: Array, region: Region, *, previous: Plan | None = None, key: Array | None = None, **settings: Any
    ) -> Plan:
        return self.model(demand, region, previous=previous, key=key, **settings)


@dataclasses.dataclass(frozen=True, eq=False)
class Remembering:
    """A user's policy with one of `KEYWORDS`. A call like that of any policy is a first call."""

    policy: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.policy)

    def __call__(self, demand: Array, region: Region, **options: Any) -> Plan:
        nothing = jnp.zeros((SEEN, *demand.shape[-2:]), demand.dtype)
        return self.recall(demand, region, nothing, None, FIRST, **options)[0]

    def recall(
        self, demand: Array, region: Region, history: Array, state: Any, position: tuple[Any, Any], **options: Any
    ) -> tuple[Plan, Any]:
        """Return the plan and the new state, None for a policy without the keyword `state`.

        - `history` [SEEN S S]: the last demands, newest last; zeros where there were fewer.
        - `state`: that of the last call; None at first.
        - `position`: the number of the MoE block, and whether its pass is backward.
        """
        memory = dict(zip(KEYWORDS, (history, state, *position), strict=True))
        known = {name: value for name, value in memory.items() if name in self.__signature__.parameters}
        returned = self.policy(demand, region, **known, **options)
        return returned if "state" in known else (returned, None)


@functools.lru_cache(maxsize=64)
def remembering(policy: Callable[..., Any]) -> Remembering:
    """Return the policy with its memory; the same object for the same policy, so JAX reuses its programs."""
    return Remembering(policy)


class Reads(NamedTuple):
    """Whether a policy reads the current circuits (`before`), its random `key`, and earlier calls (`memory`)."""

    before: bool = True
    key: bool = True
    memory: bool = False

    @property
    def demand_alone(self) -> bool:
        return not (self.before or self.key)


ALONE, EVERYTHING = Reads(before=False, key=False), Reads()
BY_NAME = {
    "random": Reads(before=False),
    "threshold": Reads(before=False),
    "relaxed": Reads(before=False),
    "previous": Reads(key=False),
    "learned": Reads(key=False),
    "untrained": Reads(key=False),
    "ahead": Reads(before=False),
    "local-search": EVERYTHING,
    "joint": EVERYTHING,
    "sample-average": EVERYTHING,
}  # all other policies of the package: ALONE


def traced_reads(policy: Any, region: Region) -> Reads:
    """Return what the policy's traced program reads; whatever it passes to a compiled function counts as read."""
    servers = region.servers
    demand, before = jnp.ones((servers, servers)), jnp.zeros((servers, servers), jnp.int32)

    def circuits(demand: Array, before: Array, key: Array):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    program = jax.make_jaxpr(circuits)(demand, before, jax.random.key(0)).jaxpr
    used = {id(read) for step in program.eqns for read in step.invars} | {id(read) for read in program.outvars}
    _, in_place, key = program.invars
    return Reads(id(in_place) in used, id(key) in used)
