"""`mfabric train`: a policy that chooses circuits."""

import dataclasses
import pathlib
import sys
import time

from mfabric_jax.commands import shared
from mfabric_jax.commands.options import settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Train a policy on generated demand, the measured tables and, if given, a recorded trace.

    A run that was interrupted goes on from its last checkpoint when the same command is given again. The folder gets
    trained.policy (for --policies of mfabric evaluate and policies.load), metrics.jsonl and curves.png.
    """

    out: str
    """Folder of the run."""
    kind: str = "network"
    """network (corrects the index rule that ships), or index: a rule of five numbers."""
    routing: str = "relay"
    """Under which times are judged: unsplit, split, relay."""
    steps: int = 4000
    """Batches."""
    batch: int = 16
    """Demands of a batch."""
    sizes: tuple[int, ...] = (8, 16)
    """Servers of the regions, taken in turn."""
    learning_rate: float = 0.002
    """Of Adam, falling to a hundredth."""
    imitation: float = 0.0
    """Weight of the distance of a network's circuits to the teacher's."""
    teacher: str = "local-search"
    """greedy, threshold, local-search (which takes most of the time); it knows the true demand."""
    noise: float = 0.6
    """Largest standard deviation of the logarithms of forecasts."""
    varied: float = 0.3
    """Part of the regions with other NICs than 6 + 2."""
    pooled: float = 0.4
    """Part of the demands from knobs, tables and the trace; the rest is drawn."""
    width: int = 18
    """Of the vectors of the network."""
    depth: int = 2
    """Layers before circuits are chosen, and before shares are."""
    trace: str | None = None
    """Recorded routing to learn from too (16 ranks)."""
    records: tuple[int, int] | None = None
    """FIRST-LAST record of the trace."""
    share_steps: int = 24
    """Gradient steps towards the shares by which circuits are judged."""
    log_every: int = 50
    """Steps of a line of metrics."""
    checkpoint_every: int = 250
    """Steps between checkpoints."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import learning, report
    from mfabric_jax.learning._train import TRAINED_POLICY
    from mfabric_jax.report import figures

    out, config = pathlib.Path(options.out), settings(learning.Training, options)
    shared.check_outputs(None, str(out))
    began = time.monotonic()
    with tqdm(total=config.steps, desc="train", unit="step", file=sys.stderr, disable=None) as bar:

        def progress(step: int, line: dict[str, float]) -> None:
            bar.update(step - bar.n)
            if "time" in line:
                bar.set_postfix({"time over bound": f"{line['time']:.3f}"}, refresh=False)

        lines = learning.train(config, out, progress)
    shown = [line for line in lines if any(name.startswith("held_out") for name in line)]
    print("mean time over the degree bound; held_out: on demand that no step sees; the policy with the least is kept")
    print(report.plain(shown, ["step", "time", *(name for name in shown[0] if name != "step")]))
    print(f"{figures.training(lines, out / 'curves.png')}\n{out / TRAINED_POLICY}", file=sys.stderr)
    print(f"{config.steps} steps, {time.monotonic() - began:.0f} s in this process", file=sys.stderr)
    return 0
