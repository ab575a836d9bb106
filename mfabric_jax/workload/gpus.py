"""GPUs: the catalogue (`gpus.toml`) and users' files."""

import dataclasses
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from mfabric_jax import checks, units
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import PARSERS, read_mapping

DEFAULT_GPU = "A100-80GB-SXM"
PRECISIONS = ("bf16", "fp8")


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU and its server; None means not known.

    - `bf16_flops`, `fp8_flops`: peak dense FLOP/s; `nvlink`: bytes/s per direction inside a server.
    - `memory_bytes`, `memory_Bps`: size and bytes/s of HBM; `watts`, `usd`: of one GPU.
    - `gpus_per_server`, `nics`: of a server; `nics` None: one per GPU.
    - `nvswitches`: NVSwitches that `nvswitch_gpus` GPUs share; 0: direct links between GPUs.
    - `nvls_over_ring`: bandwidth of its NVLinks in an all-reduce that NVSwitches compute (NVLS) over that in a ring;
      None: they cannot reduce. `nvls`: whether all-reduces whose times are not measured use this.
    - `scale_up_gpus`: size of an NVLink domain that spans servers (nvl72, mfabric-cpo); None: the fabric's size.

    Raise `InputError` for an impossible number.
    """

    name: str
    bf16_flops: float
    nvlink: float
    source: str
    fp8_flops: float | None = None
    memory_bytes: float | None = None
    memory_Bps: float | None = None
    gpus_per_server: int = 8
    scale_up_gpus: int | None = None
    nics: int | None = None
    nvswitches: int | None = None
    nvswitch_gpus: int = 8
    watts: float | None = None
    usd: float | None = None
    nvls_over_ring: float | None = None
    nvls: bool = False

    def __post_init__(self) -> None:
        for field in ("bf16_flops", "nvlink"):
            checks.positive(field, getattr(self, field))
        for field in ("fp8_flops", "memory_bytes", "memory_Bps", "watts", "usd", "nvls_over_ring"):
            if getattr(self, field) is not None:
                checks.positive(field, getattr(self, field))
        checks.whole("gpus_per_server", self.gpus_per_server)
        checks.whole("nvswitch_gpus", self.nvswitch_gpus)
        if self.nvswitches is not None:
            checks.whole("nvswitches", self.nvswitches, at_least=0)
        for field in ("scale_up_gpus", "nics"):
            if getattr(self, field) is not None:
                checks.whole(field, getattr(self, field))
        if self.nvls and self.nvls_over_ring is None:
            raise InputError(
                f"gpu.nvls needs NVSwitches that reduce, as those of H100 and later GPUs do (nvls_over_ring in the "
                f"file of a GPU), got {self.name}."
            )

    @property
    def reduction_part(self) -> float:
        """`nvls_over_ring` if all-reduces use it, else 0."""
        return (self.nvls_over_ring or 0.0) if self.nvls else 0.0

    def peak(self, precision: str = "bf16") -> float:
        """Return the dense peak FLOP/s at "bf16" or "fp8". Raise `InputError` if it is not known."""
        peaks = {"bf16": self.bf16_flops, "fp8": self.fp8_flops}
        known = peaks[checks.one_of("compute_precision", precision, PRECISIONS)]
        if known is None:
            raise InputError(f"compute_precision {precision!r} has no known peak on the GPU {self.name}.")
        return known


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{field} must be text, got {value!r}.")
    return value


def _amount(unit: Callable[[float], float]) -> Callable[[str, Any], float]:
    return lambda field, value: unit(float(checks.positive(field, checks.number(field, value))))


# Key in a file: field of `Gpu`, and the function that reads its value.
FIELDS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "name": ("name", _text),
    "source": ("source", _text),
    "bf16_tflops": ("bf16_flops", _amount(units.tflops)),
    "fp8_tflops": ("fp8_flops", _amount(units.tflops)),
    "memory_gigabytes": ("memory_bytes", _amount(units.gigabytes)),
    "memory_gigabytes_per_s": ("memory_Bps", _amount(units.gigabytes_per_s)),
    "nvlink_gigabytes_per_s": ("nvlink", _amount(units.gigabytes_per_s)),
    "gpus_per_server": ("gpus_per_server", checks.whole),
    "scale_up_gpus": ("scale_up_gpus", checks.whole),
    "nics": ("nics", checks.whole),
    "nvswitches": ("nvswitches", lambda field, value: checks.whole(field, value, at_least=0)),
    "nvswitch_gpus": ("nvswitch_gpus", checks.whole),
    "nvls_over_ring": ("nvls_over_ring", _amount(float)),
    "watts": ("watts", _amount(float)),
    "usd": ("usd", _amount(float)),
}
REQUIRED = ("bf16_tflops", "nvlink_gigabytes_per_s")


def _gpu(values: dict[str, Any], known: dict[str, Gpu], **unnamed: Any) -> Gpu:
    for field in values:
        checks.one_of("field of a GPU", field, ("like", *FIELDS))
    missing = [field for field in REQUIRED if field not in values]
    if "like" not in values and missing:
        raise InputError(f"a GPU needs {' and '.join(missing)}, or like = the name of a known one.")
    read = {FIELDS[key][0]: FIELDS[key][1](key, value) for key, value in values.items() if key != "like"}
    if "like" in values:
        return dataclasses.replace(known[checks.one_of("like", values["like"], known)], **unnamed | read)
    return Gpu(**unnamed | read)


GPUS: dict[str, Gpu] = {}
_CATALOGUE = (resources.files("mfabric_jax.workload") / "gpus.toml").read_text(encoding="utf-8")
for _name, _values in tomllib.loads(_CATALOGUE).items():
    GPUS[_name] = _gpu(_values, GPUS, name=_name)


def get_gpu(gpu: str | Path | Gpu = DEFAULT_GPU) -> Gpu:
    """Return a GPU by catalogue name, from a `.toml` or `.json` file, or unchanged if it is a `Gpu`.

    A file may hold `name` (default: the file's name), `source`, `bf16_tflops`, `fp8_tflops` (dense peaks),
    `nvlink_gigabytes_per_s` (one way), `memory_gigabytes`, `memory_gigabytes_per_s`, `gpus_per_server`,
    `scale_up_gpus`, `nics` (per server), `nvswitches` of `nvswitch_gpus` GPUs (8), `nvls_over_ring`,
    `watts` and `usd`.
    `like = "H100-SXM"` takes missing fields from that GPU.

    Raise `InputError` for an unknown name or field, and for an impossible number.
    """
    if isinstance(gpu, Gpu):
        return gpu
    if str(gpu).isdigit():
        raise InputError(f"gpu must be the name of a GPU, got {str(gpu)!r}; the number of GPUs is gpus.")
    if Path(gpu).suffix.lower() not in PARSERS:
        return GPUS[checks.one_of("gpu", str(gpu), [*GPUS, "FILE.toml or FILE.json"])]
    values = read_mapping(gpu, "facts of a GPU")
    try:
        return _gpu(values, GPUS, name=Path(gpu).stem, source=f"as given in {Path(gpu).name}")
    except InputError as mistake:
        raise InputError(f"{str(gpu)!r}: {mistake}") from None
