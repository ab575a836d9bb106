"""Resolve a case: fill its open values, record why, and reject values that exclude each other.

`resolve` returns a `Resolved`: the case without open values, its job (`Workload`), and the engine's input.
"""

import contextlib
import dataclasses
import functools
import math
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from mfabric_jax import fabric, traffic, units
from mfabric_jax.case.paths import (
    EITHER,
    Case,
    Statement,
    build,
    files_of_case,
    flat,
    is_chosen,
    merge_statements,
    read_statement,
    settings,
)
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate.resolving import quick
from mfabric_jax.evaluate.resolving.limits import (
    check_groups,
    check_limits,
    check_modelled,
    check_network,
    check_values,
)
from mfabric_jax.evaluate.resolving.resolved import Hardware, Resolved, tree_room
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.parts_list import get_ocs
from mfabric_jax.fabric.site import DELAY_S, FabricSite
from mfabric_jax.fabric.transport import get_transport
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.workload import Gpu, Workload, get_gpu
from mfabric_jax.workload.catalog import NamedModel, get_model
from mfabric_jax.workload.kernels import USUAL_DISPATCHER, shares_of
from mfabric_jax.workload.parallel import BYTES
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import SCHEDULES, micro_batches_for
from mfabric_jax.workload.space import OPEN, OpenJob, count_for_bubble, usual_batch

impossible = LazyModule("mfabric_jax.evaluate.resolving.impossible")  # sentences of what is refused
# A search evaluates cases, so it is above: the only data that flows back is the set-up that it found.
setups = LazyModule("mfabric_jax.evaluate.setups.found")

GPUS = 1024  # default if neither gpus nor dp is stated
GLOBAL_BATCH = 4096  # sequences: default if no batch is stated
ELECTRICAL_SHARE = 4  # mfabric: one in 4 NICs of a server is on the tree (2 of 8)
BATCH = GLOBAL, MICRO_BATCHES, PER_STAGE, BUBBLE = EITHER[0]
DEGREE = "network.mfabric.optical_degree"
USUAL_SEARCH = "each"
OTHER_DEGREES = ", but other degrees"
TP_REDUCES = "job.parallel.tp_reduces"  # follows from the set-up
NODE_LIMIT = "job.per-server.node_limit"
FIT = ("job.recompute", "fit")  # counts as open: a recipe may replace it


class _DraftCase:
    """Values of a case while they are resolved, with the reasons for filled ones."""

    def __init__(self, case: Case):
        self.original, self.values, self.why, self.recipe, self.source = case, flat(case), {}, "none", "none"
        self.tiers_by_degree: tuple[int, ...] = ()

    def __getitem__(self, path: str) -> Any:
        return self.values.get(path)

    def put(self, path: str, value: Any, why: str) -> None:
        self.values[path], self.why[path] = value, why

    def fill(self, path: str, value: Any, why: str) -> None:
        if self.values.get(path) is None and value is not None:
            self.put(path, value, why)

    def take(self, statement: Statement, why: str) -> None:
        """Fill open values from a recipe: first its choices, then the settings of the chosen alternatives.

        Fill settings that exclude each other only if all of them are open.
        """
        before, known = dict(self.values), settings()
        for path in sorted(statement, key=lambda path: bool(getattr(known[path], "choice", ""))):
            group = next((group for group in EITHER if path in group), (path,))
            is_open = all(before.get(each) is None for each in group) or (path, before.get(path)) == FIT
            if is_open and is_chosen(path, self.values):
                self.put(path, statement[path], why)

    @property
    def case(self) -> Case:
        return build({path: value for path, value in self.values.items() if value is not None})


@cached_by_files(files_of_case, maxsize=4096)
def resolve(case: Case) -> Resolved:
    """Return the case with every value resolved, its job, and the values that the engine reads.

    Raise InputError for an unknown name, Misfit for values that exclude each other.
    """
    resolved = resolve_without_jax(case)
    check_groups(resolved)
    return resolved


@cached_by_files(files_of_case, maxsize=4096)
def resolve_without_jax(case: Case) -> Resolved:
    """Resolve a case without JAX, so without the checks of a fabric's group and a policy's code."""
    draft = _DraftCase(case)
    gpu = _gpu(draft)
    model = model_of(case)
    for field in OF_MODEL:
        draft.fill(f"model.{field}", getattr(model.architecture, field), f"model {model.label}")
    on = fabric.get(case.network.fabric)
    recipe = _recipe(draft, model)
    searched, model = _set_up(draft, model, gpu, on, recipe)
    _formats(draft)
    job = _job(draft, model, gpu, on)
    can_work = round(job.servers * on.share_of(gpu, job.gpus_per_server) * on.gpus_of(gpu))
    tree_nics = _ports(draft, gpu, job.servers, job.servers_per_region, can_work, on)
    _circuits(draft, on, TURNING)
    _tiers(draft, on, job.servers, tree_nics)
    if draft["compute.rate"] == "measured":
        draft.fill("compute.measured.nic_gbps", draft["network.nic_gbps"], "as the case")
        draft.fill("compute.measured.nic_use", draft["network.nic_use"], "as the case")
    whole = draft.case
    check_limits(whole, job, on)
    hardware = _hardware(whole, gpu, draft.tiers_by_degree)
    resolved = Resolved(**hardware, job=job, why=draft.why, original=case, recipe=draft.recipe, searched=searched)
    check_values(resolved)
    return resolved


