"""When does it pay to reconfigure on recorded MoE traffic? Rules over time against the offline optimum, by delay.

Every trace is what one region carries: the dispatches of its MoE blocks in turn, micro-batch after micro-batch, record
after record. Nothing of the delay is hidden unless asked for. The optimum knows all demands and chooses, at every step,
among the circuits for any of the trace's demands, those for their sum and the even ones of the start. Rules know the
demand of a step when they choose for it, as the gate tells it, but for "predicted", which has seen that of the same
block before. Neighbouring steps of one block are four micro-batches of one iteration, then those of the next record
(`recording`), ten iterations later.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import policies
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies import uniform
from mfabric_jax.report import style
from mfabric_jax.report.figures.panels import Axis, Lines, Picture
from mfabric_jax.routing import degree_bound
from mfabric_jax.schedule import best_trajectory, follow, last

from .recording import Ports, Source, between_servers, divides_ranks, resolved, titled, traffic_of
from .rows import Row, Rows, adding, duration, ends, measured, of, pivot, summed, then, told
from .script import Found, Script, Verdict, cells, check

ROUTINGS = ("unsplit", "best-path", "split")
RULES = {
    "always": style.Look("Always", "#D55E00", "o"),
    "every": style.Look("Every n-th", "#E69F00", "v"),
    "never": style.Look("Never (even circuits)", "#4D4D4D", "X"),
    "threshold": style.Look("Threshold", "#0072B2", "s"),
    "rent-or-buy": style.Look("Rent or buy", "#009E73", "D"),
    "predicted": style.Look("Rent or buy, predicted", "#CC79A7", "^"),
}
EVERY = 24  # n of "every"
FLOOR = 1e-4  # where the figure draws the optimum itself


@dataclasses.dataclass(frozen=True)
class Config(Ports, Source):
    """What to draw, the region, and what to sweep."""

    delays_s: tuple[float, ...] = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2.5e-2, 0.1, 1.0)
    """Reconfiguration delays."""
    rules: tuple[str, ...] = tuple(RULES)  # Rules over time.
    routings: tuple[str, ...] = ("unsplit", "split")
    """How bytes are divided between circuits and packet switches."""
    blocks: tuple[int, ...] = (1, 6)  # MoE blocks that the region serves in turn.
    samples: int = 4  # Traces drawn for each number of blocks.
    steps: int = 240  # All-to-alls of a trace.
    policy: str = "threshold"
    """Which circuits a change brings, by name; one that does not look at those in place."""
    servers: int = 8  # Over how many servers the ranks are spread.
    seed: int = 0  # Of the draw, and of generated traffic.

    def __post_init__(self):
        super().__post_init__()
        least = {2: "servers", 1: "blocks samples steps electrical_nics", 0: "optical_degree seed"}
        known = {"rules": RULES, "routings": ROUTINGS, "policy": policies.REGISTRY}
        check(self, known=known, distinct="delays_s blocks", whole=least, positive="delays_s nic_gbps")
        divides_ranks(self.servers)


def run(config: Config) -> Found:
    """A row for each number of blocks, routing, trace, rule and delay.

    - `time_s`: of all steps, delays included; `best_s` of the optimum, `bound_s` of the degree bounds.
    - `over_best`, `over_bound`: `time_s` over these.   - `changes`, `best_changes`: part of the steps that changed.
    """
    count = np.asarray(config.tokens(config.seed).count)
    for blocks, routing in cells(config, config.blocks, config.routings):
        for sample, demand in enumerate(_demands(traces(config, count, blocks), config.servers)):
            place = {"traffic": config.traffic, "blocks": blocks, "routing": routing, "sample": sample}
            yield from (place | row for row in _rows(config, blocks, routing, demand))


def traces(config: Config, count: np.ndarray, blocks: int) -> np.ndarray:
    """Tokens [samples steps R E] of traces that begin at a drawn record and, `blocks` at a time, a drawn layer."""
    records, layers, micro_batches = count.shape[:3]
    needed = -(-config.steps // (blocks * micro_batches))
    if blocks > layers:
        raise InputError(f"blocks must be at most the {layers} layers of the recording, got {blocks}.")
    if needed > records:
        most = records * blocks * micro_batches
        raise InputError(f"steps must be at most {most} for {blocks} blocks in {records} records, got {config.steps}.")
    rng, found = np.random.default_rng(config.seed), []
    for _ in range(config.samples):
        first, layer = rng.integers(records - needed + 1), blocks * rng.integers(layers // blocks)
        part = count[first : first + needed, layer : layer + blocks].swapaxes(1, 2)
        found.append(part.reshape(-1, *count.shape[3:])[: config.steps])
    return np.stack(found)


@functools.partial(jax.jit, static_argnums=1)
def _demands(tokens: np.ndarray, servers: int) -> jax.Array:
    return jax.vmap(jax.vmap(lambda one: between_servers(one, servers)))(jnp.asarray(tokens))


def _rows(config: Config, blocks: int, routing: str, demand: jax.Array) -> list[Row]:
    """Of one trace."""
    delays, choose = jnp.asarray(config.delays_s, demand.dtype), policies.suited(config.policy, routing=routing)
    still = config.region(config.servers, delay_s=0.0)
    bound = float(jax.vmap(lambda one: degree_bound(still, one))(demand).sum())
    known = jnp.concatenate([demand, demand.sum(0)[None]])
    circuits = jax.vmap(lambda one: choose(one, still).circuits.count)(known)

    def ended(course):
        """Seconds of all steps, and the part of them that changed circuits, by delay."""
        found = jax.vmap(lambda delay_s: course(config.region(config.servers, delay_s=delay_s)))(delays)
        return np.asarray(found.exchange_s + found.paid_s).sum(1), np.asarray(found.changed).mean(1)

    def ruled(rule: str, region: Region):
        more = {"rule": "rent-or-buy", "forecast": last(demand, blocks)} if rule == "predicted" else {"rule": rule}
        return follow(demand, region, (choose, uniform), **{"every": EVERY} | more, routing=routing)

    best = ended(lambda region: best_trajectory(demand, region, circuits, routing=routing))
    rows = []
    for rule in config.rules:
        columns = zip(config.delays_s, *ended(functools.partial(ruled, rule)), *best, strict=True)
        for delay_s, time_s, changes, best_s, best_changes in columns:
            times = {"delay_s": delay_s, "time_s": time_s, "best_s": best_s, "bound_s": bound}
            times |= {"over_best": time_s / best_s, "over_bound": time_s / bound}
            times |= {"changes": changes, "best_changes": best_changes}
            rows.append({"rule": rule} | {name: float(value) for name, value in times.items()})
    return rows


# the mean over the traces
summary = summed(("blocks", "routing", "rule", "delay_s"), over_best=of("over_best"))
MEANS = pivot(("blocks", "routing", "delay"), "{rule}", "{over_best:.3f}")
delayed = adding(delay=lambda line: duration(line["delay_s"]))
table = told("time over that of the offline optimum", then(summary, delayed, MEANS))

excess = adding(
    excess=lambda line: max(line["over_best"] - 1, FLOOR),
    turns=lambda line: f"{line['blocks']} block{'s' if line['blocks'] > 1 else ''} in turn",
)
PERCENT = {at: f"{100 * at:g} %" for at in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0)}
DELAY = Axis("delay_s", "reconfiguration delay", log=True, ticks={at: duration(at) for at in (1e-6, 1e-4, 1e-2, 1.0)})
EXCESS = Axis("excess", "longer than the optimum", log=True, ticks={FLOOR: f"≤ {100 * FLOOR:g} %"} | PERCENT)
PANEL = Lines(DELAY, EXCESS, "rule", RULES, title="{routing}, {turns}")
PICTURE = Picture((PANEL,), "routing", "turns", shown=then(summary, excess), heading=titled, width=4.2, share_y=True)


def verdicts(rows: Rows) -> list[Verdict]:
    """Every rule over the optimum: mean over the traces, from the best to the worst delay; nothing is published."""
    claim = f"over the offline optimum, {{rule}}, {{routing}} ({traffic_of(rows)})"
    return measured(("routing", "rule"), claim, ends("over_best", ".2f"))(summary(rows))


SCRIPT = Script(
    Config,
    quick={
        "delays_s": (1e-6, 1e-4, 1e-3, 1e-2, 2.5e-2, 0.1, 1.0),
        "routings": ("unsplit",),
        "blocks": (1,),
        "samples": 2,
    },
    resolved=resolved,
    dtype="float64",
)
SCRIPT.start(__name__)
