"""Which parallelism moves how many of the bytes of an iteration, beside what was measured on a production cluster?

Mixtral 8x7B in the measured set-up (128 H800, one data-parallel replica) and as simulated; LLaMA-MoE and Qwen-MoE as
simulated. Counted, not simulated: bytes that all GPUs send, ring algorithms, as `mfabric traffic` prints them. Source:
arXiv 2501.03905, traffic by parallelism.
"""

import dataclasses

from mfabric_jax import units, workload
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import MEASURED_SHARES

from .pictures import dots
from .rows import Row, Rows, adding, listed, then
from .script import Found, Script, Verdict, against, check, reach

MEASURED_SET_UP = {"mixtral-8x7b": {"dp": 1, "gpus": 128}}
ROUNDED = 0.05  # shares are published in tens of per cent


@dataclasses.dataclass(frozen=True)
class Config:
    """What to count."""

    models: tuple[str, ...] = ("mixtral-8x7b", "llama-moe", "qwen-moe")  # Of those with measured shares.

    def __post_init__(self):
        check(self, known={"models": MEASURED_SHARES})


def run(config: Config) -> Found:
    """A row for each set-up and parallelism: bytes of one iteration and their share, and what bounds the measured one.

    PP+DP is a row of its own: what was measured of both together. Micro-batches, whose number the measurement does not
    state, are as many as pipeline stages.
    """
    for model in config.models:
        if model in MEASURED_SET_UP:
            yield from _rows("as measured", workload.get(model, **MEASURED_SET_UP[model]))
        yield from _rows("as simulated", workload.get(model))


def _rows(set_up: str, job: Workload) -> list[Row]:
    facts = {"model": job.model, "set_up": set_up, "gpus": job.gpus, "dp": job.dp, "micro_batches": job.micro_batches}
    counted = workload.share_table(job)
    both = [row for row in counted if row["parallelism"] in ("PP", "DP")]
    together = {key: sum(row[key] for row in both) for key in ("bytes_per_iteration", "share")}
    rows = []
    for row in [*counted, together | {"parallelism": "PP+DP"}]:
        measured = MEASURED_SHARES[job.model].get(row["parallelism"])
        bounds = (None, None) if measured is None else (measured.low, measured.high)
        here = {key: row[key] for key in ("parallelism", "bytes_per_iteration", "share")}
        rows.append(facts | here | {"measured_low": bounds[0], "measured_high": bounds[1]})
    return rows


def _measured(row: Row) -> str | None:
    low, high = row["measured_low"], row["measured_high"]
    return None if low is None else reach(low, high, ".0%")


gigabytes = adding(gigabytes=lambda row: float(units.to_gigabytes(row["bytes_per_iteration"])), measured=_measured)
SIZES = ("gigabytes", "GB, all GPUs"), ("share", None, True), "measured"
table = then(gigabytes, listed("model", "set_up", "gpus", "parallelism", *SIZES))


def _drawn(rows: Rows) -> list[Row]:
    """Counted shares, and below them what was measured: of a range its lower end, or else its upper one."""
    known = [row for row in rows if row["measured_high"] is not None]
    measured = adding(set_up=lambda row: "measured", share=lambda row: row["measured_low"] or row["measured_high"])
    return [row for row in rows if row["parallelism"] != "PP+DP"] + measured(known)


SHARE = "share", "share of the bytes of one iteration"
build = then(_drawn, dots(SHARE, "{set_up}", "{parallelism}", panel="{model}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """Every measured share, in the measured set-up where there is one; single ones are published in tens."""
    usable = [row for row in rows if row["measured_low"] is not None]
    measured = {row["model"] for row in usable if row["set_up"] == "as measured"}
    found = []
    for row in (row for row in usable if row["set_up"] == "as measured" or row["model"] not in measured):
        low, high = row["measured_low"], row["measured_high"]
        claim = f"{row['model']} {row['set_up']}, {row['parallelism']} share of bytes"
        rounding = ROUNDED / low if low == high else 0.0
        found.append(against(claim, row["share"], low, high, form=".0%", allowed=rounding))
    return found


SCRIPT = Script(Config)
SCRIPT.start(__name__)
