"""How well does a predictor know the expert load before the gate has run, and what do circuits set on it cost?

Circuits by the paper's greedy, from the predicted dispatch of one micro-batch; the all-to-all then carries the true
one. Its time is put over that with circuits from the true demand, which greedy need not make the shortest. Layers from
the second on, after as many records as predictors look back on. A second table compares the transition matrix of
`transition_matrix.transition` with what SciPy's SLSQP, the paper's solver, finds for the last such window.
Source: arXiv 2501.03905 (predictor, fabric, greedy); recording: the gate trace of SmartMoE, USENIX ATC'23
(github.com/thu-pacman/SmartMoE-AE repacked), 16 ranks with two experts each, every tenth iteration. Without a recording
traffic is generated (`recording`).

    python -m experiments.predictor_on_traces --trace FOLDER --out results
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, distinct, one_of, positive, whole
from mfabric_jax.extras import extra
from mfabric_jax.fabric import Region
from mfabric_jax.policies import RULES, greedy
from mfabric_jax.report import style
from mfabric_jax.routing import all_to_all_time
from mfabric_jax.traffic import predictor, transition_matrix

from .recording import MODEL, Source, resolved, said, titled
from .script import Rows, Script, Verdict, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "predictor_on_traces"
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


@dataclasses.dataclass(frozen=True)
class Config(Source):
    """What to predict, and the region."""

    samples: int = 2000
    """All-to-alls drawn: a record, a layer, a micro-batch each."""
    predictors: tuple[str, ...] = tuple(predictor.REGISTRY)
    """Which predictors."""
    window: int = predictor.WINDOW
    """Records that predictors look back on."""
    decay: float = predictor.DECAY
    """Weight of a record over that of the next."""
    servers: tuple[int, ...] = (8, 16)
    """Over how many servers the ranks are spread."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    fit_experts: tuple[int, ...] = (8, 16, 32)
    """To how many experts to fold for the comparison with SLSQP (above 16: one layer only)."""
    skip_fits: bool = False
    """Leave out the comparison with SLSQP."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    seed: int = 0
    """Of the draw, and of generated traffic."""

    def __post_init__(self):
        super().__post_init__()
        job = workload.get(MODEL)
        for field in ("servers", "predictors", "fit_experts"):
            distinct(field, getattr(self, field))
        for servers in self.servers:
            if job.ep % whole("servers", servers, at_least=2):
                raise InputError(f"servers must divide the {job.ep} ranks of the recording, got {servers}.")
        for experts in self.fit_experts:
            if job.architecture.experts % whole("fit_experts", experts, at_least=2):
                raise InputError(f"fit_experts must divide the {job.architecture.experts} experts, got {experts}.")
        for name in self.predictors:
            predictor.get(name, **self.settings(name))
        one_of("rule", self.rule, RULES)
        positive("nic_gbps", self.nic_gbps)
        for field in ("samples", "window", "electrical_nics"):
            whole(field, getattr(self, field))
        for field in ("optical_degree", "seed"):
            whole(field, getattr(self, field), at_least=0)

    def settings(self, name: str) -> dict[str, Any]:
        """Those that the predictor has."""
        adjustable = name in ("transition", "moving-average")
        return {"window": self.window, "decay": self.decay} if adjustable else {}

    def region(self, servers: int) -> Region:
        """So many servers."""
        gbps, electrical = (jnp.asarray(n, jnp.result_type(float)) for n in (self.nic_gbps, self.electrical_nics))
        return Region(servers, gbps, self.optical_degree, electrical)


def tokens_of(config: Config) -> traffic.Tokens:
    """The records, more of them than predictors look back on."""
    tokens = config.tokens(config.seed)
    if len(tokens.count) <= config.window:
        raise InputError(f"window must be less than the {len(tokens.count)} records, got {config.window}.")
    return tokens


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each number of servers, predictor and all-to-all that has bytes between servers.

    - `record`: its place among the records used.   - `top_1` to `top_8`: hit rates.   - `variation`: total variation.
    - `time_s`, `exact_s`: all-to-all, circuits from predicted and from true demand.   - `over_exact`: their ratio.
    """
    if not config.skip_fits:
        with extra("exact", "comparing with SLSQP"):  # before a long run
            import scipy.optimize  # noqa: F401
    tokens = tokens_of(config)
    places = drawn(config, tokens.count.shape[:3])
    true = tokens.count[tuple(places.T)].astype(float)
    guesses = {
        name: traffic.predicted(tokens, name, **config.settings(name))[tuple(places.T)] for name in config.predictors
    }
    known = {name: _accuracy(guess, true) for name, guess in guesses.items()}
    rows = []
    for servers in config.servers:
        exact = _times(config, servers, true, true)
        for name, guess in guesses.items():
            times = _times(config, servers, guess, true)
            for i, (record, layer, micro_batch) in enumerate(places.tolist()):
                if exact[i] > 0:
                    row = {"traffic": config.traffic, "servers": servers, "predictor": name, "record": record}
                    row |= {"layer": layer, "micro_batch": micro_batch}
                    row |= {key: float(value[i]) for key, value in known[name].items()}
                    row |= {"time_s": float(times[i]), "exact_s": float(exact[i])}
                    rows.append(row | {"over_exact": float(times[i] / exact[i])})
    return rows


