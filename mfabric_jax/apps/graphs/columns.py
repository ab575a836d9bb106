"""Columns of the results of task graphs: replays, whole clusters, several jobs."""

from mfabric_jax.evaluate.rows.rows import FLOWS, NAMES
from mfabric_jax.support.columns import TEXT, Column, Columns

MODEL, FABRIC, NIC_GBPS = (NAMES[name] for name in ("model", "fabric", "nic_gbps"))
SERVERS, GPUS = Column("servers", "", "Servers."), Column("gpus", "", "GPUs.")
FLOW_COUNT, BYTES = Column("flows", "", "Flows."), Column("bytes", "bytes", "Bytes of all messages.")
BUILD, SOLVE = (
    Column("build_s", "s", "Run time needed to build the flows.", detail=True),
    Column("solve_s", "s", "Run time of the simulation.", detail=True),
)
GRAPH = Column("graph", TEXT, "File of the network graph, if the fabric is a graph.", only_some=True)
REPLAY = Columns(
    Column("workload", TEXT, "File of the task graph."),
    FABRIC,
    GRAPH,
    NIC_GBPS,
    Column("ranks", "", "Ranks of the task graph."),
    SERVERS,
    GPUS,
    Column("tasks", "", "Tasks."),
    FLOW_COUNT,
    BYTES,
    Column("makespan_s", "s", "Time until the last task ends."),
    Column("compute_s", "s", "Compute time, mean over ranks."),
    Column("exposed_comm_s", "s", "Exposed communication time, mean over ranks."),
    Column("idle_s", "s", "Idle time (neither computing nor communicating), mean over ranks."),
    Column("held_by", TEXT, "Kind of link or work that accounts for most of the makespan."),
    Column("held_share", "", "Share of the makespan that `held_by` accounts for; above 1 if several tie."),
    Column("events", "", "Events of the simulation.", detail=True),
    BUILD,
    SOLVE,
)
REPLAYS = Columns(Column("configuration", "", "Number of the configuration."), REPLAY)
"""Columns of a sweep of replays."""
LINKS = Columns(
    Column("link", TEXT, "Name of the link."),
    Column("kind", TEXT, "Kind of the link."),
    Column("from", TEXT, "Node at which it begins."),
    Column("to", TEXT, "Node at which it ends."),
    Column("capacity_bytes_per_s", "bytes/s", "Its capacity."),
    Column("bytes", "bytes", "Bytes that it carries."),
    Column("utilisation", "", "Fraction of its capacity that is used until the last flow ends."),
)
REPLAY_LINKS = Columns(
    LINKS,
    Column("holds_s", "s", "Seconds of the makespan that scale as 1 over its capacity."),
)
PER_RANK = Columns(
    Column("rank", "", "Rank of the task graph."),
    Column("gpu", "", "GPU that it runs on."),
    Column("compute_s", "s", "Its compute time."),
    Column("exposed_comm_s", "s", "Its exposed communication time."),
    Column("idle_s", "s", "Its idle time."),
    Column("sent_bytes", "bytes", "Bytes that it sends."),
    Column("received_bytes", "bytes", "Bytes that it receives."),
)
STEPS = Columns(
    Column("flow", "", "Number of the flow; empty for a computation."),
    Column("task", "", "Number of the task."),
    Column("name", TEXT, "Name of the task."),
    Column("rank", "", "Rank that computes or sends."),
    Column("to", "", "Rank that receives."),
    Column("released_s", "s", "Time at which everything that the step waits for has ended."),
    Column("begin_s", "s", "When it begins, after latency and lag."),
    Column("finish_s", "s", "When it ends."),
    Column("held_by", TEXT, "Kind of link or work that sets its speed."),
)
CLUSTER = Columns(
    MODEL,
    FABRIC,
    GRAPH,
    SERVERS,
    GPUS,
    NIC_GBPS,
    Column("links", "", "Links."),
    Column("traffic", TEXT, "Kind of traffic."),
    FLOW_COUNT,
    BYTES,
    Column("end_s", "s", "Time until the last of these flows ends."),
    FLOWS.with_detail(False),
    BUILD,
    SOLVE,
    Column("peak_mb", "MB", "Peak memory of this process.", detail=True),
)
CLUSTER_FLOWS = Columns(
    Column("flow", "", "Number of the flow."),
    Column("traffic", TEXT, "Kind of traffic."),
    Column("src", "", "GPU that sends."),
    Column("dst", "", "GPU that receives."),
    Column("bytes", "bytes", "Bytes of the flow."),
    Column("start_s", "s", "When it starts."),
    Column("finish_s", "s", "When it ends."),
    Column("rate_bytes_per_s", "bytes/s", "Its mean rate."),
    Column("bottleneck", TEXT, "Its first bottleneck."),
)
JOBS = Columns(
    Column("way", TEXT, "How the jobs share links."),
    Column("job", TEXT, "Name of the job."),
    Column("iterations", "", "Iterations that it runs."),
    Column("alone_s", "s", "Time of an iteration without other jobs."),
    Column("mean_s", "s", "Mean time of an iteration with the other jobs running."),
    Column("p99_s", "s", "99th percentile of the time of an iteration with the other jobs running."),
    Column("last_s", "s", "Time of its last iteration."),
    Column("slowdown", "", "`mean_s` over `alone_s`."),
    Column("shift_s", "s", "Time shift of the job, if the way shifts jobs."),
    Column("end_s", "s", "When it ends."),
)
JOB_LINKS = Columns(
    Column("way", TEXT, "How the jobs share links."),
    Column("link", TEXT, "The busiest link."),
    Column("job", TEXT, "Job that uses it."),
    Column("begin_s", "s", "Start of the interval."),
    Column("end_s", "s", "End of the interval."),
    Column("use", "", "Fraction of the link's capacity that the job uses."),
    Column("when", TEXT, "Which iterations: the first with all jobs running, or the last before a job ends."),
)
