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
    Column("mean", "", "Mean time of an all-to-all over its degree bound."),
    Column("median", "", "Median time of an all-to-all over its degree bound."),
    Column("p90", "", "90th percentile of the time over the degree bound."),
    Column(
        "max_min_mean", "", "Mean time of an all-to-all over its degree bound, under max-min fair rates.", detail=True
    ),
    Column("proved", "", "Fraction of the demands whose optimum is proved."),
    Column("of_optimum", "", "Mean time over the optimum, where it is proved."),
    Column("of_optimum_p90", "", "90th percentile of time over the optimum, where it is proved.", detail=True),
    Column("decisions_per_s", "1/s", "Decisions per second.", rises=True),
    Column("compile_s", "s", "Time to compile.", detail=True),
)
EVALUATE = Columns(
    WORKLOAD,
    SERVERS,
    Column("forecast", TEXT, "The forecast that the policy sees: its error, or `predicted`."),
    ROUTING,
    POLICY,
    Column("samples", "", "Demands that were drawn."),
    Column("over_bound", "", "Mean time of an all-to-all over its degree bound."),
    Column("low", "", "Low end of the 95 % interval of `over_bound`."),
    Column("high", "", "High end of the 95 % interval of `over_bound`."),
    Column("p90", "", "90th percentile of the time over the degree bound."),
    Column("gain", "", "Mean gain over greedy, in degree bounds.", rises=True),
    Column("gain_low", "", "Low end of the 95 % interval of `gain`.", rises=True),
    Column("gain_high", "", "High end of the 95 % interval of `gain`.", rises=True),
)