OF_MODEL = (  # fields of an `Architecture` that a case may state
    *("blocks", "hidden", "experts", "top_k", "expert_hidden", "shared_hidden", "dense_blocks", "dense_hidden"),
    *("vocab", "tied", "expert_groups", "top_groups", "next_tokens"),
)
OF_GPU = {  # path: field of `Gpu`, and its unit
    "bf16_tflops": ("bf16_flops", units.tflops),
    "fp8_tflops": ("fp8_flops", units.tflops),
    "memory_gigabytes": ("memory_bytes", units.gigabytes),
    "memory_gigabytes_per_s": ("memory_Bps", units.gigabytes_per_s),
    "nvlink_gigabytes_per_s": ("nvlink", units.gigabytes_per_s),
    **{name: (name, lambda value: value) for name in ("gpus_per_server", "scale_up_gpus", "nvswitches")},
    **{name: (name, lambda value: value) for name in ("watts", "usd")},
}


def _gpu(draft: _DraftCase) -> Gpu:
    gpu = get_gpu(draft["gpu.name"])
    _domain(draft)
    changes = {field: draft[f"gpu.{name}"] for name, (field, _) in OF_GPU.items()}
    si = {field: unit(changes[field]) for field, unit in OF_GPU.values() if changes[field] is not None}
    gpu = dataclasses.replace(gpu, **si, nvls=draft["gpu.nvls"])
    for name, (field, unit) in OF_GPU.items():
        value = getattr(gpu, field)
        value = value if value is None or isinstance(value, int) else value / unit(1)
        draft.fill(f"gpu.{name}", value, f"data sheet of {gpu.name}")
    return gpu


def _domain(draft: _DraftCase) -> None:
    """Take the scale-up domain from the fabric if it sets one."""
    on = fabric.get(draft["network.fabric"])
    domains = on.about.domains
    if domains is None:
        return
    switches = domains.nvswitches
    if domains.stated is not None:
        domain = domains.stated(draft.__getitem__)
        draft.put("gpu.scale_up_gpus", domain.gpus, f"of {on.name}")
        draft.put("gpu.nvlink_gigabytes_per_s", float(units.to_gigabytes(domain.Bps)), f"of {on.name}")
        switches = domain.planes
    if switches is not None:
        draft.fill("gpu.nvswitches", switches, f"of {on.name}")


class Recipe(NamedTuple):
    """How a model was trained: the source, its settings, and dimensions that identify the model in a file."""

    source: str
    statement: Statement
    dimensions: Mapping[str, Any]


@functools.cache
def recipes(name: str) -> dict[str, Recipe]:
    """Return the recipes by model: the makers' or the paper's."""
    text = (resources.files("mfabric_jax.workload") / "recipes" / f"{name}.toml").read_text("utf-8")
    by_model: dict[str, Recipe] = {}
    for model, table in tomllib.loads(text).items():
        below = by_model.get(table.pop("like", ""), Recipe("", {}, {}))
        source, dimensions = table.pop("source", below.source), table.pop("dimensions", {})
        statement = merge_statements(
            below.statement, merge_statements({}, read_statement({"job": table}, f"recipe {name}: "))
        )
        by_model[model] = Recipe(source, statement, dimensions)
    return by_model


def recipe_of(name: str, model: NamedModel) -> Recipe | None:
    """Return a model's recipe, found by name or by the dimensions in the model's file; None if there is none."""
    if name == "none":
        return None
    known = recipes(name)
    if model.known_as in known:
        return known[model.known_as]
    facts = {} if model.known_as else vars(model.architecture)
    return next(
        (recipe for recipe in known.values() if recipe.dimensions and recipe.dimensions.items() <= facts.items()), None
    )


def _recipe(draft: _DraftCase, model: NamedModel) -> Statement:
    """Take the set-up of a model's file, and return the settings of its recipe that fit this job."""
    if model.set_up:
        word = {name: value for name, value in model.set_up.items() if name == "precision"}
        others = {name: value for name, value in model.set_up.items() if name != "precision"}
        draft.take(
            merge_statements(read_statement({"job": word}), read_statement({"job": others})), f"file of {model.label}"
        )
    recipe = recipe_of(draft["model.recipe"], model)
    if recipe is None:
        return {}
    statement = recipe.statement
    degrees = _degrees_in(statement)
    draft.recipe, draft.source = (recipe.source.partition(mark)[0] for mark in ":,")
    if clash := _clash(draft, statement, degrees):
        bound = degrees | {TP_REDUCES, "job.layout", "job.interleaved.chunks"}
        bound |= {"job.schedule"} if statement.get("job.schedule") == "interleaved" else set()
        statement = {path: value for path, value in statement.items() if path not in bound}
        draft.why["recipe"], draft.recipe = clash, draft.recipe + OTHER_DEGREES * (draft.recipe != "none")
    return statement


