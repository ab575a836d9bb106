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

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.routing import all_to_all_time
from mfabric_jax.traffic import predictor

from .pictures import beside, dots
from .rows import Row, Rows, group_rows, of, summed, then
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


@dataclasses.dataclass(frozen=True)
class Config(Ports):
    """What to predict, and the region."""

    trace: str | None = None  # Recorded routing in a format of mfabric traces (default: generated traffic).
    iterations: int | None = None  # How many of the records, or of generated traffic (default: all of them, or 150).
    samples: int = 2000  # All-to-alls drawn: a record, a layer, a micro-batch each.
    servers: tuple[int, ...] = (8, 16)  # Over how many servers the ranks are spread.
    predictors: tuple[str, ...] = tuple(predictor.REGISTRY)  # Which predictors.
    seed: int = 0  # Of the draw, and of generated traffic.

    def __post_init__(self):
        if self.iterations is not None:
            whole("iterations", self.iterations)
        least = {2: "servers", 1: "samples electrical_nics", 0: "optical_degree seed"}
        check(self, known={"predictors": predictor.REGISTRY}, positive="nic_gbps", whole=least)
        ranks = workload.get(MODEL).ep
        for servers in self.servers:
            if ranks % servers:
                raise InputError(f"servers must divide the {ranks} ranks of the recording, got {servers}.")

    def tokens(self) -> traffic.Tokens:
        """Selections [record, layer, micro-batch, source rank, expert]; more records than predictors look back on."""
        job = workload.get(MODEL)
        if self.trace is None:
            tokens = traffic.from_knobs(job, KNOBS, self.iterations or ITERATIONS, MICRO_BATCHES, self.seed)
        else:
            tokens = traffic.recorded_tokens(job, self.trace, None, self.iterations)
        if len(tokens.count) <= predictor.WINDOW:
            raise InputError(f"predictors need more than {predictor.WINDOW} records, got {len(tokens.count)}.")
        return tokens

    def drawn(self, shape: tuple[int, ...], first: tuple[int, ...]) -> np.ndarray:
        """Different all-to-alls [samples 3] (record, layer, micro-batch) in order, from `first` on."""
        left = tuple(np.array(shape) - first)
        total = int(np.prod(left))
        chosen = np.random.default_rng(self.seed).choice(total, min(self.samples, total), replace=False)
        return np.stack(np.unravel_index(np.sort(chosen), left), axis=1) + np.array(first)


def run(config: Config) -> list[Row]:
    """A row for each number of servers, predictor and all-to-all that has bytes between servers.

    - `record`: its place among the records used.   - `top_1` to `top_8`: hit rates.   - `variation`: total variation.
    - `time_s`, `exact_s`: all-to-all, circuits from predicted and from true demand.   - `over_exact`: their ratio.
    """
    tokens, source = config.tokens(), "generated" if config.trace is None else "recorded"
    places = config.drawn(tokens.count.shape[:3], (predictor.WINDOW, FIRST_LAYER, 0))
    here = tuple(places.T)
    true = tokens.count[here].astype(float)
    guesses = {name: traffic.predict_selections(tokens, name)[here] for name in config.predictors}
    known = {name: _accuracy(guess, true) for name, guess in guesses.items()}
    rows = []
    for servers in config.servers:
        region = config.region(servers)
        exact = np.asarray(_times(region, true, true))
        for name, guess in guesses.items():
            columns = known[name] | {"time_s": np.asarray(_times(region, guess, true)), "exact_s": exact}
            for i in np.flatnonzero(exact > 0):
                row = {"traffic": source, "servers": servers, "predictor": name}
                row |= dict(zip(PLACE, places[i].tolist(), strict=True))
                row |= {key: float(values[i]) for key, values in columns.items()}
                rows.append(row | {"over_exact": row["time_s"] / row["exact_s"]})
    if not rows:
        raise InputError("the recording must hold all-to-alls with bytes between servers, got none.")
    return rows


def _accuracy(guesses: np.ndarray, truths: np.ndarray) -> dict[str, np.ndarray]:
    """Of the loads of the experts, all source ranks together."""
    guess, true = (jnp.asarray(tokens.sum(axis=1)) for tokens in (guesses, truths))
    hits = {f"top_{k}": np.asarray(predictor.hit_rate(guess, true, k)) for k in HITS}
    return hits | {"variation": np.asarray(predictor.total_variation(guess, true))}


@jax.jit
def _times(region: Region, guess, true):
    """Seconds of every all-to-all, its circuits chosen on the guess."""

    def seconds(guess, true):
        guess, true = (_between_servers(tokens, region.servers) for tokens in (guess, true))
        return all_to_all_time(region, greedy(guess, region).circuits, true)

    return jax.vmap(seconds)(guess, true)


def _between_servers(tokens: jax.Array, servers: int) -> jax.Array:
    """Selections [R E] as bytes of a dispatch between servers [S S]."""
    ranks = traffic.rank_bytes(tokens, workload.get(MODEL).dispatch_bytes_per_selection)
    return traffic.server_bytes(ranks, len(tokens) // servers)


def _p90(values: list[float]) -> float:
    return float(np.quantile(values, 0.9))


# TV is the total variation, time the all-to-all's over that with exact circuits
RATES = {f"top {k}": of(f"top_{k}") for k in HITS}
FAR = {"TV": of("variation"), "TV p90": of("variation", _p90)}
LATE = {"time": of("over_exact"), "time p90": of("over_exact", _p90)}
summary = summed(("traffic", "servers", "predictor"), **RATES, **FAR, **LATE, samples=len)


def table(rows: Rows) -> str:
    """A line per number of servers and predictor."""
    columns = ["servers", "predictor", *RATES, *FAR, *LATE, "samples"]
    return report.plain(summary(rows), columns)


def _dots(label: str, *columns: str):
    """Dots of some columns of the summary."""
    draw = dots(("value", label), "{predictor}", "{measure}", panel="{servers} servers")
    return lambda rows: draw([row | {"measure": name, "value": row[name]} for row in rows for name in columns])


build = then(
    summary,
    beside(
        _dots("most loaded experts found, mean", *RATES),
        _dots("total variation", *FAR),
        _dots("time over that with exact circuits", *LATE),
    ),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """Hits, and what the all-to-all takes longer for predicted circuits; the paper judges by hits, without a number."""
    found = []
    for (name, source), lines in group_rows(summary(rows), "predictor", "traffic").items():
        servers = ", ".join(str(line["servers"]) for line in lines)
        times = ", ".join(f"{line['time']:.3f}" for line in lines)
        found.append(Verdict(f"top 4 experts found, {name} ({source})", f"{lines[0]['top 4']:.0%}"))
        found.append(Verdict(f"time over exact, {name}, {servers} servers ({source})", times))
    return found


SCRIPT = Script(Config, quick={"iterations": 20, "samples": 200}, dtype="float64")
SCRIPT.start(__name__)
