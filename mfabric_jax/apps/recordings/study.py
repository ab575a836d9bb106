"""What a recording means for a job: all-to-alls on packet switches and on circuits, and load predictors."""

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.recordings import statistics
from mfabric_jax.apps.recordings.foresight import KNOWS_NOTHING, REPEATS, foresight_rows, is_balanced, rank_predictors
from mfabric_jax.case import Case
from mfabric_jax.case.layers import preset_layers
from mfabric_jax.checks import InputError, whole
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.rows.points import rows_of
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.traffic.recording import Recording, Sources, Targets
from mfabric_jax.workload import Workload
from mfabric_jax.workload.parallel import region_remark

WORKERS = 2  # designs that are compiled and solved in parallel
TREE = "fat-tree"
PUBLISHED, BEST, STATIC, UNIFORM = (
    "mFabric, as published",
    "mFabric, at its best",
    "mFabric, static",
    "mFabric, uniform",
)
MEANING = {
    PUBLISHED: "greedy circuits for every all-to-all, bytes unsplit",
    BEST: "circuits and paths chosen together, reconfigured only when it pays",
    STATIC: "one set of circuits for the mean of these records, bytes relayed",
    UNIFORM: "equally many circuits between all servers, bytes relayed, never reconfigured",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceStudy:
    """Configuration of a study of a recording.

    - `case`: model, GPU and bandwidth; `run.iterations` is the number of simulated records, spread evenly.
    - `ranks_per_server`: EP ranks of a group in a server, for statistics; None: the job's.
    """

    case: Case
    ranks_per_server: int | None = None

    def __post_init__(self) -> None:
        if self.ranks_per_server is not None and self.job.ep % whole("ranks_per_server", self.ranks_per_server):
            raise InputError(f"ranks_per_server must divide the {self.job.ep} ranks, got {self.ranks_per_server}.")

    @property
    def job(self) -> Workload:
        """The job on the fat-tree, whose servers have the usual size."""
        return resolve(self.case.with_({"network.fabric": TREE})).job

    @property
    def designs(self) -> dict[str, Case]:
        """The compared networks by name, from the preset `designs`."""
        return {
            variant.name: self.case.with_(dict(variant.stated)) for variant in preset_layers("designs")[-1].variants
        }


class Studied(NamedTuple):
    """Results of a study.

    - `rows`: those of `compare`, plus `design` and `over_tree` (iteration time over the time on the best fat-tree).
    - `foresight`, `ranking`: errors of predictors, and their order.
    - `left_out`: designs that are impossible here, with reasons; `simulated`: numbers of the simulated records.
    """

    recording: Recording
    job: Workload
    rows: list[dict[str, Any]]
    foresight: list[dict[str, Any]]
    ranking: list[dict[str, Any]]
    left_out: dict[str, str]
    simulated: list[int]
    ranks_per_server: int | None = None

    @property
    def ranks(self) -> int | None:
        """EP ranks of the job; None if the recorded ranks cannot be merged into that number."""
        sources, targets = self.recording.count.shape[-2:]
        known = self.recording.sources is Sources.RANKS
        return None if targets % self.job.ep or (known and sources % self.job.ep) else self.job.ep

    @property
    def ranks_in_server(self) -> int:
        return self.ranks_per_server or self.job.ranks_per_server


def trace_study(recording: Recording, config: TraceStudy, progress: Callable[[str], None] | None = None) -> Studied:
    """Simulate some records on every design and rank the predictors; report each step to `progress`.

    Raise `InputError` if the recording does not fit the model.
    """
    tell, case = progress or (lambda what: None), config.case
    some = _spread(recording, case.run.iterations)
    tokens = some.fit(config.job, case.run.iterations)
    names, problems, left_out = [], [], {}
    for name, design in config.designs.items():
        try:
            problems.append(problem_at(resolve(design), (design.network.nic_gbps,), traffic=(tokens,)))
            names.append(name)
        except InputError as why:
            left_out[name] = str(why)
    if not problems:
        raise InputError(next(iter(left_out.values())))
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for name, design_rows in zip(names, pool.map(rows_of, problems), strict=True):
            rows += [{"design": name} | row for row in design_rows]
            tell(name)
    seen = foresight_rows(recording)
    tell("predictors")
    numbers = some.number.tolist()
    return Studied(
        recording, config.job, _relative(rows), seen, rank_predictors(seen), left_out, numbers, config.ranks_per_server
    )


def _spread(recording: Recording, iterations: int) -> Recording:
    """The middle record of each of equal parts of the recording, since the first records may be a warm-up."""
    parts = min(iterations, len(recording.count))
    index = ((np.arange(parts) + 0.5) * len(recording.count) / parts).astype(int)
    return recording.some(index)


def _relative(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tree = min((row["iteration_s"] for row in rows if row["fabric"] == TREE), default=None)
    return [row | {"over_tree": None if tree is None else row["iteration_s"] / tree} for row in rows]


# The answers in sentences.

_HELD = (  # statistics of `statistics.TITLES`, in words; whether to print them as percentages
    ("expert_max_over_mean", "The busiest expert of a layer over the mean", False),
    ("rank_max_over_mean", "The busiest rank of a layer over the mean", False),
    ("top10_pairs_share", "Traffic of the busiest tenth of pairs of ranks", True),
    ("own_rank_share", "Selections that stay on their rank", True),
    ("server_share", "Selections that stay in their server", True),
)
ALIKE = 0.01  # relative difference below which iteration times count as equal
SHARE, CIRCUITS, AHEAD, HELD, UNKNOWN = (
    "Which part of an iteration is all-to-all?",
    "Would optical circuits help, and with which policy?",
    "Which predictor works, and how far ahead?",
    "How skewed and local is the traffic, and how fast does it drift?",
    "What this recording cannot tell",
)


def answers(study: Studied) -> dict[str, list[str]]:
    """Return the answers, as sentences by question, and what the recording cannot tell."""
    return {
        SHARE: [*_share(study), *_compute_sources(study), *_rests_on(study)],
        CIRCUITS: [*_circuits(study), *_rests_on(study)],
        AHEAD: _ahead(study),
        HELD: _contents(study),
        UNKNOWN: unknown_facts(study) or ["Nothing that these answers depend on."],
    }


def _share(study: Studied) -> list[str]:
    return [
        f"{row['design']}: {row['ep_share']:.1%} of {row['iteration_s']:.4g} s "
        f"({row['ep_share_without_bubble']:.1%} without the pipeline's bubble, which is "
        f"{row['bubble_s'] / row['iteration_s']:.0%})."
        for row in study.rows
        if row["fabric"] == TREE or row["design"] == BEST
    ]


def _compute_sources(study: Studied) -> list[str]:
    return [
        f"Computation: {source}." for source in dict.fromkeys(row.get("compute_source") for row in study.rows) if source
    ]


def _rests_on(study: Studied) -> list[str]:
    made_up = {
        Sources.UNKNOWN: "Assumption, since sources are unknown: all ranks send the same.",
        Sources.DOMAINS: "Assumption, since sources are unknown: ranks read the text domains in turn.",
    }
    return [made_up[study.recording.sources]] if study.recording.sources in made_up else []


def _circuits(study: Studied) -> list[str]:
    by_name = {row["design"]: row for row in study.rows}
    trees = [row for row in study.rows if row["fabric"] == TREE]
    optical = [row for row in study.rows if row["fabric"] != TREE]
    lines = [f"{name} is left out: {why}" for name, why in study.left_out.items()]
    if not trees or not optical:
        return lines
    tree, best = (min(rows, key=lambda row: row["iteration_s"]) for rows in (trees, optical))
    if study.job.servers_per_region == 1:
        over = best["iteration_s"] / tree["iteration_s"]
        inside = "An expert-parallel group fits into one server, so no all-to-all leaves it"
        return [*lines, f"{inside}. An iteration takes {over:.2f} times as long as on the fat-tree."]
    alike = [row for row in optical if row["iteration_s"] <= (1 + ALIKE) * best["iteration_s"]]
    simplest = next(row for name in (UNIFORM, STATIC, PUBLISHED, BEST) for row in alike if row["design"] == name)
    lines += [_verdict(simplest, tree), f"Best: {simplest['design']} ({MEANING[simplest['design']]})."]
    others = [row["design"] for row in alike if row is not simplest]
    if others:
        lines.append(f"Within {ALIKE:.0%} of it: {', '.join(others)}.")
    if simplest["design"] in (UNIFORM, STATIC):
        lines.append("So circuits need not be reconfigured while this job runs: a patch panel would do.")
    published = by_name.get(PUBLISHED)
    if published is not None and published not in alike:
        more = published["iteration_s"] / simplest["iteration_s"] - 1
        lines.append(f"The published policy takes {more:.0%} longer than the best design.")
    alone = by_name.get(f"{TREE}, own NICs")
    if alone is not None and alone is not tree and alone["iteration_s"] > (1 + ALIKE) * tree["iteration_s"]:
        more = alone["iteration_s"] / tree["iteration_s"] - 1
        lines.append(
            "Without circuits, let GPUs share the NICs of their server: if each GPU has its own NIC, an "
            f"iteration takes {more:.0%} longer."
        )
    remark = region_remark(study.job.servers_per_region)
    if remark is not None:
        lines.append(remark)
    return lines


def _verdict(row: dict[str, Any], tree: dict[str, Any]) -> str:
    ratio = row["iteration_s"] / tree["iteration_s"]
    answer, words = "no difference", "as long as"
    if abs(ratio - 1) > ALIKE:
        answer = "yes" if ratio < 1 else "no"
        words = f"{abs(1 - ratio):.1%} {'less' if ratio < 1 else 'longer'} than"
    sentence = (
        f"In time, {answer}: with circuits an iteration takes {row['iteration_s']:.4g} s, {words} on the best fat-tree"
    )
    return f"{sentence} ({tree['design']}). {_price(row, tree, ratio)}."


def _price(row: dict[str, Any], tree: dict[str, Any], ratio: float) -> str:
    known = [
        (key, whole)
        for key, whole in (("cluster_cost_usd", "the whole cluster"), ("network_cost_usd", "the network alone"))
        if None not in (row.get(key), tree.get(key))
    ]
    if not known:
        return "Its cost is not known"
    key, whole = known[0]
    worth = tree[key] / (row[key] * ratio)
    price = f"In price, {'yes' if worth > 1 + ALIKE else 'no'}: a dollar of {whole} does {worth:.2f} times the work"
    if row["network_cost_usd"] is None or tree["network_cost_usd"] is None:
        return price
    return f"{price} (the network costs {row['network_cost_usd'] / tree['network_cost_usd']:.2f} times as much)"


def _ahead(study: Studied) -> list[str]:
    if not study.ranking:
        return ["A single record has no history to predict from: record several iterations."]
    if is_balanced(study.foresight):
        return ["Loads are even: there is nothing to predict."]
    best = study.ranking[0]
    spans = sorted({(row["records"], row["iterations"]) for row in study.foresight})
    first, last = spans[0], spans[-1]
    even = next(row["error"] for row in study.ranking if row["predictor"] == KNOWS_NOTHING)
    order = ", ".join(f"{row['predictor']} ({row['error']:.1%})" for row in study.ranking)
    lines = [
        f"Predictors from best to worst, by the part of selections with a wrong target {_span(first)} ahead: {order}."
    ]
    if best["predictor"] == KNOWS_NOTHING:
        return [*lines, "None beats even shares, so do not predict: the past says nothing here."]
    lines.append(f"{best['predictor']} misplaces {best['error']:.1%} of the selections, even shares {even:.1%}.")
    for row in study.ranking:
        if row["predictor"] == KNOWS_NOTHING:
            continue
        lines.append(f"{row['predictor']}: {_reach(study, row, last)}.")
    return lines


def _reach(study: Studied, row: dict[str, Any], last: tuple[int, int | None]) -> str:
    spans = {each["records"]: (each["records"], each["iterations"]) for each in study.foresight}
    if not row["works_to"]:
        return "no better than even shares"
    end = "the longest horizon tried" if row["reaches_end"] else "no longer after that"
    reach = f"better than even shares up to {_span(spans[row['works_to']])} ahead, {end}"
    if row["predictor"] == REPEATS:
        return reach
    if not row["beats_repeating_to"] and row["beats_repeating_from"] is not None:
        since = _span(spans[row["beats_repeating_from"]])
        return f"{reach}; better than repeating the last iteration from {since} ahead on, but not before"
    if not row["beats_repeating_to"]:
        return f"{reach}; no better than repeating the last iteration, up to the longest horizon tried"
    longest = spans[row["beats_repeating_to"]]
    beyond = " (the longest horizon tried)" if longest == last else ""
    return f"{reach}; better than repeating the last iteration up to {_span(longest)} ahead{beyond}"


def _contents(study: Studied) -> list[str]:
    ranks, per_server = study.ranks, study.ranks_in_server
    rows = statistics.statistics_by_layer(study.recording, ranks, per_server if ranks else None)
    lines = []
    for name, what, percent in _HELD:
        values = [row[name] for row in rows if row[name] is not None]
        if name == "server_share":
            values, what = values if ranks else [], f"{what} of {per_server} rank{'s' * (per_server > 1)} of the group"
        if values:
            low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
            form = ".1%" if percent else ".3g"
            lines.append(f"{what}: median {middle:{form}}, {low:{form}} to {high:{form}} in four of five cases.")
    drift = [row for row in statistics.drift_rows(study.recording) if row["correlation"] is not None]
    for row in dict.fromkeys((0, len(drift) - 1)) if drift else ():
        each = drift[row]
        lines.append(
            f"Loads {_span((each['records'], each['iterations']))} apart correlate by {each['correlation']:.3f}."
        )
    return lines or ["The recording holds nothing from which to answer this."]


def _span(ahead: tuple[int, int | None]) -> str:
    records, iterations = ahead
    plural = "" if records == 1 else "s"
    if iterations == records:
        return f"{records} iteration{plural}"
    return f"{records} record{plural}" + ("" if iterations is None else f" ({iterations} iterations)")


def unknown_facts(study: Studied) -> list[str]:
    """Return what was not recorded or does not fit, and which answers depend on it."""
    recording, lines = study.recording, []
    if recording.sources is Sources.UNKNOWN:
        lines.append(
            "Sources are unknown: all ranks are assumed to send the same, so pairs and locality are unknown. "
            "The first two answers depend on this assumption."
        )
    if recording.sources is Sources.DOMAINS:
        lines.append(
            "Rows are text domains: which rank reads which is an assumption. The first two answers depend on it."
        )
    if recording.targets is Targets.RANKS:
        lines.append("Experts are unknown: the load of a rank is spread equally over its experts.")
    records = len(recording.count)
    if records == 1:
        lines.append("There is one record: drift is unknown.")
    elif (recording.number[1:] - recording.number[:-1] > 1).any():
        lines.append("Records are several iterations apart: changes between them are unknown.")
    elif records < 10:
        longest = max((row["records"] for row in study.foresight), default=0)
        lines.append(f"{records} records: horizons beyond {longest} are not tried.")
    if study.rows:
        of = ", ".join(map(str, study.simulated))
        plural = "" if len(study.simulated) == 1 else "s"
        lines.append(f"The first two answers use record{plural} {of}. Traffic: {study.rows[0]['traffic']}.")
    return lines
