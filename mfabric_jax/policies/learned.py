"""Learned policies: files that `mfabric train` writes, and `learned`, the network of the package."""

import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jaxtyping import Float, PRNGKeyArray

from mfabric_jax.case.own_code import allowed_code
from mfabric_jax.case.policies import is_file
from mfabric_jax.checks import InputError, in_file, one_of
from mfabric_jax.fabric import Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.ahead import AheadNetwork
from mfabric_jax.policies.index_rule import DATA, Index
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.own_modules import recipe, skeleton
from mfabric_jax.policies.reads import Trained
from mfabric_jax.routing import Plan
from mfabric_jax.routing.exchange import SHARE_STEPS
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.traffic.demand_families import record_digests

KINDS = ("network", "index")  # kinds of `mfabric train`
STORED = {"network": PolicyNetwork, "index": Index, "ahead": AheadNetwork}  # policies of the package, by their kind
OWN = "module"


def save(
    path: str | os.PathLike[str],
    policy: Any,
    configuration: Mapping[str, Any] | None = None,
    *,
    build: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write a policy to one file, NAME.policy, for `load`, `get` and every `--policy`.

    - `policy`: a network or index of `mfabric train`, a network of `ahead`, or your own Equinox module, called as
      `policy(demand, region, *, previous=None, key=None) -> Plan`.
    - `configuration`: how the policy was trained; JSON must be able to hold it.
    - `build`, `settings`: how to build your own module again. `build` is FILE.py:FUNCTION or MODULE:NAME; called with
      the settings, and with a `key` if it takes one, it returns a module of the same shapes. None means the module's
      class. `load` calls it again; in another process, only if the command line or `allow_code` names its file or
      module.

    Raise `InputError` if the policy cannot be built again.
    """
    kind = next((kind for kind, known in STORED.items() if isinstance(policy, known)), OWN)
    own = recipe(policy, build, settings) if kind == OWN else {"settings": policy.settings()}
    return policy_file.write(
        path,
        {"kind": kind} | own | {"configuration": dict(configuration or {})},
        () if isinstance(policy, Index) else policy,
    )


def load(path: str | os.PathLike[str]) -> Trained:
    """Return the policy in a file written by `save`; the same object until the file changes.

    Raise `InputError` if the file is missing, is damaged or holds no policy, or if its module cannot be built or needs
    code that is not allowed (`allow_code`).
    """
    return _load(os.fspath(path), allowed_code())


@cached_by_files(lambda path, allowed: (path,), maxsize=64)
def _load(path: str, allowed: tuple[str, ...]) -> Trained:
    with in_file(path):
        return _build_policy(policy_file.read(path))


def check_unseen(names: Sequence[str], trace: str, records: tuple[int, int] | None, axes: str | None = None) -> None:
    """Raise `InputError` if a policy was trained on the records that judge it, even from another file."""
    for name in filter(is_file, names):
        configuration = load(name).configuration
        if configuration.get("trace") is None:
            continue
        learned = configuration.get("learned_from")
        if not isinstance(learned, dict) or not isinstance(learned.get("digests"), list):
            raise InputError(
                f"policies must say which records they were trained on; {name!r}, of an earlier version, does not: "
                f"train it again."
            )
        judged = record_digests(trace, records, axes)
        seen = {digest for _, digest in judged} & {digest for digest in learned["digests"] if isinstance(digest, str)}
        if seen:
            left = _last_run([(number, digest not in seen) for number, digest in judged]) or learned.get("held_out")
            allowed = f"; allowed: {left[0]}-{left[1]}" if left else ", and this trace has no others"
            raise InputError(
                f"records must not overlap those that {name!r} was trained on, got {judged[0][0]}-{judged[-1][0]}"
                f"{allowed}."
            )


def _last_run(numbers: Sequence[tuple[int, bool]]) -> tuple[int, int] | None:
    runs = [[number for number, _ in run] for true, run in itertools.groupby(numbers, lambda pair: pair[1]) if true]
    return (runs[-1][0], runs[-1][-1]) if runs else None


def learned(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    sigma: float | Float[Array, ""] = 0.0,
    share_steps: int = SHARE_STEPS,
    hidden_s: float | Float[Array, ""] = 0.0,
) -> Plan:
    """Return the circuits of the package's network, and relay shares for the expected demand.

    - `demand` [S S]: bytes from server i to server j, exact or a forecast; the diagonal is ignored.
    - `sigma`: standard deviation of the forecast's log errors. `share_steps`: gradient steps towards the shares.
    - `previous`: its circuits are kept unless others save more than the exposed delay, `region.delay_s` minus
      `hidden_s`, the part that computation hides.

    Trained for relay routing at 8 and 16 servers with sigma up to 1. `key` is not used.
    """
    settings: dict[str, Any] = {"sigma": sigma, "share_steps": share_steps, "hidden_s": hidden_s}
    return shipped_network()(demand, region, previous=previous, **settings)


def untrained(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    sigma: float | Float[Array, ""] = 0.0,
    share_steps: int = SHARE_STEPS,
    hidden_s: float | Float[Array, ""] = 0.0,
) -> Plan:
    """Return the plan of `learned` before its training, to show what training adds.

    Circuits follow the expected demand and are kept or changed as in `learned`.
    """
    settings: dict[str, Any] = {"sigma": sigma, "share_steps": share_steps, "hidden_s": hidden_s}
    return first_network()(demand, region, previous=previous, **settings)


@functools.cache
def first_network() -> PolicyNetwork:
    with jax.ensure_compile_time_eval():
        return PolicyNetwork(weighs=True, key=jax.random.key(0))


@functools.cache
def shipped_network() -> Trained:
    return _build_policy(policy_file.read(DATA / "network.policy"))


def _build_policy(stored: policy_file.Stored) -> Trained:
    header = stored.header
    kind = one_of(f"kind of the policy in {stored.path!r}", str(header.get("kind")), (*STORED, OWN))
    try:
        if kind == "index":
            model = Index(**header["settings"])
        elif kind == OWN:
            model = stored.leaves(skeleton(header["build"], header["settings"], repr(stored.path)))
        else:
            model = stored.network(STORED[kind])
        return Trained(model, header["configuration"], kind)
    except (KeyError, TypeError) as error:
        raise InputError(f"policy file {stored.path!r} lacks what a policy of kind {kind!r} needs.") from error
