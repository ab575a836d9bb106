"""`mfabric train`: a policy that chooses circuits."""

import dataclasses
import pathlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from mfabric_jax.apps.learning.training import TrainingSettings
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Train a policy on generated demand, measured tables and, if given, a recorded trace.

    The same command resumes an interrupted run from its last checkpoint. The output folder gets trained.policy (for
    --policies of mfabric evaluate, and policies.load), metrics.jsonl and curves.png.
    """

    out: str
    """The output folder."""
    config: TrainingSettings


def run(options: Options) -> None:
    shared.start_jax("float32", options.device)
    from mfabric_jax import policies, report
    from mfabric_jax.apps import learning
    from mfabric_jax.apps.learning.training import TRAINED_POLICY
    from mfabric_jax.report import figures

    out, config = pathlib.Path(options.out), options.config
    shared.check_outputs(figures=str(out))
    began = time.monotonic()
    with shared.bar("train", "step", config.steps) as bar:

        def progress(step: int, line: dict[str, float]) -> None:
            bar.update(step - bar.n)
            if "time" in line:
                bar.set_postfix({"time over bound": f"{line['time']:.3f}"}, refresh=False)

        lines = learning.train(config, out, progress)
    shown = [line for line in lines if any(name.startswith("held_out") for name in line)]
    print("mean time over the degree bound; held_out: on demand not used in training, which decides the kept policy")
    print(report.plain(shown, ["step", "time", *(name for name in shown[0] if name != "step")]))
    if learned := policies.load(out / TRAINED_POLICY).configuration["learned_from"]:
        print(_of_trace(learned))
    print(f"{figures.training(lines, out / 'curves.png')}\n{out / TRAINED_POLICY}", file=sys.stderr)
    print(f"{config.steps} steps, {time.monotonic() - began:.0f} s in this process", file=sys.stderr)


def _of_trace(learned: Mapping[str, Any]) -> str:
    first, last = learned["records"]
    chosen = "{}-{}".format(*learned["validation"]) if learned["validation"] else "none"
    held_out = learned["held_out"]
    held_out_text = "none held out" if held_out is None else "held out, for --records: {}-{}".format(*held_out)
    return f"trace: learned from records {first}-{last}; {chosen} chose the step; {held_out_text}"
