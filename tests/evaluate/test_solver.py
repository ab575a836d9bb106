"""What is asked once: rows of numbers, questions to a policy, seconds; and batches against one question at a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.evaluate.asking import LANES, region_functions
from mfabric_jax.evaluate.circuits import WalkSteps, walk_circuits
from mfabric_jax.evaluate.rules import TradeOff
from mfabric_jax.evaluate.solver import MOST, Memo, OnHost, Question, RegionFunctions, Tables
from mfabric_jax.evaluate.solving import solve
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan, get, reads_of
from mfabric_jax.policies.reads import Reads
from tests.small import scenario, small

# ------------------------------------------------------------------------------------------------------ rows of numbers


@pytest.mark.parametrize(
    ("sizes", "most"), [((), [9]), ((4,), [1000, 4]), ((7, 3), [5, 7, 3]), ((MOST,), [MOST, MOST]), ((1, 1), [6, 1, 1])]
)
def test_a_memo_is_a_dict_of_rows_and_works_each_out_once(sizes, most):
    rng = np.random.default_rng(len(sizes))
    memo, known, asked = Memo(*sizes), {}, []

    def work(*parts):
        rows = list(zip(*(part.tolist() for part in parts), strict=True))
        asked.extend(rows)
        known.update((row, rng.normal(size=2)) for row in rows)  # what they come to has nothing to do with the row
        return np.stack([known[row] for row in rows])

    pool = [rng.integers(0, each, 12) for each in most]  # few, so that rows come again
    for shape in ((1,), (5,), (2, 3), (), (0,), (4, 2, 2), (30,), (30,)):
        parts = [rng.choice(some, shape) for some in pool]
        got = memo(work, *parts)
        assert got.shape == (*shape, 2)
        rows = zip(*(np.ravel(part).tolist() for part in parts), strict=True)
        np.testing.assert_array_equal(got.reshape(-1, 2), np.reshape([known[row] for row in rows], (-1, 2)))
    assert len(asked) == len(set(asked)) > 5
    before = len(asked)
    memo(work, *(np.array([row[at] for row in known]) for at in range(len(most))))
    assert len(asked) == before  # all are known


def test_a_memo_of_no_rows_asks_nothing_and_the_next_call_may_have_any_shape_of_results():
    memo = Memo()
    memo(lambda _: pytest.fail("no rows"), np.zeros((0, 3), int))
    np.testing.assert_array_equal(memo(lambda row: np.stack([row, row], 1), np.array([2, 1])), [[2, 2], [1, 1]])


# -------------------------------------------------------------------------------------------------- questions of a walk
STEPS, COLUMNS, DEMANDS, KEYS, CASES = 8, 6, 3, 2, 2


class Counted:
    """A made-up policy on one server whose circuits [1 1] depend on all that it reads, in plain numbers; all questions
    to it, and all circuits and demands whose seconds are asked for."""

    def __init__(self, reads, rates):
        self.reads, self.rates = reads, rates
        self.questions, self.pairs = [], []

    def circuits(self, demand, before, key, rate):
        key, rate = key * self.reads.key, rate if self.rates else 0
        return int(2 * before * self.reads.before + demand + 3 * key + 5 * rate) % 7

    def choose(self, question):
        given, many = (question.demand, question.before, question.key, question.rates), len(question.demand)
        columns = (np.zeros(many) if part is None else part.reshape(many) for part in given)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self.questions += rows
        return np.reshape([self.circuits(*row) for row in rows], (-1, 1, 1))

    def seconds(self, count, demand):
        self.pairs += zip(count.ravel().tolist(), demand.ravel().tolist(), strict=True)
        return (1 + (count + demand) % 3).ravel(), 0 * demand.ravel()


def drawn_steps(seed, columns=COLUMNS):
    rng = np.random.default_rng(seed)

    def below(most):
        return rng.integers(0, most, (STEPS, columns))

    sent = rng.random((STEPS, columns)) < 0.8
    return WalkSteps(
        *(below(DEMANDS), below(DEMANDS), below(KEYS), below(CASES)),
        *(sent, below(3), np.ones((STEPS, columns)), np.zeros((STEPS, columns), int)),
    )


def solver_of(counted):
    tables = Tables(
        np.arange(DEMANDS, dtype=float)[:, None, None] + 1,
        key=np.arange(KEYS)[:, None] if counted.reads.key else None,
        rates=np.arange(CASES, dtype=float)[:, None] if counted.rates else None,
    )
    return OnHost(
        tables, np.zeros((1, 1), int), RegionFunctions(counted.choose, None, counted.seconds, None), counted.reads
    )


def walked_plainly(counted, steps, *, cold):
    """Circuits that serve every step, each a new question, and all these questions."""
    served, questions = np.zeros((STEPS, COLUMNS), int), set()
    for column in range(COLUMNS):
        before = 0
        for step in range(STEPS) if cold else [*range(STEPS)] * 2:
            if steps.sent[step, column]:
                demand, key, rate = (int(x[step, column]) for x in (steps.demand, steps.key, steps.case))
                key, rate = key * counted.reads.key, rate * counted.rates
                questions.add((demand + 1, before * counted.reads.before, key, rate))
                before = counted.circuits(demand + 1, before, key, rate)
            served[step, column] = before
    return served, questions


ASKERS = [(Reads(*both), rates) for *both, rates in itertools.product((False, True), repeat=3)]


@pytest.mark.parametrize(("reads", "rates"), ASKERS)
def test_a_walk_asks_each_distinct_question_once(reads, rates):
    for seed, cold, everywhere in ((0, False, False), (1, False, True), (1, True, True)):
        counted, steps = Counted(reads, rates), drawn_steps(seed)
        steps = steps._replace(sent=steps.sent | everywhere)
        solver = solver_of(counted)
        count, _ = walk_circuits(solver, "block", steps, cold=cold)
        asked = [(demand, before * reads.before, key, rate) for demand, before, key, rate in counted.questions]
        served, questions = walked_plainly(counted, steps, cold=cold)
        np.testing.assert_array_equal(solver.as_arrays(count)[..., 0, 0], np.stack([served, served], axis=1))
        assert len(asked) == len(set(asked))
        assert set(asked) == questions if everywhere else set(asked) >= questions
        many = len(asked)
        walk_circuits(solver, "block", steps, cold=cold)  # further iterations of the same demands
        assert len(counted.questions) == many
    assert DEMANDS <= many <= DEMANDS * KEYS**reads.key * CASES**rates * 7**reads.before


@pytest.mark.parametrize(("reads", "rates"), ASKERS)
@pytest.mark.parametrize("rule", ["block", "reuse", "predict", "pays", "span"])
def test_iterations_and_stages_side_by_side_are_those_one_by_one(rule, reads, rates):
    steps = drawn_steps(2)
    rng = np.random.default_rng(3)
    delay, inner, behind = rng.uniform(0, 0.2, COLUMNS), *rng.uniform(0, 1, (2, COLUMNS, 3))
    costs = TradeOff(delay, np.ones(COLUMNS), np.ones(2), inner, behind, np.zeros(COLUMNS), expert_s=0 * inner)
    counted = Counted(reads, rates)
    together = solver_of(counted)
    found = [together.as_arrays(each) for each in walk_circuits(together, rule, steps, costs, cold=False)]
    assert len(counted.pairs) == len(set(counted.pairs))
    assert (rule == "pays") == (len(counted.pairs) > 0)
    for column in range(COLUMNS):
        own = WalkSteps(*(x[:, column : column + 1] for x in steps))
        cost = TradeOff(*(x[column : column + 1] if np.shape(x)[:1] == (COLUMNS,) else x for x in costs))
        alone = solver_of(Counted(reads, rates))
        for got, want in zip(found, walk_circuits(alone, rule, own, cost, cold=False), strict=True):
            np.testing.assert_array_equal(got[:, :, column], alone.as_arrays(want)[:, :, 0])
    assert len(np.unique(found[0])) >= 2


def test_circuits_that_are_real_numbers_are_told_apart():
    def choose(question):
        return 0.5 * question.demand

    solver = OnHost(
        Tables(np.arange(6.0)[:, None, None]), np.full((1, 1), 2), RegionFunctions(choose, None, None, None), Reads()
    )
    steps = WalkSteps(*[np.arange(6)] + [np.zeros(6, int)] * 7)
    found = solver.choose(solver.begin(6), steps)
    np.testing.assert_array_equal(solver.as_arrays(found)[:, 0, 0], [0, 0.5, 1, 1.5, 2, 2.5])
    np.testing.assert_array_equal(solver.differ(found, solver.begin(6)), [True, True, True, True, False, True])


def three_quarters(demand, region, *, previous=None, key=None):
    """Legal circuits for the small demands of a trial, and a part of them for the bytes of a job."""
    count = get("uniform")(demand, region).circuits.count.astype(demand.dtype)
    return Plan(Circuits(jnp.where(demand.sum() > 1e5, 0.75 * count, count)))


def test_an_own_policy_that_gives_real_numbers_only_in_the_run_is_refused():
    one = scenario(small({"network.fabric": "mfabric", "circuits.policy": three_quarters}))
    with pytest.raises(InputError, match="three_quarters gave circuits that break a rule: they must be whole numbers"):
        solve(one)


# ---------------------------------------------------------------------------------------- batches of policy and seconds
SERVERS = 4
UNIT = Region(SERVERS, np.float64(8e-9), np.int32(5), np.float64(2.0), np.float64(1.0), np.float64(1.0))


def keep_some(demand, region, *, previous=None, key=None):
    """Those in place, or twice as many, which is not legal, where bandwidth and a demand are large."""
    count = previous.circuits.count
    return Plan(Circuits(jnp.where((region.nic_gbps > 1) & (demand[0, 1] > 1), 2 * count, count)))


@pytest.mark.parametrize("name", ["greedy", "previous", "random", "own"])
def test_a_policy_answers_a_batch_as_one_by_one(name):
    policy = keep_some if name == "own" else get(name)
    many, rng = LANES + 3, np.random.default_rng(0)
    demand = rng.lognormal(0, 2, (many, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
    before = np.array([[0, 2, 1, 2], [2, 0, 2, 1], [1, 2, 0, 2], [2, 1, 2, 0]])
    before = before[(order := rng.permuted(np.tile(np.arange(4), (many, 1)), axis=1))[:, :, None], order[:, None]]
    keys = np.asarray(jax.random.key_data(jax.random.split(jax.random.key(0), many)))
    rates = rng.uniform(0, 2, (many, 2)) if name == "own" else None
    asked = region_functions(UNIT, policy, reads_of(policy, UNIT), "unsplit", 0.0, "float64")
    question = Question(demand, before.astype(np.int32), None, keys, rates)
    together = asked.choose(question)
    for at in (0, 1, 17, LANES - 1, LANES, many - 1):
        one = jax.tree.map(lambda x, at=at: x[at : at + 1], question)
        np.testing.assert_array_equal(together[at], asked.choose(one)[0], err_msg=str(at))
    assert len({count.tobytes() for count in together}) > 2
    if name == "own":
        twice = (rates[:, 0] > 1) & (demand[:, 0, 1] > 1)
        np.testing.assert_array_equal(together, before * (1 + twice)[:, None, None])


@pytest.mark.parametrize("carried", ["unsplit", "split", "best-path", "bound"])
def test_seconds_of_a_batch_are_those_one_by_one(carried):
    many, rng = LANES + 3, np.random.default_rng(1)
    demand = rng.lognormal(0, 2, (many, SERVERS, SERVERS)) * (1 - np.eye(SERVERS))
    count = np.triu(rng.integers(0, 3, (many, SERVERS, SERVERS)), 1).astype(np.int32)
    asked = region_functions(UNIT, get("greedy"), Reads(), carried, 0.1, "float64")
    together = asked.seconds(count + count.swapaxes(1, 2), demand)
    for at in (0, 17, LANES - 1, LANES, many - 1):
        alone = asked.seconds((count + count.swapaxes(1, 2))[at : at + 1], demand[at : at + 1])
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_allclose(got[at], want[0], rtol=1e-12)
