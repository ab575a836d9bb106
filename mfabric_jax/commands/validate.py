"""`mfabric validate packet`: predictions against recorded runs."""

import dataclasses
import pathlib
import sys
from typing import Annotated, Literal

from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional


@dataclasses.dataclass(frozen=True)
class Options(shared.RowsAndPictures):
    """Predict recorded packet-level runs at flow level and say how far off the prediction is.

    Prediction: exact max-min fluid completion, headers taken off the line rate; beside it the same corrected by what
    the run's transport takes and adds. Queues and losses are in neither.
    """

    what: Annotated[Literal["packet"], Positional("packet", "to know what first; allowed: packet", "validation")]
    """packet: runs of a packet-level simulator."""
    runs: str
    """A folder of packet-level runs, one .json file each."""
    transport: str = "named"
    """What corrects the prediction: named (ndp or dctcp, where a run names one of them), none, ndp, dctcp, or a .toml
    or .json file of constants of your own (docs/fabrics.md)."""
    dtype: Literal["float32", "float64"] = "float64"
    """Arithmetic of the prediction."""


def run(options: Options) -> None:
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax import report, validation
    from mfabric_jax.fabric.transport import get_transport
    from mfabric_jax.report import figures
    from mfabric_jax.report.tables import agreement
    from mfabric_jax.simulation.results import provenance
    from mfabric_jax.validation.packets import NAMED

    runs = validation.read_runs(options.runs)
    shared.check_outputs(options.out, figures=options.figures)
    transport = options.transport if options.transport == NAMED else get_transport(options.transport)
    predictions = []
    with shared.bar("validate", "run", len(runs)) as bar:
        for run in runs:
            predictions.append(validation.predict(run, options.dtype, transport))
            bar.update()
    rows = validation.packet_rows(predictions)
    if options.out is not None:
        given = {"command": "validate packet", "runs": options.runs, "transport": options.transport}
        report.write_rows(rows, options.out, given | provenance(options.dtype))
        print(f"{len(rows)} rows in {options.out}", file=sys.stderr)
    print(agreement(rows, validation.packet_groups(predictions)))
    if options.figures is not None:
        shared.tell(figures.validation(rows, pathlib.Path(options.figures) / "packet_validation.png"))