def _degrees_in(statement: Statement) -> set[str]:
    return {path for path in statement if path in SEARCHED and path.startswith("job.parallel.")}


SEARCHED = {  # path of a setting that a search may fill: field of a `SetUp`
    **{f"job.parallel.{name}": name for name in ("tp", "etp", "ep", "cp", "pp", "dp")},
    **{f"job.{name}": name for name in ("schedule", "layout", "overlap", "dispatcher", "dispatch", "sharding")},
    **{"job.batch.micro_batch": "micro_batch", "job.interleaved.chunks": "chunks", "job.recompute": "recompute"},
}
OPEN_DEGREES = ("job.parallel.tp", "job.parallel.pp", "job.parallel.ep")


def _set_up(draft: _DraftCase, model: NamedModel, gpu: Gpu, on: Fabric, recipe: Statement) -> tuple[Any, NamedModel]:
    """Fill the set-up from the recipe, or from a search that takes only formats and the batch from it.

    Return what a search found (None: there was none), and the model with its MTP blocks if they are trained.
    """
    name = draft["model.recipe"]
    why = f"recipe {name} ({draft.source})"
    search = _search(draft, recipe)
    if search == "recipe":
        draft.take(recipe, why)
    else:
        draft.take({path: value for path, value in recipe.items() if not _is_searched(path)}, why)
        if draft["job.dispatch"] in (None, "per-server"):  # the search may choose it, and limits belong to the model
            draft.fill(NODE_LIMIT, recipe.get(NODE_LIMIT), why)
    for path, value in USUAL.items():
        if not _is_searched(path):
            draft.fill(path, value, "usual")
    if draft["job.mtp"]:
        model = _predicting(model)
    if draft["job.search"] != "recipe":
        draft.put("job.search", "recipe", "no search" if search == "recipe" else f"as a search found it: {search}")
    if search == "recipe":
        return None, model
    draft.fill("job.parallel.gpus", GPUS, "usual")
    if all(draft[path] is None for path in BATCH):
        draft.fill(GLOBAL, usual_batch(draft["job.parallel.gpus"], GLOBAL_BATCH), f"about {GLOBAL_BATCH:,} sequences")
    job = open_job(draft, model, gpu, on)
    searched = setups.find(_without_set_up(draft), job, search, _as_set_up(recipe))
    stated = setups.statement_of(searched.best) | {TP_REDUCES: job.reduces(searched.best)}
    fits = {path: value for path, value in stated.items() if draft[path] is None or (path, draft[path]) == FIT}
    draft.take(fits, f"search: {search}")
    if _clash(draft, recipe, _degrees_in(recipe)) and not draft.recipe.endswith(OTHER_DEGREES):
        draft.recipe += OTHER_DEGREES
    return searched, model


def is_open(case: Case) -> bool:
    """Whether a case leaves its set-up to a search."""
    draft = _DraftCase(case)
    return _search(draft, _recipe(draft, model_of(case))) != "recipe"


def without_search(case: Case) -> Case:
    """Return the case with a quick set-up instead of a search, for checks before a long run.

    A recipe whose set-up cannot be, such as one for another batch, is left out: a search would look past it. So is a
    quick set-up that cannot be, for one without recomputation or with context parallelism.
    """
    if not is_open(case):
        return case
    usual = case.with_({"job.search": "recipe"})
    plain = usual.with_({"model.recipe": "none"})
    for possible in (usual, plain, *map(plain.with_, quick.other_choices(flat(plain)))):
        with contextlib.suppress(InputError):
            resolve_without_jax(possible)
            return possible
    return plain


def _is_searched(path: str) -> bool:
    return path in SEARCHED or path == TP_REDUCES or path.startswith("job.passes.")


def _search(draft: _DraftCase, recipe: Statement) -> str:
    """Return what fills the set-up: the stated search, "each" where degrees are open, else "recipe"."""
    is_open = any(draft[path] is None for path in OPEN_DEGREES)
    sized = draft["job.parallel.dp"] is None or draft["job.parallel.gpus"] is not None
    if not is_open or not sized or not all(draft[path] is None for path in BATCH[1:]):
        return "recipe"
    return draft["job.search"] or recipe.get("job.search") or USUAL_SEARCH


def _predicting(model: NamedModel) -> NamedModel:
    """The model with its multi-token prediction (MTP) blocks appended."""
    facts = model.architecture
    if not facts.next_tokens:
        raise Misfit(f"job.mtp needs a model that predicts further tokens; {model.label} has next_tokens 0.")
    blocks = facts.blocks + facts.next_tokens
    return model._replace(architecture=dataclasses.replace(facts, blocks=blocks))


