"""How well does a predictor know the expert load before the gate has run, and what do circuits set on it cost?

Circuits by the paper's greedy, from the predicted dispatch of one micro-batch; the all-to-all then carries the true
one. Its time is put over that with circuits from the true demand, which greedy need not make the shortest. Layers from
the second on, after as many records as predictors look back on. A second table compares `transition_matrix.transition`
with what SciPy's SLSQP, the paper's solver, finds for the last such window. Source: arXiv 2501.03905 (predictor,
fabric, greedy); traffic: `recording`.
"""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.extras import extra
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Bars, Dots
from mfabric_jax.report.figures.panels import Axis, Picture, Pictures
from mfabric_jax.routing import all_to_all_time
from mfabric_jax.traffic import predictor, transition_matrix

from .recording import MODEL, PLACE, OnRegion, between_servers, resolved, titled, traffic_of
from .rows import Row, Rows, adding, grouped, of, p90, picked, summed
from .script import Script, Verdict, check

HITS = (1, 2, 4, 8)
FIRST_LAYER = 1  # layer 0 has no previous layer
ALL_LAYERS = 16  # experts up to which every layer is fitted by SLSQP as well
SLSQP = {"maxiter": 300, "ftol": 1e-10}  # a step at 32 experts takes most of a second
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
class Config(OnRegion):
    """What to predict, and the region."""

    samples: int = 2000  # All-to-alls drawn: a record, a layer, a micro-batch each.
    predictors: tuple[str, ...] = tuple(predictor.REGISTRY)  # Which predictors.
    window: int = predictor.WINDOW  # Records that predictors look back on.
    decay: float = predictor.DECAY  # Weight of a record over that of the next.
    fit_experts: tuple[int, ...] = (8, 16, 32)
    """To how many experts to fold for the comparison with SLSQP (above 16: one layer only); none: leave it out."""

    def __post_init__(self):
        super().__post_init__()
        check(self, distinct="predictors", whole={2: "fit_experts", 1: "window electrical_nics"})
        most = workload.get(MODEL).architecture.experts
        for experts in self.fit_experts:
            if most % experts:
                raise InputError(f"fit_experts must divide the {most} experts, got {experts}.")
        for name in self.predictors:
            predictor.get(name, **self.settings(name))

    def settings(self, name: str) -> dict[str, Any]:
        """Those that the predictor has."""
        adjustable = name in ("transition", "moving-average")
        return {"window": self.window, "decay": self.decay} if adjustable else {}


def tokens_of(config: Config) -> traffic.Tokens:
    """The records, more of them than predictors look back on."""
    tokens = config.tokens(config.seed)
    if len(tokens.count) <= config.window:
        raise InputError(f"window must be less than the {len(tokens.count)} records, got {config.window}.")
    return tokens


def run(config: Config) -> list[Row]:
    """A row for each number of servers, predictor and all-to-all that has bytes between servers.

    - `record`: its place among the records used.   - `top_1` to `top_8`: hit rates.   - `variation`: total variation.
    - `time_s`, `exact_s`: all-to-all, circuits from predicted and from true demand.   - `over_exact`: their ratio.
    """
    if config.fit_experts:
        with extra("exact", "comparing with SLSQP"):  # before a long run
            import scipy.optimize  # noqa: F401
    tokens = tokens_of(config)
    places = config.drawn(tokens.count.shape[:3], (config.window, FIRST_LAYER, 0))
    here = tuple(places.T)
    true = tokens.count[here].astype(float)
    guesses = {name: traffic.predicted(tokens, name, **config.settings(name))[here] for name in config.predictors}
    known = {name: _accuracy(guess, true) for name, guess in guesses.items()}
    rows = []
    for servers in config.servers:
        where = config.region(servers)
        exact = np.asarray(_times(where, true, true, config.rule))
        for name, guess in guesses.items():
            found = known[name] | {"time_s": np.asarray(_times(where, guess, true, config.rule)), "exact_s": exact}
            for i in np.flatnonzero(exact > 0):
                row = {"traffic": config.traffic, "servers": servers, "predictor": name}
                row |= dict(zip(PLACE, places[i].tolist(), strict=True))
                row |= {key: float(values[i]) for key, values in found.items()}
                rows.append(row | {"over_exact": row["time_s"] / row["exact_s"]})
    return rows


def _accuracy(guesses: np.ndarray, truths: np.ndarray) -> dict[str, np.ndarray]:
    """Of the loads of the experts, all source ranks together."""
    guess, true = (jnp.asarray(tokens.sum(axis=1)) for tokens in (guesses, truths))
    hits = {f"top_{k}": np.asarray(predictor.hit_rate(guess, true, k)) for k in HITS}
    return hits | {"variation": np.asarray(predictor.total_variation(guess, true))}


@functools.partial(jax.jit, static_argnames="rule")
def _times(where: Region, guess, true, rule: str):
    """Seconds of every all-to-all, its circuits chosen on the guess."""

    def seconds(guess, true):
        guess, true = (between_servers(tokens, where.servers) for tokens in (guess, true))
        return all_to_all_time(where, greedy(guess, where, rule=rule).circuits, true)

    return jax.vmap(seconds)(guess, true)


