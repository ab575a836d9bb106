"""A region's policy and routing for batches: `Now` on the host, `Traced` and `Numbered` inside a program of JAX.

Demands are numbers of a table. Circuits are numbers of those that were chosen so far, where a policy knows the demand
alone or the host asks it; where JAX traces a policy with memory they are arrays [.. S S], which may be real numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.array_module import Array, array_module
from mfabric_jax.evaluate.circuits import Steps
from mfabric_jax.evaluate.rules import Seconds
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import circuits_anew
from mfabric_jax.policies import Policy, random_circuits, uniform
from mfabric_jax.policies.reads import Reads
from mfabric_jax.routing import Plan, degree_bound

MOST = 1 << 31  # above all numbers of circuits
PAIRS_A_STEP = 16  # of circuits and demands; with more for every step, seconds are worked out step by step


class Tables(NamedTuple):
    """What is asked about, by number.

    - `demand` [D S S]: bytes between servers.
    - `samples` [G K S S]: what policies of many demands are asked with ahead, each sent `times` [G K] (None: they are
      equally likely); None: forecasts are numbers of `demand`.
    - `key` [N ..]: random keys; None: none.
    - `rates` [C 2]: bandwidth [Gbps] and delay [s] of the region that a policy is asked in; None: the solver's own.
    """

    demand: Array
    samples: Array | None = None
    times: Array | None = None
    key: Array | None = None
    rates: Array | None = None


class Question(NamedTuple):
    """One question to a policy, or many [B ..]: a demand [S S], or samples [K S S] with `times`, and what it knows."""

    demand: Array
    before: Array | None = None
    times: Array | None = None
    key: Array | None = None
    rates: Array | None = None


def ask(policy: Policy, region: Region, one: Question) -> Array:
    """Circuits [S S] that a policy chooses."""
    there = region if one.rates is None else eqx.tree_at(lambda r: (r.nic_gbps, r.delay_s), region, tuple(one.rates))
    before: Any = one.before
    given: dict[str, Any] = {"previous": Plan(Circuits(before)), "key": one.key}
    if one.times is not None:
        given["weights"] = one.times * jax.vmap(lambda demand: degree_bound(there, demand))(one.demand)
    return policy(one.demand, there, **given).circuits.count


# --------------------------------------------------------------------------------------------------------- on the host
class Memo:
    """Results of rows of whole numbers, each worked out once; `sizes`: above all numbers but the first."""

    def __init__(self, *sizes: int):
        self._sizes = sizes
        self._codes, self._results = np.zeros(0, np.int64), np.zeros(0)

    def __call__(self, work: Callable[..., np.ndarray], *parts: np.ndarray) -> np.ndarray:
        """`work(*parts)` [B ..] for numbers of any shape, asked for rows that are not known."""
        code = np.asarray(parts[0], np.int64)
        for part, size in zip(parts[1:], self._sizes, strict=True):
            code = code * size + part
        if len(fresh := np.unique(code[~self._knows(code)])):
            self._add(fresh, work(*self._numbers(fresh)))
        return self._results[np.searchsorted(self._codes, code)]

    def _knows(self, code: np.ndarray) -> np.ndarray:
        if not len(self._codes):
            return np.zeros(code.shape, bool)
        at = np.minimum(np.searchsorted(self._codes, code), len(self._codes) - 1)
        return self._codes[at] == code

    def _numbers(self, code: np.ndarray) -> list[np.ndarray]:
        found = []
        for size in reversed(self._sizes):
            code, number = np.divmod(code, size)
            found.append(number)
        return [code, *reversed(found)]

    def _add(self, codes: np.ndarray, results: np.ndarray) -> None:
        if not len(self._codes):
            self._codes, self._results = codes, results
            return
        order = np.argsort(every := np.concatenate([self._codes, codes]))
        self._codes, self._results = every[order], np.concatenate([self._results, results])[order]


class Asked(NamedTuple):
    """How the host asks: circuits [B S S] for questions, and seconds of circuits and of packet switches.

    - `choose`: circuits for a `Question` of many [B ..]; `draw`: random ones for keys [B ..].
    - `seconds`: of circuits and demands [B S S]; `waiting`: of circuits, those before and demands, with what waits.
    """

    choose: Callable[[Question], np.ndarray]
    draw: Callable[[np.ndarray], np.ndarray]
    seconds: Callable[[np.ndarray, np.ndarray], Seconds]
    waiting: Callable[[np.ndarray, np.ndarray, np.ndarray], Seconds]


class Now:
    """On the host: circuits are numbers, and whatever is equal is asked once."""

    scans = False

    def __init__(self, tables: Tables, start: np.ndarray, asked: Asked, reads: Reads):
        self.tables, self.asked, self.reads = tables, asked, reads
        self._counts, self._numbers = [start], {start.tobytes(): 0}
        cases = 1 if tables.rates is None else len(tables.rates)
        keys = 1 if tables.key is None else len(tables.key)
        samples = len(tables.demand) if tables.samples is None else len(tables.samples)
        demands = len(tables.demand)
        self._chosen, self._chosen_ahead = Memo(demands, keys, cases), Memo(samples, keys, cases)
        self._drawn, self._timed, self._anew = Memo(), Memo(demands), Memo(MOST)

    @property
    def counts(self) -> np.ndarray:
        """Circuits [N S S] by number."""
        return np.stack(self._counts)

    def begin(self, many: int) -> np.ndarray:
        return np.zeros(many, int)

    def prepare(self, steps: Steps, rule: str) -> None:
        """Asks at once for what the walk is sure to ask for."""
        if self.reads.before:
            return
        sent = steps.sent if rule != "reuse" else slice(None)
        nothing = np.zeros_like(steps.demand[sent])
        chosen = self.choose(nothing, Steps(*(x[sent] for x in steps))) if rule != "span" else nothing
        if rule in ("span", "predict"):
            self.choose_ahead(nothing, Steps(*(x[sent] for x in steps)))
        if rule == "pays" and _few_pairs(steps):
            self.seconds(*_pairs(steps, chosen))

    def choose(self, before: np.ndarray, row: Steps) -> np.ndarray:
        def work(before, demand, key, case):
            return self._choose(before, self.tables.demand[demand], None, key, case)

        return self._chosen(work, *self._read(before, row.demand, row.key, row.case))

    def choose_ahead(self, before: np.ndarray, row: Steps) -> np.ndarray:
        """Circuits for the forecast."""
        tables = self.tables
        if tables.samples is None:
            return self.choose(before, row._replace(demand=row.forecast))

        samples, every = tables.samples, tables.times

        def work(before, sample, key, case):
            return self._choose(before, samples[sample], None if every is None else every[sample], key, case)

        return self._chosen_ahead(work, *self._read(before, row.forecast, row.key, row.case))

    def _read(self, before, demand, key, case) -> tuple[np.ndarray, ...]:
        """The numbers on which an answer depends; 0 for what the policy does not read."""
        rest = (key, self.reads.key), (case, self.tables.rates is not None)
        return before * self.reads.before, demand, *(number * read for number, read in rest)

    def _choose(self, before, demand, times, key, case) -> np.ndarray:
        key, rates = (table if table is None else table[at] for table, at in self._at(key, case))
        return self._number(self.asked.choose(Question(demand, self.counts[before], times, key, rates)))

    def _at(self, key, case):
        return (self.tables.key, key), (self.tables.rates, case)

    def draw(self, row: Steps) -> np.ndarray:
        assert self.tables.key is not None
        keys = self.tables.key
        return self._drawn(lambda key: self._number(self.asked.draw(keys[key])), row.key)

    def _number(self, counts: np.ndarray) -> np.ndarray:
        found, counts = [], np.asarray(counts)
        with np.errstate(invalid="ignore"):
            whole = counts.astype(self._counts[0].dtype)
        for count, real in zip(whole, counts, strict=True):
            count = count if (count == real).all() else real  # kept as it is: what is not legal is refused later
            if (number := self._numbers.get(key := count.tobytes())) is None:
                number = self._numbers[key] = len(self._counts)
                self._counts.append(count)
            found.append(number)
        return np.array(found)

    def seconds(self, count: np.ndarray, demand: np.ndarray) -> Seconds:
        def work(count, demand):
            return np.stack(self.asked.seconds(self.counts[count], self.tables.demand[demand]), axis=-1)

        return tuple(np.moveaxis(self._timed(work, *np.broadcast_arrays(count, demand)), -1, 0))

    def waiting(self, count: np.ndarray, before: np.ndarray, demand: np.ndarray) -> Seconds:
        """As `seconds`, with the circuits before the last reconfiguration; the third: what waits for the switch."""

        def work(count, before, demand):
            every = self.counts
            return np.stack(self.asked.waiting(every[count], every[before], self.tables.demand[demand]), axis=-1)

        memo = Memo(len(self._counts), len(self.tables.demand))
        return tuple(np.moveaxis(memo(work, *np.broadcast_arrays(count, before, demand)), -1, 0))

    def anew(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Number of new circuits."""

        def work(before, after):
            return circuits_anew(self.counts[before], self.counts[after])

        return self._anew(work, *np.broadcast_arrays(before, after))

    def where(self, mask, one, other):
        return np.where(mask, one, other)

    def differ(self, one, other):
        return one != other

    def shown(self, count: np.ndarray) -> np.ndarray:
        """Circuits [.. S S] of numbers."""
        return self.counts[count]


