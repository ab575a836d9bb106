"""Deployments drawn at random, as the package and as the oracle take them."""

import dataclasses
import random
import tomllib
from importlib.resources import files

import numpy as np

from mfabric_jax.apps.serving import deployment
from mfabric_jax.apps.serving.deployment import GpuPool
from mfabric_jax.apps.serving.expert_load import place_experts
from mfabric_jax.apps.serving.group import crossing_of, group_of
from mfabric_jax.apps.serving.layer_parts import ServedModel
from mfabric_jax.case import Case
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.dispatch_kernels import Family, TransferKernel
from tests.oracles import serving as plain

# Of a GPU that was not measured, what usual kernels achieve of peaks: [products bf16, fp8, grouped bf16, fp8, scores of
# latents, memory]. Peaks from data sheets: [bf16 FLOP/s, memory bytes/s, NVLink bytes/s].
FP8 = 1978.9 / (2 * 989.4)  # of twice the peak of bf16
USUAL = (0.72, 0.67 * FP8, 0.72, 0.68 * FP8, 0.559, 0.85)
PEAKS = {"H800-SXM": (989.4e12, 3.35e12, 200e9), "B200-HGX": (2250e12, 7.7e12, 900e9)}
MLA = {
    "name": "mla",
    "heads": 128,
    "query_rank": 1536,
    "kv_rank": 512,
    "nope_dim": 128,
    "rope_dim": 64,
    "value_dim": 128,
}
GQA = {"name": "gqa", "heads": 48, "kv_heads": 8, "head_dim": 128}
MODELS = {"deepseek-v3": MLA, "mixtral-8x22b": GQA}
BYTES = {"bf16": 2.0, "fp8": 1.0}
WIRE = {"bf16": 2.0, "fp8": 1 + 4 / 128, "nvfp4": 0.5625}
FABRICS = ("fat-tree", "torus", "full-mesh")
RULES = ("expert", "gpu", "server")


def gpu_of(name):
    """Kernels of a GPU as the oracle wants them: measured ones, or those of an estimate, with a launch as the floor."""
    flops, memory, nvlink = PEAKS[name]
    table = files("mfabric_jax.workload") / "measured_kernels.toml"
    known = tomllib.loads(table.read_text("utf-8")).get(name) or estimate(flops, memory)
    return known | {"flops": flops, "memory": memory, "nvlink": nvlink}


def estimate(flops, memory):
    bf16, fp8, grouped_bf16, grouped_fp8, scores, bw = USUAL
    product = {"floor_us": 1.3, "bw": bw, "p": 30.0, "wave": 0.0, "cast": bw}
    expert = {"floor_us": 5.2, "per_expert_us": 0.0, "bw": bw, "tile": 0.0, "perm": bw}
    decode = {"floor_us": 1.3, "ns_a_context_token": 0.0}
    # A cached element of latents has 128 heads x 2 x (2 x 512 + 64) / 576 FLOPs.
    element_s = 128 * 2 * (2 * 512 + 64) / 576 / (scores * flops)
    latent = {cache: decode | {"bw": min(bw, size / element_s / memory)} for cache, size in BYTES.items()}
    return {
        "sms": 132,
        "pointwise": {"floor_us": 1.3, "bw": bw},
        "products": {"bf16": product | {"rate": bf16}, "fp8": product | {"rate": fp8}},
        "experts": {"bf16": expert | {"rate": grouped_bf16}, "fp8": expert | {"rate": grouped_fp8}},
        "decode": {"gqa": {cache: decode | {"bw": bw} for cache in BYTES}, "128": latent},
        "latent": {"floor_us": 0.0, "ns_a_token": 0.0},
    }


def kernel(draw):
    return TransferKernel(
        alpha_s=draw.uniform(0, 20e-6),
        peer_s=draw.choice((0.0, 0.2e-6)),
        beyond_s=draw.choice((0.0, 30e-6)),
        floor_s=draw.choice((0.0, 25e-6, 200e-6)),
        nic=draw.uniform(0.5, 1),
        nic_message_s=draw.choice((0.0, 30e-9)),
        nvlink=draw.uniform(0.5, 1),
        nvlink_message_s=draw.choice((0.0, 30e-9)),
    )


def shares_of(draw, experts, *limit):
    """How often a gate with such a limit takes experts of drawn weights, in one layer or two."""
    sets = plain.allowed(experts, *limit)
    weights = [[draw.uniform(0.7, 1.4) for _ in range(experts)] for _ in range(draw.choice((1, 2)))]
    return np.array([plain.taken_by(weight, sets)[1] for weight in weights])


