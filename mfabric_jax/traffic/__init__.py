"""Measured, generated and recorded token counts, and the demand matrices that they give."""

from typing import TYPE_CHECKING

from mfabric_jax.support.lazily import at_first_use
from mfabric_jax.traffic.dispatch import dispatched_bytes as dispatched_bytes
from mfabric_jax.traffic.dispatch import rank_bytes as rank_bytes
from mfabric_jax.traffic.dispatch import sent_tokens as sent_tokens
from mfabric_jax.traffic.dispatch import server_bytes as server_bytes
from mfabric_jax.traffic.generator import authors_tokens as authors_tokens
from mfabric_jax.traffic.generator import from_knobs as from_knobs
from mfabric_jax.traffic.generator import generated_tokens as generated_tokens
from mfabric_jax.traffic.generator import measured_tokens as measured_tokens
from mfabric_jax.traffic.knobs import Knobs as Knobs
from mfabric_jax.traffic.knobs import workload_knobs as workload_knobs
from mfabric_jax.traffic.placement import SlotLayout as SlotLayout
from mfabric_jax.traffic.placement import placement_policy as placement_policy
from mfabric_jax.traffic.placement import tokens_by_slot as tokens_by_slot
from mfabric_jax.traffic.tokens import Tokens as Tokens

if TYPE_CHECKING:
    from mfabric_jax.flows.flows import Flows as Flows
    from mfabric_jax.traffic.log_errors import error_of  # noqa: F401
    from mfabric_jax.traffic.placement_files import check_placement_fits, read_placement  # noqa: F401
    from mfabric_jax.traffic.predictor import WINDOW  # noqa: F401
    from mfabric_jax.traffic.predictor import predict_selections as predict_selections
    from mfabric_jax.traffic.recording import Recording as Recording
    from mfabric_jax.traffic.recording import axes_of  # noqa: F401
    from mfabric_jax.traffic.recording import open_trace as open_trace
    from mfabric_jax.traffic.recording import recorded_tokens as recorded_tokens
    from mfabric_jax.traffic.recording import save_tokens as save_tokens
    from mfabric_jax.traffic.samplers import sampler as sampler
    from mfabric_jax.traffic.scenarios import likely_demands as likely_demands
    from mfabric_jax.traffic.training import region_bytes as region_bytes
    from mfabric_jax.traffic.training import training_flows as training_flows

__getattr__ = at_first_use(
    __name__,
    {
        "log_errors": ("error_of",),
        "placement_files": ("check_placement_fits", "read_placement"),
        "predictor": ("WINDOW", "predict_selections"),
        "recording": ("Recording", "axes_of", "open_trace", "recorded_tokens", "save_tokens"),
        "samplers": ("sampler",),
        "scenarios": ("likely_demands",),
        "training": ("Flows", "region_bytes", "training_flows"),
    },
)