def drawn(config: Config, shape: tuple[int, ...]) -> np.ndarray:
    """The all-to-alls [samples 3] (record, layer, micro-batch), none twice, in order."""
    first = np.array([config.window, FIRST_LAYER, 0])
    left = tuple(np.array(shape) - first)
    total = int(np.prod(left))
    chosen = np.random.default_rng(config.seed).choice(total, min(config.samples, total), replace=False)
    return np.stack(np.unravel_index(np.sort(chosen), left), axis=1) + first


def _accuracy(guesses: np.ndarray, truths: np.ndarray) -> dict[str, np.ndarray]:
    """Of the loads of the experts, all source ranks together."""
    guess, true = (jnp.asarray(tokens.sum(axis=1)) for tokens in (guesses, truths))
    hits = {f"top_{k}": np.asarray(predictor.hit_rate(guess, true, k)) for k in HITS}
    return hits | {"variation": np.asarray(predictor.total_variation(guess, true))}


def _times(config: Config, servers: int, guess: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Seconds of every all-to-all, its circuits chosen on the guess."""
    return np.asarray(_batched(config.region(servers), jnp.asarray(guess), jnp.asarray(true), config.rule))


@functools.partial(jax.jit, static_argnames="rule")
def _batched(where: Region, guess, true, rule: str):
    each = workload.get(MODEL).dispatch_bytes_per_selection

    def seconds(guess, true):
        ranks = len(guess) // where.servers
        guess, true = (traffic.server_bytes(traffic.rank_bytes(tokens, each), ranks) for tokens in (guess, true))
        return all_to_all_time(where, greedy(guess, where, rule=rule).circuits, true)

    return jax.vmap(seconds)(guess, true)


def summary(rows: Rows) -> list[dict[str, Any]]:
    """A line per number of servers and predictor: mean hit rates, mean and 90th percentile of the rest.

    TV is the total variation, time the all-to-all's over that with exact circuits.
    """
    lines = []
    for (servers, name), group in groups(rows).items():
        line = {"servers": servers, "predictor": name}
        line |= {f"top {k}": float(np.mean([row[f"top_{k}"] for row in group])) for k in HITS}
        for key, title in (("variation", "TV"), ("over_exact", "time")):
            values = [row[key] for row in group]
            line |= {title: float(np.mean(values)), f"{title} p90": float(np.quantile(values, 0.9))}
        lines.append(line | {"samples": len(group)})
    return lines


def groups(rows: Rows) -> dict[tuple, list[Mapping[str, Any]]]:
    """Rows by (servers, predictor), in their order."""
    return grouped(rows, "servers", "predictor")


def fits(config: Config) -> list[dict[str, Any]]:
    """A row for each number of experts: ours beside SLSQP's, on the last window; none if they are skipped.

    - `excess`: largest objective less SLSQP's over the weighted squares of y; negative: ours is lower everywhere.
    - `kkt`, `slsqp_kkt`: largest optimality gap.   - `s`, `slsqp_s`: seconds for all layers; compiling apart.
    - `finished`: layers in which SLSQP was done within 300 steps.
    """
    if config.skip_fits:
        return []
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
    excess = _objective(x, y, weight, np.asarray(ours)) - _objective(x, y, weight, theirs)
    return {
        "excess": float(excess.max()),
        "kkt": float(gap(x, y, weight, ours).max()),
        "slsqp_kkt": float(gap(x, y, weight, theirs).max()),
        "compile_s": first - again,
        "s": again,
        "slsqp_s": slow,
        "ratio": slow / again,
        "finished": finished,
    }


def _timed(call):
    begin = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - begin


def _objective(x, y, weight, matrix) -> np.ndarray:
    """[L] over the weighted squares of y."""
    left = y - np.einsum("lij,lkj->lki", matrix, x)
    return np.einsum("k,lke->l", weight, left**2) / np.einsum("k,lke->l", weight, y**2)


def _slsqp(x, y, weight) -> tuple[np.ndarray, int]:
    """Matrices [L E E] from uniform columns, and in how many layers SLSQP was done within its steps."""
    with extra("exact", "comparing with SLSQP"):
        from scipy.optimize import minimize
    experts = x.shape[-1]
    sums = np.tile(np.eye(experts), experts)
    found, finished = [], 0
    for a, b in zip(x, y, strict=True):
        squares = np.sum(weight[:, None] * b**2)
        xx, yx = (side.T @ (weight[:, None] * a) / squares for side in (a, b))

        def value_and_slope(flat, xx=xx, yx=yx):
            matrix = flat.reshape(experts, experts)
            slope = matrix @ xx - yx
            return 1 + np.sum((slope - yx) * matrix), 2 * slope.ravel()

        done = minimize(
            value_and_slope,
            np.full(experts**2, 1 / experts),
            jac=True,
            bounds=[(0, 1)] * experts**2,
            constraints={"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda flat: sums},
            method="SLSQP",
            options=SLSQP,
        )
        found.append(done.x.reshape(experts, experts))
        finished += bool(done.success)
    return np.stack(found), finished


def draw(rows: Rows, path: str | Path) -> Path:
    """A panel per measure, a line per predictor; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: hit rates and total variation, then the times for each number of servers."""
    if not rows:
        raise InputError("the figure needs all-to-alls with bytes between servers, but there are none.")
    found = groups(rows)
    sizes = list(dict.fromkeys(servers for servers, _ in found))
    names = list(dict.fromkeys(name for _, name in found))
    figure = style.blank(7.4 + 3.6 * len(sizes), 2.0 + 0.42 * len(names))
    axes = figure.subplots(1, 2 + len(sizes), sharey=True)
    _hits(axes[0], [found[sizes[0], name] for name in names])
    figure.legend(loc="outside lower left", ncols=len(HITS), fontsize=style.FONT - 1)
    _spread(axes[1], names, [found[sizes[0], name] for name in names], "variation", "{:.3f}")
    axes[1].set_title("Total variation", loc="left")
    axes[1].set_xlabel("part of the selections")
    for panel, servers in zip(axes[2:], sizes, strict=True):
        _spread(panel, names, [found[servers, name] for name in names], "over_exact", "{:.3f}")
        panel.set_title(f"All-to-all, {servers} servers", loc="left")
        panel.set_xlabel("time over that with exact circuits")
    axes[0].set_yticks(range(len(names)), [LOOKS[name].label for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    for panel in axes:
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="x")
    figure.suptitle(titled(rows), fontsize=style.FONT)
    return figure


def _hits(axes: Axes, found: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Mean hit rates, lightest for the fewest experts."""
    shades = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")
    for i, (k, shade) in enumerate(zip(HITS, shades, strict=True)):
        means = [np.mean([row[f"top_{k}"] for row in group]) for group in found]
        axes.barh(np.arange(len(found)) + 0.19 * (i - 1.5), means, height=0.19, color=shade, label=f"top {k}")
    axes.set_xlim(0, 1)
    axes.set_title("Hit rate", loc="left")
    axes.set_xlabel("most loaded experts found, mean")


def _spread(axes: Axes, names: Sequence[str], found: Sequence[Sequence[Mapping[str, Any]]], key: str, form: str):
    """A line from the 10th to the 90th percentile, a box from quartile to quartile, a tick and a number at the mean."""
    for place, (name, group) in enumerate(zip(names, found, strict=True)):
        values = [row[key] for row in group]
        low, early, late, high = np.quantile(values, [0.1, 0.25, 0.75, 0.9])
        mean, colour = float(np.mean(values)), LOOKS[name].colour
        axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
        axes.barh(place, late - early, left=early, height=0.5, color=colour, alpha=0.45)
        axes.plot([mean, mean], [place - 0.33, place + 0.33], color=style.INK, linewidth=1.8)
        axes.annotate(form.format(mean), (1.02, place), xycoords=("axes fraction", "data"), va="center")
    axes.annotate(
        "mean", (1.02, -0.7), xycoords=("axes fraction", "data"), va="center", color=style.FAINT, annotation_clip=False
    )


def table(rows: Rows) -> str:
    """A line per number of servers and predictor."""
    lines = summary(rows)
    return report.plain(lines, [report.Column(key, digits=3 if "top" in key else 4) for key in lines[0]])


def compared(config: Config, folder: Path) -> str:
    """The fits beside SLSQP's, as rows in a file of their own and as a table."""
    found = fits(config)
    if found:
        report.write_rows(found, folder / f"{NAME}_fits.csv", SCRIPT.effective(config))
    return report.plain(found)


def verdicts(rows: Rows) -> list[Verdict]:
    """Hits, and what the all-to-all takes longer for predicted circuits; the paper judges by hits, without a number."""
    found = []
    for name, lines in grouped(summary(rows), "predictor").items():
        servers = ", ".join(str(line["servers"]) for line in lines)
        times = ", ".join(f"{line['time']:.3f}" for line in lines)
        found.append(Verdict(f"top 4 experts found, {name[0]} ({said(rows)})", f"{lines[0]['top 4']:.0%}"))
        found.append(Verdict(f"time over exact, {name[0]}, {servers} servers ({said(rows)})", times))
    return found


SCRIPT = Script(
    name=NAME,
    question="Predict the expert load of all-to-alls: a row per all-to-all, predictor and number of servers.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"iterations": 20, "samples": 200, "skip_fits": True},
    dtype="float64",
    more=compared,
    resolved=resolved,
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
