"""Policy and routing of a region for batches: `OnHost` on the host, `Traced` and `Numbered` inside a JAX program.

Demands are indices into a table. Circuits are indices into the circuits chosen so far if the solver runs on the host or
the policy reads the demand alone. They are arrays [.. S S], possibly fractional, if JAX traces a policy with memory,
that is, one that also reads the circuits in place.
"""

import functools
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.evaluate.circuits import WalkSteps
from mfabric_jax.evaluate.links import with_acks
from mfabric_jax.evaluate.rules import Seconds
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import new_circuits
from mfabric_jax.policies import Policy, random_circuits, uniform
from mfabric_jax.policies.reads import Reads, Remembering
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.support.array_module import Array, array_module

MOST = 1 << 31  # above every index of circuits
LARGEST = np.iinfo(np.int64).max
PAIRS_A_STEP = 16  # pairs of circuits and demands; with more per step, seconds are computed step by step


class Tables(NamedTuple):
    """Arrays that questions refer to by index.

    - `demand` [D S S]: bytes between servers.
    - `samples` [G K S S]: forecasts for policies of many demands, each sent `times` [G K] (None: they are equally
      likely); None: forecasts are indices into `demand`.
    - `key` [N ..]: random keys; None: none.
    - `rates` [C 2]: bandwidth [Gbps] and delay [s] that a policy reads; None: bandwidth and delay of the solver's
      region.
    """

    demand: Array
    samples: Array | None = None
    times: Array | None = None
    key: Array | None = None
    rates: Array | None = None

    def question(self, before: Array, demand: Any, key: Any, case: Any, ahead: bool) -> "Question":
        """Return a policy's question with circuits `before` in place, the rest by index; `ahead`: for a forecast."""
        own = self.demand, None
        if ahead and self.samples is not None:
            own = self.samples, self.times
        tables, numbers = (*own, self.key, self.rates), (demand, demand, key, case)
        members = (None if x is None else x[number] for x, number in zip(tables, numbers, strict=True))
        return Question(next(members), before, *members)


class Question(NamedTuple):
    """Inputs of a policy, once or many times [B ..]: a demand [S S], or samples [K S S] with `times`, and the rest."""

    demand: Array
    before: Array | None = None
    times: Array | None = None
    key: Array | None = None
    rates: Array | None = None


def ask(policy: Policy, region: Region, question: Question) -> Array:
    """Return the circuits [S S] that a policy chooses."""
    there, options = _arguments(region, question)
    return policy(question.demand, there, **options).circuits.count


def recall(
    policy: Remembering, region: Region, question: Question, history: Array, state: Any, position: tuple[Any, Any]
) -> tuple[Array, Any]:
    """Return the circuits [S S] that a policy chooses, and its new state."""
    there, options = _arguments(region, question)
    plan, state = policy.recall(question.demand, there, history, state, position, **options)
    return plan.circuits.count, state


def _arguments(region: Region, question: Question) -> tuple[Region, dict[str, Any]]:
    there = (
        region
        if question.rates is None
        else eqx.tree_at(lambda r: (r.nic_gbps, r.delay_s), region, tuple(question.rates))
    )
    before: Any = question.before
    options: dict[str, Any] = {"previous": Plan(Circuits(before)), "key": question.key}
    if question.times is not None:
        options["weights"] = question.times * jax.vmap(lambda demand: degree_bound(there, demand))(question.demand)
    return there, options


