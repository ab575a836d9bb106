"""Who sends how much to whom: tokens measured, generated or recorded, and the demand matrices they make."""

from mfabric_jax.traffic.demand import SplitDemand as SplitDemand
from mfabric_jax.traffic.demand import phases as phases
from mfabric_jax.traffic.demand import rank_bytes as rank_bytes
from mfabric_jax.traffic.demand import server_bytes as server_bytes
from mfabric_jax.traffic.demand import split_local as split_local
from mfabric_jax.traffic.generated import generated as generated
from mfabric_jax.traffic.measured import measured as measured
from mfabric_jax.traffic.recorded import recorded as recorded
from mfabric_jax.traffic.tokens import Tokens as Tokens
