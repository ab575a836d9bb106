"""What several jobs cost on the networks that are for sale, with failures, and which prices would change the answer."""

from mfabric_jax.apps.purchase.gpu_prices import GpuQuote as GpuQuote
from mfabric_jax.apps.purchase.gpu_prices import gpu_quotes as gpu_quotes
from mfabric_jax.apps.purchase.offers import Offer as Offer
from mfabric_jax.apps.purchase.offers import jobs_and_networks as jobs_and_networks
from mfabric_jax.apps.purchase.offers import offers_of as offers_of
from mfabric_jax.apps.purchase.switches import with_larger_switches as with_larger_switches
from mfabric_jax.apps.purchase.turning import Turning as Turning
from mfabric_jax.apps.purchase.turning import turning_points as turning_points