def _clash(draft: _DraftCase, statement: Statement, degrees: set[str]) -> str | None:
    """Why the degrees of a recipe do not fit this job; None if they fit."""
    for path in degrees:
        if draft[path] not in (None, statement[path]):
            return f"{path} is {draft[path]}, not {statement[path]}"
    folded = "job.parallel.etp" in degrees
    replica = math.prod(statement[path] for path in degrees if path != "job.parallel.tp" or not folded)
    gpus = draft["job.parallel.gpus"]
    if gpus is not None and gpus % replica:
        return f"{gpus} GPUs are not a multiple of its {replica}"
    return None


USUAL = {
    **{f"job.precision.{name}": "bf16" for name in ("compute", "dispatch", "combine", "gradients", "weights", "kept")},
    **{f"job.precision.{name}": "fp32" for name in ("accumulated", "moments")},
    TP_REDUCES: "all",
    "job.schedule": "1f1b",
    "job.dispatch": "per-expert",
    "job.sharding": "optimizer",
    "job.mtp": False,
    "job.layout": "even",
    "job.batch.sequence": 4096,
    "job.batch.micro_batch": 1,
    "job.parallel.cp": 1,
}


def _without_set_up(draft: _DraftCase) -> Case:
    """Return the case with all that a search does not change stated, and nothing else."""
    values = {path: value for path, value in draft.values.items() if value is not None}
    kept = {path: value for path, value in values.items() if path not in SEARCHED}
    if NODE_LIMIT in kept:  # is part of this dispatch
        kept["job.dispatch"] = "per-server"
    if any(path.startswith("job.passes.") for path in kept):
        kept["job.overlap"] = "passes"
    return build(kept | {"model.recipe": "none", "job.search": "recipe"})


def open_job(draft: _DraftCase, model: NamedModel, gpu: Gpu, on: Fabric) -> OpenJob:
    """Return the job whose set-up is searched."""
    stated = {field: draft[path] for path, field in SEARCHED.items() if draft[path] is not None}
    if (path := FIT[0]) and draft[path] == FIT[1]:
        del stated["recompute"]
    fields = _formats_of(draft, gpu) | {"model": model.label, "known_as": model.known_as}
    per_server = functools.partial(on.used_of, gpu)
    if draft["compute.rate"] != "kernels":
        stated.setdefault("dispatcher", "ideal")
    return OpenJob(
        *(model.architecture, gpu, draft["job.parallel.gpus"], draft[GLOBAL], fields, stated, per_server),
        frameworks=draft["job.frameworks"],
    )


def _as_set_up(recipe: Statement) -> Mapping[str, Any]:
    """Return the set-up of a recipe, by field of a `SetUp`."""
    return {SEARCHED[path]: value for path, value in recipe.items() if path in SEARCHED}


def _formats(draft: _DraftCase) -> None:
    for path, value in USUAL.items():
        draft.fill(path, value, "usual")
    if draft["job.recompute"] != "fit":
        recomputed_of(draft["job.recompute"], "job.recompute")
    if draft["job.schedule"] == "interleaved":
        draft.fill("job.interleaved.chunks", 2, "usual")
    overlaps = SCHEDULES[draft["job.schedule"]].overlap
    draft.fill("job.overlap", "passes" if overlaps else "none", f"usual under {draft['job.schedule']}")
    measured = draft["compute.rate"] == "kernels"
    usual = USUAL_DISPATCHER[draft["job.dispatch"]]
    draft.fill("job.dispatcher", usual if measured else "ideal", f"usual for dispatch {draft['job.dispatch']}")
    if draft["job.overlap"] == "passes":
        cores = shares_of(1, draft["job.dispatcher"]).cores
        draft.fill("job.passes.comm_cores", cores, f"of {draft['job.dispatcher']}")
    shared = draft["job.sharding"] in ("gradients", "parameters")
    whole = draft["traffic.alike"] is not None and draft["run.replicas"] == 1
    if fabric.get(draft["network.fabric"]).phases:
        draft.fill("job.overlap_gradients", False, "circuits of one phase at a time")
    draft.fill("job.overlap_gradients", not shared and whole, "on if gradients are reduced once")


def _job(draft: _DraftCase, model: NamedModel, gpu: Gpu, on: Fabric) -> Workload:
    _choose(draft, model, gpu, on)
    draft.fill("job.parallel.etp", draft["job.parallel.tp"], "as tp")
    etp = draft["job.parallel.etp"]
    degrees = {name: draft[f"job.parallel.{name}"] for name in ("pp", "ep", "dp")} | {"tp": etp}
    product = degrees["tp"] * degrees["pp"] * degrees["ep"] * degrees["dp"]
    draft.fill("job.parallel.gpus", product, "dp x etp x pp x ep")
    _batch(draft, degrees)
    group = degrees["tp"] * degrees["ep"]
    per_server = on.used_of(gpu, group, group * degrees["dp"], draft["job.parallel.tp"])
    return Workload(
        **degrees,
        **_formats_of(draft, gpu),
        model=model.label,
        architecture=model.architecture,
        gpus=draft["job.parallel.gpus"],
        micro_batch=draft["job.batch.micro_batch"],
        micro_batches=draft[MICRO_BATCHES],
        gpus_per_server=per_server,
        schedule=draft["job.schedule"],
        chunks=_chunks(draft),
        overlap_passes=draft["job.overlap"] == "passes",
        recompute=draft["job.recompute"],
        cp=draft["job.parallel.cp"],
        folded=draft["job.parallel.tp"] // etp,
        layout_of_blocks=draft["job.layout"],
        sharding=draft["job.sharding"],
        dispatch=draft["job.dispatch"],
        known_as=model.known_as,
    )


