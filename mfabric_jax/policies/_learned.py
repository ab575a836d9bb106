"""Policies from files: a trained network or index rule, with the configuration that it was trained under."""

import dataclasses
import functools
import importlib.resources
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PRNGKeyArray

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies._index import Index
from mfabric_jax.policies.network import SHARE_STEPS, PolicyNetwork
from mfabric_jax.policies.own import is_function
from mfabric_jax.routing import Plan
from mfabric_jax.traffic.demand_families import record_digests

KINDS = ("network", "index")
SUFFIX = ".policy"  # of files that `mfabric train` writes


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A policy `trained(demand, region, *, previous=None, key=None) -> Plan`, equal only to itself; a network's takes
    its settings too.

    - `model`: the network or index rule.   - `configuration`: what it was trained under.
    """

    model: PolicyNetwork | Index
    configuration: Mapping[str, Any]

    def __call__(self, demand, region: Region, *, previous: Plan | None = None, key=None, **settings: Any) -> Plan:
        return self.model(demand, region, previous=previous, key=key, **settings)


def save(path: str | os.PathLike, model: PolicyNetwork | Index, configuration: Mapping[str, Any]) -> Path:
    """Keep a policy in one file, for `load`. `configuration`: whatever of it JSON can hold."""
    header = {"kind": kind_of(model), "settings": model.settings(), "configuration": dict(configuration)}
    return policy_file.write(path, header, model if isinstance(model, PolicyNetwork) else ())


def load(path: str | os.PathLike) -> Trained:
    """The policy in a file of `save`, the same object as long as the file stays as it is.

    `InputError` for a file that is missing, damaged or something else.
    """
    try:
        found = os.stat(path)
    except OSError:
        return _of(policy_file.read(path))  # says what is wrong
    return _loaded(os.fspath(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=64)
def _loaded(path: str, changed_ns: int, size: int) -> Trained:
    return _of(policy_file.read(path))


def is_file(name: str) -> bool:
    """Whether a name is the path of a trained policy."""
    return name.endswith(SUFFIX) or (os.sep in name and not is_function(name))


def check_unseen(names: Sequence[str], trace: str, records: tuple[int, int] | None, axes: str | None = None) -> None:
    """`InputError` where a policy was trained on records that it would be judged by, whatever file they were in."""
    for name in filter(is_file, names):
        configuration = load(name).configuration
        if configuration.get("trace") is None:
            continue
        learned = configuration.get("learned_from")
        if not learned:
            raise InputError(
                f"policies must say which records they were trained on; {name!r}, of an earlier version, does not: "
                f"train it again."
            )
        judged = record_digests(trace, records, axes)
        seen = {digest for _, digest in judged} & set(learned["digests"])
        if seen:
            left = _last_run([(number, digest not in seen) for number, digest in judged]) or learned["held_out"]
            allowed = f"; allowed: {left[0]}-{left[1]}" if left else ", and this trace has no others"
            raise InputError(
                f"records must be none of those that {name!r} was trained on, got {judged[0][0]}-{judged[-1][0]}"
                f"{allowed}."
            )


def _last_run(numbers: Sequence[tuple[int, bool]]) -> tuple[int, int] | None:
    """First and last number of the last that are true one behind the other."""
    runs = [[number for number, _ in run] for true, run in itertools.groupby(numbers, lambda one: one[1]) if true]
    return (runs[-1][0], runs[-1][-1]) if runs else None


def learned(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    sigma: float | Float[Array, ""] = 0.0,
    share_steps: int = SHARE_STEPS,
) -> Plan:
    """Circuits by the network that ships with the package, and relay shares; any number of servers and degrees.

    - `demand` [S S]: bytes from server i to server j, exact or a forecast; the diagonal is ignored.
    - `sigma`: standard deviation of the logarithms of the forecast's errors.
    - `share_steps`: towards the shares for what is expected of the demand.   - `previous` and `key` are not used.

    Trained for relay routing at 8 and 16 servers, on drawn families, generated traffic and the packaged tables, with
    forecasts that are off by up to a factor e (one standard deviation).
    """
    return shipped_network()(demand, region, sigma=sigma, share_steps=share_steps)


@functools.cache
def shipped_network() -> Trained:
    """The network that ships with the package."""
    return _of(policy_file.read(importlib.resources.files("mfabric_jax.policies") / "data" / "network.policy"))


def trained_network(name: str) -> PolicyNetwork:
    """Of "learned", which ships, or of a file."""
    model = (shipped_network() if name == "learned" else load(name)).model
    if isinstance(model, Index):
        raise InputError(f"warm must be learned or the file of a trained network; {name!r} holds an index.")
    return model


def kind_of(model: PolicyNetwork | Index) -> str:
    """network or index."""
    return KINDS[isinstance(model, Index)]


def _of(stored: policy_file.Stored) -> Trained:
    header = stored.header
    kind = one_of(f"kind of the policy in {stored.path!r}", str(header.get("kind")), KINDS)
    try:
        if kind == "index":
            model = Index(**header["settings"])
        else:
            with jax.ensure_compile_time_eval():  # the first use may be inside of jit
                shape = eqx.filter_eval_shape(PolicyNetwork, **header["settings"], key=jax.random.key(0))
                model = stored.leaves(shape)
        return Trained(model, header["configuration"])
    except (KeyError, TypeError) as error:
        raise InputError(f"policy file {stored.path!r} lacks what a policy of kind {kind!r} needs.") from error