# --------------------------------------------------------------------------------------------------------- on the host
class Memo:
    """Cache of results for rows of integers; `sizes`: upper bounds of all integers except the first."""

    def __init__(self, *sizes: int):
        self._shape = (LARGEST // math.prod(sizes), *sizes)
        self._codes, self._results = np.array([LARGEST]), np.zeros(0)  # sorted; the last is a sentinel

    def __call__(self, work: Callable[..., np.ndarray], *parts: np.ndarray) -> np.ndarray:
        """Return `work(*parts)` [B ..] for integers of any shape; computes only rows that are not cached."""
        code = np.asarray(np.ravel_multi_index(parts, self._shape))
        known = self._codes[np.searchsorted(self._codes, code)] == code
        if len(fresh := np.unique(code[~known])):
            results = work(*np.unravel_index(fresh, self._shape))
            results = np.concatenate([self._results, results]) if len(self._results) else results
            codes = np.concatenate([self._codes[:-1], fresh])
            order = np.argsort(codes)
            self._codes, self._results = np.append(codes[order], LARGEST), results[order]
        return self._results[np.searchsorted(self._codes, code)]


class RegionFunctions(NamedTuple):
    """Functions of a region on the host: they choose circuits [B S S], and time circuits and packet switches.

    - `choose`: circuits for questions [B ..]; `draw`: random circuits for keys [B ..].
    - `seconds`: from circuits and demands [B S S]; `waiting`: from circuits, previous circuits and demands; also gives
      the seconds of traffic that waits for the switch.
    - `recall`: circuits and states of a policy that remembers, for questions, history, states and positions [B ..].
    """

    choose: Callable[[Question], np.ndarray]
    draw: Callable[[np.ndarray], np.ndarray]
    seconds: Callable[[np.ndarray, np.ndarray], Seconds]
    waiting: Callable[[np.ndarray, np.ndarray, np.ndarray], Seconds]
    recall: Callable[[Question, np.ndarray, Any, Any], tuple[np.ndarray, Any]] | None = None


class OnHost:
    """Solver on the host: circuits are indices, and equal questions are computed once; `lock`: for one thread."""

    scans = remembers = False

    def __init__(self, tables: Tables, start: np.ndarray, functions: RegionFunctions, reads: Reads):
        self.alone = not reads.before
        self.tables, self.functions, self.reads = tables, functions, reads
        self._counts, self._numbers = [start], {start.tobytes(): 0}
        cases = 1 if tables.rates is None else len(tables.rates)
        keys = 1 if tables.key is None else len(tables.key)
        samples = len(tables.demand) if tables.samples is None else len(tables.samples)
        demands = len(tables.demand)
        self._chosen = Memo(demands, keys, cases), Memo(samples, keys, cases)
        self._drawn, self._timed, self._new_circuits = Memo(), Memo(demands), Memo(MOST)
        self.lock = threading.Lock()  # blocks of cases that run in parallel share all-to-alls
        self.nbytes = 2 * tables.demand.nbytes  # and about as many of circuits

    @property
    def counts(self) -> np.ndarray:
        """Circuits [N S S] by index."""
        return np.stack(self._counts)

    def begin(self, many: int) -> np.ndarray:
        return np.zeros(many, int)

    def prepare(self, steps: WalkSteps, rule: str) -> None:
        """Compute in one batch the circuits and seconds that the walk is sure to need."""
        if self.reads.before:
            return
        sent = steps.sent if rule != "reuse" else slice(None)
        nothing, row = np.zeros_like(steps.demand[sent]), WalkSteps(*(x[sent] for x in steps))
        chosen = self.choose(nothing, row) if rule != "span" else nothing
        if rule in ("span", "predict"):
            self.choose(nothing, row, ahead=True)
        if rule == "pays" and _few_pairs(steps):
            self.seconds(*_pairs(steps, chosen))

    def choose(self, before: np.ndarray, row: WalkSteps, ahead: bool = False) -> np.ndarray:
        """Return circuits for the demand; `ahead`: for the forecast."""

        def work(before: Array, demand: Array, key: Any, case: Any):
            question = self.tables.question(self.counts[before], demand, key, case, ahead)
            return self._number(self.functions.choose(question))

        read = self.reads.before, True, self.reads.key, self.tables.rates is not None
        numbers = before, row.forecast if ahead else row.demand, row.key, row.case
        memo = self._chosen[ahead and self.tables.samples is not None]
        return memo(work, *(number * used for number, used in zip(numbers, read, strict=True)))

    def draw(self, row: WalkSteps) -> np.ndarray:
        assert self.tables.key is not None
        keys = self.tables.key
        return self._drawn(lambda key: self._number(self.functions.draw(keys[key])), row.key)

    def _number(self, counts: np.ndarray) -> np.ndarray:
        numbers, counts = [], np.asarray(counts)
        with np.errstate(invalid="ignore"):
            whole = counts.astype(self._counts[0].dtype)
        for count, real in zip(whole, counts, strict=True):
            count = count if (count == real).all() else real  # kept unrounded: illegal circuits are refused later
            if (number := self._numbers.get(key := count.tobytes())) is None:
                number = self._numbers[key] = len(self._counts)
                self._counts.append(count)
            numbers.append(number)
        return np.array(numbers)

    def seconds(self, count: np.ndarray, demand: np.ndarray) -> Seconds:
        return self._once(self._timed, self.functions.seconds, count, demand)

    def waiting(self, count: np.ndarray, before: np.ndarray, demand: np.ndarray) -> Seconds:
        """Return `seconds` and, third, the seconds of traffic that waits for the switch to replace `before`."""
        memo = Memo(len(self._counts), len(self.tables.demand))
        return self._once(memo, self.functions.waiting, count, before, demand)

    def _once(self, memo: Memo, function: Callable[..., Seconds], *numbers: np.ndarray) -> Seconds:
        def work(*numbers: Any) -> np.ndarray:
            counts, (*circuits, demand) = self.counts, numbers
            members = *(counts[number] for number in circuits), self.tables.demand[demand]
            return np.stack(function(*members), axis=-1)

        return tuple(np.moveaxis(memo(work, *np.broadcast_arrays(*numbers)), -1, 0))

    def new_circuits(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Number of new circuits."""

        def work(before: Array, after: Array) -> Any:
            counts = self.counts
            return new_circuits(counts[before], counts[after])

        return self._new_circuits(work, *np.broadcast_arrays(before, after))

    def where(self, mask: Array, count: Array, other: Array) -> Any:
        return np.where(mask, count, other)

    def differ(self, count: Array, other: Array) -> Any:
        return count != other

    def as_arrays(self, count: np.ndarray) -> np.ndarray:
        """Return the circuits [.. S S] at indices."""
        return self.counts[count]


def _demands_of_stages(steps: WalkSteps) -> list[np.ndarray]:
    """The distinct demands of every stage; stages with equal demands appear once."""
    each = (np.unique(own[sent]) for own, sent in zip(steps.demand.T, steps.sent.T, strict=True))
    return list({own.tobytes(): own for own in each}.values())


def _few_pairs(steps: WalkSteps) -> bool:
    """Whether one batch of all pairs of a stage's demands is less work than timing its all-to-alls in sequence."""
    return max(map(len, _demands_of_stages(steps))) ** 2 <= PAIRS_A_STEP * len(steps.demand)


def _pairs(steps: WalkSteps, chosen: np.ndarray, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of circuits and demands that stages may need: circuits `chosen` for each demand, and the initial ones."""
    known = np.zeros(int(steps.demand.max(initial=0)) + 1, int)
    known[steps.demand[steps.sent]] = chosen
    pairs = set()
    for own in _demands_of_stages(steps):
        pairs |= set(itertools.product((start, *known[own].tolist()), own.tolist()))
    counts, demands = np.array(sorted(pairs), int).reshape(-1, 2).T
    return counts, demands


# --------------------------------------------------------------------------------------------- inside a program of JAX
class Traced:
    """Solver inside a JAX program for a policy with memory: circuits are arrays [.. S S].

    - `parts`: function (region, circuits, demand) -> seconds of circuits and of packet switches. If a fourth argument
      gives newly set-up pairs, it also returns the seconds of traffic that waits for them.
    - `region`: at unit bandwidth; `acks`: bytes of acknowledgement per byte.
    """

    scans, alone, remembers = True, False, False

    def __init__(self, tables: Tables, region: Region, policy: Policy, parts: Callable[..., Any], acks: float = 0.0):
        self.tables, self.region, self.policy = jax.tree.map(jnp.asarray, tables), region, policy
        self.parts, self.carried = parts, with_acks(self.tables.demand, acks)
        self.uniform = uniform(None, region).circuits.count
        first = self.tables.question(self.uniform, 0, 0, 0, ahead=False)
        chosen = jax.eval_shape(lambda: ask(policy, region, first)).dtype
        self.dtype = chosen if jnp.issubdtype(chosen, jnp.floating) else self.uniform.dtype  # may be fractional

    def begin(self, many: int) -> Array:
        return jnp.broadcast_to(self.uniform.astype(self.dtype), (many, *self.uniform.shape))

    def prepare(self, steps: WalkSteps, rule: str) -> None:
        """Do nothing: nothing is known before the walk."""

    def choose(self, before: Array, row: WalkSteps, ahead: bool = False) -> Array:
        """Return circuits for the demand; `ahead`: for the forecast."""
        number = row.forecast if ahead else row.demand
        question = self.tables.question(before, number, row.key, row.case, ahead)
        return jax.vmap(lambda single: ask(self.policy, self.region, single))(question).astype(self.dtype)

    def draw(self, row: WalkSteps) -> Array:
        assert self.tables.key is not None
        drawn = jax.vmap(lambda key: random_circuits(self.tables.demand[0], self.region, key=key).circuits.count)
        return drawn(self.tables.key[row.key]).astype(self.dtype)

    def seconds(self, count: Array, demand: Array) -> Seconds:
        return self._run_batch(lambda c, d: self.parts(self.region, Circuits(c), d), demand, count)

    def waiting(self, count: Array, before: Array, demand: Array) -> Seconds:
        """Return `seconds` and, third, the seconds of traffic that waits for the switch to replace `before`."""
        work = lambda c, b, d: self.parts(self.region, Circuits(c), d, c > b)  # noqa: E731
        return self._run_batch(work, demand, count, before)

    def _run_batch(self, work: Callable[..., Any], demand: Array, *counts: Array) -> Seconds:
        flat = [count.reshape(-1, *count.shape[-2:]) for count in counts]
        parts = jax.vmap(work)(*flat, self.carried[demand.reshape(-1)])
        return tuple(part.reshape(demand.shape) for part in parts)

    def new_circuits(self, before: Array, after: Array) -> Array:
        """Number of new circuits."""
        return new_circuits(before, after).astype(self.tables.demand.dtype)

    def where(self, mask: Array, count: Array, other: Array) -> Any:
        return jnp.where(mask[..., None, None], count, other)

    def differ(self, count: Array, other: Array) -> Any:
        return jnp.any(count != other, axis=(-2, -1))

    def as_arrays(self, count: Array) -> Array:
        return count


class Numbered(Traced):
    """Solver inside a JAX program for a policy of the demand alone: circuits are indices, one for each demand.

    The indices are known while JAX traces, unless seconds decide which circuits serve. So each pair of circuits and
    demand is timed once.
    """

    scans, alone = False, True

    def __init__(self, tables: Tables, *arguments: Any):
        super().__init__(tables, *arguments)
        demands = len(tables.demand)
        self.counts = [self._each(super().choose, demands)]
        self.ahead, self.drawn = 0, 0  # indices of the first circuits for forecasts, and of the first drawn ones
        if tables.samples is not None:
            self.ahead = demands
            choose = functools.partial(super().choose, ahead=True)
            self.counts.append(self._each(choose, len(tables.samples)))
        self.pairs, self.number_of_pair = None, np.zeros((0, 0), np.int32)

    def _each(self, choose: Callable[..., Any], many: int) -> Array:
        number = np.arange(many, dtype=np.int32)
        return choose(super().begin(many), WalkSteps(number, number, *[0 * number] * 6))

    def prepare(self, steps: WalkSteps, rule: str) -> None:
        """Fix the table of circuits and, if the pairs that a walk may need are few, time them all."""
        self.start = sum(map(len, self.counts))
        if rule == "random":
            self.drawn, keys = self.start, np.arange(len(self.tables.key), dtype=np.int32)  # type: ignore[arg-type]
            self.counts.append(super().draw(steps._replace(key=keys)))
            self.start += len(keys)
        self.table = jnp.concatenate([*self.counts, super().begin(1)])
        self.scans = rule == "pays"
        if self.scans and _few_pairs(steps):
            count, demand = _pairs(steps, steps.demand[steps.sent], self.start)
            self.number_of_pair = np.zeros((self.start + 1, len(self.tables.demand)), np.int32)
            self.number_of_pair[count, demand] = np.arange(len(count))
            self.pairs = super().seconds(self.table[count], demand)

    def begin(self, many: int) -> Array:
        return np.full(many, self.start, np.int32)

    def choose(self, before: Array, row: WalkSteps, ahead: bool = False) -> Array:
        return self.ahead + row.forecast if ahead else row.demand

    def draw(self, row: WalkSteps) -> Array:
        return self.drawn + row.key

    def seconds(self, count: Array, demand: Array) -> Seconds:
        if self.pairs is None or isinstance(count, np.ndarray):
            return self._once(super().seconds, (count,), demand)
        number = jnp.asarray(self.number_of_pair)[count, demand]
        return tuple(part[number] for part in self.pairs)

    def waiting(self, count: Array, before: Array, demand: Array) -> Seconds:
        return self._once(super().waiting, (count, before), demand)

    def new_circuits(self, before: Array, after: Array) -> Array:
        return self._once(super().new_circuits, (before, after))

    def differ(self, count: Array, other: Array) -> Array:
        return self._once(super().differ, (count, other))

    def _once(self, work: Callable[..., Any], circuits: tuple[Array, ...], *demand: Array) -> Any:
        """Run `work` on circuits and demands; if their indices are known, only on distinct rows."""
        if not all(isinstance(number, np.ndarray) for number in circuits):
            return work(*(self.table[number] for number in circuits), *demand)
        numbers = np.broadcast_arrays(*circuits, *demand)
        rows, of_each = np.unique(np.stack([each.ravel() for each in numbers]), axis=1, return_inverse=True)
        results = work(*(self.table[row] for row in rows[: len(circuits)]), *rows[len(circuits) :])
        return jax.tree.map(lambda part: part[of_each.reshape(numbers[0].shape)], results)

    def where(self, mask: Array, count: Array, other: Array) -> Any:
        return array_module(mask, count, other).where(mask, count, other)

    def as_arrays(self, count: Array) -> Array:
        return self.table[count]
