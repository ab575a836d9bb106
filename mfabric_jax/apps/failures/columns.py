"""Columns of the rows of failures."""

from mfabric_jax.evaluate.rows.rows import COST, JOB, NAMES, PARTS_OF_ITERATION
from mfabric_jax.support.columns import TEXT, Column, Columns

LOSSES = Columns(
    Column("failures_per_month", "", "Failures of all devices of the kind in a month."),
    Column("repair_hours", "h", "Time until a failed device works again.", detail=True),
    Column("hours_a_stop", "h", "Hours lost per failure while the job stops or waits.", detail=True),
    Column("stopped_hours_per_month", "h", "Hours lost in a month while the job stops or waits.", detail=True),
    Column("slower_hours_per_month", "h", "Hours lost in a month because the job is slower.", detail=True),
    Column("lost_hours_per_month", "h", "Hours lost in a month: the sum of stopped and slower hours."),
    Column("lost_iterations_per_month", "", "Iterations lost in a month.", detail=True),
    Column("available", "", "Fraction of time in which no device of the kind is broken.", rises=True),
)
FAILURES = Columns(
    *(NAMES[name] for name in ("model", "fabric")),
    Column("network.graph", TEXT, "File of the graph, if the fabric is one."),
    Column("failure", TEXT, "Kind of device that fails."),
    *(NAMES[name] for name in ("nic_gbps", "gpus", "policy", "routing", "nic_use")),
    Column("stage", "", "Pipeline stage that is hit."),
    Column("server", "", "Server that is hit.", detail=True),
    Column("failed_iteration", "", "First iteration that is hit.", detail=True),
    Column("iterations", "", "Iterations of the run.", detail=True),
    Column("healthy_s", "s", "Time of an iteration without failures."),
    Column("failed_s", "s", "Time of an iteration after the failure; empty where the job waits for the repair."),
    Column("slow_down", "", "Relative increase of an iteration's time after the failure."),
    Column("run_slow_down", "", "Relative increase of the time of the whole run.", detail=True),
    Column("faster_by", TEXT, "Why the iteration is shorter after the failure; empty where it is not."),
    Column("spare_network_usd", "USD", "Price of the network of a spare server.", detail=True),
    Column("spare_usd", "USD", "Price of a spare server with its network."),
    Column("spare_part_usd", "USD", "Price of a spare part.", detail=True),
    Column("devices", "", "Devices of the kind in the cluster."),
    COST["usd_per_million_tokens"],
    Column("lost_usd_per_month", "USD", "Cost of the hours lost in a month."),
    Column("spare_usd_per_month", "USD", "Depreciation of a spare server in a month."),
    Column("spare_part_usd_per_month", "USD", "Depreciation of a spare part in a month.", detail=True),
    Column("waits", TEXT, "Why the job waits for the repair; empty where it continues."),
    Column("remedy", TEXT, "Remedy of the failure: a spare GPU, a spare server, or the repair."),
    LOSSES,
    Column("published", "", "Slow-down that arXiv 2501.03905 reports."),
    PARTS_OF_ITERATION.rename("healthy_{name}", "Without failures: {text}", detail=True),
    PARTS_OF_ITERATION,
    JOB.with_detail(True),
    Column("dtype", TEXT, "Number format of the simulator's arithmetic.", detail=True),
)
