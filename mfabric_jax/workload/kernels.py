"""Rates of kernels by GPU (`kernels.toml`): estimates for GPUs that nobody measured, what training does otherwise than
inference, and communication."""

import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import checks, units
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import cached_by_files, read_mapping
from mfabric_jax.workload.dispatch_kernels import training_parts
from mfabric_jax.workload.gpus import Gpu

HOW = ("slow", "usual", "fast")  # low, typical and high figures of the table
FORMATS = ("bf16", "fp8")
SHARED = ("other", "launch", "training", "counts", "communication")  # parts of the table that belong to no family
SCORES_BACKWARD = 2.5  # FLOPs of a fused backward pass over forward: five products for two (arXiv 2307.08691)


class KernelRates(NamedTuple):
    """Achieved rates of a GPU.

    - `products`, `grouped` (experts'), `weights` (gradients of weights): FLOP/s by number format.
    - `attention`: rate of attention scores, forward and backward, by head width and sequence length, as a fraction of
      `peak` [FLOP/s].
    - `memory_Bps`: bytes/s of memory.
    """

    products: dict[str, float]
    grouped: dict[str, float]
    weights: dict[str, float]
    attention: tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]
    memory_Bps: float
    peak: float

    def scores(self, sequence: int, width: float, *, backward: bool) -> float:
        """Return the FLOP/s of attention scores, interpolated by the logarithm of the sequence."""
        return self.peak * _of_width(self.attention[backward], width, sequence)


def _of_width(by_width: Mapping[str, Mapping[str, float]], width: float, sequence: int) -> float:
    """The value at a sequence length, of the nearest width."""
    nearest = min(by_width, key=lambda known: abs(float(known) - width))
    return _interpolate(by_width[nearest], sequence)


def _interpolate(known: Mapping[str, float], size: float) -> float:
    """The value at a size, interpolated by its logarithm."""
    sizes, values = zip(*sorted((float(name), value) for name, value in known.items()), strict=True)
    return float(np.interp(math.log2(size), np.log2(sizes), values))


@cached_by_files(lambda path=None: (path,), maxsize=64)
def table(path: str | None = None) -> dict[str, Any]:
    """Return the table of measured kernels. `path`: a user's table, which takes missing `SHARED` parts from the
    package's."""
    if path is not None:
        own = read_mapping(Path(path), "measured kernels")
        _check_table(repr(path), own)
        return {name: table()[name] for name in SHARED} | own
    own = tomllib.loads((resources.files("mfabric_jax.workload") / "kernels.toml").read_text(encoding="utf-8"))
    return own | training_parts()


ALIKE = {  # of training, if a table does not state them
    "grouped": {"products": [1.0] * 3, "weights": [1.0] * 3},
    "products": {"bf16": [1.0] * 3, "fp8": [1.0] * 3},
}
NAMED = "gpus"  # key of the GPUs of a family; other parts have none


def _check_table(named: str, own: dict[str, Any]) -> None:
    """Raise `InputError` unless a user's table has the parts and kinds of numbers of the package's table."""
    usual = table()
    of_training = ALIKE | {key: value for key, value in usual["training"]["hopper"].items() if key != NAMED}
    for name, part in own.items():
        where = f"{named}: {name}"
        if name == "training" and isinstance(part, dict):
            for family, rates in part.items():
                rates = ALIKE | rates if isinstance(rates, dict) else rates
                _check_like(f"{where}.{family}", _without_names(f"{where}.{family}", rates), of_training)
        elif name in SHARED[1:]:
            _check_like(where, part, usual[name])
        else:
            _check_like(where, _without_names(where, part), usual["other"])


def _without_names(where: str, part: Any) -> Any:
    """A family without the names of its GPUs, which must be a list."""
    if not isinstance(part, dict) or NAMED not in part:
        return part
    gpus = part[NAMED]
    if not isinstance(gpus, list) or not all(isinstance(gpu, str) for gpu in gpus):
        raise InputError(f"{where}.{NAMED} must be a list of names of GPUs, got {checks.format_value(gpus)}.")
    return {key: value for key, value in part.items() if key != NAMED}


