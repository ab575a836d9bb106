"""`mfabric tune`: the fastest kernels of this device, measured and kept."""

import dataclasses
import functools
from typing import Any

from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Measure every kernel of stars on this device; the fastest exact ones are used from then on.

    Minutes, once for a device and a version of JAX. Lists are separated by commas.
    """

    sizes: tuple[int, ...] | None = None
    """Servers of a region (default: 8, 16, 32, 64)."""
    batch: int | None = None
    """Regions of a call (default: what suits device and size)."""
    calls: int = 5
    """The best of so many counts."""
    out: str | None = None
    """What was measured to a .csv or .parquet file."""

    def __post_init__(self):
        from mfabric_jax.tuning import check_measured

        check_measured(**self.measured)

    @property
    def measured(self) -> dict[str, Any]:
        """Arguments of `tuning.tune`."""
        from mfabric_jax.tuning import SIZES

        sizes = SIZES if self.sizes is None else self.sizes
        return {"sizes": sizes, "batch": self.batch, "calls": self.calls}


def run(options: Options) -> None:
    shared.start_jax("float32", options.device)
    from mfabric_jax import report, tuned_file, tuning
    from mfabric_jax.evaluate.rows.results import provenance
    from mfabric_jax.report import Column

    shared.check_outputs(options.out)
    with shared.bar("tune", "kernel") as bar:
        rows = tuning.tune(**options.measured, progress=functools.partial(shared.advance, bar))
    shared.write(rows, options.out, {"command": "tune"} | options.measured | provenance("float32"))
    columns = ["servers", "batch", "kernel", Column("regions_per_s", "regions/s"), Column("compile_s", "compile [s]")]
    print(report.plain([row | {"verdict": _verdict(row)} for row in rows], [*columns, "error", "verdict"]))
    print(f"kept in {tuned_file.tuned_path()}")


def _verdict(row: dict) -> str:
    if row["dropped"]:
        return f"dropped: {row['dropped']}"
    return ", ".join(word for word in ("usual", "kept") if row[word])
