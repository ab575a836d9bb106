"""`mfabric calibrate`: computation rates from published times. (`calibrate_nccl` is another command.)"""

import dataclasses

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import SettingsLayer, preset_layers
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.evaluate.resolving.resolved import PUBLISHED

FITTED = {"network.fabric": "fat-tree", "network.nic_gbps": 400.0}  # calibrated at all published bandwidths
BELOW = [*preset_layers("paper"), SettingsLayer("calibrate", {"model.name": list(PUBLISHED), **FITTED})]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Fit one computation rate per model to published fat-tree times (arXiv 2501.03905).

    Three ratios per model are published; skew comes from the traffic. Settings apply on top of preset paper.
    compute.calibrated uses the package's rates. For latency and bandwidth: mfabric calibrate nccl --help.
    """

    out: str | None = None
    """Write the calibration, with its residuals and configuration, to this .json file."""


def run(cases: Cases, options: Options) -> None:
    if further := [path for path in cases.varied if path != "model.name"]:
        raise InputError(f"calibrate fits models under one set of assumptions; give one value of {further[0]}.")
    shared.refuse_flags(cases, FITTED, "calibrate fits times on the fat-tree at all published bandwidths")
    shared.check_cases(cases)
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.recordings.calibrate import calibrate, calibration_rows, check_calibration, write_calibration

    every = {case.model.name: case for case in cases}
    if options.out is not None:
        check_calibration(options.out)
    (case, *_) = every.values()
    with shared.bar("calibrate", "model", len(every)) as bar:
        calibration = calibrate(case, tuple(every), progress=lambda _: bar.update())
    columns = ["model", "nic_gbps", report.TableColumn("efficiency", "rate over the GPU's peak")]
    columns += [report.TableColumn("compute_s", "computation [s]"), "fitted", "published"]
    print("fat-tree time over fat-tree time at 800 Gbps")
    print(report.plain(calibration_rows(calibration), [*columns, report.TableColumn("off", percent=True)]))
    if options.out is not None:
        shared.tell(write_calibration(calibration, case, options.out))