def _check_like(where: str, value: Any, like: Any) -> None:
    """Raise `InputError` unless the value has the structure of `like`: a table, a list of numbers or a number. Keys
    that are numbers, such as sizes, may differ."""
    if isinstance(like, list):
        if not isinstance(value, list) or len(value) != len(like):
            raise InputError(
                f"{where} must be {len(like)} numbers, {', '.join(HOW)}, got {checks.format_value(value)}."
            )
        for number in value:
            checks.positive(where, number)
    elif not isinstance(like, dict):
        checks.not_negative(where, value)
    elif not isinstance(value, dict) or not value:
        raise InputError(f"{where} must be a table with {', '.join(like)}, got {checks.format_value(value)}.")
    elif all(name.isdigit() for name in like):
        for name, part in value.items():
            if not name.isdigit() or not 0 < int(name) <= checks.MOST_WHOLE:
                raise InputError(
                    f"{where} must be a table by whole numbers such as {next(iter(like))}, got {name!r:.80}."
                )
            _check_like(f"{where}.{name}", part, next(iter(like.values())))
    else:
        for name in value:
            checks.one_of(f"{where}: name", name, like)
        for name, part in like.items():
            if name not in value:
                raise InputError(f"{where} must be a table with {', '.join(like)}, got none of {name}.")
            _check_like(f"{where}.{name}", value[name], part)


@cached_by_files(lambda gpu, how="usual", path=None: (path,), maxsize=64)
def rates_of(gpu: Gpu, how: str = "usual", path: str | None = None) -> KernelRates:
    """Return the achieved rates of a GPU: of its family in the table, else of the part for unmeasured GPUs.

    - `how`: one of `HOW`.
    """
    families, column = table(path), HOW.index(checks.one_of("how", how, HOW))
    family = next((own for own in families.values() if gpu.name in own.get("gpus", ())), families["other"])
    peak = {name: gpu.bf16_flops if name == "bf16" else (gpu.fp8_flops or gpu.bf16_flops) for name in FORMATS}
    kinds = [
        {name: peak[name] * family[kind][name][column] for name in FORMATS}
        for kind in ("products", "grouped", "weights")
    ]
    scores = [
        {
            width: {length: shares[column] for length, shares in by.items()}
            for width, by in family["attention"][way].items()
        }
        for way in ("forward", "backward")
    ]
    memory = math.inf if gpu.memory_Bps is None else gpu.memory_Bps * family["memory"]["stream"][column]
    return KernelRates(*kinds, tuple(scores), memory, gpu.bf16_flops)  # type: ignore[arg-type]


AS_ONE: Mapping[str, float] = MappingProxyType({"products": 1.0, "weights": 1.0})
AS_MEASURED: Mapping[str, float] = MappingProxyType(dict.fromkeys(FORMATS, 1.0))


class TrainingRates(NamedTuple):
    """What training does otherwise than inference.

    - `sustained`: rate of large products in long runs over that of short ones, since the power limit lowers clocks.
    - `weights`: rate of products for gradients of weights over that of others, by number format.
    - `backward`: seconds of attention backward over forward, by head width and sequence length.
    - `grouped`: rate of experts' products over the table's (`products`), and of gradients of their weights over that of
      other gradients (`weights`).
    - `products`: rate of other large products over the table's, by number format, if training scales them otherwise.
    """

    sustained: float
    weights: dict[str, float]
    backward: dict[str, dict[str, float]]
    grouped: Mapping[str, float] = AS_ONE
    products: Mapping[str, float] = AS_MEASURED

    def attention_backward(self, width: float, sequence: int) -> float:
        """Return the seconds of attention backward over forward, interpolated by the logarithm of the sequence."""
        return _of_width(self.backward, width, sequence)