def _few_pairs(steps: Steps) -> bool:
    """Whether timing all pairs of demands of a stage at once is less work than timing its all-to-alls in sequence."""
    demand, sent = np.asarray(steps.demand), np.asarray(steps.sent)
    most = max(len(np.unique(own[used])) for own, used in zip(demand.T, sent.T, strict=True))
    return most**2 <= PAIRS_A_STEP * len(demand)


def _pairs(steps: Steps, chosen: np.ndarray, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Circuits and demands that stages may pair: `chosen` for each of its demands (`sent`), and those of the start."""
    known = np.zeros(int(steps.demand.max(initial=0)) + 1, int)
    known[steps.demand[steps.sent]] = chosen
    pairs = set()
    for own, used in {(row[sent].tobytes(), sent.any()): (row, sent) for row, sent in _columns(steps)}.values():
        some = np.unique(own[used])
        pairs |= {(count, demand) for count in (start, *known[some].tolist()) for demand in some.tolist()}
    counts, demands = np.array(sorted(pairs), int).reshape(-1, 2).T
    return counts, demands


def _columns(steps: Steps):
    return zip(np.asarray(steps.demand).T, np.asarray(steps.sent).T, strict=True)


# --------------------------------------------------------------------------------------------- inside a program of JAX
class Traced:
    """Inside a program of JAX, for a policy with memory: circuits are arrays [.. S S].

    - `parts`: function (region, circuits, demand) -> seconds of circuits and of packet switches; `partly`: the same,
      given the pairs that are set up, with what waits for them.
    - `region`: at unit bandwidth.
    """

    scans = True

    def __init__(self, tables: Tables, region: Region, policy: Policy, parts: Callable, partly: Callable | None = None):
        self.tables, self.region, self.policy, self.parts, self.partly = tables, region, policy, parts, partly
        self.uniform = uniform(None, region).circuits.count
        chosen = jax.eval_shape(lambda: self._ask(self.uniform, self._question(0, 0, 0))).dtype
        self.dtype = chosen if jnp.issubdtype(chosen, jnp.floating) else self.uniform.dtype  # circuits may be real

    def begin(self, many: int) -> Array:
        return jnp.broadcast_to(self.uniform.astype(self.dtype), (many, *self.uniform.shape))

    def prepare(self, steps: Steps, rule: str) -> None:
        """Nothing is known before the walk."""

    def choose(self, before: Array, row: Steps) -> Array:
        question = self._question(row.demand, row.key, row.case)
        return jax.vmap(self._ask)(before, question).astype(self.dtype)

    def choose_ahead(self, before: Array, row: Steps) -> Array:
        """Circuits for the forecast."""
        if self.tables.samples is None:
            return self.choose(before, row._replace(demand=row.forecast))
        question = self._question(None, row.key, row.case)
        times = None if self.tables.times is None else self.tables.times[row.forecast]
        question = question._replace(demand=self.tables.samples[row.forecast], times=times)
        return jax.vmap(self._ask)(before, question).astype(self.dtype)

    def draw(self, row: Steps) -> Array:
        assert self.tables.key is not None
        drawn = jax.vmap(lambda key: random_circuits(self.tables.demand[0], self.region, key=key).circuits.count)
        return drawn(self.tables.key[row.key]).astype(self.dtype)

    def _question(self, demand: Any, key: Any, case: Any) -> Question:
        demand = None if demand is None else jnp.asarray(self.tables.demand)[demand]
        key, rates = (
            None if table is None else jnp.asarray(table)[at]
            for table, at in ((self.tables.key, key), (self.tables.rates, case))
        )
        return Question(demand, None, None, key, rates)

    def _ask(self, before: Array, question: Question) -> Array:
        return ask(self.policy, self.region, question._replace(before=before))

    def seconds(self, count: Array, demand: Array) -> Seconds:
        return self._batched(lambda c, d: self.parts(self.region, Circuits(c), d), demand, count)

    def waiting(self, count: Array, before: Array, demand: Array) -> Seconds:
        """As `seconds`, with the circuits before the last reconfiguration; the third: what waits for the switch."""
        partly: Any = self.partly

        def work(count, before, demand):
            return partly(self.region, Circuits(count), demand, count > before)

        return self._batched(work, demand, count, before)

    def _batched(self, work: Callable, demand: Array, *counts: Array) -> Seconds:
        shape = demand.shape
        flat = [count.reshape(-1, *count.shape[-2:]) for count in counts]
        found = jax.vmap(work)(*flat, jnp.asarray(self.tables.demand)[demand.reshape(-1)])
        return tuple(part.reshape(shape) for part in found)

    def anew(self, before: Array, after: Array) -> Array:
        """Number of new circuits."""
        return circuits_anew(before, after).astype(self.tables.demand.dtype)

    def where(self, mask, one, other):
        return jnp.where(mask[..., None, None], one, other)

    def differ(self, one, other):
        return jnp.any(one != other, axis=(-2, -1))

    def shown(self, count: Array) -> Array:
        return count


class Numbered:
    """Inside a program of JAX, for a policy of the demand alone: circuits are numbers of those chosen for each demand.

    Numbers that no seconds decide on are known while JAX traces: each pair of circuits and demand is timed once.
    """

    def __init__(self, tables: Tables, region: Region, policy: Policy, parts: Callable, partly: Callable | None = None):
        self.by_array = Traced(tables, region, policy, parts, partly)
        self.tables, self.region, self.scans = tables, region, False
        demands = np.arange(len(tables.demand), dtype=np.int32)
        counts = [self.by_array.choose(*self._alone(demands))]
        self.ahead, self.drawn = 0, 0  # numbers of the first circuits for forecasts, and of the first drawn ones
        if tables.samples is not None:
            self.ahead = len(demands)
            counts.append(self.by_array.choose_ahead(*self._alone(np.arange(len(tables.samples), dtype=np.int32))))
        self.counts, self.pairs, self.number_of_pair = counts, None, np.zeros((0, 0), np.int32)

    def _alone(self, number: np.ndarray) -> tuple[Array, Steps]:
        nothing = np.zeros_like(number)
        return self.by_array.begin(len(number)), Steps(number, number, nothing, nothing, nothing, nothing, nothing)

    def prepare(self, steps: Steps, rule: str) -> None:
        """Fixes the table of circuits, and times the pairs that a walk may ask for where they are few."""
        many = sum(map(len, self.counts))
        if rule == "random":
            self.drawn, keys = many, np.arange(len(self.tables.key), dtype=np.int32)  # type: ignore[arg-type]
            self.counts.append(self.by_array.draw(self._alone(keys)[1]._replace(key=keys)))
            many += len(keys)
        self.start = many
        self.table = jnp.concatenate([*self.counts, self.by_array.begin(1)])
        self.scans = rule == "pays"
        if self.scans and _few_pairs(steps):
            count, demand = _pairs(steps, steps.demand[steps.sent], self.start)
            self.number_of_pair = np.zeros((many + 1, len(self.tables.demand)), np.int32)
            self.number_of_pair[count, demand] = np.arange(len(count))
            self.pairs = self.by_array.seconds(self.table[count], demand)

    def begin(self, many: int) -> Array:
        return np.full(many, self.start, np.int32)

    def choose(self, before: Array, row: Steps) -> Array:
        return row.demand

    def choose_ahead(self, before: Array, row: Steps) -> Array:
        """Circuits for the forecast."""
        return self.ahead + row.forecast

    def draw(self, row: Steps) -> Array:
        return self.drawn + row.key

    def seconds(self, count: Array, demand: Array) -> Seconds:
        if isinstance(count, np.ndarray):
            return self._of_pairs(lambda c, d: self.by_array.seconds(self.table[c], d), count, demand)
        if self.pairs is None:
            return self.by_array.seconds(self.table[count], jnp.asarray(demand))
        number = jnp.asarray(self.number_of_pair)[count, demand]
        return tuple(part[number] for part in self.pairs)

    def waiting(self, count: Array, before: Array, demand: Array) -> Seconds:
        """As `Traced.waiting`."""
        if isinstance(count, np.ndarray) and isinstance(before, np.ndarray):
            work = lambda c, b, d: self.by_array.waiting(self.table[c], self.table[b], d)  # noqa: E731
            return self._of_pairs(work, count, before, demand)
        return self.by_array.waiting(self.table[count], self.table[before], demand)

    def anew(self, before: Array, after: Array) -> Array:
        """Number of new circuits."""
        return self._compared(self.by_array.anew, before, after)

    def differ(self, one: Array, other: Array) -> Array:
        return self._compared(self.by_array.differ, one, other)

    def _compared(self, work: Callable, one: Array, other: Array) -> Array:
        if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
            return self._of_pairs(lambda a, b: (work(self.table[a], self.table[b]),), one, other)[0]
        return work(self.table[one], self.table[other])

    def _of_pairs(self, work: Callable, *numbers: np.ndarray) -> Seconds:
        """`work` of the different rows of numbers."""
        numbers = np.broadcast_arrays(*numbers)
        rows, of_each = np.unique(np.stack([each.ravel() for each in numbers]), axis=1, return_inverse=True)
        return tuple(part[of_each.reshape(numbers[0].shape)] for part in work(*rows))

    def where(self, mask, one, other):
        return array_module(mask, one, other).where(mask, one, other)

    def shown(self, count: Array) -> Array:
        return self.table[count]


def traced_solver(
    tables: Tables, region: Region, policy: Policy, reads: Reads, parts: Callable, partly: Callable | None = None
) -> Traced | Numbered:
    """The solver of a region at unit bandwidth inside a program of JAX."""
    return (Numbered if reads.demand_alone else Traced)(tables, region, policy, parts, partly)
