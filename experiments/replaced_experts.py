"""What is predicted of experts that were re-placed on 32 A100, beside seconds that were measured there?

LAER-MoE (arXiv 2602.11686; github.com/Fizzmy/LAER-MoE-AE, scripts_ae) measured two Mixtral 8x7B variants with experts
where they were (FSDP) and with experts re-placed (FLEX, LAER), and counted the selections that every rank processed.
Nothing here is fitted to the seconds: an A100 at half its peak, forward once and backward twice, NVLink at its own
rate. Experts of a rank take as long as its selections say. Every rank waits in the all-to-all for the slowest of all,
as parameters of every block are gathered from all of them; its bytes cross NVLink, those of the busiest rank last. What
LAER sends between servers is not recorded, and is left out.

The counts are of ranks: what each of the 2 or 4 experts of a rank received is not known. Under "ours" they are taken to
be alike, and placed with copies on all ranks by `hierarchical`, on the counts of the iteration before.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.csv
from jaxtyping import Float

from mfabric_jax import report, workload
from mfabric_jax.checks import InputError
from mfabric_jax.traffic import SlotLayout, Tokens, placement_policy, tokens_by_slot
from mfabric_jax.workload import Workload, block_seconds, get_gpu
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD

from .pictures import lines
from .rows import Row, Rows, adding, picked, then, told
from .script import Found, Script, Verdict

STATIC, OURS = "FSDP", "ours"
RANKS, GROUP, PER_SERVER, CHUNKS = 32, 4, 8, 2
JOB = {"tp": 1, "pp": 1, "ep": GROUP, "dp": RANKS // GROUP, "sequence": 8192, "micro_batch": 2, "micro_batches": CHUNKS}
VARIANTS = {
    "mixtral-8x7b-e8k2": {},
    "mixtral-8x7b-e16k4": {"experts": 16, "top_k": 4, "expert_hidden": 7168, "blocks": 24},
}
SECONDS = ("expert_s", "alltoall_s", "total_s")


@dataclasses.dataclass(frozen=True)
class Config:
    """Where the measurements are."""

    folder: str = ""  # With token_analysis_backup.csv (or .csv.gz) and breakdown_analysis_backup.csv.
    gpu: str = "A100-80GB-SXM"  # Of the cluster.
    efficiency: float = 0.5  # Achieved over peak FLOP/s.


def run(config: Config) -> Found:
    """A row for each variant and method: `busiest` rank over the mean, block by block and `busiest_expert` of a whole
    iteration, and mean seconds of a rank, each beside what was `measured_`."""
    selections, seconds = _selections(config.folder), _measured(config.folder)
    for model, changed in VARIANTS.items():
        job = workload.get("mixtral-8x7b", **JOB, **changed)
        by_method = {method: count for (name, method), count in selections.items() if name == model}
        for method, count in (by_method | {OURS: re_placed(job, by_method[STATIC])}).items():
            row = {"model": model, "method": method} | predicted(config, job, count)
            if (model, method) in seconds:
                alltoall, expert, total = seconds[model, method].T
                row |= {"measured_busiest_expert": expert.max() / expert.mean(), "measured_expert_s": expert.mean()}
                row |= {"measured_alltoall_s": alltoall.mean(), "measured_total_s": total.mean()}
            yield row


def predicted(config: Config, job: Workload, count: Float[np.ndarray, "I L R"]) -> Row:
    """What the selections of every rank make of an iteration."""
    gpu = get_gpu(config.gpu)
    block = block_seconds(job, gpu, config.efficiency)
    passes = CHUNKS * job.moe_layers * (1 + BACKWARD_OVER_FORWARD)
    busiest = float((count.max(axis=-1) / count.mean(axis=-1)).mean())
    sent = job.selections * job.dispatch_bytes_per_selection * (GROUP - 1) / GROUP
    crossing_s = CHUNKS * job.moe_layers * 4 * sent * busiest / gpu.nvlink
    expert_s, rest_s = passes * float(block.expert_s), passes * float(block.attention_s + block.moe_s - block.expert_s)
    alltoall_s = (busiest - 1) * expert_s + crossing_s
    whole = count.sum(axis=(0, 1))
    return {
        "busiest": busiest,
        "busiest_expert": float(whole.max() / whole.mean()),
        "expert_s": expert_s,
        "alltoall_s": alltoall_s,
        "total_s": rest_s + expert_s + alltoall_s,
    }


def re_placed(job: Workload, count: Float[np.ndarray, "I L R"]) -> Float[np.ndarray, "I L R"]:
    """Selections of every rank were its experts, alike on each rank, placed for the iteration before."""
    experts = job.architecture.experts
    position = count.reshape(*count.shape[:2], -1, GROUP).sum(axis=2)
    loads = np.repeat(position, experts // GROUP, axis=-1) / (experts // GROUP)
    tokens = Tokens(loads[:, :, None, None], "counted by rank").after_the_first()
    layout = SlotLayout(RANKS, PER_SERVER, RANKS * experts // GROUP, experts)
    found = tokens_by_slot(tokens, layout, placement_policy("hierarchical"), every=1).count
    return found.reshape(*found.shape[:2], RANKS, -1).sum(axis=-1)


def _selections(folder: str) -> dict[tuple[str, str], np.ndarray]:
    """{(model, method): selections processed [iteration, layer, rank]}."""
    found = {}
    for name, columns in _by_method(folder, "token_analysis_backup.csv"):
        place = columns["iter"], columns["layer"], columns["rank"]
        found[name] = np.zeros([numbers.max() + 1 for numbers in place])
        found[name][place] = columns["token_num"]
    return found


def _measured(folder: str) -> dict[tuple[str, str], np.ndarray]:
    """{(model, method): all-to-all, expert and total seconds of every rank [R 3]}."""
    seconds = "alltoall_time", "expert_time", "total_time"
    by_method = _by_method(folder, "breakdown_analysis_backup.csv")
    return {name: np.stack([columns[key] for key in seconds], axis=1) for name, columns in by_method}


def _by_method(folder: str, name: str) -> Iterator[tuple[tuple[str, str], dict[str, np.ndarray]]]:
    """((model, method), the columns of its lines), in the order of the file."""
    path = next((file for file in (Path(folder) / name, Path(folder) / f"{name}.gz") if file.is_file()), None)
    if path is None:
        raise InputError(f"folder must hold {name} (or .gz) of LAER-MoE's artifact, got {folder!r}.")
    table = pyarrow.csv.read_csv(path)
    columns = {name: table[name].to_numpy() for name in table.column_names}
    model, method = columns["model_name"], columns["method"]
    for key in dict.fromkeys(zip(model.tolist(), method.tolist(), strict=True)):
        lines = (model == key[0]) & (method == key[1])
        yield key, {name: column[lines] for name, column in columns.items()}


def ratios(rows: Rows) -> list[Row]:
    """Seconds of the static placement over those of every other, predicted and measured."""
    found = []
    for row in rows:
        (static,) = picked(rows, model=row["model"], method=STATIC)
        if row is not static:
            names = (f"{kind}{name}" for name in SECONDS for kind in ("", "measured_"))
            over = {name: static[name] / row[name] if name in row else None for name in names}
            found.append({"model": row["model"], "re-placed by": row["method"]} | over)
    return found


def _beside(rows: Rows) -> list[Row]:
    """Ratios that were measured, one a line."""
    return [
        {"model": row["model"], "method": row["re-placed by"], "of": name}
        | {"measured": row[f"measured_{name}"], "predicted": row[name]}
        for row in ratios(rows)
        for name in SECONDS
        if row[f"measured_{name}"] is not None
    ]


def _listed(rows: Rows) -> str:
    names = dict.fromkeys(name for row in rows for name in row)
    return report.plain([{name: row.get(name) for name in names} for row in rows])


table = told(
    "busiest rank over the mean, and mean seconds of a rank", _listed, "static over re-placed", then(ratios, _listed)
)


def verdicts(rows: Rows) -> list[Verdict]:
    """Predicted gains of re-placement beside those measured."""
    claims = adding(claim="{model}: {of} of FSDP over {method}", found="{predicted:.2f}", published="{measured:.2f}")
    return [
        Verdict(row["claim"], row["found"], row["published"], row["predicted"] / row["measured"] - 1)
        for row in claims(_beside(rows))
    ]


AXES = ("measured", "static over re-placed, measured"), ("predicted", "predicted")
build = then(_beside, lines(*AXES, "{of}"))
SCRIPT = Script(Config)
SCRIPT.start(__name__)
