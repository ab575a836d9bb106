"""Columns of the rows of task graphs: replay, whole clusters, several jobs."""

from mfabric_jax.evaluate.rows.rows import FLOWS, NAMES
from mfabric_jax.support.columns import TEXT, Column, Columns

MODEL, FABRIC, NIC_GBPS = (NAMES[name] for name in ("model", "fabric", "nic_gbps"))
SERVERS, GPUS = Column("servers", "", "Servers."), Column("gpus", "", "GPUs.")
FLOW_COUNT, BYTES = Column("flows", "", "Flows."), Column("bytes", "bytes", "Bytes of all messages.")
BUILD, SOLVE = (
    Column("build_s", "s", "Time to lay out the flows, here.", detail=True),
    Column("solve_s", "s", "Time to simulate them, here.", detail=True),
)
REPLAY = Columns(
    Column("workload", TEXT, "File of the task graph."),
    FABRIC,
    Column("graph", TEXT, "File of the graph, if the fabric is one.", only_some=True),
    NIC_GBPS,
    Column("ranks", "", "Ranks of the task graph."),
    SERVERS,
    GPUS,
    Column("tasks", "", "Tasks."),
    FLOW_COUNT,
    BYTES,
    Column("makespan_s", "s", "Time until the last task ends."),
    Column("compute_s", "s", "Time in computation, mean of ranks."),
    Column("exposed_comm_s", "s", "Time in communication that nothing hides, mean of ranks."),
    Column("idle_s", "s", "Time in neither, mean of ranks."),
    Column("held_by", TEXT, "Kind of link or work that holds most of the makespan."),
    Column("held_share", "", "Its part of the makespan; above 1 where several tie."),
    Column("events", "", "Events of the simulation.", detail=True),
    BUILD,
    SOLVE,
)
REPLAYS = Columns(Column("configuration", "", "Number of the configuration."), REPLAY)
"""Of sweeps of replays."""
LINKS = Columns(
    Column("link", TEXT, "Name of the link."),
    Column("kind", TEXT, "Kind of the link."),
    Column("from", TEXT, "Where it begins."),
    Column("to", TEXT, "Where it ends."),
    Column("capacity_bytes_per_s", "bytes/s", "Its capacity."),
    Column("bytes", "bytes", "Bytes that it carries."),
    Column("utilisation", "", "Part of its capacity that is used until the last flow ends."),
)
REPLAY_LINKS = Columns(
    LINKS,
    Column("holds_s", "s", "Seconds of the makespan that shrink in proportion to its capacity."),
)
PER_RANK = Columns(
    Column("rank", "", "Rank of the task graph."),
    Column("gpu", "", "GPU that it runs on."),
    Column("compute_s", "s", "Its time in computation."),
    Column("exposed_comm_s", "s", "Its time in communication that nothing hides."),
    Column("idle_s", "s", "Its time in neither."),
    Column("sent_bytes", "bytes", "Bytes that it sends."),
    Column("received_bytes", "bytes", "Bytes that it receives."),
)
STEPS = Columns(
    Column("flow", "", "Number of the flow; empty for a computation."),
    Column("task", "", "Number of the task."),
    Column("name", TEXT, "Name of the task."),
    Column("rank", "", "Rank that computes or sends."),
    Column("to", "", "Rank that receives."),
    Column("released_s", "s", "When all that the step waits for has ended."),
    Column("begin_s", "s", "When it begins: later by latency and lag."),
    Column("finish_s", "s", "When it ends."),
    Column("held_by", TEXT, "Kind of link or work that sets its speed."),
)
CLUSTER = Columns(
    MODEL,
    FABRIC,
    SERVERS,
    GPUS,
    NIC_GBPS,
    Column("links", "", "Links."),
    Column("traffic", TEXT, "Kind of traffic."),
    FLOW_COUNT,
    BYTES,
    Column("end_s", "s", "Time until the last of these flows ends."),
    FLOWS,
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
    Column("alone_s", "s", "An iteration without other jobs."),
    Column("mean_s", "s", "An iteration beside the others, mean."),
    Column("p99_s", "s", "The same, p99."),
    Column("last_s", "s", "Its last iteration."),
    Column("slowdown", "", "`mean_s` over `alone_s`."),
    Column("shift_s", "s", "How much later it starts."),
    Column("end_s", "s", "When it ends."),
)
JOB_LINKS = Columns(
    Column("way", TEXT, "How the jobs share links."),
    Column("link", TEXT, "The busiest link."),
    Column("job", TEXT, "Job that uses it."),
    Column("begin_s", "s", "Start of the interval."),
    Column("end_s", "s", "End of the interval."),
    Column("use", "", "Part of the link that the job uses."),
    Column("when", TEXT, "The first iterations after all jobs have started, or the last before a job ends."),
)
