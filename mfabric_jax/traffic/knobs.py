"""What a traffic generator can be asked for, knob by knob."""

import dataclasses
import json
import os
import pathlib
from typing import Any

from mfabric_jax import checks
from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError

POWER_LAW = "power-law"
LOG_NORMAL = "log-normal"
FAMILIES = (POWER_LAW, LOG_NORMAL)
_MOVES = ("row_noise", "micro_drift", "drift", "jitter")
SCHEMA_VERSION = 1
VERSION = "schema_version"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knobs:
    """Settings of generated traffic; the defaults are exactly balanced. "Logarithm" is that of an expert's popularity.

    Popularity, per layer:

    - `popularity`: "power-law": popularity rank to the power -`skew`; "log-normal": the quantiles of a log-normal
      distribution whose logarithm has the standard deviation `skew`. Who has which rank is permuted by the seed.
    - `layer_spread`: layers differ in skew: they have the quantiles of `skew` exp(`layer_spread` x a standard normal
      number), in an order that the seed decides.
    - `distinct`: how many different experts a token goes to: no expert gets more than 1/`distinct` of a row; what is
      above goes to the others in proportion.
    - `sparsity`: part of the experts that receive nothing, drawn per layer; `pair_sparsity`: part of the rest, drawn
      per layer and source rank, that receives nothing from this rank.

    What moves it:

    - `row_noise`: standard deviation of the logarithm between source rows, drawn afresh in every iteration;
      `row_shared`: part of its variance that the micro-batches of an iteration share.
    - `micro_drift`: the same between the micro-batches of an iteration, shared by all source ranks.
    - `drift`: the same of each step from one iteration to the next; `persistence`: the part of the deviation so far
      that remains at each step. 1 is a random walk from 0; below 1 deviations start and keep the standard deviation
      `drift_spread`, and those n iterations apart have the correlation `persistence`^n.
    - `jitter`: the same between iterations, but forgotten at once; shared by micro-batches and source ranks.
    - `phase_start`, `phase_floor`, `half_life`: the logarithms (before drift and noise) are multiplied by
      floor + (start - floor) 2^(-iteration / half_life): imbalance decays as a balancing loss acts.

    A hot spot, laid over that:

    - `hot_share`: part of every row that goes to the hot experts, equally, in place of as much of the rest.
    - `hot_experts` or `hot_ranks`: how many neighbouring experts, or how many ranks with all their experts, are hot;
      the first one is drawn per layer. `hot_spread`: hot experts are spread evenly instead.
    - `rotation`: every so many iterations the hot set moves on by its own size (spread: by one expert); 0: never.
    - `burst_every`, `burst_length`: hot only in the last `burst_length` of every `burst_every` iterations; 0: always.

    `sampled`: whole selections are drawn (multinomial); else they are expectations, real numbers.
    `InputError` for a value out of range.
    """

    popularity: str = POWER_LAW
    skew: float = 0.0
    layer_spread: float = 0.0
    distinct: int = 1
    sparsity: float = 0.0
    pair_sparsity: float = 0.0
    row_noise: float = 0.0
    row_shared: float = 0.0
    micro_drift: float = 0.0
    drift: float = 0.0
    persistence: float = 1.0
    jitter: float = 0.0
    phase_start: float = 1.0
    phase_floor: float = 1.0
    half_life: float = 1.0
    hot_share: float = 0.0
    hot_experts: int = 0
    hot_ranks: int = 0
    hot_spread: bool = False
    rotation: int = 0
    burst_every: int = 0
    burst_length: int = 1
    sampled: bool = False

    def __post_init__(self) -> None:
        checks.one_of("popularity", self.popularity, FAMILIES)
        for field in ("skew", "layer_spread", *_MOVES, "phase_start", "phase_floor"):
            checks.not_negative(field, getattr(self, field))
        checks.positive("half_life", self.half_life)
        for field in ("sparsity", "pair_sparsity"):
            _part(field, getattr(self, field), below=True)
        for field in ("row_shared", "persistence", "hot_share"):
            _part(field, getattr(self, field))
        for field in ("distinct", "burst_length"):
            checks.whole(field, getattr(self, field))
        for field in ("hot_experts", "hot_ranks", "rotation", "burst_every"):
            checks.whole(field, getattr(self, field), at_least=0)
        for field in ("hot_spread", "sampled"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(f"{field} must be true or false, got {getattr(self, field)!r}.")
        self._check_hot()

    def _check_hot(self) -> None:
        if self.hot_experts and self.hot_ranks:
            raise InputError(f"hot_ranks must be 0 beside hot_experts {self.hot_experts}, got {self.hot_ranks}.")
        if self.hot_share and not (self.hot_experts or self.hot_ranks):
            raise InputError(f"hot_share {self.hot_share:g} needs hot_experts or hot_ranks of at least 1, got 0.")
        if self.burst_every and self.burst_length > self.burst_every:
            raise InputError(f"burst_length must be at most burst_every {self.burst_every}, got {self.burst_length}.")

    @property
    def drift_spread(self) -> float:
        """Standard deviation that drift alone gives logarithms in the long run; infinite for a random walk."""
        if not self.drift:
            return 0.0
        return self.drift / (1 - self.persistence**2) ** 0.5 if self.persistence < 1 else float("inf")

    @property
    def words(self) -> str:
        """What was turned, in words."""
        return ", ".join(f"{name} {_plain(value)}" for name, value in self.turned.items()) or "balanced"

    @property
    def turned(self) -> dict[str, Any]:
        """The knobs that differ from their defaults, by name."""
        given = dataclasses.asdict(self)
        return {f.name: given[f.name] for f in dataclasses.fields(self) if given[f.name] != f.default}

    @classmethod
    def read(cls, path: str | os.PathLike) -> "Knobs":
        """The knobs in a JSON file: an object of fields; what is left out has its default. `InputError` else."""
        try:
            given: Any = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"knobs {str(path)!r} cannot be read ({error.strerror or error}).") from error
        except ValueError as error:
            raise InputError(f"knobs {str(path)!r} must be a JSON object, got something that is no JSON.") from error
        if not isinstance(given, dict):
            raise InputError(f"knobs {str(path)!r} must be a JSON object, got {str(given)[:40]!r}.")
        version = given.pop(VERSION, SCHEMA_VERSION)
        if checks.whole(VERSION, version) > SCHEMA_VERSION:
            raise InputError(f"{VERSION} of knobs {str(path)!r} must be at most {SCHEMA_VERSION}, got {version}.")
        for field in given:
            checks.one_of("knob", field, [f.name for f in dataclasses.fields(cls)])
        return cls(**given)

    def write(self, path: str | os.PathLike) -> pathlib.Path:
        """Every knob as JSON, whole or not at all; returns the path. `InputError` for what cannot be written."""
        path = pathlib.Path(path)
        text = json.dumps({VERSION: SCHEMA_VERSION} | dataclasses.asdict(self), indent=1)
        with replacing(path) as (part,):
            part.write_text(text + "\n", encoding="utf-8")
        return path


def _part(field: str, value: float, below: bool = False) -> None:
    checks.not_negative(field, value)
    if value > 1 or (below and value == 1):
        raise InputError(f"{field} must be {'below' if below else 'at most'} 1, got {value}.")


def _plain(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
