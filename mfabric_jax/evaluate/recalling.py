"""Solver on the host for policies that remember: every all-to-all is a new question."""

import copy
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.circuits import WalkSteps
from mfabric_jax.evaluate.solver import OnHost
from mfabric_jax.policies.reads import SEEN


class PolicyMemory(NamedTuple):
    """What a policy remembers in N columns of a walk.

    - `sent` [N SEEN]: indices of the last demands, newest last; -1: none.
    - `called` [N]: whether it was called; `state`: tree of its last states [N ..]; None: it was never called.
    """

    sent: np.ndarray
    called: np.ndarray
    state: Any


class Recalling(OnHost):
    """`OnHost` for a policy that remembers: `with_memory` gives the solver of one step. Other calls are first calls."""

    remembers = True
    _memory: PolicyMemory | None = None
    _states: list[Any]  # after each call of this step

    def begin_memory(self, many: int) -> PolicyMemory:
        return PolicyMemory(np.full((many, SEEN), -1), np.zeros(many, bool), None)

    def with_memory(self, memory: PolicyMemory) -> "Recalling":
        now = copy.copy(self)
        now._memory, now._states = memory, []
        return now

    def memory_after(self, row: WalkSteps) -> PolicyMemory:
        """Return the memory after a step. Its state is that of the step's first call, which knows the demand."""
        assert self._memory is not None
        sent, called, _ = self._memory
        later = np.concatenate([sent[:, 1:], row.demand[:, None]], axis=1)
        return PolicyMemory(np.where(row.sent[:, None], later, sent), called | row.sent, self._states[0])

    def choose(self, before: np.ndarray, row: WalkSteps, ahead: bool = False) -> np.ndarray:
        if self._memory is None:
            return super().choose(before, row, ahead)
        chosen, states = before.copy(), self._memory.state
        for called in (False, True):  # first calls have no state
            some = np.flatnonzero(row.sent & (self._memory.called == called))
            if len(some):
                chosen[some], fresh = self._recall(before, row, ahead, some)
                states = _with_states(states, some, fresh, len(before))
        self._states.append(states)
        return chosen

    def _recall(self, before: np.ndarray, row: WalkSteps, ahead: bool, some: np.ndarray) -> tuple[np.ndarray, Any]:
        assert self._memory is not None
        assert self.functions.recall is not None
        number = row.forecast if ahead else row.demand
        own = self.counts[before[some]], number[some], row.key[some], row.case[some]
        sent = self._memory.sent[some]
        history = np.where((sent >= 0)[..., None, None], self.tables.demand[sent], 0)
        states = self._memory.state if self._memory.called[some[0]] else None
        states = jax.tree.map(lambda x: x[some], states)
        position = row.block[some].astype(np.int32), row.kind[some] > 0
        counts, fresh = self.functions.recall(self.tables.question(*own, ahead), history, states, position)
        return self._number(counts), fresh


def _with_states(states: Any, some: np.ndarray, fresh: Any, many: int) -> Any:
    """Return the states of all columns with those of `some` replaced."""
    if states is None:
        states = jax.tree.map(lambda x: np.zeros((many, *x.shape[1:]), x.dtype), fresh)

    def replace(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        if (old.dtype, old.shape[1:]) != (new.dtype, new.shape[1:]):
            was, now = (f"{x.dtype}{list(x.shape[1:])}" for x in (old, new))
            raise InputError(
                f"circuits.policy must return a state of the same types at every call, got {was}, then {now}."
            )
        old = old.copy()
        old[some] = new
        return old

    return jax.tree.map(replace, states, fresh)