CAST = 2.0  # bytes of a weight's two FP8 copies for matrix products: by rows and by columns


def _formats_of(draft: _DraftCase, gpu: Gpu) -> dict[str, Any]:
    """Fields of a `Workload` that do not depend on its set-up."""
    formats = {name: draft[f"job.precision.{name}"] for name in BYTES}
    size = {name: BYTES[name][value] if isinstance(value, str) else value for name, value in formats.items()}
    casts = draft["job.precision.compute"] == "fp8"
    casts_alone = casts and formats["weights"] == "fp8"
    capacity = draft["job.capacity_factor"]
    return {
        "sequence": draft["job.batch.sequence"],
        "dispatch_bytes": size["dispatch"],
        "combine_bytes": size["combine"],
        "grad_bytes": size["gradients"],
        "accumulated_bytes": size["accumulated"],
        "moment_bytes": size["moments"],
        "weight_bytes": CAST * casts + (0.0 if casts_alone else size["weights"]),
        "gathered_bytes": size["weights"],
        "kept_bytes": size["kept"],
        "tp_reduces": draft[TP_REDUCES],
        "predicted": draft["model.next_tokens"] if draft["job.mtp"] else 0,
        "sequence_parallel": draft["job.parallel.sequence"],
        "head": "known" if draft["job.head"] else "left-out",
        "optimizer_step": "known" if draft["job.optimizer_step"] else "left-out",
        "redundant_experts": _copies(draft),
        "node_limit": draft[NODE_LIMIT],
        "capacity_factor": None if capacity == math.inf else capacity,
        "sharp": draft["network.in-network.sharp"],
        "nvls": gpu.reduction_part,
    }


def _chunks(draft: _DraftCase) -> int:
    return draft["job.interleaved.chunks"] or SCHEDULES[draft["job.schedule"]].chunks or 1


def _copies(draft: _DraftCase) -> int:
    """Slots of a group beyond one per expert, for copies."""
    if draft["placement.rule"] != "file":
        return draft[f"placement.{draft['placement.rule']}.redundant_experts"] or 0
    if draft["placement.file"] is None:
        raise InputError("placement.file must name a .json file with the placement of experts.")
    placement = traffic.read_placement(draft["placement.file"])
    return placement.slots.shape[1] - placement.experts


