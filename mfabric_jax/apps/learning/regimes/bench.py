"""Compare policies over time in all regimes: `mfabric policies regimes`."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import policies
from mfabric_jax.apps.learning.regimes.cells import DELAYS_S, DRIFTING, NIC_GBPS, OF_RECORDINGS, RECORDED, Regime
from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains, check_recording, draw_chains
from mfabric_jax.apps.learning.regimes.controls import CONTROLS, SLOW, Control, of_policy, renewal_of_policy
from mfabric_jax.apps.learning.regimes.learned import learned
from mfabric_jax.apps.learning.regimes.lookahead import clairvoyant_s, informed_s, table_of
from mfabric_jax.case.policies import is_file, is_function
from mfabric_jax.checks import InputError, check_list, distinct, not_negative, whole
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.fabric import Region
from mfabric_jax.routing import degree_bound

CLAIRVOYANT, LEARNED, RENEWAL = "clairvoyant", "learned", "renewal of "
PAIRED = "renewal"  # the row that all are compared with, seed by seed
COMPARED: dict[str, Control] = CONTROLS | {LEARNED: learned}
KNOWN = (1, 4, 12)  # next demands that are known
INFORMED = {f"next {known} known": known for known in KNOWN}
STUDENT = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}  # 95 %
AT_ONCE = 2  # regimes
LARGEST = 16  # servers up to which slow policies run
SIZES = tuple(sorted({regime.servers for regime in DRIFTING}))
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regimes:
    """What to compare: a row for each regime, delay and policy."""

    also: tuple[str, ...] | None = None
    """Further policies, beside those that are always compared: names, files that mfabric train wrote, or
    FILE.py:FUNCTION. A policy with the setting `history` gets the last 16 demands, in bytes; with the setting `state`
    it returns (plan, state) and gets its last state, None at first. Each has two rows: circuits changed always, and
    "renewal of" the policy, which decides between its circuits and even ones."""
    full: bool = False
    """Draw twice as many seeds, chains and decisions."""
    servers: tuple[int, ...] = SIZES
    """Sizes of regions; regimes of other sizes are left out, so 8 and 32 leave one each. Regimes differ in the memory
    of demand, its spread over pairs and experts, NICs, forecasts and routing."""
    delays_s: tuple[float, ...] = DELAYS_S
    """Delays of a reconfiguration, in seconds."""
    trace: str | None = None
    """Recording of routing, for regimes of recorded demand besides those of drifting demand."""
    seeds: int = 5
    """Seeds, 2 to 10. Intervals are over seeds."""
    chains: int = 4
    """Chains of demands for each seed."""
    decisions: int = 32
    """All-to-alls of a chain that count; 16 more come first and only warm up the policies."""

    def __post_init__(self):
        for field in ("seeds", "chains", "decisions"):
            whole(field, getattr(self, field))
        if self.seeds not in STUDENT:
            raise InputError(f"seeds must be a number from 2 to {max(STUDENT)}, got {self.seeds}.")
        for servers in distinct("servers", check_list("servers", self.servers)):
            if servers not in SIZES:
                raise InputError(f"servers must be among {', '.join(map(str, SIZES))}, got {servers}.")
        for delay_s in distinct("delays_s", check_list("delays_s", self.delays_s)):
            not_negative("delay_s", delay_s)
        for name in distinct("also", self.also) if self.also is not None else ():
            if name == LEARNED:
                same = f"write '{LEARNED}()' for the policy of this name"
                raise InputError(f"also names further policies; {name!r} is ahead with renewal here: {same}.")
            if name in COMPARED:
                raise InputError(f"also names further policies; {name!r} is compared anyway.")
            policies.get(name)

    @property
    def regimes(self) -> list[Regime]:
        every = DRIFTING + (OF_RECORDINGS if self.trace is not None else ())
        return [regime for regime in every if regime.servers in self.servers]

    @property
    def size(self) -> tuple[int, int, int]:
        """Seeds, chains for each and decisions."""
        factor = 2 if self.full else 1
        return min(factor * self.seeds, max(STUDENT)), factor * self.chains, factor * self.decisions

    @property
    def rows(self) -> int:
        return sum(self.blocks)

    @property
    def blocks(self) -> list[int]:
        """Numbers of rows of the regimes, which are finished together."""
        return [len(self.names(regime)) * len(self.delays_s) for regime in self.regimes]

    def names(self, regime: Regime) -> list[str]:
        """Return the compared policies, causal ones first."""
        package = [name for name in COMPARED if regime.servers <= LARGEST or name not in SLOW]
        own = [each for name in self.also or () for each in (name, RENEWAL + name) if each not in COMPARED]
        return [*package, *own, *INFORMED, CLAIRVOYANT]

    def effective(self) -> dict[str, Any]:
        return {"command": "policies regimes"} | dataclasses.asdict(self) | provenance("float32")


def compare_regimes(config: Regimes, *, progress: Callable[[str], None] | None = None, start: int = 0) -> Iterator[Row]:
    """Yield the rows of each regime when it is ready, by delay and policy; skip the first `start` rows.

    The first regime runs alone, so that programs are compiled once; then two run at a time. Before, at the call,
    raise `InputError` if the recording is too short, if JAX cannot trace the policies of `also`, or if their circuits
    are not legal.
    """
    if config.trace is not None and any(regime.demand == RECORDED for regime in config.regimes):
        seeds, per_seed, decisions = config.size
        check_recording(config.trace, seeds * per_seed, decisions)
    for name, (servers, optical) in itertools.product(
        config.also or (), dict.fromkeys((regime.servers, regime.optical) for regime in config.regimes)
    ):
        policies.try_out(policies.get(name), name, servers, optical, SEEN)
    return _rows(config, progress or (lambda message: None), start)


def _rows(config: Regimes, tell: Callable[[str], None], start: int) -> Iterator[Row]:
    left, done = [], 0
    for regime, many in zip(config.regimes, config.blocks, strict=True):
        if done + many > start:
            left.append((regime, max(0, start - done)))
        done += many
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        for regime, skipped in left[:1]:
            yield from _rows_of(config, regime, tell)[skipped:]
        yield from itertools.chain.from_iterable(pool.map(lambda own: _rows_of(config, own[0], tell), left[1:]))
    finally:
        pool.shutdown(cancel_futures=True)


def describe(regime: Regime) -> str:
    words = [f"{regime.servers} servers, {regime.optical} + {regime.electrical} NICs"]
    if regime.memory is not None:
        words.append(f"memory {regime.memory:g}, pairs {regime.pairs:g}, skew {regime.skew:g}")
    return ", ".join([*words, f"forecast {regime.sigma}", regime.routing])


def _rows_of(config: Regimes, regime: Regime, tell: Callable[[str], None]) -> list[Row]:
    seeds, per_seed, decisions = config.size
    where = describe(regime)
    tell(where)
    chains = draw_chains(regime, range(seeds), per_seed, decisions, config.trace)
    delays = jnp.asarray(config.delays_s, jnp.float32)
    table = table_of(chains, regime.routing)
    served, deciding = {}, [name for name in config.names(regime) if name not in INFORMED and name != CLAIRVOYANT]
    for number, name in enumerate(deciding):
        tell(f"{where}: {number} of {len(deciding)} policies done; {name}")
        served[name] = _control(name)(_some(name, chains), delays, regime.routing)
    totals = {name: np.asarray(own.total_s(delays), np.float64) for name, own in served.items()}
    bound = np.asarray(_bounds(chains.region, chains.demand[:, SEEN:]), np.float64)
    rows = []
    for number, delay_s in enumerate(config.delays_s):
        best, renewed = clairvoyant_s(table, delay_s), totals[PAIRED][number]
        for name in config.names(regime):
            first = _choose_chains(name, chains)
            if name in served:
                total = totals[name][number]
                changes, decision_s = float(served[name].changed[number].mean()), served[name].decision_s
            else:
                total = best if name == CLAIRVOYANT else informed_s(table, delay_s, INFORMED[name])
                changes, decision_s = None, None
            row = _row(regime, delay_s, name, total, best[first], renewed[first], bound[first], chains.seed[first])
            rows.append(row | {"bound_s": bound.mean() / decisions, "changes": changes, "decision_s": decision_s})
    return rows


def _control(name: str) -> Control:
    if name in COMPARED:
        return COMPARED[name]
    control, own = (renewal_of_policy, name[len(RENEWAL) :]) if name.startswith(RENEWAL) else (of_policy, name)
    return functools.partial(control, policies.get(own), name=own)


def _choose_chains(name: str, chains: Chains) -> np.ndarray:
    """Return the chains on which a policy runs: slow ones on the first of each seed."""
    every = np.arange(len(chains.seed))
    return np.unique(chains.seed, return_index=True)[1] if name in SLOW else every


def _some(name: str, chains: Chains) -> Chains:
    kept = _choose_chains(name, chains)
    if len(kept) == len(chains.seed):
        return chains
    arrays = {field: getattr(chains, field)[kept] for field in ("demand", "forecast", "seed")}
    return dataclasses.replace(chains, **arrays)


@jax.jit
def _bounds(region: Region, demand: Float[Array, "B N S S"]) -> Float[Array, "B"]:
    """Return the degree bounds of each chain's demands, summed [s]."""
    return jax.vmap(jax.vmap(lambda matrix: degree_bound(region, matrix)))(demand).sum(1)


def _row(
    regime: Regime,
    delay_s: float,
    name: str,
    total: np.ndarray,
    best: np.ndarray,
    renewed: np.ndarray,
    bound: np.ndarray,
    seed: np.ndarray,
) -> Row:
    trained = name == LEARNED or (is_file(name) and not is_function(name))
    facts = {"policy": name, "causal": name not in INFORMED and name != CLAIRVOYANT, "learned": trained}
    facts |= {"delay_s": delay_s} | regime._asdict() | {"nic_gbps": NIC_GBPS}
    facts |= _per_cent("gap", total, best, seed) | _per_cent("beyond_renewal", total, renewed, seed)
    return facts | {"over_bound": total.sum() / bound.sum()}


def _per_cent(name: str, total: np.ndarray, base: np.ndarray, seed: np.ndarray) -> dict[str, float]:
    """Return by how many per cent the total exceeds the base: the mean of the seeds, and its 95 % interval."""
    more = np.array([100 * (total[seed == own].sum() / base[seed == own].sum() - 1) for own in np.unique(seed)])
    mean, half = more.mean(), STUDENT[len(more)] * more.std(ddof=1) / math.sqrt(len(more))
    return {name: mean, f"{name}_low": mean - half, f"{name}_high": mean + half}
