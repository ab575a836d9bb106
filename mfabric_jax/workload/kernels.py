"""Seconds of a block from measured kernels (`kernels.toml`): each kind of computation runs at its measured rate.

A matrix product takes the longer of two times: its FLOPs at the rate of a large product, or reading its operands from
memory. Then it writes its output. So products with a short inner dimension are slower, as measured. Gradients of
weights read and write the sum to which they are added. Norms, rotations, gated products, permutations of tokens, casts
and losses move bytes: each kernel of a usual implementation (fused norms and gates, separate residuals) reads and
writes them once. Nothing here was fitted to the time of a step.
"""

import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import cached_by_files, read_mapping
from mfabric_jax.workload.compute import Backward, BackwardParts, BlockSeconds, iteration_flops
from mfabric_jax.workload.dispatch_kernels import training_parts
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.volume import ACTIVATION_BYTES

HOW = ("slow", "usual", "fast")  # low, typical and high figures of the table
FORMATS = ("bf16", "fp8")
SHARED = ("other", "launch", "counts", "communication")  # parts of the table that belong to no GPU
SCORES_BACKWARD = 2.5  # FLOPs of a fused backward pass over forward: five products for two (arXiv 2307.08691)
CAST_BYTES = 4  # per element: read in bf16, written in FP8 by rows and by columns
LOSS_BYTES = (16, 8)  # per logit, forward and backward: cast to float32, exponential and sum; gradient
ROUTER_PASSES = 6  # over logits: probabilities, choice, scatter, balance loss, counts, and their sum
HEAD = "bf16"  # format of scores, router and output head, whatever the other products use


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
        by_width = self.attention[backward]
        nearest = min(by_width, key=lambda known: abs(float(known) - width))
        known = sorted((float(length), share) for length, share in by_width[nearest].items())
        lengths, shares = zip(*known, strict=True)
        return self.peak * float(np.interp(math.log2(sequence), np.log2(lengths), shares))


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


NAMED = "gpus"  # key of the GPUs of a family; other parts have none


def _check_table(named: str, own: dict[str, Any]) -> None:
    """Raise `InputError` unless a user's table has the parts and kinds of numbers of the package's table."""
    usual = table()
    for name, part in own.items():
        if isinstance(part, dict) and NAMED in part and name not in SHARED[1:]:
            gpus, part = part[NAMED], {key: value for key, value in part.items() if key != NAMED}
            if not isinstance(gpus, list) or not all(isinstance(gpu, str) for gpu in gpus):
                raise InputError(
                    f"{named}: {name}.{NAMED} must be a list of names of GPUs, got {checks.format_value(gpus)}."
                )
        _check_like(f"{named}: {name}", part, usual[name if name in SHARED else "other"])


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


def kernel_seconds(
    workload: Workload,
    gpu: Gpu,
    precision: str = "bf16",
    how: str = "usual",
    *,
    path: str | None = None,
    launch_s: float = 0.0,
) -> BlockSeconds:
    """Return the seconds of a block's parts, forward and backward.

    - `precision`: number format of products; `how`: one of `HOW`; `path`: a user's table.
    - `launch_s`: seconds before every kernel.
    """
    return _cached_block_seconds(
        _Part(*(getattr(workload, name) for name in _Part._fields)), gpu, precision, how, path, launch_s
    )


class _Part(NamedTuple):
    """The fields of a `Workload` on which the seconds of a block depend."""

    architecture: Any
    sequence: int
    tokens: int
    tp: int
    folded: int
    ep: int
    attention_tp: int
    experts_per_rank: int
    selections: int
    dispatch: str
    dispatch_bytes: float
    accumulated_bytes: float
    recompute: str
    sequence_parallel: bool
    head_counted: bool
    predicted: int


@cached_by_files(lambda part, gpu, precision, how, path, launch_s: (path,), maxsize=4096)
def _cached_block_seconds(
    part: _Part, gpu: Gpu, precision: str, how: str, path: str | None, launch_s: float
) -> BlockSeconds:
    return _Kernels(part, rates_of(gpu, how, path), precision, launch_s).block()


def achieved_by_kernels(workload: Workload, gpu: Gpu, precision: str, seconds: BlockSeconds) -> float:
    """Return achieved over peak FLOP/s: the model's FLOPs, divided by these seconds and by the GPU's peak."""
    back: Any = seconds.backward
    every = seconds.attention_s + back.attention.inputs + back.attention.weights
    moe = seconds.moe_s + back.moe.inputs + back.moe.weights
    dense = seconds.dense_s + back.dense.inputs + back.dense.weights
    layers, model = workload.moe_layers, workload.architecture
    total = model.blocks * every + layers * moe + (model.blocks - layers) * dense
    total += seconds.head_s + back.head
    passes = workload.micro_batches * workload.ep * workload.dp * workload.tp
    return iteration_flops(workload) / (passes * gpu.peak(precision) * total)


