"""`mfabric doctor`: what determines the speed on this machine."""

import dataclasses

from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Print what determines the speed on this machine: devices, versions, caches, kernels, extras, slow settings."""

    clear_programs: bool = False
    """Remove the compiled programs kept on disk."""


def run(options: Options) -> None:
    shared.start_jax("float32", options.device)
    from mfabric_jax.commands import speed_lines
    from mfabric_jax.support import programs

    if options.clear_programs:
        if (folder := programs.kept_in) is None:
            raise InputError("--clear-programs has nothing to remove: no programs are kept (MFABRIC_PROGRAMS is off).")
        if (why := programs.problem(folder)) is not None:
            raise InputError(f"programs in {str(folder)!r} cannot be removed: {why}.")
        many, _ = programs.usage(folder)
        programs.clear(folder)
        print(f"{many:,} programs removed from {folder}")
        return
    lines = speed_lines.doctor()
    wide = max(len(line.topic) for line in lines)
    for line in lines:
        print(f"{line.topic:<{wide}}  {line.says}")
