"""Columns of the rows that compare policies."""

from mfabric_jax.support.columns import TEXT, Column, Columns

POLICY, WORKLOAD = Column("policy", TEXT, "Name of the policy."), Column("workload", TEXT, "Kind of demand.")
SERVERS, ROUTING = Column("servers", "", "Servers of the region."), Column("routing", TEXT, "How bytes use circuits.")
BENCH = Columns(
    POLICY,
    WORKLOAD,
    SERVERS,
    ROUTING,
    Column("sigma", "", "Error of the forecast."),
    Column("instances", "", "Demands that were drawn."),
    Column("mean", "", "Seconds of an all-to-all over the degree bound, mean."),
    Column("median", "", "The same, median."),
    Column("p90", "", "The same, p90."),
    Column("max_min_mean", "", "The same under max-min fair rates, mean.", detail=True),
    Column("proved", "", "Part of the instances whose optimum is proved."),
    Column("of_optimum", "", "Seconds over the optimum, mean of those."),
    Column("of_optimum_p90", "", "The same, p90.", detail=True),
    Column("decisions_per_s", "1/s", "Decisions in a second.", rises=True),
    Column("compile_s", "s", "Time to compile.", detail=True),
)
EVALUATE = Columns(
    WORKLOAD,
    SERVERS,
    Column("forecast", TEXT, "What the policy knows of the demand."),
    ROUTING,
    POLICY,
    Column("samples", "", "Demands that were drawn."),
    Column("over_bound", "", "Seconds of an all-to-all over the degree bound, mean."),
    Column("low", "", "Low end of its 95 % interval."),
    Column("high", "", "High end of its 95 % interval."),
    Column("p90", "", "The same, p90."),
    Column("gain", "", "Mean gain over greedy, in degree bounds.", rises=True),
    Column("gain_low", "", "Low end of its 95 % interval.", rises=True),
    Column("gain_high", "", "High end of its 95 % interval.", rises=True),
)