# TV is the total variation, time the all-to-all's over that with exact circuits
RATES = {f"top {k}": of(f"top_{k}") for k in HITS}
FAR = {"TV": of("variation"), "TV p90": of("variation", p90)}
LATE = {"time": of("over_exact"), "time p90": of("over_exact", p90)}
summary = summed(("servers", "predictor"), **RATES, **FAR, **LATE, samples=len)


def fits(config: Config) -> list[Row]:
    """A row for each number of experts: ours beside SLSQP's, on the last window; none if they are skipped.

    - `excess`: largest objective less SLSQP's over the weighted squares of y; negative: ours is lower everywhere.
    - `kkt`, `slsqp_kkt`: largest optimality gap.   - `s`, `slsqp_s`: seconds for all layers; compiling apart.
    - `finished`: layers in which SLSQP was done within 300 steps.
    """
    tokens = tokens_of(config)
    weight = config.decay ** np.arange(config.window - 1.0, -1, -1)
    rows = []
    for experts in config.fit_experts:
        load = tokens.fold_experts(experts).count[-config.window :].sum(axis=(2, 3)).swapaxes(0, 1).astype(float)
        share = load / np.maximum(load.sum(axis=-1, keepdims=True), 1)
        layers = len(share) - 1 if experts <= ALL_LAYERS else 1
        rows.append({"experts": experts, "layers": layers} | _fit(share[:layers], share[1 : layers + 1], weight))
    return rows


def _fit(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
    """x, y [L k E], L layers."""
    batched = jax.jit(jax.vmap(transition_matrix.transition, in_axes=(0, 0, None)))
    _, first = _timed(lambda: batched(x, y, weight))
    ours, again = _timed(lambda: batched(x, y, weight))
    (theirs, finished), slow = _timed(lambda: _slsqp(x, y, weight))
    gap = jax.vmap(transition_matrix.optimality_gap, in_axes=(0, 0, None, 0))
    cost = jax.vmap(_objective, in_axes=(0, 0, 0, None))
    excess = cost(ours, x, y, weight) - cost(theirs, x, y, weight)
    gaps = {"kkt": float(gap(x, y, weight, ours).max()), "slsqp_kkt": float(gap(x, y, weight, theirs).max())}
    seconds = {"compile_s": first - again, "s": again, "slsqp_s": slow, "ratio": slow / again}
    return {"excess": float(excess.max())} | gaps | seconds | {"finished": finished}


def _timed(call):
    begin = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - begin


def _objective(matrix, x, y, weight):
    """Of one layer, over the weighted squares of y; the matrix may be flat."""
    left = y - x @ matrix.reshape(2 * x.shape[-1:]).T
    return (weight @ left**2).sum() / (weight @ y**2).sum()


def _slsqp(x, y, weight) -> tuple[np.ndarray, int]:
    """Matrices [L E E] from uniform columns, and in how many layers SLSQP was done within its steps."""
    from scipy.optimize import minimize

    experts, sloped = x.shape[-1], jax.jit(jax.value_and_grad(_objective))
    sums = np.tile(np.eye(experts), experts)
    columns = {"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda flat: sums}
    uniform = np.full(experts**2, 1 / experts)
    asked = {"bounds": [(0, 1)] * experts**2, "constraints": columns, "method": "SLSQP", "options": SLSQP}
    found = [
        minimize(lambda *at: tuple(map(np.asarray, sloped(*at))), uniform, (a, b, weight), jac=True, **asked)
        for a, b in zip(x, y, strict=True)
    ]
    return np.stack([one.x.reshape(experts, experts) for one in found]), sum(bool(one.success) for one in found)


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
SPREAD = {"box": True, "middle": np.mean, "beside": "{:.3f}", "title": "{what}", "each": 0.6}
SPREADS = Dots(Axis("value", "mean, quartiles, 10th to 90th percentile"), Axis("name"), "predictor", LOOKS, **SPREAD)
PICTURE = Pictures(
    (Picture((HIT_RATES,), shown=_hits), Picture((SPREADS,), "", "what", shown=_measured, share_x=False, key=False)),
    heading=titled,
    needs="all-to-alls with bytes between servers",
)


def table(rows: Rows) -> str:
    """A line per number of servers and predictor."""
    lines = summary(rows)
    return report.plain(lines, [report.Column(key, digits=3 if "top" in key else 4) for key in lines[0]])


def compared(config: Config, folder: Path) -> str:
    """The fits beside SLSQP's, as rows in a file of their own and as a table."""
    if found := fits(config):
        report.write_rows(found, folder / f"{SCRIPT.name}_fits.csv", SCRIPT.effective(config))
    return report.plain(found)


def verdicts(rows: Rows) -> list[Verdict]:
    """Hits, and what the all-to-all takes longer for predicted circuits; the paper judges by hits, without a number."""
    found = []
    for name, lines in grouped(summary(rows), "predictor").items():
        servers = ", ".join(str(line["servers"]) for line in lines)
        times = ", ".join(f"{line['time']:.3f}" for line in lines)
        found.append(Verdict(f"top 4 experts found, {name[0]} ({traffic_of(rows)})", f"{lines[0]['top 4']:.0%}"))
        found.append(Verdict(f"time over exact, {name[0]}, {servers} servers ({traffic_of(rows)})", times))
    return found


SCRIPT = Script(
    Config,
    quick={"iterations": 20, "samples": 200, "fit_experts": ()},
    dtype="float64",
    more=compared,
    resolved=resolved,
)
SCRIPT.start(__name__)
