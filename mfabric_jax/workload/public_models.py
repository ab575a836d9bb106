"""Models by the names under which they were published, such as `deepseek-ai/DeepSeek-V3`."""

import re
from pathlib import Path
from typing import NamedTuple

from mfabric_jax.checks import InputError
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.models import CONFIG, Architecture
from mfabric_jax.workload.own import read_model


class PublicModel(NamedTuple):
    """A published model. `weights`: the number format in which alone it was published; "": several."""

    architecture: Architecture
    weights: str = ""


# Names of releases with the same dimensions: a model of the catalogue or of `public/`, and its only format. Kimi-K2.5
# by its model of text.
RELEASES = {
    r"(deepseek-ai|nvidia)/DeepSeek-(V3|V3-0324|V3-Base|V3\.1(-\w+)?|R1|R1-0528)(-(NV)?FP4(-v2)?)?": (
        "deepseek-v3",
        "",
    ),
    r"(deepseek-ai|nvidia)/DeepSeek-V3\.2(-\w+)?(-NVFP4)?": ("deepseek-v3.2", ""),
    r"(moonshotai|nvidia)/Kimi-K2(\.\d)?(-\w+)?(-NVFP4)?": ("kimi-k2", ""),
    r"(MiniMaxAI|nvidia)/MiniMax-M2(\.\d)?(-NVFP4)?": ("minimax-m2", ""),
    r"(Qwen|nvidia)/Qwen3-235B-A22B(-Instruct-2507|-Thinking-2507)?(-FP8|-(NV)?FP4)?": ("qwen3-235b", ""),
    r"openai/gpt-oss-120b": ("gpt-oss-120b", "mxfp4"),
}
EXAMPLES = (
    *("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "moonshotai/Kimi-K2.5", "MiniMaxAI/MiniMax-M2.5"),
    *("Qwen/Qwen3-235B-A22B-FP8", "openai/gpt-oss-120b"),
)


def public_model(name: str) -> PublicModel:
    """Return a model by its public name, or from a folder with a released `config.json` or a file.

    Raise `InputError` for an unknown name and for an unreadable file.
    """
    if (Path(name) / CONFIG).is_file() or Path(name).is_file():
        return PublicModel(read_model(name)[0])
    for pattern, (known, weights) in RELEASES.items():
        if re.fullmatch(pattern, name):
            return PublicModel(get_model(known).architecture, weights)
    allowed = ", ".join(EXAMPLES)
    raise InputError(f"model {name!r:.80} is unknown; allowed: {allowed}, or a folder with {CONFIG}.")
