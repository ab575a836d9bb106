"""Users' own policies, as functions or `FILE.py:FUNCTION`; they are tried before use."""

import contextlib
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from mfabric_jax.case.own_code import check_stated
from mfabric_jax.case.policies import check_name
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.reads import FIRST, KEYWORDS
from mfabric_jax.routing import Plan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats
from mfabric_jax.support.text_files import cached_by_files

TRIES = 2  # number of demands; the second call gets the first plan as `previous`
NOT_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def load_function(name: str, kind: str = "policy") -> Callable[..., Any]:
    """Return the function in a file, for a policy or another `kind`.

    Raise `InputError` if the file or the function is missing, if the file does not run, or if a command runs that does
    not name the file.
    """
    path, _, function = check_name(name, kind).rpartition(":")
    check_stated(name, kind)
    file = Path(path).resolve()
    try:
        str(file).encode()
    except UnicodeEncodeError:  # JAX needs the file names of functions in UTF-8
        raise InputError(f"{kind} {name!r} must have a path in UTF-8, got {str(file)!r}.") from None
    return _load(f"{kind} {name!r}", file, function)


@cached_by_files(lambda named, file, function: (file,), maxsize=64)
def _load(named: str, file: Path, function: str) -> Callable[..., Any]:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with wrap_errors(f"{named}: running its file"), _neighbours(file.parent):
        spec.loader.exec_module(module)
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == file.stem}
    offered = {key: value for key, value in own.items() if not key.startswith("_")}
    functions = {key: value for key, value in offered.items() if inspect.isroutine(value) or inspect.isclass(value)}
    return functions[one_of(f"{named}: function", function, functions)]


@contextlib.contextmanager
def _neighbours(folder: Path) -> Generator[None]:
    """Let a file import modules of its folder; they are forgotten afterwards, as other folders may have their names."""
    known = set(sys.modules)
    sys.path.append(str(folder))  # last, so that no file hides an installed module
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - known:
            if folder in Path(getattr(sys.modules[name], "__file__", None) or "").parents:
                del sys.modules[name]


@functools.lru_cache(maxsize=64)
def try_out(policy: Callable[..., Plan], name: str, servers: int, degree: int, seen: int = 0) -> None:
    """Raise `InputError` unless JAX can trace the policy and its circuits are legal for two demands of the region.

    `seen`: number of demands in `history`, for a policy that has this keyword; 0: the caller fills none of `KEYWORDS`.
    """
    region, previous, known = Region(servers, 400.0, degree), None, {}
    keywords = _check_call(policy, name)
    if seen and "history" in keywords:
        known["history"] = _draw(range(TRIES, TRIES + seen), servers)
    if seen:
        known |= {name: value for name, value in zip(("block", "backward"), FIRST, strict=True) if name in keywords}
    for seed in range(TRIES):
        plan: Any = _call(policy, name, _draw([seed], servers)[0], region, previous, jax.random.key(seed), known)
        if "state" in keywords and (seen or isinstance(plan, tuple)):
            plan, known["state"] = _plan_and_state(plan, name, known.get("state"), bool(seen))
        _check_plan(plan, name, region)
        if seen and plan.schedule is not None and any(keyword in keywords for keyword in KEYWORDS):
            raise InputError(
                f"policy {name} must plan without a schedule, or without the keywords {' and '.join(KEYWORDS)}: "
                "schedules are planned for each demand alone."
            )
        previous = plan


def _check_call(policy: Callable[..., Plan], name: str) -> Iterable[str]:
    """Return the names of a policy's arguments. Raise `InputError` if it cannot be called as a policy."""
    form = inspect.signature(policy)
    try:
        form.bind(None, None, previous=None, key=None)
    except TypeError as error:
        raise InputError(
            f"policy {name} must be written as policy(demand, region, *, previous=None, key=None), further arguments "
            f"with defaults; got ({', '.join(form.parameters)})."
        ) from error
    return form.parameters