def drawn(seed):
    """(deployment, numbers of a step, what the oracle is asked for)."""
    draw = random.Random(seed)
    name, fabric, gpu = draw.choice(list(MODELS)), draw.choice(FABRICS), draw.choice(list(PEAKS))
    per_server, servers = draw.choice((1, 2, 4)), draw.choice((1, 2, 3, 4, 6, 8))
    gpus, top_k = per_server * servers, draw.choice((1, 2, 3))
    experts = gpus * draw.choice((1, 2))
    experts = max(experts, -(-top_k // gpus) * gpus)
    slots = draw.choice((experts, experts + gpus)) // gpus
    groups = draw.choice([n for n in (1, 2, 4) if experts % n == 0])
    most = groups if groups == 1 else draw.choice([n for n in range(1, groups + 1) if n * (experts // groups) >= top_k])
    shares = None if draw.random() < 0.4 else shares_of(draw, experts, top_k, groups, most)
    weights, cache = draw.choice(("bf16", "fp8")), draw.choice(("bf16", "fp8"))
    sent, combined = draw.choice(tuple(WIRE)), draw.choice(("bf16", "fp8"))
    drafts = draw.choice(((0, 0.0), (1, 0.6), (2, 1.5)))
    facts = {
        **{"blocks": draw.choice((4, 9)), "hidden": draw.choice((1024, 7168)), "experts": experts, "top_k": top_k},
        **{"expert_hidden": draw.choice((768, 2048)), "shared_hidden": draw.choice((0, 2048))},
        **{"dense_blocks": draw.choice((0, 3)), "dense_hidden": 4096, "vocab": 32000},
        **{"expert_groups": groups, "top_groups": most},
    }
    overlap, batch, context = (
        draw.random() < 0.6,
        draw.choice((1.0, 32.0, 190.5)),
        draw.choice((100.0, 4096.0, 60000.0)),
    )
    case = Case().with_(
        {
            **{f"model.{field}": value for field, value in facts.items()},
            **{"model.name": name, "network.fabric": fabric, "gpu.name": gpu, "gpu.gpus_per_server": per_server},
            **{"network.nic_gbps": draw.choice((100.0, 400.0)), "serving.ep": gpus, "serving.batch": batch},
            **{"serving.context": context, "serving.overlap": overlap, "serving.drafts.tokens": drafts[0]},
            **{"serving.drafts.accepted": drafts[1], "serving.host_s": draw.choice((0.0, 1e-3))},
            **{"serving.formats.weights": weights, "serving.kernels": "ideal"},
            **{name.replace("__", "."): value for name, value in plain.PLANE.items()},
        }
    )
    family = Family(
        "own", draw.choice(RULES), kernel(draw), kernel(draw), header_bytes=16, cores=draw.choice((0, 0.15))
    )
    architecture = get_model(name, facts).architecture
    group = group_of(case, gpus)
    load = place_experts(architecture, gpus, slots, shares, domains=group.domains)
    usual = deployment(case)
    formats = usual.decode.model.formats._replace(cache=cache)
    model = ServedModel(architecture, usual.decode.model.kernels, formats, load, drafting=drafts[0] > 0)
    pool = GpuPool(model, group, family, crossing_of(group, family, load), sent, combined)
    deployed = dataclasses.replace(usual, decode=pool)
    return deployed, deployed.numbers, asked(deployed, MODELS[name], facts, (groups, most))


def asked(deployed, attention, facts, limit):
    """What the oracle needs to know, in plain numbers; where experts lie is taken as it is."""
    case, pool = deployed.case, deployed.decode
    family, load, per_server = pool.family, pool.model.load, pool.group.shape.gpus_per_server
    gpu, formats = gpu_of(case.gpu.name), pool.model.formats
    nic = case.network.nic_gbps * 1e9 / 8
    layers = [(row.tolist(), slots.tolist()) for row, slots in zip(load.selected, load.expert, strict=True)]
    taken = [plain.slots_taken(*layer) for layer in layers]
    model = facts | {"attention": attention, "weights": formats.ffn, "cache": formats.cache}
    crossings = [crossing(case.network.fabric, family.copies, layer, load, per_server, limit) for layer in layers]
    network = {
        "crossing": [sum(one) / len(crossings) for one in zip(*crossings, strict=True)],
        "rates": {"nic": nic, "nvlink": gpu["nvlink"]},
        "dispatch": family.dispatch._asdict(),
        "combine": family.combine._asdict(),
        "sizes": (facts["hidden"] * WIRE[pool.precision] + 16, facts["hidden"] * WIRE[pool.combined]),
        "cores": family.cores,
    }
    placed = {"taken": taken, "slots": load.slots, "gpus": load.gpus}
    return model, gpu, placed, network


def crossing(fabric, rule, layer, load, per_server, limit):
    """Seconds between and inside servers of one layer by the oracle, at 1 byte/s and a byte a copy."""
    servers = load.gpus // per_server
    between, inside = plain.flows_of(*layer, load.slots, per_server, rule, load.top_k, *limit)
    within = plain.inside_servers(inside, per_server)
    if servers == 1:
        return 0.0, within
    if fabric == "fat-tree":
        return plain.on_tree(between), within
    on = {"torus": plain.on_torus, "full-mesh": plain.on_full_mesh}[fabric]
    return on(between, per_server, servers), within
