"""CloudMatrix384: supernodes of 384 NPUs on a non-blocking two-tier Clos, plus one NIC per NPU on a second plane.

A supernode has 48 nodes of 8 NPUs, each with 392 GB/s. A node has 7 first-tier switches, one per sub-plane. A
first-tier switch has 28 GB/s to each of the 16 second-tier switches of its sub-plane: 8 x 392 = 7 x 16 x 28 GB/s. So
only the NPUs' own links limit the rate, and a supernode is a scale-up domain of one rate. The second plane, RDMA
between supernodes, has `network.nic_gbps` per NPU (400 as built). Source: arXiv 2506.12708, second hand.
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
        summary="non-blocking supernodes of 384 NPUs, plus one NIC per NPU",
        look=("CloudMatrix384", "#A5AA99", "D"),
        domains=Domains(
            gpus=SUPERNODE.gpus,
            price=("scale_up_per_gpu", "UB planes"),
            inside_Bps=lambda gpu_tbps, nic_gbps, own_Bps: SUPERNODE.Bps,
            stated=lambda value_at: SUPERNODE,
        ),
    )
)