def _call(
    policy: Callable[..., Plan], name: str, demand: Array, region: Region, previous: Any, key: Array, known: Any
) -> Any:
    with wrap_errors(f"policy {name}, called as policy(demand, region, previous=..., key=...),"):
        try:
            return jax.jit(policy)(demand, region, previous=previous, key=key, **known)
        except NOT_TRACED as error:
            raise InputError(
                f"policy {name} must be a function that JAX can trace (jax.numpy, no `if` or `range` on "
                "demand or on the region's numbers except servers): "
                f"{_first_line(error)}"
            ) from error
        except InputError as error:
            raise InputError(f"policy {name}: {error}") from error


def _plan_and_state(returned: Any, name: str, before: Any, kept: bool) -> tuple[Any, Any]:
    """Return the plan and the state of a policy with the keyword `state`; `kept`: the caller keeps the state."""
    if not kept:
        raise InputError(
            f"policy {name} returns a state, which only training iterations (`mfabric compare`) and `mfabric policies "
            "regimes` keep: return only Plan(Circuits(count)) elsewhere."
        )
    if not isinstance(returned, tuple) or len(returned) != 2:
        got = type(returned).__name__
        raise InputError(f"policy {name} has the keyword state, so it must return (plan, state), got {got}.")
    plan, state = returned
    if before is not None and (old := _types(before)) != (new := _types(state)):
        raise InputError(f"policy {name} must return a state of the same types at every call, got {old}, then {new}.")
    return plan, state


def _types(state: Any) -> str:
    return str(jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", state)).replace("'", "")


def _check_plan(plan: Any, name: str, region: Region) -> None:
    circuits, servers = getattr(plan, "circuits", None), region.servers
    if not isinstance(plan, Plan) or not isinstance(circuits, Circuits):
        inside = f"({type(circuits).__name__})" if isinstance(plan, Plan) else ""
        got = "an array" if isinstance(plan, jax.Array) else type(plan).__name__
        raise InputError(f"policy {name} must return Plan(Circuits(count)), got {got}{inside}.")
    count = np.asarray(plan.circuits.count)
    if count.shape != (servers, servers):
        want = f"[{servers} {servers}]"
        raise InputError(f"policy {name} must give circuits [S S] = {want}, got {list(count.shape)}.")
    check_legal(name, count, region.optical_degree)
    if plan.schedule is not None:
        plan.schedule.check_region(region)


def _draw(seeds: Iterable[int], servers: int) -> Array:
    drawn = [np.random.default_rng(seed).pareto(1.2, (servers, servers)) for seed in seeds]
    return jnp.asarray(np.stack(drawn), jnp.float32)


def check_legal(name: str, count: np.ndarray, degree: ArrayLike) -> None:
    """Raise `InputError` if circuits [... S S] break a rule. `degree`: one number for all servers, or [S]."""
    count, degree = host_floats("count", count), host_floats("degree", degree, NOT_NEGATIVE)
    if count.ndim < 2 or count.shape[-1] != count.shape[-2]:
        raise InputError(f"count must be [... S S], circuits from server to server, got {list(count.shape)}.")
    used = count.sum(axis=-1)
    most = " ".join(f"{nics:g}" for nics in np.atleast_1d(degree))
    rules = {
        "whole numbers": np.isfinite(count).all() and (count == np.round(count)).all(),
        "not negative": (count >= 0).all(),
        "symmetric (a circuit joins two servers in both directions)": (count == np.swapaxes(count, -1, -2)).all(),
        "zero on the diagonal": (np.diagonal(count, axis1=-2, axis2=-1) == 0).all(),
        f"at most {most} at a server (region.optical_degree), got {used.max():g}": (used <= degree).all(),
    }
    for rule, kept in rules.items():
        if not kept:
            raise InputError(f"policy {name} gave circuits that break a rule: they must be {rule}.")


@contextlib.contextmanager
def wrap_errors(what: str) -> Generator[None]:
    """Turn every error of the user's code into an `InputError` that starts with `what`.

    This includes an exit of the program, but not interrupts.
    """
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{type(error).__name__}: {_first_line(error)}".rstrip(": .")
        raise InputError(f"{what} raised {message}.") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]
