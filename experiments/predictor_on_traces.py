"""How well does a predictor know the expert load before the gate has run, and what do circuits set on it cost?

Circuits by the paper's greedy, from the predicted dispatch of one micro-batch; the all-to-all then carries the true
one. Its time is put over that with circuits from the true demand, which greedy need not make the shortest. Layers from
the second on, after as many records as predictors look back on. Source: arXiv 2501.03905 (predictor, fabric, greedy).

Recorded: the gate trace of SmartMoE, USENIX ATC'23 (github.com/thu-pacman/SmartMoE-AE repacked): every tenth iteration
of 16 ranks with two experts each; two ranks a server make 8 servers. Without a recording traffic is generated, as
skewed as that trace (`mfabric traces fit`, in round numbers), but it moves more: neighbouring iterations correlate by
0.98, where that trace has 0.999 and LAER-MoE's have 0.84 to 0.93. Its layers do not depend on one another, so it holds
nothing that a transition matrix from one layer to the next could learn.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import RULES, greedy
from mfabric_jax.report import style
from mfabric_jax.routing import all_to_all_time
from mfabric_jax.traffic import predictor

from .pictures import Axis, Bars, Boxes, Picture, Pictures
from .rows import Row, Rows, adding, grouped, of, p90, picked, summed, values_of
from .script import Ports, Script, Verdict, check

MODEL = "qwen-moe-ep16"  # 16 ranks, 32 experts, as in the gate trace
MICRO_BATCHES, ITERATIONS = 4, 150
KNOBS = traffic.Knobs(
    popularity="log-normal",
    skew=1.9,
    layer_spread=0.6,
    distinct=2,
    sparsity=0.3,
    row_noise=0.05,
    row_shared=0.3,
    drift=0.1,
    persistence=0.98,
    jitter=0.2,
    sampled=True,
)
PLACE = ("record", "layer", "micro_batch")
HITS = (1, 2, 4, 8)
FIRST_LAYER = 1  # layer 0 has no previous layer
LOOKS = {
    "transition": style.Look("Transition", "#D55E00"),
    "previous-layer": style.Look("Previous layer", "#CC79A7"),
    "previous-iteration": style.Look("Previous iteration", "#0072B2"),
    "moving-average": style.Look("Moving average", "#009E73"),
    "uniform": style.Look("Uniform", "#8a8a8a"),
}
SHADES = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")
TOP = {k: style.Look(f"top {k}", shade) for k, shade in zip(HITS, SHADES, strict=True)}


@dataclasses.dataclass(frozen=True)
class Config(Ports):
    """What to predict, and the region."""

    trace: str | None = None  # Recorded routing in a format of mfabric traces (default: generated traffic).
    records: tuple[int, int] | None = None  # First and last record (default for a gate trace: 2011 to 5001).
    iterations: int | None = None  # How many of the records, or of generated traffic (default: all of them, or 150).
    samples: int = 2000  # All-to-alls drawn: a record, a layer, a micro-batch each.
    servers: tuple[int, ...] = (8, 16)  # Over how many servers the ranks are spread.
    rule: str = "printed"  # greedy's rule: printed, released, next.
    predictors: tuple[str, ...] = tuple(predictor.REGISTRY)  # Which predictors.
    window: int = predictor.WINDOW  # Records that predictors look back on.
    decay: float = predictor.DECAY  # Weight of a record over that of the next.
    seed: int = 0  # Of the draw, and of generated traffic.

    def __post_init__(self):
        if self.iterations is not None:
            whole("iterations", self.iterations)
        if self.trace is None and self.records is not None:
            raise InputError(f"records needs trace, a recording to take them from, got {list(self.records)}.")
        least = {2: "servers", 1: "samples window electrical_nics", 0: "optical_degree seed"}
        check(self, known={"rule": RULES}, distinct="servers predictors", positive="nic_gbps", whole=least)
        ranks = workload.get(MODEL).ep
        for servers in self.servers:
            if ranks % servers:
                raise InputError(f"servers must divide the {ranks} ranks of the recording, got {servers}.")
        for name in self.predictors:
            predictor.get(name, **self.settings(name))

    def settings(self, name: str) -> dict[str, Any]:
        """Those that the predictor has."""
        adjustable = name in ("transition", "moving-average")
        return {"window": self.window, "decay": self.decay} if adjustable else {}

    def tokens(self) -> traffic.Tokens:
        """Selections [record, layer, micro-batch, source rank, expert]; more records than predictors look back on."""
        job = workload.get(MODEL)
        if self.trace is None:
            tokens = traffic.from_knobs(job, KNOBS, self.iterations or ITERATIONS, MICRO_BATCHES, self.seed)
        else:
            tokens = traffic.recorded(job, self.trace, self.records, self.iterations)
        if len(tokens.count) <= self.window:
            raise InputError(f"window must be less than the {len(tokens.count)} records, got {self.window}.")
        return tokens

    def drawn(self, shape: tuple[int, ...], first: tuple[int, ...]) -> np.ndarray:
        """Different all-to-alls [samples 3] (record, layer, micro-batch) in order, from `first` on."""
        left = tuple(np.array(shape) - first)
        total = int(np.prod(left))
        chosen = np.random.default_rng(self.seed).choice(total, min(self.samples, total), replace=False)
        return np.stack(np.unravel_index(np.sort(chosen), left), axis=1) + np.array(first)


def resolved(config: Config) -> dict[str, Any]:
    """What the traffic is."""
    more = {"knobs": KNOBS.turned, "iterations": config.iterations or ITERATIONS} if config.trace is None else {}
    return {"traffic": _source(config)} | more


def _source(config: Config) -> str:
    return "generated" if config.trace is None else "recorded"


def run(config: Config) -> list[Row]:
    """A row for each number of servers, predictor and all-to-all that has bytes between servers.

    - `record`: its place among the records used.   - `top_1` to `top_8`: hit rates.   - `variation`: total variation.
    - `time_s`, `exact_s`: all-to-all, circuits from predicted and from true demand.   - `over_exact`: their ratio.
    """
    tokens = config.tokens()
    places = config.drawn(tokens.count.shape[:3], (config.window, FIRST_LAYER, 0))
    here = tuple(places.T)
    true = tokens.count[here].astype(float)
    guesses = {name: traffic.predicted(tokens, name, **config.settings(name))[here] for name in config.predictors}
    known = {name: _accuracy(guess, true) for name, guess in guesses.items()}
    rows = []
    for servers in config.servers:
        region = config.region(servers)
        exact = np.asarray(_times(region, true, true, config.rule))
        for name, guess in guesses.items():
            columns = known[name] | {"time_s": np.asarray(_times(region, guess, true, config.rule)), "exact_s": exact}
            for i in np.flatnonzero(exact > 0):
                row = {"traffic": _source(config), "servers": servers, "predictor": name}
                row |= dict(zip(PLACE, places[i].tolist(), strict=True))
                row |= {key: float(values[i]) for key, values in columns.items()}
                rows.append(row | {"over_exact": row["time_s"] / row["exact_s"]})
    return rows


def _accuracy(guesses: np.ndarray, truths: np.ndarray) -> dict[str, np.ndarray]:
    """Of the loads of the experts, all source ranks together."""
    guess, true = (jnp.asarray(tokens.sum(axis=1)) for tokens in (guesses, truths))
    hits = {f"top_{k}": np.asarray(predictor.hit_rate(guess, true, k)) for k in HITS}
    return hits | {"variation": np.asarray(predictor.total_variation(guess, true))}


@functools.partial(jax.jit, static_argnames="rule")
def _times(region: Region, guess, true, rule: str):
    """Seconds of every all-to-all, its circuits chosen on the guess."""

    def seconds(guess, true):
        guess, true = (_between_servers(tokens, region.servers) for tokens in (guess, true))
        return all_to_all_time(region, greedy(guess, region, rule=rule).circuits, true)

    return jax.vmap(seconds)(guess, true)


def _between_servers(tokens: jax.Array, servers: int) -> jax.Array:
    """Selections [R E] as bytes of a dispatch between servers [S S]."""
    ranks = traffic.rank_bytes(tokens, workload.get(MODEL).dispatch_bytes_per_selection)
    return traffic.server_bytes(ranks, len(tokens) // servers)


# TV is the total variation, time the all-to-all's over that with exact circuits
RATES = {f"top {k}": of(f"top_{k}") for k in HITS}
FAR = {"TV": of("variation"), "TV p90": of("variation", p90)}
LATE = {"time": of("over_exact"), "time p90": of("over_exact", p90)}
summary = summed(("servers", "predictor"), **RATES, **FAR, **LATE, samples=len)
named = adding(name=lambda row: LOOKS[row["predictor"]].label)


def _hits(rows: Rows) -> list[Row]:
    """Mean hit rates; they are the same on every number of servers."""
    first = [line for line in named(summary(rows)) if line["servers"] == rows[0]["servers"]]
    return [line | {"top": k, "rate": line[f"top {k}"]} for line in first for k in HITS]


def _measured(rows: Rows) -> list[Row]:
    """Total variation, then times by number of servers."""
    variation = adding(what=lambda row: "Total variation", value="variation")(named(rows))
    times = adding(what="Time over exact, {servers} servers", value="over_exact")(named(rows))
    return picked(variation, servers=rows[0]["servers"] if rows else 0) + times


FOUND = Axis("rate", "most loaded experts found, mean", low=0, high=1)
HIT_RATES = Bars(FOUND, Axis("name"), "top", TOP, title="Hit rate")
SPREAD = {"beside": "{:.3f}", "title": "{what}", "each": 0.6}
SPREADS = Boxes(Axis("value", "mean, quartiles, 10th to 90th percentile"), Axis("name"), "predictor", LOOKS, **SPREAD)
PICTURE = Pictures(
    (Picture((HIT_RATES,), shown=_hits), Picture((SPREADS,), "", "what", shown=_measured, share_x=False, key=False)),
    heading=lambda rows: f"{_traffic_of(rows).capitalize()} traffic" if rows else "",
    needs="all-to-alls with bytes between servers",
)


def _traffic_of(rows: Rows) -> str:
    return ", ".join(values_of(rows, "traffic"))


def table(rows: Rows) -> str:
    """A line per number of servers and predictor."""
    lines = summary(rows)
    return report.plain(lines, [report.Column(key, digits=3 if "top" in key else 4) for key in lines[0]])


def verdicts(rows: Rows) -> list[Verdict]:
    """Hits, and what the all-to-all takes longer for predicted circuits; the paper judges by hits, without a number."""
    found = []
    for (name,), lines in grouped(summary(rows), "predictor").items():
        servers = ", ".join(str(line["servers"]) for line in lines)
        times = ", ".join(f"{line['time']:.3f}" for line in lines)
        found.append(Verdict(f"top 4 experts found, {name} ({_traffic_of(rows)})", f"{lines[0]['top 4']:.0%}"))
        found.append(Verdict(f"time over exact, {name}, {servers} servers ({_traffic_of(rows)})", times))
    return found


SCRIPT = Script(Config, quick={"iterations": 20, "samples": 200}, dtype="float64", resolved=resolved)
SCRIPT.start(__name__)
