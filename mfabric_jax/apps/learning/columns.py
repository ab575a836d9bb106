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
REGIMES = Columns(
    Column("policy", TEXT, "Policy, and when it reconfigures."),
    Column("causal", TEXT, "Whether it knows nothing of demand beyond its forecast."),
    Column("learned", TEXT, "Whether it was trained."),
    Column("delay_s", "s", "Delay of a reconfiguration."),
    Column("servers", "", "Servers of the region."),
    Column("optical", "", "NICs of a server on the optical switch."),
    Column("electrical", "", "NICs of a server on the electrical fabric."),
    Column("pairs", "", "Standard deviation of the log popularity of pairs."),
    Column("memory", "", "Correlation of log popularity from one all-to-all to the next."),
    Column("skew", "", "Standard deviation of the log popularity of receivers."),
    Column("sigma", TEXT, "Standard deviation of the log errors of forecasts; `previous`: each is the demand before."),
    Column("routing", TEXT, "How bytes use circuits."),
    Column("demand", TEXT, "Whether demand drifts or is recorded."),
    Column("nic_gbps", "Gbps", "Bandwidth of every NIC."),
    Column("gap", "%", "Per cent of time beyond the clairvoyant trajectory."),
    Column("gap_low", "%", "Low end of the 95 % interval of `gap` over seeds."),
    Column("gap_high", "%", "High end of the 95 % interval of `gap` over seeds."),
    Column("beyond_renewal", "%", "Per cent of time beyond the row `renewal`, seed by seed; the mean.", detail=True),
    Column("beyond_renewal_low", "%", "Low end of the 95 % interval of `beyond_renewal` over seeds.", detail=True),
    Column("beyond_renewal_high", "%", "High end of the 95 % interval of `beyond_renewal` over seeds.", detail=True),
    Column("over_bound", "", "Time over the sum of degree bounds, delays included.", detail=True),
    Column("bound_s", "s", "Mean degree bound of an all-to-all of the regime.", detail=True),
    Column("changes", "", "Reconfigurations an all-to-all.", detail=True),
    Column("decision_s", "s", "Time of a decision, in a batch."),
)
