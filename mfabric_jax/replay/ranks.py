"""Which GPU each rank of a graph runs on."""

from collections.abc import Callable

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.text_files import read_mapping


def _in_order(servers: int, per_server: int, seed: int) -> np.ndarray:
    return np.arange(servers * per_server)


def _round_robin(servers: int, per_server: int, seed: int) -> np.ndarray:
    return np.arange(servers * per_server).reshape(servers, per_server).T.ravel()


def _random(servers: int, per_server: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(servers * per_server)


ORDERS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "in-order": _in_order,
    "round-robin": _round_robin,
    "random": _random,
}


def check_order(name: str) -> None:
    """`InputError` for a placement that is none."""
    if not name.endswith(".json"):
        one_of("ranks_on", name, (*ORDERS, "FILE.json"))


def gpus_of_ranks(
    order: str, ranks: int, servers: int, per_server: int, *, first: int = 0, seed: int = 0
) -> np.ndarray:
    """GPU of every rank [R].

    - `order`: "in-order": rank r on GPU r; "round-robin": on server r modulo servers; "random": drawn by `seed`; or a
      .json file `{"gpus": [GPU of rank 0, of rank 1, ...]}`.   - `first`: the place in that order of rank 0.
    """
    gpus = servers * per_server
    if order.endswith(".json"):
        return _read(order, ranks, gpus)
    if first + ranks > gpus:
        raise InputError(
            f"servers must hold {first + ranks} GPUs for {ranks} ranks from first_gpu {first} on, got {gpus}."
        )
    return ORDERS[order](servers, per_server, seed)[first : first + ranks]


def _read(path: str, ranks: int, gpus: int) -> np.ndarray:
    data = read_mapping(path, "the GPUs of ranks", ".json")
    for name in data:
        one_of(f"field of {path!r}", name, ("gpus",))
    found = data.get("gpus")
    if not isinstance(found, list) or not all(type(gpu) is int and 0 <= gpu < gpus for gpu in found):
        raise InputError(f"gpus of {path!r} must be a list of whole numbers from 0 to {gpus - 1}, got {found!r:.80}.")
    if len(found) != ranks or len(set(found)) < ranks:
        raise InputError(f"gpus of {path!r} must be {ranks} different ones, a rank each, got {len(found)}.")
    return np.array(found, np.int64)