def _choose(draft: _DraftCase, model: NamedModel, gpu: Gpu, on: Fabric) -> None:
    """Fill open degrees and recomputation: the least estimated time per token that fits the memory."""
    _check_degrees(draft, model, gpu)
    tp, etp, pp, ep, dp, gpus = (draft[f"job.parallel.{name}"] for name in ("tp", "etp", "pp", "ep", "dp", "gpus"))
    replica = None if None in (tp, pp, ep) else (etp or tp) * pp * ep
    if gpus is None and replica is not None:
        gpus = replica * (dp or max(1, GPUS // replica))
    job = _quick_job(draft, model, gpu, gpus)
    if not quick.legal_degrees(job):
        raise impossible.refusal(job, sized=gpus is not None)
    if replica is not None:
        draft.fill("job.parallel.dp", gpus // replica, "gpus / (etp x pp x ep)")
        if draft[FIT[0]] != OPEN:
            return
    loads_of = functools.partial(draw_loads, draft.original)
    fitting = job if on.about.domains is None else _on_domains(job, on)
    chosen = quick.choose(fitting, loads_of) or quick.choose(job, loads_of)
    if chosen is None:
        raise impossible.refusal(job, sized=gpus is not None)
    why = chosen.why
    for name in ("tp", "pp", "ep", "dp"):
        path = f"job.parallel.{name}"
        if draft[path] is None:
            draft.fill(path, getattr(chosen.set_up, name), why)
            why = f"with {path}" if why == chosen.why else why
    if draft[FIT[0]] == OPEN:
        draft.put(FIT[0], chosen.set_up.recompute, why)


def _quick_job(draft: _DraftCase, model: NamedModel, gpu: Gpu, gpus: int | None) -> OpenJob:
    """Return the job whose degrees and recomputation are chosen without a search; the rest is stated or usual."""
    stated = {field: draft[path] for path, field in SEARCHED.items() if draft[path] not in (None, OPEN)}
    stated |= {"chunks": _chunks(draft), "overlap": "passes" if draft["job.overlap"] == "passes" else "none"}
    fields = _formats_of(draft, gpu) | {"model": model.label, "known_as": model.known_as}
    count, is_open = _count(draft), all(draft[path] is None for path in BATCH)
    batch = GLOBAL_BATCH if is_open else draft[GLOBAL] if count is None else None
    job = OpenJob(
        *(model.architecture, gpu, gpus or GPUS, batch, fields, stated, lambda *_: gpu.gpus_per_server),
        count=count,
        most_passes=sys.maxsize,
    )
    if gpus is None and not quick.legal_degrees(job):
        job = quick.near(job)
    if is_open and not quick.legal_degrees(job):
        job = dataclasses.replace(job, batch=usual_batch(job.gpus, GLOBAL_BATCH))
    return job


def _on_domains(job: OpenJob, on: Fabric) -> OpenJob:
    """Return the job without degrees that do not fill the domains of a fabric."""

    def per_server(group: int, stage: int, attention: int) -> int:
        used = on.used_of(job.gpu, group, stage, attention)
        if stage % used or used % attention or (group % used and used % group):
            raise Misfit(f"{on.name} needs degrees that fill {used} GPUs.")
        return job.per_server(group, stage, attention)

    return dataclasses.replace(job, per_server=per_server)


def _count(draft: _DraftCase) -> Callable[[int, str, int, bool], int] | None:
    """How micro-batches follow from what the case states of them; None: it states none of them."""
    if draft[MICRO_BATCHES] is not None:
        return lambda *_: draft[MICRO_BATCHES]
    if draft[PER_STAGE] is not None:
        return lambda pp, schedule, *_: draft[PER_STAGE] * pp * max(1, SCHEDULES[schedule].least)
    return None if draft[BUBBLE] is None else count_for_bubble(draft[BUBBLE])


def open_again(resolved: Resolved, gpus: int) -> OpenJob:
    """Return the job of a case with its degrees and recomputation open, on a number of GPUs."""
    stated = {path: None for path in BATCH if not resolved.is_given(path)}
    stated |= {f"job.parallel.{name}": None for name in ("tp", "etp", "pp", "ep", "dp")}
    stated |= {"job.parallel.gpus": gpus, "job.batch.micro_batch": 1, FIT[0]: OPEN}
    job = resolved.job
    model = NamedModel(job.model, job.architecture, {}, job.known_as)
    draft = _DraftCase(resolved.case.with_(stated))
    return _on_domains(_quick_job(draft, model, resolved.server, gpus), resolved.fabric)


def _check_degrees(draft: _DraftCase, model: NamedModel, gpu: Gpu) -> None:
    """Raise Misfit for degrees that do not divide evenly, and name the nearest that do."""
    tp, pp, ep, dp, gpus = (draft[f"job.parallel.{name}"] for name in ("tp", "pp", "ep", "dp", "gpus"))
    facts, servers, etp = model.architecture, gpu.gpus_per_server, draft["job.parallel.etp"]
    if etp is not None and tp is None:
        raise Misfit(f"job.parallel.etp must divide job.parallel.tp; state both, got etp {etp} alone.")
    if etp is not None and tp % etp:
        raise Misfit(f"job.parallel.etp must divide job.parallel.tp, got {etp} with tp {tp}.")
    for name, degree, of, what in (("tp", tp, servers, "GPUs of a server"), ("ep", ep, facts.experts, "experts")):
        if degree is not None and of % degree:
            near = _nearest(degree, [divisor for divisor in range(1, of + 1) if of % divisor == 0])
            raise Misfit(f"job.parallel.{name} must divide the {of} {what}, got {degree}; {near}.")
    if etp is not None and ep is not None and ep % (shared := draft["job.parallel.cp"] * tp // etp):
        ranks = f"cp x tp / etp = {shared}, the ranks that share tokens"
        raise Misfit(f"job.parallel.ep must be a multiple of {ranks}, got {ep}.")
    if pp is not None and pp > facts.blocks:
        raise Misfit(f"job.parallel.pp must be at most the {facts.blocks} blocks of {model.label}, got {pp}.")
    if None in (tp, pp, ep, gpus):
        return
    of_experts, tp = ("tp", tp) if etp is None else ("etp", etp)
    replica = tp * pp * ep
    if dp is not None and gpus != dp * replica:
        raise Misfit(
            f"job.parallel.gpus {gpus} and dp {dp} do not agree: dp {dp} x {of_experts} {tp} x pp {pp} x ep {ep} make "
            f"{dp * replica}{'' if etp is None else ' (dp counts copies of an expert)'}."
        )
    if gpus % replica:
        near = _nearest(gpus, [gpus // replica * replica, (gpus // replica + 1) * replica])
        raise Misfit(
            f"job.parallel.gpus must be a multiple of {of_experts} {tp} x pp {pp} x ep {ep} = {replica}, got {gpus}; "
            f"{near}."
        )


def _nearest(value: int, allowed: Sequence[int]) -> str:
    below = [candidate for candidate in allowed if 0 < candidate < value][-1:]
    near = [str(candidate) for candidate in [*below, *[candidate for candidate in allowed if candidate > value][:1]]]
    return f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}"


def _disagree(draft: _DraftCase, statement: str, takes: str) -> None:
    micro_batches = draft[MICRO_BATCHES]
    raise Misfit(f"job.batch.{statement} and micro_batches {micro_batches} do not agree: the former needs {takes}.")


def _batch(draft: _DraftCase, degrees: Mapping[str, int]) -> None:
    micro_batch, pp = draft["job.batch.micro_batch"], degrees["pp"]
    cp = draft["job.parallel.cp"] * (draft["job.parallel.tp"] // degrees["tp"])  # EP ranks that share a sequence
    together = micro_batch * degrees["ep"] * degrees["dp"]  # sequences of one micro-batch of all EP ranks, times cp
    order = SCHEDULES[draft["job.schedule"]]
    if (times := draft[PER_STAGE]) is not None:
        enough = times * pp * max(1, order.least)
        draft.fill(MICRO_BATCHES, enough, "per_stage x pp")
        if draft[MICRO_BATCHES] != enough:
            _disagree(draft, f"per_stage {times}", f"{enough}")
    if (bubble := draft[BUBBLE]) is not None:
        enough = micro_batches_for(bubble, pp, _chunks(draft), draft["job.schedule"], draft["job.overlap"] == "passes")
        draft.fill(MICRO_BATCHES, enough, f"a bubble of at most {bubble:g}")
        if draft[MICRO_BATCHES] < enough:
            _disagree(draft, f"bubble {bubble:g}", f"at least {enough}")
    step, least = order.step(pp), max(1, order.least * pp)
    if all(draft[path] is None for path in BATCH):
        wanted = GLOBAL_BATCH * cp / together
        micro_batches = max(step * max(1, round(wanted / step)), -(-least // step) * step)
        draft.fill(GLOBAL, micro_batches * together // cp, f"about {GLOBAL_BATCH:,} sequences")
    batch, micro_batches = draft[GLOBAL], draft[MICRO_BATCHES]
    if micro_batches is None:
        batch_step = together * step / cp
        if batch * cp % (together * step) or batch * cp // together < least:
            below = max(int(batch // batch_step), -(-least // step))
            near = sorted({int(max(below, 1) * batch_step), int((max(below, 0) + 1) * batch_step)})
            raise Misfit(
                f"job.batch.global_batch must be a multiple of {batch_step:g} sequences (micro_batch "
                f"{micro_batch} x ep "
                f"{degrees['ep']} x dp {degrees['dp']}{f' / cp {cp}' if cp > 1 else ''}, {step} at a time under "
                f"{draft['job.schedule']}), got {batch}; the nearest are {' and '.join(map(str, near))}."
            )
        draft.fill(MICRO_BATCHES, batch * cp // together, "global_batch over micro_batch x ep x dp")
    elif batch is None:
        draft.fill(GLOBAL, micro_batches * together // cp, "micro_batches x micro_batch x ep x dp")
    elif batch * cp != micro_batches * together:
        raise Misfit(
            f"job.batch.global_batch {batch} and micro_batches {micro_batches} do not agree: micro_batch {micro_batch} "
            f"x ep {degrees['ep']} x dp {degrees['dp']} x {micro_batches} make {micro_batches * together // cp}."
        )


def _ports(draft: _DraftCase, gpu: Gpu, servers: int, group: int, gpus: int, on: Fabric) -> int:
    """Fill the NICs of a server and how many are optical, and return how many NICs of the cluster are on switch trees.

    `servers`, `gpus`: of the cluster; `group`: servers of an expert-parallel group.
    """
    draft.fill("network.nics", gpu.nics, f"data sheet of {gpu.name}")
    draft.fill("network.nics", on.about.nics, f"usual on {on.name}")
    draft.fill("network.nics", gpu.gpus_per_server, "one per GPU")
    nics = draft["network.nics"]
    site = FabricSite(network=draft.case.network, servers=servers, servers_per_region=group, nics=nics)
    for name, value in on.fills(site).items():
        draft.fill(f"network.{on.name}.{name}", value, f"usual for {servers:,} servers in groups of {group:,}")
    varies = on.about.optics.degree_varies
    if varies and nics < 2 and draft[DEGREE] is None:
        raise Misfit(f"network.nics must be at least 2 on {on.name}, got {nics}.")
    electrical = max(1, nics // ELECTRICAL_SHARE)
    draft.fill(DEGREE, max(nics - electrical, 0), f"all except one in {ELECTRICAL_SHARE} NICs")
    on_tree = nics - draft[DEGREE]
    if varies and on_tree < 1:
        raise Misfit(
            f"network.mfabric.optical_degree must be below the {nics} NICs of a server (network.nics): gradients and "
            f"pipeline transfers use the others, got {nics - on_tree}."
        )
    if on.domain_gpus is not None:
        return gpus
    return servers * (on_tree if on.reconfigures else nics)


TURNING = ("greedy", "unsplit")  # usual policy and routing of circuits chosen for one all-to-all
STAYING = ("uniform", "split")  # usual policy and routing of circuits that stay: the mean demand is even


def _circuits(draft: _DraftCase, on: Fabric, usual: tuple[str, str]) -> None:
    for name, value in zip(("policy", "routing"), usual, strict=True):
        draft.fill(f"circuits.{name}", value, "usual")
    if on.reconfigures and on.policy is not None:
        draft.put("circuits.policy", on.policy, f"of {on.name}")
    name, prices = draft["circuits.ocs"], draft["network.prices"]
    if name is None:
        draft.fill("circuits.delay_s", DELAY_S, "usual")
        return
    switch = get_ocs(name, prices)
    if draft["circuits.delay_s"] is None and switch.delay_s is None:
        raise InputError(f"circuits.ocs {name!r} has no reported delay; give circuits.delay_s.")
    if switch.delay_s is not None:
        draft.fill("circuits.delay_s", switch.delay_s[1], f"the slowest of {name}")


def _tiers(draft: _DraftCase, on: Fabric, servers: int, tree_nics: int, least: int = 1) -> None:
    """Fill the tiers of switch trees, at least `least`; raise Misfit if one is stated but one switch is too small."""
    room, stated = tree_room(draft.case.network, on), draft["network.tiers"]
    one_switch_nics, two_tier_nics, trees = room.one_switch, room.two_tiers, room.trees

    def tiers_for(nics: int) -> int:
        return max(least, room.tiers_for(nics)) if stated == "fewest" else stated

    nics = draft["network.nics"]
    by_degree = range(nics + 1) if on.about.optics.degree_varies else ()
    draft.tiers_by_degree = tuple(tiers_for(servers * (nics - degree)) for degree in by_degree)
    if stated == "fewest":
        of = f" on {trees} trees" if trees > 1 else ""
        first = f"one switch has room for {one_switch_nics:,}, " if one_switch_nics else ""
        why = f"{tree_nics:,} NICs{of}, {first}two tiers have room for {two_tier_nics:,}"
        draft.put("network.tiers", tiers_for(tree_nics), why)
    elif stated == 1 and one_switch_nics == 0:
        raise Misfit(f"network.tiers must be 2 or 3 on an oversubscribed {on.name}: one switch has no uplinks, got 1.")
    elif one_switch_nics is not None and (stated == 1 or (stated == 2 and on.domain_gpus is None)):
        most = trees * (one_switch_nics if stated == 1 else two_tier_nics)
        switches = "one switch" if stated == 1 else "switches"
        each = f" for each of {trees} trees" if trees > 1 else ""
        if tree_nics > most:
            ports = f"{switches} of {draft['network.radix']} ports{each}"
            raise Misfit(f"network.tiers {stated} has room for {most:,} NICs, on {ports}, got {tree_nics:,}.")


def model_of(case: Case) -> NamedModel:
    """Return the model of a case, with the dimensions that the case states."""
    values = flat(case)
    changed = {field: value for field in OF_MODEL if (value := values[f"model.{field}"]) is not None}
    return get_model(case.model.name, changed)


def gpu_of(case: Case) -> Gpu:
    """Return the GPU of a case, and its server."""
    return _gpu(_DraftCase(case))


@cached_by_files(lambda case, *_, **__: files_of_case(case), maxsize=256)
def hardware_of(case: Case, servers: int, least_tiers: int = 1, circuits: tuple[str, str] = TURNING) -> Hardware:
    """Return the GPUs and network of a case.

    - `least_tiers`: of switch trees, unless the case states fewer; `circuits`: usual policy and routing.

    Raise InputError for an unknown name, Misfit for NICs that circuits and switches cannot divide.
    """
    draft, on = _DraftCase(case), fabric.get(case.network.fabric)
    gpu = _gpu(draft)
    tree_nics = _ports(draft, gpu, servers, servers, servers * on.gpus_of(gpu), on)
    _circuits(draft, on, circuits)
    _tiers(draft, on, servers, tree_nics, least_tiers)
    check_network(draft.case, on)
    check_modelled("replay and jobs", draft.case)
    return Hardware(**_hardware(draft.case, gpu, draft.tiers_by_degree), shares_network=least_tiers > 1)


def _hardware(whole: Case, gpu: Gpu, tiers_by_degree: tuple[int, ...]) -> dict[str, Any]:
    case: Any = whole
    payload, nics, degree = case.network.payload, case.network.nics, case.network.mfabric.optical_degree
    return {
        "case": whole,
        "server": gpu,
        "carried_by": get_transport(payload.value if payload.name == "transport" else "none"),
        "goodput": payload.value if payload.name == "goodput" else 1.0,
        "server_nics": nics,
        "optical_degree": degree,
        "electrical_nics": nics - degree,
        "tiers": case.network.tiers,
        "tiers_by_degree": tiers_by_degree,
        "delay_s": case.circuits.delay_s,
    }
