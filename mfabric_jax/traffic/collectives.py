"""Collectives of MoE training as fluid flows between endpoints. Host side, in NumPy.

An endpoint is a GPU, counted over the whole cluster. The steps of a collective follow each other in small chunks,
so in a fluid model they all run together: every member sends its total bytes from the start. Latency per step is
not part of a flow. Letters: F flows, G groups at once, n members of a group, S servers, m members per server.

- `members`: endpoints, none twice in a group.   - `size`: bytes.   - `start`: seconds, a number or one per group [G].
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError, not_negative, whole
from mfabric_jax.flows.flows import Flows, flows_of
from mfabric_jax.rings import onward, ring_bytes

MOST_LABELS = np.iinfo(np.int16).max + 1  # that `Flows.task` can tell apart


def together(*flows: Flows) -> Flows:
    """All of these flows, concurrent, in the order given; equal labels become one."""
    labels = tuple(dict.fromkeys(label for part in flows for label in part.labels))
    if len(labels) > MOST_LABELS:
        raise InputError(f"flows must have at most {MOST_LABELS} different labels together, got {len(labels)}.")
    place = {label: i for i, label in enumerate(labels)}
    task = [np.array([place[label] for label in part.labels], np.int16)[part.task] for part in flows]
    columns = {
        name: np.concatenate([np.zeros(0, dtype), *(getattr(part, name) for part in flows)])
        for name, dtype in (("src", np.int64), ("dst", np.int64), ("size", float), ("start", float))
    }
    return flows_of(**columns, task=np.concatenate([np.zeros(0, np.int16), *task]), labels=labels)


def all_to_all(members: ArrayLike, size: ArrayLike, *, label: str = "all-to-all", start: ArrayLike = 0.0) -> Flows:
    """Every member sends to every other one.

    - `members` [n] or [G n].   - `size` per ordered pair: a number, [n n] or [G n n] in the order of the members.

    The diagonal is ignored, whatever stands there; pairs of 0 bytes are dropped.
    """
    members = _members(members)
    groups, n = members.shape
    size = _array("size", size)
    if size.shape not in ((), (n, n), (groups, n, n)):
        raise InputError(f"size must be a number, [{n} {n}] or [{groups} {n} {n}], got the shape {_shape(size)}.")
    if size.ndim:
        size = np.where(np.eye(n, dtype=bool), 0, size)
    return _pairs(label, members, _amounts("size", size), _per_group("start", start, groups))


def ring_all_reduce(
    members: ArrayLike, size: ArrayLike, *, rings: int = 1, label: str = "all-reduce", start: ArrayLike = 0.0
) -> Flows:
    """A reduce-scatter and an all-gather around the ring: every member sends 2 `size` (n - 1) / n to its successor.

    - `members` [n] or [G n]: in the order of the ring.   - `size` that every member holds, a number or [G].
    - `rings`: how many share the bytes evenly. Each visits every p-th member, with p and n coprime: p = 1, its
      reverse n - 1, then the further coprimes in ascending order, each with its reverse. These are the totient
      permutations of TopoOpt (NSDI 2023, arXiv 2202.00433). `InputError` where n has fewer coprimes.

    One member sends nothing, however many rings.
    """
    members = _members(members)
    groups, n = members.shape
    size, start = _per_group("size", size, groups), _per_group("start", start, groups)
    strides, each = _strides(n, whole("rings", rings)).tolist(), ring_bytes(size, n) / rings
    after = np.stack([onward(members, stride=stride) for stride in strides], axis=1)  # [G rings n]
    return _flows(label, members[:, None, :], after, each[:, None, None], start[:, None, None])


def hierarchical_all_reduce(
    members: ArrayLike, size: ArrayLike, *, label: str = "all-reduce", start: ArrayLike = 0.0
) -> Flows:
    """Reduce-scatter inside every server, ring all-reduces between servers, all-gather inside.

    - `members` [S m] or [G S m]: one row per server.   - `size` that every member holds, a number or [G].

    Inside, each member sends `size` / m directly (over the NVSwitch) to each other one, in the reduce-scatter and
    again in the all-gather: one flow of 2 `size` / m per ordered pair. Between, the i-th members of all servers
    all-reduce their `size` / m on a ring of their own, in the order of the rows: m rings, so all NICs work. The
    three phases are pipelined in chunks, so in a fluid model they run together.
    Labels: "`label` inside" and "`label` between".
    """
    members = _members(members, axes=2)
    groups, servers, local = members.shape
    part, start = _per_group("size", size, groups) / local, _per_group("start", start, groups)
    server = members.reshape(groups * servers, local)
    pair = np.repeat(2 * part, servers)[:, None, None]
    inside = _pairs(f"{label} inside", server, pair, np.repeat(start, servers))
    rail = members.swapaxes(1, 2).reshape(groups * local, servers)
    part, start = np.repeat(part, local), np.repeat(start, local)
    return together(inside, ring_all_reduce(rail, part, label=f"{label} between", start=start))


def point_to_point(
    src: ArrayLike, dst: ArrayLike, size: ArrayLike, *, label: str = "point-to-point", start: ArrayLike = 0.0
) -> Flows:
    """`size` bytes from each `src` to its `dst`, from `start` [s] on: arrays that broadcast.

    Flows to oneself and flows of 0 bytes are dropped.
    """
    columns = _endpoints("src", src), _endpoints("dst", dst), _amounts("size", size), _amounts("start", start)
    try:
        return _flows(label, *columns)
    except ValueError:
        shapes = ", ".join(_shape(column) for column in columns)
        raise InputError(f"src, dst, size and start must broadcast, got the shapes {shapes}.") from None


def _flows(label: str, src, dst, size, start) -> Flows:
    """Broadcast and flattened, without flows to oneself and without empty ones."""
    src, dst, size, start = np.broadcast_arrays(src, dst, size, start)
    keep = (src != dst) & (size > 0)
    src, dst = (ends[keep].astype(np.int64) for ends in (src, dst))
    size, start = (reals[keep].astype(np.float64) for reals in (size, start))
    return flows_of(src, dst, size, start=start, task=np.int16(0), labels=(label,))


def _pairs(label: str, members: np.ndarray, size: np.ndarray, start: np.ndarray) -> Flows:
    """All ordered pairs in each group; members [G n], size broadcasts to [G n n], start [G]."""
    return _flows(label, members[:, :, None], members[:, None, :], size, start[:, None, None])


def _strides(n: int, rings: int) -> np.ndarray:
    """The first `rings` of 1, n - 1, p, n - p, ...: all coprime to n. One member needs no more than one."""
    stride = np.arange(1, max(n, 2))
    stride = stride[np.gcd(stride, n) == 1]
    if rings > stride.size and n > 1:
        raise InputError(f"rings must be at most {stride.size} for {n} members (one per coprime stride), got {rings}.")
    forward = stride[: (stride.size + 1) // 2]
    return np.stack([forward, n - forward], axis=1).ravel()[: min(rings, stride.size)]


def _shape(array: np.ndarray) -> str:
    return "[" + " ".join(map(str, array.shape)) + "]"


def _array(field: str, value: ArrayLike) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{field} must be an array, got rows of different lengths.") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{field} must hold numbers, got {array.dtype}.")
    return array


def _amounts(field: str, value: ArrayLike) -> np.ndarray:
    """Bytes or seconds: finite, 0 or more. Of a large array only the first mistake is named."""
    array = _array(field, value).astype(np.float64)
    wrong = array[~(np.isfinite(array) & (array >= 0))]
    if wrong.size:
        not_negative(field, wrong[0])
    return array


def _per_group(field: str, value: ArrayLike, count: int) -> np.ndarray:
    """[count] from a number or one for each group."""
    array = _amounts(field, value)
    if array.shape not in ((), (count,)):
        raise InputError(f"{field} must be a number or have the shape [{count}] (groups), got {_shape(array)}.")
    return np.broadcast_to(array, (count,))


def _endpoints(field: str, value: ArrayLike) -> np.ndarray:
    array = _array(field, value)
    if array.size and array.dtype.kind == "f":
        raise InputError(f"{field} must be whole numbers (endpoints), got {array.dtype}.")
    array = array.astype(np.int64)
    if (array < 0).any():
        raise InputError(f"{field} must not be negative, got {array.min()}.")
    return array


def _members(value: ArrayLike, axes: int = 1) -> np.ndarray:
    """Endpoints as [G n], or as [G S m] with `axes` 2; one group alone becomes G = 1."""
    array = _endpoints("members", value)
    if array.ndim not in (axes, axes + 1) or 0 in array.shape[-axes:]:
        allowed = ("[n] or [G n]", "[S m] or [G S m]")[axes - 1]
        raise InputError(f"members must have the shape {allowed} without empty groups, got {_shape(array)}.")
    groups = array if array.ndim > axes else array[None]
    ordered = np.sort(groups.reshape(len(groups), math.prod(groups.shape[1:])), axis=1)
    group, place = np.nonzero(ordered[:, 1:] == ordered[:, :-1])
    if group.size:
        twice = ordered[group[0], place[0]]
        raise InputError(f"members must not name an endpoint twice in a group, but group {group[0]} repeats {twice}.")
    return groups
