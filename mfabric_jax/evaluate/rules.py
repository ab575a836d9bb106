"""Rules that decide when circuits are reconfigured, and the costs and gains of a reconfiguration.

`First` is the rule for the first all-to-all of a forward pass, whose demand is known only after the gate.
`CircuitSpan` is how long circuits stay. Source: arXiv 2501.03905 (block, reuse, random, predict); the rule "pays" is
ours.
"""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.evaluate.resolving.resolved import LONG
from mfabric_jax.support.array_module import Array, align_rank, array_module
from mfabric_jax.timing.blocks import BACK, BASES, SECONDS, factors
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, complete_seconds
from mfabric_jax.workload.volume import ffn_all_reduces, tp_bytes_per_gpu

FIRST = {
    "block": "reconfigure after the gate, and wait for the switch",
    "reuse": "keep the previous circuits, also backward; reconfigure while the experts run",
    "random": "random circuits, set while attention runs; reconfigure again while the experts run",
    "predict": "circuits for the predicted demand, set while attention runs; reconfigure again while the experts run",
    "bound": "no circuits: every all-to-all takes its degree bound",
    "pays": "reconfigure before the first, before the second, or never, whichever is worth most over the horizon",
}
AHEAD = ("random", "predict")
SPANS = {
    "all-to-all": "one all-to-all, as `first` decides",
    "block": "both all-to-alls of a block in one pass",
    "stage": "one pass of a micro-batch through a pipeline stage",
    "iteration": "all passes of an iteration through a stage",
    "run": "all iterations",
}
RELAY_TOLERANCE = 1e-3  # relative gap of relay shares to the optimum


class TradeOff(NamedTuple):
    """Costs and gains that the rule "pays" compares, of one case or of many [C].

    - `size` [2]: bytes of the two forward all-to-alls over those of the dispatch; `busy`: `expert_load` of blocks.
    - `inner_s` [C 3]: expert computation between the two, by `Places.kind`; `expert_s`: the part of it that grows with
      load.
    - `behind_s` [C 3]: computation after the last all-to-all of a block.
    - `tolerance`: fresh circuits must save more than this part of the block's all-to-all time.
    - `horizon`: blocks whose all-to-alls a reconfiguration is weighed against; None: from how circuits age (`ageing`).
    """

    delay_s: Float[Array, "*C"] | float
    nic_Bps: Float[Array, "*C"] | float
    size: Float[Array, "2"]
    inner_s: Float[Array, "*C 3"]
    behind_s: Float[Array, "*C 3"]
    each_s: Float[Array, "*C"] | float = 0.0
    tolerance: Float[Array, ""] | float = 0.0
    expert_s: Float[Array, "*C 3"] | float = 0.0
    busy: Float[Array, "*C P Q L"] | float = 1.0
    horizon: Float[Array, "*C"] | float | None = 1.0


Seconds = tuple[Array, ...]  # until circuits and packet switches finish, at unit bandwidth


def trade_off_of(
    workload: Workload, rates: Any, seconds: BlockSeconds, routing: str = "unsplit", horizon: float | None = None
) -> TradeOff:
    """Return the costs and gains of a reconfiguration, at rates and seconds of one case () or of many [C]."""
    reduces = 1 + ffn_all_reduces(workload, moe=True)
    reduce_s = reduces * tp_bytes_per_gpu(workload) / (rates.nvlink_Bps * rates.tp_over)
    xp, seconds = array_module(rates, seconds), complete_seconds(workload, seconds)
    dtype = xp.result_type(seconds.attention_s * reduce_s)
    size = xp.asarray((1.0, workload.combine_bytes / workload.dispatch_bytes), dtype)
    inner, behind = (factors(workload.recompute)[:3, SECONDS["run", run, False]] for run in ("inner", "behind"))

    def weigh(by: np.ndarray, **parts: Any) -> Any:
        """Return seconds [C 3] by `Places.kind`."""
        every = {name: xp.asarray(part, dtype)[..., None] for name, part in parts.items()}
        return sum(align_rank(xp.asarray(by[:, BASES.index(name)], dtype), part) * part for name, part in every.items())

    def with_back(name: str, forward: Any, back: Any) -> dict[str, Any]:
        return {name: forward} | {f"{name} {which}": part for which, part in zip(BACK, back, strict=True)}

    back: Any = seconds.backward
    behind_s = weigh(behind, **with_back("attention", seconds.attention_s, back.attention), tp=reduce_s)
    inner_s = weigh(inner, **with_back("inner", seconds.moe_s, back.moe))
    expert_s = weigh(inner, **with_back("inner", seconds.expert_s, back.expert))
    tolerance = RELAY_TOLERANCE if routing == "relay" else 0.0
    trade_off = TradeOff(rates.delay_s, rates.nic_Bps, size, inner_s, behind_s, rates.each_s, tolerance, expert_s)
    return trade_off._replace(horizon=horizon)


