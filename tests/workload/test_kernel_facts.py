"""Our measured kernels beside an independent condensation of the same tables: other least squares, other selections.

For each GPU and class of kernels, both are evaluated over a grid of shapes; the mean magnitude of ours over theirs less
one must stay within `LIMIT`, or that of `OWN_LIMITS`.
"""

import itertools
import tomllib

import numpy as np
import pytest

from mfabric_jax.workload import get_gpu
from mfabric_jax.workload import measured_kernels as forms
from mfabric_jax.workload.measured_kernels import FORMATS, ExpertWork, measured_kernels

LIMIT = 0.20
OWN_LIMITS = {  # where theirs are farther from the fastest engine's cells than ours
    # Theirs: 24 % below them; ours: in the middle of them.
    ("H100-SXM", "fp8 experts, many tokens"): 0.25,
    ("H200-SXM", "fp8 experts, many tokens"): 0.25,
    # Theirs: 63 % above them at up to 4 tokens, with a longer floor than a B200's; ours: 5 %.
    ("B300-HGX", "nvfp4 experts, few tokens"): 0.25,
}
STORED = {
    "H100-SXM": "h100_sxm",
    "H200-SXM": "h200_sxm",
    "B200-HGX": "b200_sxm",
    "B300-HGX": "b300_sxm",
    "GB200-NVL72": "gb200",
}
PRODUCTS = {"bf16": "bfloat16", "fp8": "fp8_block", "nvfp4": "nvfp4"}
EXPERTS = {"bf16": "bf16", "fp8": "fp8", "nvfp4": "fp4"}
CACHES = {"bf16": "bfloat16", "fp8": "fp8"}
NCCL = {name: name.replace("all_to_all", "alltoall") for name in forms.COLLECTIVES}

ROWS = {"small": (1, 4, 16, 64), "medium": (128, 256, 512, 1024), "large": (4096, 8192, 16384)}
SHAPES = ((7168, 2048), (2048, 7168), (4096, 6144), (4096, 4096), (7168, 18432), (2048, 1024))  # inner, outer
TOKENS = {"few": (1, 4, 16), "medium": (64, 256, 1024), "many": (4096, 8192, 16384)}
MODELS = ((2048, 768, 8, 128), (4096, 1536, 8, 128), (6144, 2048, 8, 256), (7168, 2048, 8, 384))
DEGREES = ((1, 1), (4, 1), (1, 4), (1, 8))  # tp, ep
CONTEXTS = {"short": (512, 2048), "long": (8192, 32768)}
REQUESTS = (1, 8, 32, 128)
MEGABYTES = (4, 16, 64, 256, 512)


@pytest.fixture(scope="module")
def facts(shared_data):
    path = shared_data / "kernels" / "facts.toml"
    if not path.is_file():
        pytest.skip(f"no condensed tables at {path}")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def product_errors(kernels, theirs):
    for number, stored in PRODUCTS.items():
        for size, rows in ROWS.items():
            if stored in theirs["products"]:
                m, (k, n) = np.array(rows)[:, None], np.array(SHAPES).T
                other = product_of(theirs["products"][stored], kernels, FORMATS[number], m, k, n)
                yield f"{number} products, {size}", forms.product_s(kernels, number, m, k, n) / other


def product_of(facts, kernels, form, m, k, n):
    """Seconds by their form, whose knee is between FLOPs and all bytes."""
    tiles = np.ceil(m / 128) * np.ceil(n / 128)
    waves = np.ceil(tiles / kernels.sms) * kernels.sms / tiles
    flops_s = 2 * m * n * k / (form.rate * kernels.gpu.bf16_flops * facts["rate"]) * waves ** facts["wave"]
    moved = form.weight * k * n + form.activation * m * k + 2 * m * n
    knee = np.linalg.norm([flops_s, moved / (kernels.memory_Bps * facts["bw"])], ord=facts["p"], axis=0)
    return 1e-6 * facts["floor_us"] + knee + form.cast * m * k / (kernels.memory_Bps * facts["cast"])


def expert_errors(kernels, theirs):
    for number, stored in EXPERTS.items():
        for size, tokens in TOKENS.items():
            if stored in theirs["experts"]:
                works = [work_of(*each) for each in itertools.product(tokens, MODELS, DEGREES)]
                other = [
                    forms.experts_form(theirs["experts"][stored], kernels, FORMATS[number], work) for work in works
                ]
                own = [forms.experts_s(kernels, number, work) for work in works]
                yield f"{number} experts, {size} tokens", np.array(own) / np.array(other)


def work_of(tokens, model, degrees):
    hidden, inner, k, experts = model
    tp, ep = degrees
    copies = tokens * k if ep > 1 else 0.0
    return ExpertWork(min(experts, tokens * k) / ep, tokens * k / ep, copies, hidden, inner / tp)


def decode_errors(kernels, theirs):
    for heads, (cache, stored) in itertools.product((0, 16, 32, 64, 128), CACHES.items()):
        elements = 576 if heads else np.array([[[256]], [[1024]], [[2048]]])
        for size, contexts in CONTEXTS.items():
            shape = elements, np.array(REQUESTS)[:, None], np.array(contexts)
            other = forms.decode_form(theirs["decode"][str(heads or "gqa")][stored], kernels, cache, *shape)
            own = forms.decode_s(kernels, cache, *shape, heads=heads)
            yield f"{cache} decoding, {heads or 'grouped'} heads, {size}", own / other


def prompt_errors(kernels, theirs):
    for name, cells in theirs["prefill"].items():
        width, window = map(int, name.split("/"))
        own = [1e9 * forms.prompt_attention_s(kernels, width, window, 1, 1, int(length)) for length in cells]
        yield f"prompts {name}", np.array(own) / np.array([*cells.values()])


def collective_errors(kernels, theirs):
    for gpus, cells in theirs["all_reduce"].items():
        own = 1e6 * forms.all_reduce_s(kernels, int(gpus), np.array([*cells], float))
        yield f"all-reduce of {gpus}", own / np.array([*cells.values()])
    for what, stored in NCCL.items():
        known = theirs["nccl"][stored]
        gpus, size = known["gpus"], 2.0**20 * np.array(MEGABYTES)
        sent = (2 if what == "all_reduce" else 1) * (gpus - 1) / gpus * size
        other = sent / (np.array([known[f"{each}MB"] for each in MEGABYTES]) * kernels.gpu.nvlink)
        yield f"NCCL's {what}", forms.collective_s(kernels, what, gpus, size) / other
        floor = 1e6 * forms.collective_s(kernels, what, gpus, 4096)
        yield f"NCCL's {what}, floor", floor / known["floor_us"]


EVERY = (product_errors, expert_errors, decode_errors, prompt_errors, collective_errors)


@pytest.mark.parametrize("errors_of", EVERY)
@pytest.mark.parametrize("name", STORED)
def test_no_class_of_kernels_differs_by_more_than_its_limit(facts, name, errors_of):
    kernels = measured_kernels(get_gpu(name))
    for kind, ratios in errors_of(kernels, facts[STORED[name]]):
        assert float(np.abs(ratios - 1).mean()) <= OWN_LIMITS.get((name, kind), LIMIT), kind
