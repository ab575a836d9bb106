"""What does a policy learn, step by step? Trainings of several seeds: held-out time with intervals over seeds.

Each seed is a training of its own (`mfabric train`), from weights of that seed. Held-out demand is that of the
validation split: drawn families, tables and, with a recording, its records; a step before which the mean has not fallen
has taught nothing. `--keep` has the trained policies for `python -m experiments.learning_over_time --trained`.
"""

import dataclasses
import tempfile
from pathlib import Path

from mfabric_jax.apps.learning import TrainingSettings, train
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel

from .rows import Row, Rows, group_rows, half_interval, pivot, then
from .script import Found, Script, Verdict, cells, check

SHARE_STEPS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Trainings, told apart by their seed."""

    servers: tuple[int, ...] = (16,)  # Sizes of the regions, taken in turn.
    optical_degree: int = 6  # NICs of a server on the optical switch.
    electrical_nics: int = 2  # NICs of a server on the electrical fabric.
    trace: str | None = None  # Recorded routing to learn from too.
    objective: str = "forecast"  # As of mfabric train.
    methods: tuple[str, ...] = ("gradient", "reinforce")  # As of mfabric train.
    learning_rate: float = 0.002  # As of mfabric train.
    batch: int = 16  # Demands of a batch.
    steps: int = 240  # Batches.
    points: int = 6  # Of a curve behind the first.
    seeds: int = 5  # Over which intervals are.
    keep: str | None = None  # Folder for the runs, METHOD-SEED (none: not kept).

    def __post_init__(self):
        check(self, whole={2: "seeds", 1: "points"}, cases="methods")
        if self.steps % self.points:
            raise InputError(f"steps must be a multiple of points {self.points}, got {self.steps}.")

    def setting(self, method: str, seed: int = 0) -> TrainingSettings:
        """One training."""
        own = {name: getattr(self, name) for name in ("optical_degree", "electrical_nics", "trace", "objective")}
        own |= {name: getattr(self, name) for name in ("learning_rate", "batch", "steps")}
        every = self.steps // self.points
        own |= {"sizes": self.servers, "varied": 0.0, "share_steps": SHARE_STEPS, "log_every": every}
        return TrainingSettings(method=method, seed=seed, checkpoint_every=every, **own)


def run(config: Config) -> Found:
    """A row for each method, seed, step and size: `held_out`, mean time over the degree bound."""
    for method, seed in cells(config, config.methods, range(config.seeds)):
        with tempfile.TemporaryDirectory() as folder:
            kept = Path(folder) if config.keep is None else Path(config.keep) / f"{method}-{seed}"
            for line in train(config.setting(method, seed), kept):
                for servers in config.servers:
                    place = {"method": method, "servers": servers, "seed": seed, "step": line["step"]}
                    yield place | {"held_out": line[f"held_out_{servers}"]}


def means(rows: Rows) -> list[Row]:
    """Over seeds: the mean, half of its 95 % interval, and both of the change since the first step."""
    first = {(row["method"], row["servers"], row["seed"]): row["held_out"] for row in rows if row["step"] == 0}
    found = []
    for (method, servers, step), here in group_rows(rows, "method", "servers", "step").items():
        held = [row["held_out"] for row in here]
        change = [row["held_out"] - first[method, servers, row["seed"]] for row in here]
        row = {"method": method, "servers": servers, "step": step, "mean": sum(held) / len(held)}
        row |= {"half": half_interval(held), "change": sum(change) / len(change)}
        found.append(row | {"half_change": half_interval(change)})
    return found


table = then(
    means, pivot(("servers", "step"), "{method}", "{mean:.3f} +-{half:.3f} ({change:+.3f} +-{half_change:.3f})")
)


def verdicts(rows: Rows) -> list[Verdict]:
    """The last step beside the first, in the same seeds."""
    found = []
    for (method, servers), here in group_rows(means(rows), "method", "servers").items():
        change = "{change:+.3f} +-{half_change:.3f} degree bounds".format(**here[-1])
        found.append(Verdict(f"held-out time behind {here[-1]['step']} steps, {method}, {servers} servers", change))
    return found


def build(rows: Rows) -> Chart:
    """A panel for each size; means, and their intervals as bars."""
    curves = means(rows)
    looks, panels = style.distinct_looks([row["method"] for row in curves]), []
    for (servers,), here in group_rows(curves, "servers").items():
        lines = []
        for (method,), some in group_rows(here, "method").items():
            spread = [(row["mean"] - row["half"], row["mean"] + row["half"]) for row in some]
            lines.append(Curve(looks[method], [(row["step"], row["mean"]) for row in some], spread=spread))
        panels.append(Panel(f"{servers} servers", "steps", "held out: time over the degree bound", lines))
    return Chart("Training, mean over seeds", "Bars: 95 % intervals.", list(looks.values()), panels)


SCRIPT = Script(Config, quick={"servers": (8,), "seeds": 2, "steps": 4, "points": 2, "batch": 2})
SCRIPT.start(__name__)
