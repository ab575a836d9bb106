"""A training job: dimensions of its model, placement of its ranks, and its seconds, bytes and memory."""

from mfabric_jax.workload.catalog import NAMES as NAMES
from mfabric_jax.workload.catalog import get as get
from mfabric_jax.workload.compute import block_seconds as block_seconds
from mfabric_jax.workload.gpus import Gpu as Gpu
from mfabric_jax.workload.gpus import get_gpu as get_gpu
from mfabric_jax.workload.memory import fullest_stage as fullest_stage
from mfabric_jax.workload.memory import memory_of as memory_of
from mfabric_jax.workload.mixers import GroupedQuery as GroupedQuery
from mfabric_jax.workload.mixers import Latent as Latent
from mfabric_jax.workload.models import Architecture as Architecture
from mfabric_jax.workload.parallel import RankLayout as RankLayout
from mfabric_jax.workload.parallel import Workload as Workload
from mfabric_jax.workload.parallel import place_ranks as place_ranks
from mfabric_jax.workload.schedules import micro_batches_for as micro_batches_for
from mfabric_jax.workload.volume import iteration_bytes as iteration_bytes
from mfabric_jax.workload.volume import pp_bytes as pp_bytes
from mfabric_jax.workload.volume import share_table as share_table