def what_pays(
    trade_off: TradeOff,
    kept: Seconds,
    fresh: Seconds,
    new_circuits: Float[Array, "*N"],
    kind: Int[Array, "*N"],
    behind: Int[Array, "*N"],
    busy: Float[Array, "*N"],
) -> Bool[Array, "2 *N"]:
    """Return, for each all-to-all of a block [2 ..], whether fresh circuits are worth their delay.

    What they save in this block's all-to-alls counts once, and as often again as the horizon exceeds one block.

    - `kept`, `fresh`: seconds with the circuits in place and with fresh ones, at unit bandwidth.
    - `new_circuits`: their number.
    - `kind`, `behind`: `Places.kind` of this block's pass and of the previous block (0: it has no all-to-alls).
    """
    xp, nic_Bps = array_module(kept, trade_off), trade_off.nic_Bps
    first_size, second_size = _sizes(trade_off, kind)
    paid_now, paid_later = exposed_delays(trade_off, fresh, new_circuits, kind, behind, busy)
    old, new = (xp.maximum(*seconds) / xp.asarray(nic_Bps, kept[0].dtype) for seconds in (kept, fresh))
    # Seconds saved over circuits that stay; exact in a tie, although compilers fuse sums of products differently.
    shorter, after = old - new, (xp.asarray(trade_off.horizon, old.dtype) - 1) * (first_size + second_size)
    now = (first_size + second_size + after) * shorter - paid_now
    later = (second_size + after) * shorter - paid_later
    never = trade_off.tolerance * (first_size + second_size) * old
    first = now > xp.maximum(later, never)
    return xp.stack([first, first | (later > never)])


def exposed_delays(
    trade_off: TradeOff,
    fresh: Seconds,
    new_circuits: Float[Array, "*N"],
    kind: Int[Array, "*N"],
    behind: Int[Array, "*N"],
    busy: Float[Array, "*N"],
) -> tuple[Float[Array, "*N"], Float[Array, "*N"]]:
    """Return the seconds of a delay that nothing hides before a block's first all-to-all, and before its second.

    Arguments as in `what_pays`.
    """
    # This estimate hides a reconfiguration behind its block's computation and behind packets slower than circuits. It
    # ignores idle time of the pipeline, passes of weight gradients, propagation, overlap in parts, decisions, partial
    # reconfiguration, recomputed all-to-alls, the output head, and waits for context rings and gathered parameters.
    xp, dtype = array_module(fresh, trade_off), fresh[0].dtype
    delay_s, each_s, nic_Bps = (xp.asarray(x, dtype) for x in (trade_off.delay_s, trade_off.each_s, trade_off.nic_Bps))
    delay_s, busy = delay_s + each_s * new_circuits, xp.asarray(busy, dtype)
    optical, new = fresh[0] / nic_Bps, xp.maximum(*fresh) / nic_Bps
    ready = xp.where(kind > 0, _of_kind(trade_off.behind_s, behind), 0)  # demand known before: time to reconfigure
    computed = _of_kind(trade_off.inner_s, kind) + (busy - 1) * _of_kind(trade_off.expert_s, kind)

    def paid_delay(hidden: Array, size: Array):
        return xp.where(optical > 0, xp.maximum(delay_s - hidden - size * (new - optical), 0), 0)

    sizes = _sizes(trade_off, kind)
    return paid_delay(ready, sizes[0]), paid_delay(computed, sizes[1])


