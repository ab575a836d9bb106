"""What is trained, on how many GPUs, and what that computes and sends: model facts, placement, seconds, bytes."""

from mfabric_jax.workload.catalog import NAMES as NAMES
from mfabric_jax.workload.catalog import get as get
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD as BACKWARD_OVER_FORWARD
from mfabric_jax.workload.compute import DEFAULT_GPU as DEFAULT_GPU
from mfabric_jax.workload.compute import GPUS as GPUS
from mfabric_jax.workload.compute import BlockFlops as BlockFlops
from mfabric_jax.workload.compute import BlockSeconds as BlockSeconds
from mfabric_jax.workload.compute import Gpu as Gpu
from mfabric_jax.workload.compute import block_flops as block_flops
from mfabric_jax.workload.compute import block_seconds as block_seconds
from mfabric_jax.workload.compute import get_gpu as get_gpu
from mfabric_jax.workload.models import Architecture as Architecture
from mfabric_jax.workload.models import GroupedQuery as GroupedQuery
from mfabric_jax.workload.models import Latent as Latent
from mfabric_jax.workload.parallel import Placement as Placement
from mfabric_jax.workload.parallel import Workload as Workload
from mfabric_jax.workload.parallel import place as place
from mfabric_jax.workload.volume import MEASURED_SHARES as MEASURED_SHARES
from mfabric_jax.workload.volume import MEASURED_SOURCE as MEASURED_SOURCE
from mfabric_jax.workload.volume import GradientBytes as GradientBytes
from mfabric_jax.workload.volume import MeasuredShare as MeasuredShare
from mfabric_jax.workload.volume import gradient_bytes as gradient_bytes
from mfabric_jax.workload.volume import iteration_bytes as iteration_bytes
from mfabric_jax.workload.volume import pp_bytes as pp_bytes
from mfabric_jax.workload.volume import share_table as share_table
from mfabric_jax.workload.volume import tp_bytes_per_gpu as tp_bytes_per_gpu
