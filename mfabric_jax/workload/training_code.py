"""What a training program issues: how many kernels a host launches for a block, and what the program does not fuse.

Between two waits of the host for its GPU, a GPU cannot be faster than the host issues kernels. Where both take similar
times, neither hides the other completely, because kernels are short in one place and long in another: a block takes
hypot(GPU, host). Counts are those of Megatron-Core with Transformer Engine, counted by configuration, within 25 %. A
profile of Qwen3-30B (NVIDIA Megatron-Bridge, skills/nemo-mbridge-perf-moe-comm-overlap) has 151 kernels a block and
micro-batch, where these give 160.
"""

from typing import Any, NamedTuple

from mfabric_jax.checks import one_of

UNFUSED = ("bias", "clamp", "router", "permutation")
GRAPHS = ("none", "router", "step")


class Launches(NamedTuple):
    """Kernels of a block, or their seconds, in its forward and in its backward pass."""

    forward: Any
    backward: Any

    def __add__(self, other: Any) -> "Launches":
        return Launches(self.forward + other[0], self.backward + other[1])

    def __rmul__(self, factor: Any) -> Any:
        return Launches(factor * self.forward, factor * self.backward)


ATTENTION = Launches(34, 50)  # with norms and residuals
DENSE = Launches(8, 14)
MOE = Launches(46, 70)  # router, permutation, dispatch and combine of an all-to-all dispatcher
TENSOR_PARALLEL = Launches(4, 4)
ONCE_A_SERVER = Launches(-12, -11)  # DeepEP and HybridEP permute while they send
GRAPHED = Launches(-30, -35)  # attention, router and preprocessing as CUDA graphs
EXPERT = Launches(2, 4)  # products of a local expert in a loop, as in Transformer Engine
OF_UNFUSED = {
    "bias": Launches(1, 1),  # of a local expert
    "clamp": Launches(18, 43),
    "router": Launches(16, 25),  # 72 kernels instead of 31 (Megatron-LM, guide for DeepSeek-V3 on GB200)
    "permutation": Launches(8, 8),
}


class TrainingCode(NamedTuple):
    """A training program.

    - `host_s`: seconds in which the host issues a kernel; 0: it never limits.
    - `graphs`: what CUDA graphs hold, one of `GRAPHS`; `experts`: products of local experts in a "loop" or in "one"
      launch; `loop_s`: seconds by which each product of such a loop is longer.
    - `weights_rate`: rate of FP8 products for gradients of weights over that of others. `unfused`: some of `UNFUSED`.
    - `step_s`: seconds of a step that nothing hides.
    """

    host_s: float = 0.0
    graphs: str = "none"
    experts: str = "loop"
    loop_s: float = 0.0
    weights_rate: float = 1.0
    unfused: frozenset[str] = frozenset()
    step_s: float = 0.0


FUSED = TrainingCode()


def unfused_parts(text: str) -> frozenset[str]:
    """Return the parts in "none" or in names joined by +. Raise `InputError` for an unknown one."""
    if text == "none":
        return frozenset()
    return frozenset(one_of("compute.code.unfused", part, ("none", *UNFUSED)) for part in text.split("+"))


class IssueSeconds(NamedTuple):
    """Seconds in which a host issues the kernels of a block with and without experts, forward and backward."""

    moe: Launches
    dense: Launches


def issue_seconds(job: Any, code: TrainingCode, again: frozenset[str] = frozenset()) -> IssueSeconds | None:
    """Return the seconds of issuing the kernels of a block of `job`; None if the host never limits.

    - `job`: a `Workload`, or its `attention_tp`, `dispatch` and `experts_per_rank`.
    - `again`: parts that the backward pass recomputes (`recompute.recomputed_of`).
    """
    if not code.host_s or code.graphs == "step":
        return None
    attention = ATTENTION + (TENSOR_PARALLEL if job.attention_tp > 1 else (0, 0))
    moe = attention + MOE + (ONCE_A_SERVER if job.dispatch == "per-server" else (0, 0))
    if code.graphs == "router":
        moe += GRAPHED
    local = job.experts_per_rank if code.experts == "loop" else 1
    each = EXPERT + (OF_UNFUSED["bias"] if "bias" in code.unfused else (0, 0))
    moe += local * each
    for part in code.unfused - {"bias"}:
        moe += OF_UNFUSED[part]
    dense = attention + DENSE
    repeated = attention.forward if "attention" in again else 0.0
    moe += (0.0, repeated + (moe.forward - attention.forward if "moe" in again else 0.0))
    dense += (0.0, repeated + (DENSE.forward if "mlp" in again else 0.0))
    return IssueSeconds(code.host_s * moe, code.host_s * dense)