def _sizes(trade_off: TradeOff, kind: Int[Array, "*N"]) -> tuple[Array, Array]:
    """Return the sizes of a block's first and second all-to-all, over that of the dispatch."""
    xp = array_module(kind, trade_off)
    first, second = (xp.where(kind > 0, trade_off.size[1 - which], trade_off.size[which]) for which in (0, 1))
    return first, second


def _of_kind(table: Float[Array, "*N 3"] | float, kind: Int[Array, "*N"]) -> Array:
    xp = array_module(table, kind)
    kind = xp.asarray(kind)
    by_kind = xp.broadcast_to(xp.asarray(table), (*kind.shape, 3))
    return xp.take_along_axis(by_kind, kind[..., None], -1)[..., 0]


class First(eqx.Module):
    """Rule for the circuits of the first all-to-all of a forward pass, one of `FIRST`.

    - `predicted` [layer M R E]: predicted selections, for "predict".
    - `trade_off`: costs and gains, for "pays".
    - `scenarios`: number of demands drawn around each prediction for policies that take many demands (0: none).
    - `sigma`: prediction error for these draws, as in `traffic.likely_demands`.
    - `cold`: the iteration starts with uniform circuits instead of those that the previous iteration left.
    """

    rule: str = eqx.field(static=True, default="block")
    predicted: Any = None
    trade_off: TradeOff | None = None
    cold: bool = eqx.field(static=True, default=False)
    scenarios: int = eqx.field(static=True, default=0)
    sigma: Any = None

    def __check_init__(self):
        one_of("first", self.rule, FIRST)
        if self.rule == "predict" and self.predicted is None:
            raise InputError("first 'predict' needs the predicted tokens [layer M R E], got none.")
        if self.scenarios and self.sigma is None:
            raise InputError("scenarios of a prediction need sigma, the size of its errors, got none.")
        if self.rule == "pays" and self.trade_off is None:
            raise InputError("first 'pays' needs the trade_off (delay, bandwidth, computation), got none.")


class CircuitSpan(eqx.Module):
    """How long circuits stay set, one of `SPANS`.

    Policies that take many demands get all demands of a span longer than one all-to-all, each weighted by its degree
    bound in seconds; other policies get the mean.

    - `seen` [I layer M R E]: selections for which long spans are planned. "stage" uses the same pass of iteration 0 for
      forward passes (the demand of backward passes is known); "iteration" and "run" use all of them.
    - `key`: random key of the policy where all iterations share circuits; None: the key of the iteration.
    """

    name: str = eqx.field(static=True, default="all-to-all")
    seen: Any = None
    key: Any = None

    def __check_init__(self):
        one_of("circuits_for", self.name, SPANS)
        if self.long and self.seen is None:
            raise InputError(f"circuits_for {self.name!r} needs the tokens seen [I layer M R E], got none.")

    @property
    def long(self) -> bool:
        return self.name in LONG


class CircuitRule(NamedTuple):
    """How circuits are chosen; static under JAX.

    - `name`: one of `FIRST`; `span`: one of `SPANS`; `cold`: an iteration starts with uniform circuits.
    - `partial`: circuits that stay carry while others are set up.
    """

    name: str = "block"
    span: str = "all-to-all"
    cold: bool = False
    partial: bool = False

    @property
    def long(self) -> bool:
        return self.span in LONG

    @property
    def both(self) -> bool:
        """Whether a block's two all-to-alls share circuits."""
        return self.name == "block" or self.span == "block" or self.long

    def check_lane(self) -> None:
        """Raise InputError for a rule or span that is not defined where two passes alternate."""
        for field, value, allowed in (
            ("first", self.name, ("block",)),
            ("circuits_for", self.span, ("all-to-all", "iteration", "run")),
            ("partial", str(self.partial).lower(), ("false",)),
        ):
            if value not in allowed:
                raise InputError(f"overlap_passes needs {field} {' or '.join(allowed)}, got {value!r}.")
