"""Columns of the rows of failures."""

from mfabric_jax.evaluate.rows.rows import COST, JOB, NAMES, PARTS_OF_ITERATION
from mfabric_jax.support.columns import TEXT, Column, Columns

LOSSES = Columns(
    Column("failures_per_month", "", "Failures of all devices of the kind in a month."),
    Column("repair_hours", "h", "Time until a failed device works again.", detail=True),
    Column("hours_a_stop", "h", "Hours lost per failure because the job stops or waits.", detail=True),
    Column("stopped_hours_per_month", "h", "Hours lost in a month because the job stops or waits.", detail=True),
    Column("slower_hours_per_month", "h", "Hours lost in a month because the job is slower.", detail=True),
    Column("lost_hours_per_month", "h", "The sum of both."),
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
    Column("healthy_s", "s", "An iteration without failures."),
    Column("failed_s", "s", "An iteration after the failure; empty where the job waits for the repair."),
    Column("slow_down", "", "How much longer an iteration takes after the failure, as a fraction."),
    Column("run_slow_down", "", "How much longer the whole run takes, as a fraction.", detail=True),
    Column("faster_by", TEXT, "Why the iteration is shorter after the failure; empty where it is not."),
    Column("spare_network_usd", "USD", "Network price of a spare server.", detail=True),
    Column("spare_usd", "USD", "Price of a spare server with its network."),
    Column("spare_part_usd", "USD", "Price of a spare part.", detail=True),
    Column("devices", "", "Devices of the kind in the cluster."),
    COST["usd_per_million_tokens"],
    Column("lost_usd_per_month", "USD", "Cost of the hours lost in a month."),
    Column("spare_usd_per_month", "USD", "Depreciation of a spare server in a month."),
    Column("spare_part_usd_per_month", "USD", "Depreciation of a spare part in a month.", detail=True),
    Column("waits", TEXT, "Why the job waits for the repair; empty where it continues."),
    Column("remedy", TEXT, "What takes over: a spare GPU, a spare server, or the repair."),
    LOSSES,
    Column("published", "", "Slow-down that the paper reports."),
    PARTS_OF_ITERATION.rename("healthy_{name}", "Without failures: {text}", detail=True),
    PARTS_OF_ITERATION,
    JOB.with_detail(True),
    Column("dtype", TEXT, "Arithmetic.", detail=True),
)