@cached_by_files(lambda gpu, how="usual", path=None: (path,), maxsize=64)
def training_rates(gpu: Gpu, how: str = "usual", path: str | None = None) -> TrainingRates:
    """Return what training does otherwise on a GPU: measured, or from the estimates of its family. `how`: one of
    `HOW`."""
    column = HOW.index(checks.one_of("how", how, HOW))
    families = table(path)["training"].values()
    known = next((family for family in families if gpu.name in family[NAMED]), None)
    if known is None or states(path, gpu):
        rates = rates_of(gpu, how, path)
        weights = {name: rates.weights[name] / rates.products[name] for name in FORMATS}
        back, ahead = rates.attention[1], rates.attention[0]
        ratios = {
            width: {length: SCORES_BACKWARD * ahead[width][length] / share for length, share in by.items()}
            for width, by in back.items()
        }
        return TrainingRates(1.0, weights, ratios)
    weights = {name: known["weights"][name][column] for name in FORMATS}
    grouped, products = (
        {name: each[column] for name, each in known.get(kind, same).items()} for kind, same in ALIKE.items()
    )
    return TrainingRates(known["sustained"][column], weights, known["attention_backward"], grouped, products)


def states(path: str | None, gpu: Gpu) -> bool:
    """Return whether a user's table has rates of this GPU."""
    return path is not None and any(
        gpu.name in part.get(NAMED, ()) for name, part in table(path).items() if name not in SHARED
    )


def has_family(gpu: Gpu) -> bool:
    """Return whether the package's table has estimates of a GPU's family."""
    return any(gpu.name in part.get(NAMED, ()) for name, part in table().items() if name not in SHARED)


def is_blackwell(gpu: Gpu) -> bool:
    """Return whether a GPU is of the Blackwell family, which multiplies in four bits."""
    return gpu.name in table()["training"]["blackwell"][NAMED]


class BandwidthShares(NamedTuple):
    """Achieved over nominal bandwidth of communication.

    - `nic`, `nvlink`: in all-to-alls; `ring_nic`, `ring_nvlink`: in rings; `tp_nvlink`: in tensor-parallel collectives;
      `send`: of NICs in sends between stages.
    - `counts_s`: seconds for which early ranks wait for the last one before a dispatch; dropless ones exchange sizes.
    - `cores`: fraction of a GPU's cores that an all-to-all uses.
    - `beside`: seconds of all-to-alls beside computation over those alone.
    - `ring_cores`: fraction of a GPU's cores that a ring uses: NCCL's.
    """

    nic: float = 1.0
    nvlink: float = 1.0
    ring_nic: float = 1.0
    ring_nvlink: float = 1.0
    tp_nvlink: float = 1.0
    send: float = 1.0
    counts_s: float = 0.0
    cores: float = 0.0
    beside: float = 1.0
    ring_cores: float = 0.0

    def slow_down(self, factor: float) -> "BandwidthShares":
        """Return the shares with which communication takes `factor` times as long."""
        names = ("nic", "nvlink", "ring_nic", "ring_nvlink", "tp_nvlink", "send")
        bandwidths = {name: getattr(self, name) / factor for name in names}
        return self._replace(**bandwidths, counts_s=self.counts_s * factor)


IDEAL = BandwidthShares()


@cached_by_files(lambda servers, dispatcher, how="usual", path=None: (path,), maxsize=256)
def shares_of(servers: int, dispatcher: str, how: str = "usual", path: str | None = None) -> BandwidthShares:
    """Return the bandwidth shares of communication kernels in a group, interpolated over the logarithm of `servers`."""
    if dispatcher == "ideal":
        return IDEAL
    every, column = table(path), HOW.index(how)
    known = every["communication"]
    family, rings = known[checks.one_of("dispatcher", dispatcher, DISPATCHERS)], known["rings"]
    nic = {size: shares[column] for size, shares in family["nic"].items()}
    return BandwidthShares(
        nic=_interpolate(nic, max(servers, 1)),
        nvlink=family["nvlink"][column],
        ring_nic=rings["nic"][column],
        ring_nvlink=rings["nvlink"][column],
        tp_nvlink=rings["nvlink"][column],
        send=rings["send"][column],
        counts_s=float(units.us(every["counts"]["us"][column])),
        cores=family["cores"],
        beside=family.get("beside", 1.0),
        ring_cores=known["nccl"]["cores"],
    )


DISPATCH_OF = {"nccl": "per-expert", "deepep": "per-server", "hybridep": "per-server"}  # by dispatcher
DISPATCHERS = tuple(DISPATCH_OF)
ONCE_A_SERVER = tuple(name for name, way in DISPATCH_OF.items() if way == "per-server")
USUAL_DISPATCHER = {"per-expert": "nccl", "per-server": "deepep"}  # by `Workload.dispatch`
