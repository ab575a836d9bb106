"""Users' own policies, as functions or `FILE.py:FUNCTION`; they are tried before use."""

import contextlib
import functools
import importlib.util
import inspect
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
    with wrap_errors(f"{named}: running its file"):
        spec.loader.exec_module(module)
    own = {key: value for key, value in vars(module).items() if getattr(value, "__module__", None) == file.stem}
    offered = {key: value for key, value in own.items() if not key.startswith("_")}
    functions = {key: value for key, value in offered.items() if inspect.isroutine(value) or inspect.isclass(value)}
    return functions[one_of(f"function of {named}", function, functions)]


@functools.lru_cache(maxsize=64)
def try_out(policy: Callable[..., Plan], name: str, servers: int, degree: int, seen: int = 0) -> None:
    """Raise `InputError` unless JAX can trace the policy and its circuits are legal for two demands of the region.

    `seen`: number of demands in `history`, for a policy that has this keyword; 0 leaves it out.
    """
    region, previous, known = Region(servers, 400.0, degree), None, {}
    if seen and "history" in inspect.signature(policy).parameters:
        known["history"] = _draw(range(TRIES, TRIES + seen), servers)
    for seed in range(TRIES):
        demand = _draw([seed], servers)[0]
        key = jax.random.key(seed)
        with wrap_errors(f"policy {name}, called as policy(demand, region, previous=..., key=...),"):
            try:
                plan: Any = jax.jit(policy)(demand, region, previous=previous, key=key, **known)
            except NOT_TRACED as error:
                raise InputError(
                    f"policy {name} must be a function that JAX can trace (jax.numpy, no `if` or `range` on "
                    "demand or on the region's numbers except servers): "
                    f"{_first_line(error)}"
                ) from error
        circuits: Any = getattr(plan, "circuits", None)
        if not isinstance(plan, Plan) or not isinstance(circuits, Circuits):
            inside = f"({type(circuits).__name__})" if isinstance(plan, Plan) else ""
            raise InputError(f"policy {name} must return Plan(Circuits(count)), got {type(plan).__name__}{inside}.")
        count = np.asarray(plan.circuits.count)
        if count.shape != (servers, servers):
            want = f"[{servers} {servers}]"
            raise InputError(f"policy {name} must give circuits [S S] = {want}, got {list(count.shape)}.")
        check_legal(name, count, degree)
        if plan.schedule is not None:
            plan.schedule.check_region(region)
        previous = plan


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
