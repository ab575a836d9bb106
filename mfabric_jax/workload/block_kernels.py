"""Seconds of a block in training, from measured kernels.

Products, attention of prompts and kernels that move bytes take what they were measured to take
(`measured_kernels.toml`); what training does otherwise stands in `kernels.toml`: products in long runs, sums of weight
gradients, backward passes of attention. Norms, rotations, gated products, permutations of tokens, casts and losses move
bytes: each kernel of a usual implementation (fused norms and gates, separate residuals) reads and writes them once.
Nothing here was fitted to the time of a step.
"""

from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.workload.compute import Backward, BackwardParts, BlockSeconds, iteration_flops
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.kernels import AS_ONE, TrainingRates, training_rates
from mfabric_jax.workload.measured_kernels import (
    FORMATS,
    MeasuredKernels,
    measured_kernels,
    multiply_s,
    pointwise_s,
    prompt_attention_s,
    score_flop_s,
)
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.training_code import FUSED, TrainingCode, issue_seconds
from mfabric_jax.workload.volume import ACTIVATION_BYTES

CAST_BYTES = 4  # per element: read in bf16, written in FP8 by rows and by columns
LOSS_BYTES = (16, 8)  # per logit, forward and backward: cast to float32, exponential and sum; gradient
ROUTER_PASSES = 6  # over logits: probabilities, choice, scatter, balance loss, counts, and their sum
# Elements that a part of routed experts moves without fusion, forward and backward, over those of its rows: a clamp of
# both halves before the gate and their join; a bias times probabilities, added expert by expert, and the join
# (Transformer Engine 2.10 and Megatron-Core for gpt-oss, read in their code).
UNFUSED_ELEMENTS = {"clamp": (8, 10), "bias": (6, 8)}
HEAD = "bf16"  # format of scores, router and output head, whatever the other products use


def kernel_seconds(
    workload: Workload,
    gpu: Gpu,
    precision: str = "bf16",
    how: str = "usual",
    *,
    path: str | None = None,
    code: TrainingCode = FUSED,
) -> BlockSeconds:
    """Return the seconds of a block's parts, forward and backward.

    - `precision`: number format of products; `how`: one of `kernels.HOW`; `path`: a user's table.
    - `code`: what the training program issues.
    """
    part = _Part(*(getattr(workload, name) for name in _Part._fields))
    return _cached_block_seconds(part, gpu, precision, how, path, code)


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


@cached_by_files(lambda part, gpu, precision, how, path, code: (path,), maxsize=4096)
def _cached_block_seconds(
    part: _Part, gpu: Gpu, precision: str, how: str, path: str | None, code: TrainingCode
) -> BlockSeconds:
    kernels = measured_kernels(gpu, how=how, path=path)
    return BlockKernels(part, kernels, training_rates(gpu, how, path), precision, code).block()


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


