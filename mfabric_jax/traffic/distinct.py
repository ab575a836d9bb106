"""How many servers a token reaches whose gate takes k different experts.

Counts say how often every expert was taken, not which were taken together. So tokens are taken to choose as randomly
as those counts allow: a set of k experts has a probability in proportion to the product of its experts' weights, a set
that needs more groups than a gate may use has none, and the weights are those with which every expert is taken as often
as it was. That is conditional Poisson sampling, the distribution of largest entropy; with even counts every allowed set
is equally likely, so a server of E / S experts is missed with probability C(E - E/S, k) / C(E, k).

Source: Chen, Dempster and Liu, Weighted finite population sampling to maximize entropy, Biometrika 81(3), 1994. The
groups are ours. Letters: N rows, E experts, S servers; experts of a group, and of a server, are neighbours.
"""

import functools
import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

ROWS = 1024  # fitted together
ROUNDS = 100  # of a fit, at most: rows that no choice can give are left as near as that
EXACT = 20, 1e-12  # errors of a fit that is done: so many roundings, or this if that is more
LONGEST = 3.0  # step of a fit, of the logarithm of odds


class GroupLimit(NamedTuple):
    """A token takes its experts from at most `most` of `groups` groups of neighbours."""

    groups: int = 1
    most: int = 1


NO_LIMIT = GroupLimit()


