"""Columns of the rows that compare predictions with measurements."""

from mfabric_jax.evaluate.resolving.set_up import MEMORY
from mfabric_jax.evaluate.rows.rows import ITERATION, JUDGED
from mfabric_jax.support.bands import BAND
from mfabric_jax.support.columns import TEXT, TRUTH, Column, Columns

PREDICTED, MEASURED = Column("predicted_s", "s", "Predicted time."), Column("measured_s", "s", "Measured time.")
ERROR = Column("error", "", "Predicted over measured, minus 1.")
INSIDE = Column("inside", TRUTH, "Whether the measurement lies in the band.")
PRINTED = Column("printed", TEXT, "The measurement as its source prints it.", detail=True)
SOURCE, NOTE = Column("source", TEXT, "Source of the measurement."), Column("note", TEXT, "Remark.", detail=True)
GPU = Column("gpu", TEXT, "Name of the GPU.")
FLOW_ERRORS = Columns(
    Column("flow_error_median", "", "Median absolute error of a flow's completion time."),
    Column("flow_error_p90", "", "90th percentile of the absolute error of a flow's completion time."),
    Column(
        "corrected_flow_error_median",
        "",
        "Median absolute error of a flow's completion time, with the transport's correction.",
        detail=True,
    ),
    Column(
        "corrected_flow_error_p90",
        "",
        "90th percentile of that absolute error, with the transport's correction.",
        detail=True,
    ),
    *(
        Column(f"flow_error_q{part:02}", "", f"{part} % quantile of the signed error of a flow.", detail=True)
        for part in (5, 25, 50, 75, 95)
    ),
)
PACKET = Columns(
    Column("run", TEXT, "Name of the packet-level run."),
    Column("group", TEXT, "Group to which the run belongs."),
    Column("topology", TEXT, "Topology of the run."),
    Column("pattern", TEXT, "Traffic of the run."),
    Column("transport", TEXT, "Transport of the run."),
    Column("routing", TEXT, "Routing of the run."),
    Column("paths_known", TRUTH, "Whether the run records the paths of flows.", detail=True),
    Column("link_gbps", "Gbps", "Bandwidth of a link.", detail=True),
    Column("payload_per_packet", "bytes", "Payload of a packet.", detail=True),
    Column("header_per_packet", "bytes", "Header of a packet.", detail=True),
    Column("flows", "", "Number of flows."),
    Column("mean_pair_mib", "MiB", "Mean bytes of a pair of hosts.", detail=True),
    MEASURED,
    PREDICTED,
    ERROR,
    Column("corrected_by", TEXT, "Transport whose correction was applied."),
    Column("corrected_s", "s", "Predicted time with that correction."),
    Column("corrected_error", "", "Error of `corrected_s`."),
    Column("stated_fluid_s", "s", "Fluid completion time that the run's file states.", detail=True),
    Column("large_flows", "", "Number of flows that are large enough to judge.", detail=True),
    FLOW_ERRORS,
    Column("dtype", TEXT, "Number format of the simulator's arithmetic.", detail=True),
)
TRAINING = Columns(
    Column("row", TEXT, "Name of the measurement."),
    Column("model", TEXT, "Name of the model."),
    GPU,
    Column("gpus", "", "Number of GPUs."),
    PREDICTED,
    MEASURED,
    BAND,
    ERROR,
    INSIDE,
    MEMORY,
    JUDGED["mfu"],
    ITERATION,
    PRINTED,
    SOURCE,
    NOTE,
)
LAYERS = Columns(
    Column("model", TEXT, "Shape of the layer: that of Mixtral, or a part of DeepSeek-V3's."),
    Column("dispatcher", TEXT, "Library that sends tokens."),
    Column("format", TEXT, "Number format of products."),
    *(
        column
        for name, words in (("forward", "the forward pass"), ("backward", "the backward pass"), ("both", "both passes"))
        for column in (
            Column(f"{name}_s", "s", f"Predicted seconds of {words}."),
            Column(f"measured_{name}_s", "s", f"Measured seconds of {words}."),
            Column(f"{name}_error", "", f"Predicted over measured, minus 1, of {words}."),
        )
    ),
)
SERVING = Columns(
    Column("row", TEXT, "Name of the measurement."),
    Column("what", TEXT, "What was measured: dispatch, combine, tpot or prefill."),
    GPU,
    Column("kernels", TEXT, "Kernels of dispatch and combine."),
    Column("ep", "GPUs", "GPUs that share the experts."),
    Column("batch", "tokens", "Tokens of a GPU."),
    PREDICTED,
    MEASURED,
    BAND,
    ERROR,
    INSIDE,
    Column("constant", TRUTH, "Whether a constant was taken from this row.", detail=True),
    Column("counted", TRUTH, "Whether the row counts: it has 32 tokens or more and gave no `constant`.", detail=True),
    PRINTED,
    SOURCE,
    NOTE,
)