class PassSeconds(NamedTuple):
    """Seconds of the forward pass, of gradients of inputs and of weights, and of recomputation (`again`)."""

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    again: float = 0.0

    def __add__(self, other: Any) -> "PassSeconds":
        return PassSeconds(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    def __rmul__(self, factor: Any) -> Any:
        return PassSeconds(*(factor * part for part in self))


class BlockKernels:
    """The kernels of one block on one GPU.

    - `job`: a `Workload`, or the fields of one that count; `precision`: number format of products.
    - `code`: what the training program issues and does not fuse.
    """

    def __init__(
        self, job: Any, kernels: MeasuredKernels, rates: TrainingRates, precision: str, code: TrainingCode = FUSED
    ):
        self.job, self.kernels, self.rates, self.format, self.code = job, kernels, rates, precision, code
        self.model, self.again = job.architecture, recomputed_of(job.recompute)
        self.attention_tokens = job.folded * job.tokens  # of all GPUs that split attention
        self.own_tokens = job.tokens / job.tp  # of one GPU, between products
        self.split = job.attention_tp

    def block(self) -> BlockSeconds:
        experts, attention = self.experts(), self._attention()
        beside = self._norms() + self.router() + self._around_experts() + self._ffn(self.model.shared_hidden, "shared")
        there = len(self.model.moe_blocks) < self.model.blocks
        dense = self._norms() + self._ffn(self.model.dense_hidden, "mlp") if there else PassSeconds()
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
            issue_seconds(self.job, self.code, self.again.parts),
        )

    # ------------------------------------------------------------------------------------------------------- kernels
    def _moved_s(self, size: float, count: float = 1) -> float:
        """Seconds of `count` kernels that together move `size` bytes."""
        return float(pointwise_s(self.kernels, count, size))

    def _cast(self, elements: float) -> float:
        return self._moved_s(CAST_BYTES * elements) if self.format == "fp8" else 0.0

    def _product(self, rows: float, inner: float, outer: float, *, groups: float = 1, number: str = "") -> PassSeconds:
        """Seconds of `groups` products of `rows` x `inner` with `inner` x `outer`, in the format `number`, casts left
        out."""
        kernels, number = self.kernels, number or self.format
        facts, form, weights = kernels.facts["products"][number], FORMATS[number], inner * outer
        flops, sums = 2 * rows * inner * outer, self.job.accumulated_bytes * weights
        slower = self.code.weights_rate if number == "fp8" else 1.0
        grouped = self.rates.grouped if groups > 1 else AS_ONE
        faster = self.rates.sustained * (grouped["products"] if groups > 1 else self.rates.products[number])
        of_weights = self.rates.weights[number] * slower * grouped["weights"]

        def pass_s(flops: float, read: float, written: float, output: tuple[float, float], added: float = 0.0) -> float:
            """Seconds of products of these FLOPs, elements read, and bytes written and added to."""
            each = groups * flops / faster, groups * form.activation * read
            large_s = multiply_s(facts, kernels, form, *each, output, groups)
            output_s = groups * (written / facts["out"] + added / facts["bw"]) / kernels.memory_Bps
            return float(kernels.spread(facts) * (units.us(facts["floor_us"]) + large_s + output_s))

        return PassSeconds(
            pass_s(flops, rows * inner + weights, ACTIVATION_BYTES * rows * outer, (rows, outer)),
            pass_s(flops, rows * outer + weights, ACTIVATION_BYTES * rows * inner, (rows, inner)),
            pass_s(flops / of_weights, rows * (inner + outer), sums, (inner, outer), sums),
        )

    def _elementwise(self, forward: float, backward: float, tokens: float, count: int) -> PassSeconds:
        """Seconds of `count` kernels that together move `forward` or `backward` bf16 elements per token."""
        moved = (self._moved_s(ACTIVATION_BYTES * elements * tokens, count) for elements in (forward, backward))
        return PassSeconds(*moved)

    # --------------------------------------------------------------------------------------------------------- parts
    def _norms(self) -> PassSeconds:
        """A norm and a residual move 5 x hidden elements forward, 6 backward. Recomputation repeats only the norm."""
        width, tokens = self.model.hidden, self.own_tokens * (1 if self.job.sequence_parallel else self.split)
        every = self._elementwise(5 * width, 6 * width, tokens, 2)
        return every._replace(again=self._moved_s(2 * 2 * width * tokens) if "norm" in self.again.parts else 0.0)

    def _attention(self) -> PassSeconds:
        total = PassSeconds()
        for kind, share in self.model.attention.shares:
            total += share * self._attention_of(kind)
        return total + self.model.mixer_part * self._norms()

    def _attention_of(self, kind: Any) -> PassSeconds:
        passes, tokens = PassSeconds(), self.attention_tokens
        products = kind.products(self.model.hidden)
        ups = kind.ups
        for number, (inner, outer) in enumerate(products):
            split = (inner / self.split, outer) if number == len(products) - 1 else (inner, outer / self.split)
            product = self._product(tokens, *split)
            cast = PassSeconds(self._cast(tokens * split[0]), self._cast(tokens * split[1]))
            again = product.forward if number in ups and self.again.parts & {"mla-up"} else 0.0
            passes += product._replace(again=again) + cast
        moved = kind.pointwise_elements()
        passes += self._elementwise(moved, moved, self.own_tokens, 2 + len(ups))
        if ups and "mla-up" in self.again.parts:
            passes = passes._replace(again=passes.again + self._moved_s(2 * moved * self.own_tokens, 2))
        forward, backward = (self._scores(kind, backward=way) for way in (False, True))
        passes = passes._replace(forward=passes.forward + forward, inputs=passes.inputs + backward)
        if "attention" in self.again.parts:
            passes = passes._replace(again=passes.forward)
        return passes

    def _scores(self, kind: Any, *, backward: bool) -> float:
        """Seconds of attention scores of whole sequences. A narrow window takes longer than its FLOPs, as measured."""
        job, kernels = self.job, self.kernels
        length, tokens, width = max(2, job.sequence), self.attention_tokens, kind.width
        forward = score_flop_s(kernels, width, length) * tokens * kind.score_flops(length) / self.split
        if kind.limit and not kind.state:
            windowed = prompt_attention_s(kernels, width, kind.limit, kind.heads / self.split, tokens, length)
            whole = prompt_attention_s(kernels, width, 0, kind.heads / self.split, tokens, length)
            forward = max(forward, float(windowed)) if windowed < whole else forward
        return forward * (self.rates.attention_backward(width, length) if backward else 1.0)

    def _ffn(self, width: float, part: str) -> PassSeconds:
        """Seconds of a gated FFN that TP ranks split."""
        if not width:
            return PassSeconds()
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

    def _gate(self, elements: float) -> PassSeconds:
        """The product of gate and up projection moves three elements forward and five backward (without a gate two and
        three), plus casts of the product and its gradients."""
        moved = self.model.matrices
        forward = self._moved_s(2 * moved * elements) + self._cast(elements)
        back = self._moved_s(2 * (2 * moved - 1) * elements) + self._cast((moved - 1) * elements)
        return PassSeconds(forward, back)

    def _around_experts(self) -> PassSeconds:
        """Seconds of the projections to and from the width of routed experts."""
        width, tokens = self.model.expert_width, self.attention_tokens
        if not width:
            return PassSeconds()
        down = self._product(tokens, self.model.hidden, width / self.split)
        return down + self._product(tokens, width / self.split, self.model.hidden)

    def router(self) -> PassSeconds:
        """Seconds of the router: logits, probabilities, choice and counts of every expert in float32."""
        experts, tokens = self.model.choices, self.job.tokens / self.job.tp
        if not experts:
            return PassSeconds()
        product = self._product(tokens, self.model.hidden, experts, number=HEAD)
        moved = self._moved_s(ROUTER_PASSES * 4 * experts * tokens, ROUTER_PASSES)
        passes = product + PassSeconds(moved, moved)
        return passes._replace(again=passes.forward if self.again.parts & {"moe", "router"} else 0.0)

    def experts(self) -> PassSeconds:
        """Seconds that a GPU takes to permute the rows that it receives under balanced routing, and to run routed
        experts on them."""
        job, model = self.job, self.model
        rows, groups, inner, width = (
            job.selections,
            job.experts_per_rank,
            model.expert_hidden / job.tp,
            model.routed_width,
        )
        first = self._product(rows / groups, width, (model.matrices - 1) * inner, groups=groups)
        second = self._product(rows / groups, inner, width, groups=groups)
        loop_s = groups * self.code.loop_s if self.code.experts == "loop" else 0.0
        looped = 2 * PassSeconds(loop_s, loop_s, loop_s)
        gated = self._gate(rows * inner) + self._extra_passes("clamp", rows * inner)
        sent = 0.0 if job.dispatch_bytes < ACTIVATION_BYTES else self._cast(rows * width)
        moved = self._sorts(rows * width, groups) + PassSeconds(sent, self._cast(rows * width))
        passes = first + second + looped + gated + self._extra_passes("bias", rows * width) + moved
        if "moe" in self.again.parts:
            return passes._replace(again=passes.forward)
        return passes._replace(again=gated.forward if "activation" in self.again.parts else 0.0)

    def _sorts(self, elements: float, groups: int) -> PassSeconds:
        """Seconds of sorting rows by expert, and back afterwards.

        Each sort reads and writes rows twice if every copy of a token travels by itself, and once if a server or GPU
        receives a token once. Without fusion, each is an index and a scatter.
        """
        if not self.model.choices:
            return PassSeconds()
        kernels = 4 if self.job.dispatch == "per-expert" and self.job.ep > 1 and groups > 1 else 2
        kernels *= 2 if "permutation" in self.code.unfused else 1
        return self._elementwise(2 * kernels, 2 * kernels, elements, kernels)

    def _extra_passes(self, part: str, elements: float) -> PassSeconds:
        """Seconds of the passes over routed rows of a part that the program does not fuse; 0 if it does."""
        if part not in self.code.unfused:
            return PassSeconds()
        return self._elementwise(*UNFUSED_ELEMENTS[part], elements, 2)

    def _head(self) -> PassSeconds:
        """Seconds of the last stage's output heads, losses and MTP projections."""
        model, tokens, passes = self.model, self.attention_tokens, PassSeconds()
        if self.job.head_counted:
            vocab = model.vocab / self.split
            head = self._product(tokens, model.hidden, vocab, number=HEAD)
            loss = PassSeconds(*(self._moved_s(size * tokens * vocab, 2) for size in LOSS_BYTES))
            passes = PassSeconds(*((1 + self.job.predicted) * part for part in head + loss))
        if self.job.predicted:
            joined = self._product(tokens, 2 * model.hidden, model.hidden / self.split)
            passes += PassSeconds(*(self.job.predicted * part for part in joined))
        return passes
