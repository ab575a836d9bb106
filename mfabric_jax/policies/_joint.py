"""Circuits and relay routing chosen together for one known demand: `sample_average` of one sample.

How good that is: docs/policies.md.
"""

from jaxtyping import Array, Float, PRNGKeyArray

from mfabric_jax.checks import whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies._sample_average import sample_average
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import between_servers


def joint(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    steps: int = 100,
    samples: int = 4,
    rounds: int = 12,
) -> Plan:
    """Circuits and relay shares with which one all-to-all ends early when its flows are paced (`relay_bound`).

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `previous`: its circuits stay where they are as good as the best to 0.1 %.
    - `key`: of noise; None: always the same.
    - `steps`, `samples`: of the relaxation, which starts from the demand and, in all samples but the first, noise.
    - `rounds`: of six swaps each, at most. What is within 0.1 % of a bound has neither relaxation nor rounds.

    Never later (by more than 0.2 %) than greedy circuits by the rule "next" with `relay_shares`. Shares are [S S S+2]
    of (via server k, direct circuits, EPS). Legal for any demand. Compiled once per shape; batched by `vmap`.
    """
    whole("samples", samples)
    demand = between_servers(region, demand)
    return sample_average(demand, region, previous=previous, key=key, steps=steps, starts=samples, rounds=rounds)
