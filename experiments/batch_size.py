"""Does a larger micro-batch hide more of a reconfiguration, and what is mFabric's time then over the fat-tree's?

Micro-batches of 1 to 32 sequences, as many as pipeline stages in an iteration, calibrated computation, 400 Gbps. Both
computation and all-to-alls grow with the micro-batch, the switch's delay does not. Whether activations fit a GPU is
not looked at. Source: arXiv 2501.03905, sweep of the batch size, which has no numbers in its text.
"""

import dataclasses

import numpy as np

from mfabric_jax import units
from mfabric_jax.case import Cases
from mfabric_jax.evaluate import rows_of
from mfabric_jax.timing.passes import places

from .pictures import beside, lines
from .rows import Row, Rows, group_rows, listed
from .script import FIRST, Found, Script, Sweep, Verdict, cells, check, only, over_tree


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """What to sweep."""

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "qwen-moe")  # Whose iterations.
    micro_batch: tuple[int, ...] = (1, 2, 4, 8, 16, 32)  # Sequences of a rank in a micro-batch.
    firsts: tuple[str, ...] = ("block", "reuse")
    """Which circuits the first all-to-all of a forward block finds: block, reuse or random."""
    delay_ms: float = 25.0  # Reconfiguration delay.

    def __post_init__(self):
        check(self, known={"firsts": ("block", "reuse", "random")}, positive="delay_ms", cases="models micro_batch")

    def setting(self, model: str, micro_batch: int, first: str = "block", fabric: str = "mfabric") -> Cases:
        """One case."""
        own = {"job.batch.micro_batch": micro_batch, "circuits.delay_s": units.ms(self.delay_ms)}
        return self.case(model, fabric, FIRST[first] | own)


def run(config: Config) -> Found:
    """A row for each model, size and rule: seconds on both fabrics, per sequence, and the hidden part of the delay.

    `turns`: reconfigurations of the busiest stage in an iteration; `hidden`: 1 - what it waits for them over their
    delays, None where the switch never turns.
    """
    for model, size in cells(config, config.models, sorted(config.micro_batch)):
        tree, _ = _simulated(config.setting(model, size, fabric="fat-tree"))
        for first in config.firsts:
            here, turns = _simulated(config.setting(model, size, first))
            delays_s = turns * units.ms(config.delay_ms)
            row = {"model": model, "micro_batch": size, "first": first} | over_tree(here, tree)
            row |= {part: here[part] for part in ("compute_s", "ep_comm_s", "reconfig_s")}
            row |= {"turns": turns, "hidden": 1 - here["reconfig_s"] / delays_s if turns else None}
            yield row | {"s_per_sequence": here["iteration_s"] / size}


def _simulated(setting: Cases) -> tuple[Row, int]:
    """The row of the only case, and how often the switch of its busiest stage turns in an iteration."""
    simulated = only(setting)
    stage = int(np.asarray(simulated.times.stage)[0, 0])
    moe = places(simulated.problem.workload).layer >= 0
    (row,) = rows_of(simulated.problem)
    return row, int((np.asarray(simulated.exchanges.switch)[0] & moe[..., None])[stage].sum())


SECONDS = ("fat_tree_s", "fat-tree [s]"), ("mfabric_s", "mFabric [s]")
RATIOS = ("over_fat_tree", "ratio"), ("per_dollar", "per dollar")
table = listed("model", "first", ("micro_batch", "micro-batch"), *SECONDS, *RATIOS, "turns", ("hidden", None, True))

SIZES = "micro_batch", "sequences in a micro-batch"
build = beside(
    lines(SIZES, ("over_fat_tree", "time over the fat-tree's"), "{first}", panel="{model}"),
    lines(SIZES, ("hidden", "hidden part of the delay"), "{first}", panel="{model}"),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """From the smallest to the largest micro-batch; the paper's sweep has no numbers."""
    found, ends = [], lambda here, form: " to ".join(form.format(**here[rank]) for rank in (0, -1))
    for (model, first), here in group_rows(rows, "model", "first").items():
        claim, sizes = f"{model}, {first}", ends(here, "{micro_batch}")
        found.append(Verdict(f"{claim}: over fat-tree at {sizes}", ends(here, "{over_fat_tree:.2f}")))
        if None not in (here[0]["hidden"], here[-1]["hidden"]):
            found.append(Verdict(f"{claim}: hidden at {sizes}", ends(here, "{hidden:.0%}")))
    return found


SCRIPT = Script(Config, quick={"models": ("mixtral-8x22b",), "micro_batch": (1, 8, 32), "firsts": ("block",)})
SCRIPT.start(__name__)
