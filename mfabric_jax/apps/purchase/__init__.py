"""What several jobs cost on the networks that are for sale, with failures, and which prices would change the answer."""

from mfabric_jax.apps.purchase.offers import Offer as Offer
from mfabric_jax.apps.purchase.offers import jobs_and_networks as jobs_and_networks
from mfabric_jax.apps.purchase.offers import offers_of as offers_of
from mfabric_jax.apps.purchase.turning import Turning as Turning
from mfabric_jax.apps.purchase.turning import turning_points as turning_points
