"""CloudMatrix384: 384 NPUs on a two-tier Clos that does not block, and a second plane of a NIC for each NPU.

48 nodes of 8 NPUs of 392 GB/s. A node has 7 switches of the first tier, one a sub-plane; each has 28 GB/s to every one
of the 16 of its sub-plane's second tier: 8 x 392 = 7 x 16 x 28 GB/s. So NPUs alone limit, and a supernode is a scale-up
domain of one rate. Its second plane, RDMA between supernodes, is `network.nic_gbps` an NPU (400 as built). Source:
arXiv 2506.12708, second hand.
"""

from mfabric_jax import units
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.site import About, Domain, Domains

NODES, NODE_NPUS, NPU_GIGABYTES_PER_S = 48, 8, 392.0
SUB_PLANES, SECOND_TIER, LINK_GIGABYTES_PER_S = 7, 16, 28.0
SECOND_TIER_SWITCHES = SUB_PLANES * SECOND_TIER
LINKS = NODES * SECOND_TIER_SWITCHES  # from the first tier to the second
SUPERNODE = Domain(NODES * NODE_NPUS, units.gigabytes_per_s(NPU_GIGABYTES_PER_S), SUB_PLANES)

CLOUDMATRIX384 = OnTree(
    About(
        name="cloudmatrix384",
        summary="supernodes of 384 NPUs that do not block inside, a NIC of each beside them",
        look=("CloudMatrix384", "#A5AA99", "D"),
        domains=Domains(
            gpus=SUPERNODE.gpus,
            price=("scale_up_per_gpu", "UB planes"),
            inside_Bps=lambda gpu_tbps, nic_gbps, own_Bps: SUPERNODE.Bps,
            stated=lambda value_at: SUPERNODE,
        ),
    )
)
