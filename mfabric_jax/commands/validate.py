"""`mfabric validate packet`: predictions against recorded runs."""

import dataclasses
from typing import Annotated, Literal

from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional


@dataclasses.dataclass(frozen=True)
class Options(shared.OnDevice):
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
    out: str | None = None
    """Rows to a .csv or .parquet file."""


def run(options: Options) -> None:
    shared.start_jax(options.dtype, options.device)
    from mfabric_jax import validation
    from mfabric_jax.fabric.transport import get_transport
    from mfabric_jax.report.tables import agreement
    from mfabric_jax.simulation.results import provenance
    from mfabric_jax.validation.packets import NAMED

    runs = validation.read_runs(options.runs)
    shared.check_outputs(options.out)
    transport = options.transport if options.transport == NAMED else get_transport(options.transport)
    with shared.bar("validate", "run", len(runs)) as bar:
        predictions = []
        for run in runs:
            predictions.append(validation.predict(run, options.dtype, transport))
            bar.update()
    rows = validation.packet_rows(predictions)
    given = {"command": "validate packet", "runs": options.runs, "transport": options.transport}
    shared.write(rows, options.out, given | provenance(options.dtype))
    print(agreement(rows, validation.packet_groups(predictions)))
