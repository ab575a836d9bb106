"""`mfabric calibrate`: computation rates from published times."""

import dataclasses
import sys

from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Fit the computation time of models to published fat-tree times (arXiv 2501.03905): one rate each.

    Three ratios a model are published; skew comes from the traffic. Every other fabric is then predicted. `compare`
    uses what ships with the package, found under the defaults here.
    """

    models: str = "mixtral-8x22b,mixtral-8x7b,llama-moe,qwen-moe"
    """Those with published times: mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe"""
    preset: str = "paper"
    """paper (its text) or released (its authors' code): defaults of --flows and --matrices."""
    flows: str = "spray"
    """spray, or single: each flow takes one random shortest path."""
    matrices: str = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    trace: str | None = None
    """Recorded routing instead."""
    iterations: int = 1
    """Iterations to average."""
    out: str | None = None
    """The calibration, with its residuals and its configuration, to a .json file."""
    seed: int = 0
    device: str | None = None
    """cpu, gpu, tpu (default: what JAX finds)."""


def run(options: Options) -> int:
    """Returns the exit status."""
    shared.start_jax("float32", options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study

    given = shared.as_given(options)
    models, out = shared.listed_words(given.pop("models")), given.pop("out")
    del given["device"], given["preset"]
    given |= {"models": models, "nic_use": shared.listed_words(given["nic_use"])}
    config = study.Compare(**given)
    if out is not None:
        study.check_calibration(out)
    with tqdm(total=len(models), desc="calibrate", unit="model", file=sys.stderr, disable=None) as bar:
        found = study.calibrate(config, models, progress=lambda _: bar.update())
    columns = [report.Column("model"), report.Column("nic_gbps"), report.Column("efficiency", "rate over A100 peak")]
    columns += [report.Column("compute_s", "computation [s]"), report.Column("fitted"), report.Column("published")]
    print("fat-tree time over that at 800 Gbps")
    print(report.plain(study.calibration_rows(found), [*columns, report.Column("off", percent=True)]))
    if out is not None:
        print(study.write_calibration(found, config, out), file=sys.stderr)
    return 0
