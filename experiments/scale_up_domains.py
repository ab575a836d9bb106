"""Is a GPU's bandwidth better spent on a larger share of NVLink, or on optics between scale-up domains?

NVL72 (64 of 72 GPUs used, NVLink inside, 800 Gbps Ethernet between domains) against mFabric with co-packaged optics
(the same bandwidth of a GPU and the same Ethernet, the rest half NVLink, half a regional optical switch), DeepSeek-V3
on 2,048 GPUs, expert parallelism 128 over two domains, balanced traffic, 240 micro-batches of one sequence. Source:
arXiv 2501.03905, look-ahead; published: mFabric 1.3 times faster at 8 Tbps per GPU. The GPU is not stated: a B200 at
half its peak here, and the ratio's sensitivity to its rate.
"""

import dataclasses
from typing import Any

from mfabric_jax.case import Cases

from .pictures import lines
from .rows import Rows, adding, group_rows, listed, picked, pivot, then, told, values_of
from .script import Found, Script, Sweep, Verdict, against, check, of_gpu, reusing, spread

PUBLISHED = {8.0: 1.3}  # Tbps of a GPU -> iteration time of NVL72 over that of mFabric
PUBLISHED_MODEL = "deepseek-v3"
ROUNDED = 0.04  # of a ratio published with one decimal
FABRICS = ("nvl72", "mfabric-cpo")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Sweep):
    """What to compare."""

    model: str = "deepseek-v3"
    gpu_tbps: tuple[float, ...] = (8.0, 16.0)  # Bandwidth of a GPU in all, per direction.
    nic_gbps: float = 800.0  # Ethernet of a GPU.
    gpu: str = "B200-HGX"
    efficiency: tuple[float, ...] = (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)
    """Achieved over peak FLOP/s; the breakdown is shown at the one nearest 0.5."""
    micro_batches: int | None = None  # Micro-batches of an iteration (None: the model's own, 240).

    def __post_init__(self):
        check(self, positive="gpu_tbps efficiency", cases="gpu_tbps efficiency")

    def setting(self, tbps: float, efficiency: float) -> Cases:
        """The comparison at one bandwidth of a GPU and one rate."""
        changes: dict[str, Any] = {"network.gpu_tbps": tbps, "compute.efficiency": efficiency}
        changes |= of_gpu(self.gpu) | {"traffic.generated.drift": 0.0, "traffic.drawn": 1}
        if self.micro_batches is not None:
            changes["job.batch.micro_batches"] = self.micro_batches
        return self.case(self.model, FABRICS, changes)


def run(config: Config) -> Found:
    """A row for each bandwidth of a GPU, efficiency and fabric; `speed_up` of mFabric over NVL72 in both."""
    for tbps in config.gpu_tbps:
        published = PUBLISHED.get(tbps) if config.model == PUBLISHED_MODEL else None
        solved: dict[str, Any] = {}  # all-to-alls do not depend on the rate of GPUs
        for efficiency in config.efficiency:
            pair = reusing(config.setting(tbps, efficiency), solved)
            speed_up = pair[0]["iteration_s"] / pair[1]["iteration_s"]
            facts = {"gpu_tbps": tbps, "gpu": config.gpu, "efficiency": efficiency, "speed_up": speed_up}
            yield from (row | facts | {"published": published} for row in pair)


def _at_half(rows: Rows) -> list[Any]:
    """Rows at the efficiency nearest one half."""
    return picked(rows, efficiency=min(values_of(rows, "efficiency"), key=lambda rate: abs(rate - 0.5)))


SECONDS = "iteration_s", "compute_s", "ep_comm_s", "dp_comm_s", "bubble_s"
RATIOS = ("speed_up", None), ("published", None)
SPEED_UPS = pivot(["gpu_tbps"], "{efficiency:.0%}", "speed_up")
TITLE = "speed-up of mfabric-cpo over nvl72 by achieved over peak FLOP/s"
table = told(then(_at_half, listed("gpu_tbps", "fabric", *SECONDS, *RATIOS)), TITLE, SPEED_UPS)


RATE, SPEED = ("efficiency", "achieved over peak FLOP/s of the GPU"), ("speed_up", "NVL72's time over mFabric's")
published = adding(series="{gpu_tbps:g} Tbps a GPU, published", speed_up="published")
speeds = adding(series="{gpu_tbps:g} Tbps a GPU")
build = then(lambda rows: speeds(rows) + published(rows), lines(RATE, SPEED, "{series}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """The speed-up of mFabric at half the GPU's peak, then what the GPU's rate makes of it."""
    found = []
    for (tbps,), here in group_rows(rows, "gpu_tbps").items():
        claim, middle = f"time of NVL72 over mFabric, {tbps:g} Tbps a GPU", _at_half(here)[0]
        half = f"{claim}, {middle['efficiency']:.0%} of peak"
        found.append(against(half, middle["speed_up"], middle["published"], allowed=ROUNDED))
        rates = sorted(row["efficiency"] for row in here)
        if rates[0] < rates[-1]:
            found.append(spread(f"{claim}, {rates[0]:.0%} to {rates[-1]:.0%}", [row["speed_up"] for row in here]))
    return found


SCRIPT = Script(Config, quick={"gpu_tbps": (8.0,), "efficiency": (0.25, 0.5, 1.0)})
SCRIPT.start(__name__)