def is_blackwell(gpu: Gpu) -> bool:
    """Return whether a GPU is of the Blackwell family, which multiplies in four bits."""
    return gpu.name in table()["blackwell"][NAMED]


class _Passes(NamedTuple):
    """Seconds of the forward pass, of gradients of inputs and of weights, and of recomputation (`again`)."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    again: float = 0.0

    def __add__(self, other: Any) -> "_Passes":
        return _Passes(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __rmul__(self, factor: Any) -> Any:
        return _Passes(*(factor * part for part in self))


class _Kernels:
    def __init__(self, workload: _Part, rates: KernelRates, precision: str, launch_s: float = 0.0):
        self.job, self.rates, self.format, self.launch_s = workload, rates, precision, launch_s
        self.model, self.again = workload.architecture, recomputed_of(workload.recompute)
        self.attention_tokens = workload.folded * workload.tokens  # of all GPUs that split attention
        self.own_tokens = workload.tokens / workload.tp  # of one GPU, between products
        self.split = workload.attention_tp

    def block(self) -> BlockSeconds:
        experts, attention = self._experts(), self._attention()
        beside = self._norms() + self._router() + self._around_experts() + self._ffn(self.model.shared_hidden, "shared")
        there = len(self.model.moe_blocks) < self.model.blocks
        dense = self._norms() + self._ffn(self.model.dense_hidden, "mlp") if there else _Passes()
        dense = self.model.dense_part * dense
        moe, head = experts + beside, self._head()
        backward = (BackwardParts(*part[1:]) for part in (attention, moe, dense, experts))
        scores = sum(share * self._scores(kind, backward=False) for kind, share in self.model.attention.shares)
        return BlockSeconds(
            attention.forward,
            moe.forward,
            dense.forward,
            experts.forward,
            scores,
            head.forward,
            Backward(*backward, head=head.inputs + head.weights),
        )

    # ------------------------------------------------------------------------------------------------------- kernels
    def _kernels(self, size: float, count: float = 1) -> float:
        """Seconds of `count` kernels that together move `size` bytes."""
        return count * self.launch_s + size / self.rates.memory_Bps

    def _cast(self, elements: float) -> float:
        return self._kernels(CAST_BYTES * elements) if self.format == "fp8" else 0.0

    def _product(
        self, rows: float, inner: float, outer: float, *, groups: float = 1, grouped: bool = False, number: str = ""
    ) -> _Passes:
        """Seconds of `groups` products of `rows` x `inner` with `inner` x `outer`, in the format `number`."""
        number, memory_Bps = number or self.format, self.rates.memory_Bps
        rate = (self.rates.grouped if grouped else self.rates.products)[number]
        flops, weights, size = 2 * rows * inner * outer, inner * outer, 1 if number == "fp8" else ACTIVATION_BYTES

        def pass_s(rate: float, read: float, written: float) -> float:
            return self.launch_s + groups * (max(flops / rate, size * read / memory_Bps) + written / memory_Bps)

        forward = pass_s(rate, rows * inner + weights, ACTIVATION_BYTES * rows * outer)
        inputs = pass_s(rate, rows * outer + weights, ACTIVATION_BYTES * rows * inner)
        sums = 2 * self.job.accumulated_bytes * weights
        return _Passes(forward, inputs, pass_s(self.rates.weights[number], rows * (inner + outer), sums))

    def _elementwise(self, forward: float, backward: float, tokens: float, count: int) -> _Passes:
        """Seconds of `count` kernels that together move `forward` or `backward` bf16 elements per token."""
        moved = (self._kernels(ACTIVATION_BYTES * elements * tokens, count) for elements in (forward, backward))
        return _Passes(*moved)

    # --------------------------------------------------------------------------------------------------------- parts
    def _norms(self) -> _Passes:
        """A norm and a residual move 5 x hidden elements forward, 6 backward. Recomputation repeats only the norm."""
        width, tokens = self.model.hidden, self.own_tokens * (1 if self.job.sequence_parallel else self.split)
        every = self._elementwise(5 * width, 6 * width, tokens, 2)
        return every._replace(again=self._kernels(2 * 2 * width * tokens) if "norm" in self.again.parts else 0.0)

    def _attention(self) -> _Passes:
        total = _Passes()
        for kind, share in self.model.attention.shares:
            total += share * self._attention_of(kind)
        return total + self.model.mixer_part * self._norms()

    def _attention_of(self, kind: Any) -> _Passes:
        passes, tokens = _Passes(), self.attention_tokens
        products = kind.products(self.model.hidden)
        ups = kind.ups
        for number, (inner, outer) in enumerate(products):
            split = (inner / self.split, outer) if number == len(products) - 1 else (inner, outer / self.split)
            product = self._product(tokens, *split)
            cast = _Passes(self._cast(tokens * split[0]), self._cast(tokens * split[1]))
            again = product.forward if number in ups and self.again.parts & {"mla-up"} else 0.0
            passes += product._replace(again=again) + cast
        moved = kind.pointwise_elements()
        passes += self._elementwise(moved, moved, self.own_tokens, 2 + len(ups))
        if ups and "mla-up" in self.again.parts:
            passes = passes._replace(again=passes.again + self._kernels(2 * moved * self.own_tokens, 2))
        forward, backward = (self._scores(kind, backward=way) for way in (False, True))
        passes = passes._replace(forward=passes.forward + forward, inputs=passes.inputs + backward)
        if "attention" in self.again.parts:
            passes = passes._replace(again=passes.forward)
        return passes

    def _scores(self, kind: Any, *, backward: bool) -> float:
        rate = self.rates.scores(self.job.sequence, kind.width, backward=backward)
        flops = self.attention_tokens * kind.score_flops(self.job.sequence) / self.split
        return self.launch_s + flops * (SCORES_BACKWARD if backward else 1.0) / rate

    def _ffn(self, width: float, part: str) -> _Passes:
        """Seconds of a gated FFN that TP ranks split."""
        if not width:
            return _Passes()
        tokens, inner = self.attention_tokens, width / self.split
        first, second = (
            self._product(tokens, self.model.hidden, (self.model.matrices - 1) * inner),
            self._product(tokens, inner, self.model.hidden),
        )
        gated = self._gate(tokens * inner)
        again = first.forward + gated.forward if part in self.again.parts else 0.0
        if not again and "activation" in self.again.parts:
            again = gated.forward
        return (first + second + gated)._replace(again=again)

    def _gate(self, elements: float) -> _Passes:
        """The product of gate and up projection moves three elements forward and five backward (without a gate two and
        three), plus casts of the product and its gradients."""
        moved = self.model.matrices
        forward = self._kernels(2 * moved * elements) + self._cast(elements)
        back = self._kernels(2 * (2 * moved - 1) * elements) + self._cast((moved - 1) * elements)
        return _Passes(forward, back)

    def _around_experts(self) -> _Passes:
        """Seconds of the projections to and from the width of routed experts."""
        width, tokens = self.model.expert_width, self.attention_tokens
        if not width:
            return _Passes()
        down = self._product(tokens, self.model.hidden, width / self.split)
        return down + self._product(tokens, width / self.split, self.model.hidden)

    def _router(self) -> _Passes:
        """Seconds of the router: logits, probabilities, choice and counts of every expert in float32."""
        experts, tokens = self.model.choices, self.job.tokens / self.job.tp
        if not experts:
            return _Passes()
        product = self._product(tokens, self.model.hidden, experts, number=HEAD)
        moved = self._kernels(ROUTER_PASSES * 4 * experts * tokens, ROUTER_PASSES)
        passes = product + _Passes(moved, moved)
        return passes._replace(again=passes.forward if self.again.parts & {"moe", "router"} else 0.0)

    def _experts(self) -> _Passes:
        """Seconds that a GPU takes to permute the rows that it receives under balanced routing, and to run routed
        experts on them."""
        job, model = self.job, self.model
        rows, groups, inner, width = (
            job.selections,
            job.experts_per_rank,
            model.expert_hidden / job.tp,
            model.routed_width,
        )
        first = self._product(rows / groups, width, (model.matrices - 1) * inner, groups=groups, grouped=True)
        second = self._product(rows / groups, inner, width, groups=groups, grouped=True)
        gated = self._gate(rows * inner)
        sent = 0.0 if job.dispatch_bytes < ACTIVATION_BYTES else self._cast(rows * width)
        # Rows are sorted by expert, and sorted back afterwards. Each sort reads and writes them twice if every copy of
        # a token travels by itself, and once if a server or GPU receives a token once.
        kernels = 4 if job.dispatch == "per-expert" and job.ep > 1 and groups > 1 else 2
        sorted_s = self._kernels(kernels * 2 * ACTIVATION_BYTES * rows * width, kernels)
        sorted_s = sorted_s if model.choices else 0.0
        moved = _Passes(sorted_s, sorted_s) + _Passes(sent, self._cast(rows * width))
        passes = first + second + gated + moved
        if "moe" in self.again.parts:
            return passes._replace(again=passes.forward)
        return passes._replace(again=gated.forward if "activation" in self.again.parts else 0.0)

    def _head(self) -> _Passes:
        """Seconds of the last stage's output heads, losses and MTP projections."""
        model, tokens, passes = self.model, self.attention_tokens, _Passes()
        if self.job.head_counted:
            vocab = model.vocab / self.split
            head = self._product(tokens, model.hidden, vocab, number=HEAD)
            loss = _Passes(*(self._kernels(size * tokens * vocab, 2) for size in LOSS_BYTES))
            passes = _Passes(*((1 + self.job.predicted) * part for part in head + loss))
        if self.job.predicted:
            joined = self._product(tokens, 2 * model.hidden, model.hidden / self.split)
            passes += _Passes(*(self.job.predicted * part for part in joined))
        return passes