def reached(
    taken: np.ndarray, top_k: int, servers: int, limit: GroupLimit = NO_LIMIT, kept: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Probability [N S] that a token reaches a server, and how far off the fit is [N].

    - `taken` [N E]: probability that a token takes an expert; rows sum to `top_k`, none above 1.
    - `kept` [N E]: part of an expert's tokens that it does not drop, each by itself (default: all).
    """
    kept = np.ones_like(taken) if kept is None else kept
    alike = bool(np.all(taken == taken[:1]) and np.all(kept == kept[:1]))
    at = np.zeros(len(taken), int) if alike else np.arange(len(taken))
    taken, kept = taken[: at[-1] + 1], kept[: at[-1] + 1]
    size = min(ROWS, 1 << (len(taken) - 1).bit_length())
    found = []
    for start in range(0, len(taken), size):
        some = np.minimum(np.arange(start, start + size), len(taken) - 1)
        each, parts = (jnp.asarray(x[some], jnp.result_type(float)) for x in (taken, kept))
        found.append(tuple(map(np.asarray, _reached(each, parts, top_k, servers, limit))))
    chance, off = (np.concatenate(column)[at] for column in zip(*found, strict=True))
    return chance.astype(np.float64), off


@functools.lru_cache(maxsize=64)
def evenly_reached(experts: int, top_k: int, servers: int, limit: GroupLimit = NO_LIMIT) -> tuple[float, ...]:
    """Probability that a token reaches each server where every allowed set of experts is equally likely, counted."""
    expert = np.arange(experts)
    group, server = (expert // (experts // parts) for parts in (limit.groups, servers))
    every = _sets(np.bincount(group, minlength=limit.groups), top_k, limit.most)
    others = (np.bincount(group[server != one], minlength=limit.groups) for one in range(servers))
    return tuple(1 - _sets(left, top_k, limit.most) / every for left in others)


def _sets(sizes: np.ndarray, k: int, most: int) -> int:
    """How many sets of k experts of groups of these sizes need at most so many groups."""
    ways = {(0, 0): 1}  # of (experts, groups) so far
    for size in sizes.tolist():
        following: dict[tuple[int, int], int] = {}
        for (taken, used), many in ways.items():
            for more in range(min(size, k - taken) + 1):
                key = taken + more, used + (more > 0)
                if key[1] <= most:
                    following[key] = following.get(key, 0) + many * math.comb(size, more)
        ways = following
    return sum(many for (taken, _), many in ways.items() if taken == k)


@eqx.filter_jit
def _reached(
    taken: Float[Array, "N E"], kept: Float[Array, "N E"], top_k: int, servers: int, limit: GroupLimit
) -> tuple[Float[Array, "N S"], Float[Array, "N"]]:
    chance, off = _fitted(taken, top_k, limit)
    server = jnp.arange(taken.shape[1]) // (taken.shape[1] // servers)

    def missed(row, kept, one):
        return _allowed(1 - row, jnp.where(server == one, row * (1 - kept), row), top_k, limit)

    of_all = jax.vmap(jax.vmap(missed, (None, None, 0)), (0, 0, None))(chance, kept, jnp.arange(servers))
    every = jax.vmap(lambda row: _allowed(1 - row, row, top_k, limit))(chance)
    return 1 - of_all / every[:, None], off


def _allowed(left: Float[Array, "E"], taken: Float[Array, "E"], k: int, limit: GroupLimit) -> Float[Array, ""]:
    """Chance of k experts in at most so many groups, where each is taken or left by itself."""
    left, taken = (x.reshape(limit.groups, -1) for x in (left, taken))
    nobody = jnp.zeros((limit.groups, k + 1), left.dtype).at[:, 0].set(1)

    def with_expert(chance, one):
        left, taken = one
        return left[:, None] * chance + taken[:, None] * _shifted(chance), None

    of_group = lax.scan(with_expert, nobody, (left.T, taken.T))[0]  # [G k+1]: of so many experts of it
    back = np.subtract.outer(np.arange(k + 1), np.arange(k + 1))  # how many a group adds, from a column to a row

    def with_group(chance, own):  # [M+1 k+1]: of so many groups and experts
        some = jnp.where(jnp.asarray(back > 0), own[np.maximum(back, 0)], 0)
        return own[0] * chance + _shifted((chance @ some.T).T).T, None

    start = jnp.zeros((limit.most + 1, k + 1), left.dtype).at[0, 0].set(1)
    return lax.scan(with_group, start, of_group)[0][:, k].sum()


def _shifted(rows: Float[Array, "A B"]) -> Float[Array, "A B"]:
    """Every row one to the right."""
    return jnp.pad(rows[:, :-1], ((0, 0), (1, 0)))


class _Fit(NamedTuple):
    """A fit as it goes: chances of every expert alone [N E], how likely they make what was taken [N], errors [N E],
    steps [N], rounds."""

    chance: Array
    likely: Array
    error: Array
    step: Array
    rounds: Array

    @property
    def off(self) -> Float[Array, "N"]:
        """The largest error of a row."""
        return jnp.abs(self.error).max(axis=1)


def _fitted(taken: Float[Array, "N E"], top_k: int, limit: GroupLimit) -> tuple[Float[Array, "N E"], Float[Array, "N"]]:
    """Chances of every expert alone with which, k of them allowed, each is taken as often as `taken` says.

    They make `taken` most likely, which is a concave problem: ascent with steps of nearly Newton's length.
    """
    eps = float(jnp.finfo(taken.dtype).eps)
    exact, sure = max(EXACT[0] * eps, EXACT[1]), (taken <= 0) | (taken >= 1)
    spread = 1 + top_k / limit.most - top_k / limit.groups  # variance of a group's experts, over that of each alone

    def of_row(chance, row, sure):
        value, slope = jax.value_and_grad(lambda x: jnp.log(_allowed(1 - chance, x, top_k, limit)))(chance)
        some = jnp.where(sure, 0.5, chance)
        likely = jnp.where(sure, 0, row * jnp.log(some) + (1 - row) * jnp.log1p(-some)).sum() - value
        return likely, jnp.where(sure, 0, row - chance * slope)

    def going(fit: _Fit) -> Bool[Array, ""]:
        return (fit.rounds < ROUNDS) & jnp.any(fit.off > exact)

    def round_(fit: _Fit) -> _Fit:
        found = jnp.clip(taken - fit.error, eps, 1 - eps)
        shape = (len(taken), limit.groups, -1)
        error, alone = (jnp.where(sure, low, x).reshape(shape) for x, low in ((fit.error, 0), (found * (1 - found), 1)))
        of_group = error.sum(-1) / alone.sum(-1)
        move = (error / alone - ((1 - 1 / spread) * of_group)[..., None]).reshape(taken.shape)
        move = move * (fit.step / jnp.maximum(1, jnp.abs(move).max(axis=1) / LONGEST))[:, None]
        odds = jnp.exp(jnp.where(sure, 0, move))
        chance = jnp.where(sure, taken, fit.chance * odds / (1 - fit.chance + fit.chance * odds))
        likely, error = jax.vmap(of_row)(chance, taken, sure)
        better = (likely > fit.likely) | (jnp.abs(error).max(axis=1) < fit.off)
        chance, error = (jnp.where(better[:, None], *pair) for pair in ((chance, fit.chance), (error, fit.error)))
        likely, step = jnp.where(better, likely, fit.likely), jnp.where(better, fit.step, fit.step / 2)
        return _Fit(chance, likely, error, step, fit.rounds + 1)

    likely, error = jax.vmap(of_row)(taken, taken, sure)
    start = _Fit(taken, likely, error, jnp.ones_like(likely), jnp.asarray(0))
    done = lax.while_loop(going, round_, start)
    return done.chance, done.off
