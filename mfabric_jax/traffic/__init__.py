"""Who sends how much to whom: tokens measured, generated or recorded, and the demand matrices they make."""

from mfabric_jax.traffic.arrays import load as load_tokens  # noqa: F401
from mfabric_jax.traffic.arrays import save as save_tokens  # noqa: F401
from mfabric_jax.traffic.collectives import Flows as Flows
from mfabric_jax.traffic.collectives import all_to_all as all_to_all
from mfabric_jax.traffic.collectives import hierarchical_all_reduce as hierarchical_all_reduce
from mfabric_jax.traffic.collectives import later as later
from mfabric_jax.traffic.collectives import point_to_point as point_to_point
from mfabric_jax.traffic.collectives import ring_all_gather as ring_all_gather
from mfabric_jax.traffic.collectives import ring_all_reduce as ring_all_reduce
from mfabric_jax.traffic.collectives import ring_reduce_scatter as ring_reduce_scatter
from mfabric_jax.traffic.collectives import together as together
from mfabric_jax.traffic.demand import SplitDemand as SplitDemand
from mfabric_jax.traffic.demand import phases as phases
from mfabric_jax.traffic.demand import rank_bytes as rank_bytes
from mfabric_jax.traffic.demand import server_bytes as server_bytes
from mfabric_jax.traffic.demand import split_local as split_local
from mfabric_jax.traffic.fit import Fit as Fit
from mfabric_jax.traffic.fit import fit as fit
from mfabric_jax.traffic.generated import from_knobs as from_knobs
from mfabric_jax.traffic.generated import generated as generated
from mfabric_jax.traffic.knobs import Knobs as Knobs
from mfabric_jax.traffic.measured import measured as measured
from mfabric_jax.traffic.named import WORKLOADS as WORKLOADS
from mfabric_jax.traffic.named import workload_knobs as workload_knobs
from mfabric_jax.traffic.predictor import hit_rate as hit_rate
from mfabric_jax.traffic.predictor import predicted as predicted
from mfabric_jax.traffic.predictor import total_variation as total_variation
from mfabric_jax.traffic.recorded import open_trace as open_trace
from mfabric_jax.traffic.recorded import recorded as recorded
from mfabric_jax.traffic.recording import Recording as Recording
from mfabric_jax.traffic.tokens import Tokens as Tokens
from mfabric_jax.traffic.training import expert_flows as expert_flows
from mfabric_jax.traffic.training import gradient_flows as gradient_flows
from mfabric_jax.traffic.training import pipeline_flows as pipeline_flows
from mfabric_jax.traffic.training import region_bytes as region_bytes
from mfabric_jax.traffic.training import training_flows as training_flows
from mfabric_jax.traffic.transition import optimality_gap as optimality_gap
from mfabric_jax.traffic.transition import transition as transition
