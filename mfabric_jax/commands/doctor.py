"""`mfabric doctor`: what decides the speed here."""

import dataclasses

from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """What decides the speed here: devices, versions, caches, tuned kernels, extras, and what is known to be slow."""


def run(options: Options) -> None:
    shared.start_jax("float32", options.device)
    from mfabric_jax import tuning

    lines = tuning.doctor()
    wide = max(len(line.topic) for line in lines)
    for line in lines:
        print(f"{line.topic:<{wide}}  {line.says}")
