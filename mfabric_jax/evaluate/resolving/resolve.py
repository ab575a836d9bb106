"""Resolve a case: fill its open values, record why, and reject values that exclude each other.

`resolve` returns a `Resolved`: the case without open values, its job (`Workload`), and the engine's input.
"""

import dataclasses
import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from mfabric_jax import fabric, traffic, units
from mfabric_jax.case.paths import (
    EITHER,
    Case,
    Statement,
    build,
    flat,
    is_chosen,
    layered,
    named_files,
    settings,
    stated,
)
from mfabric_jax.case.policies import NAMES, ROUTINGS, check_name, name_of
from mfabric_jax.checks import InputError, Misfit, in_file, one_of
from mfabric_jax.evaluate.resolving.limits import (
    PAYS,
    check_limits,
    check_network,
    each_by_demand,
    more_than_demand,
    refuse,
)
from mfabric_jax.evaluate.resolving.resolved import Hardware, Resolved, knobs_of, room_of
from mfabric_jax.evaluate.resolving.traffic import drawn_loads
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.parts_list import get_ocs
from mfabric_jax.fabric.site import DELAY_S, Site
from mfabric_jax.fabric.transport import get_transport
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.workload import Gpu, Workload, get_gpu
from mfabric_jax.workload.catalog import Model, get_model
from mfabric_jax.workload.kernels import USUAL_DISPATCHER, shares_of
from mfabric_jax.workload.parallel import BYTES
from mfabric_jax.workload.recompute import again_of
from mfabric_jax.workload.schedules import SCHEDULES, micro_batches_for
from mfabric_jax.workload.set_ups import Candidate, quickest

# Loaded at first use: policies import JAX, and settings must be readable without it.
policies = LazyModule("mfabric_jax.policies")

GPUS = 1024  # default if neither gpus nor dp is stated
GLOBAL_BATCH = 4096  # sequences: default if no batch is stated
LEAST_RADIX = 4  # half of its ports go up
ELECTRICAL_SHARE = 4  # mfabric: one in 4 NICs of a server is on the tree (2 of 8)
BATCH = GLOBAL, MICRO_BATCHES, PER_STAGE, BUBBLE = EITHER[0]
DEGREE = "network.mfabric.optical_degree"
FIT = "job.recompute", "fit"  # counts as open: a recipe may replace it


class _Open:
    """Values of a case while they are resolved, with the reasons for filled ones."""

    def __init__(self, case: Case):
        self.asked, self.values, self.why, self.recipe = case, flat(case), {}, "none"
        self.tiers_by_degree: tuple[int, ...] = ()

    def __getitem__(self, path: str) -> Any:
        return self.values.get(path)

    def put(self, path: str, value: Any, why: str) -> None:
        self.values[path], self.why[path] = value, why

    def fill(self, path: str, value: Any, why: str) -> None:
        if self.values.get(path) is None and value is not None:
            self.put(path, value, why)

    def take(self, statement: Statement, why: str) -> None:
        """Fill open values from a recipe: its choices first, then the settings of the alternatives chosen by then.

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


@cached_by_files(named_files, maxsize=4096)
def resolve(case: Case) -> Resolved:
    """Return the case with every value resolved, its job, and the values that the engine reads.

    Raise InputError for an unknown name, Misfit for values that exclude each other.
    """
    resolved = worked_out(case)
    _check_groups(resolved)
    return resolved


@cached_by_files(named_files, maxsize=4096)
def worked_out(case: Case) -> Resolved:
    """Resolve a case without JAX, so without the checks of a fabric's group and a policy's code."""
    found = _Open(case)
    gpu = _gpu(found)
    model = model_of(case)
    for field in OF_MODEL:
        found.fill(f"model.{field}", getattr(model.architecture, field), f"model {model.label}")
    _recipe(found, model)
    _formats(found)
    if found["job.mtp"]:
        model = _predicting(model)
    on = fabric.get(case.network.fabric)
    job = _job(found, model, gpu, on)
    can_work = round(job.servers * on.share_of(gpu, job.gpus_per_server) * on.gpus_of(gpu))
    tree_nics = _ports(found, gpu, job.servers, job.servers_per_region, can_work, on)
    _circuits(found, on, TURNING)
    _tiers(found, on, job.servers, tree_nics)
    if found["compute.rate"] == "measured":
        found.fill("compute.measured.nic_gbps", found["network.nic_gbps"], "as the case")
        found.fill("compute.measured.nic_use", found["network.nic_use"], "as the case")
    whole = found.case
    check_limits(whole, job, on, tree_nics)
    hardware = _hardware(whole, gpu, found.tiers_by_degree)
    resolved = Resolved(**hardware, job=job, why=found.why, asked=case, recipe=found.recipe)
    _check_values(resolved)
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


def _gpu(found: _Open) -> Gpu:
    gpu = get_gpu(found["gpu.name"])
    _domain(found)
    given = {field: found[f"gpu.{name}"] for name, (field, _) in OF_GPU.items()}
    si = {field: unit(given[field]) for field, unit in OF_GPU.values() if given[field] is not None}
    gpu = dataclasses.replace(gpu, **si)
    for name, (field, unit) in OF_GPU.items():
        value = getattr(gpu, field)
        value = value if value is None or isinstance(value, int) else value / unit(1)
        found.fill(f"gpu.{name}", value, f"data sheet of {gpu.name}")
    return gpu


def _domain(found: _Open) -> None:
    """Take the scale-up domain from the fabric if it sets one."""
    on = fabric.get(found["network.fabric"])
    domains = on.about.domains
    if domains is None:
        return
    switches = domains.nvswitches
    if domains.stated is not None:
        domain = domains.stated(found.__getitem__)
        found.put("gpu.scale_up_gpus", domain.gpus, f"of {on.name}")
        found.put("gpu.nvlink_gigabytes_per_s", float(units.to_gigabytes(domain.Bps)), f"of {on.name}")
        switches = domain.planes
    if switches is not None:
        found.fill("gpu.nvswitches", switches, f"of {on.name}")


class Recipe(NamedTuple):
    """How a model was trained: the source, what it states, and dimensions that identify a file of the model."""

    source: str
    statement: Statement
    dimensions: Mapping[str, Any]


@functools.cache
def recipes(name: str) -> dict[str, Recipe]:
    """Return the recipes of the makers, or of the paper, by model."""
    text = (resources.files("mfabric_jax.workload") / "recipes" / f"{name}.toml").read_text("utf-8")
    found: dict[str, Recipe] = {}
    for model, table in tomllib.loads(text).items():
        below = found.get(table.pop("like", ""), Recipe("", {}, {}))
        source, dimensions = table.pop("source", below.source), table.pop("dimensions", {})
        statement = layered(below.statement, layered({}, stated({"job": table}, f"recipe {name}: ")))
        found[model] = Recipe(source, statement, dimensions)
    return found


def recipe_of(name: str, model: Model) -> Recipe | None:
    """Return a model's recipe, found by name or by the dimensions in the model's file; None if there is none."""
    if name == "none":
        return None
    known = recipes(name)
    if model.known_as in known:
        return known[model.known_as]
    facts = {} if model.known_as else vars(model.architecture)
    return next((one for one in known.values() if one.dimensions and one.dimensions.items() <= facts.items()), None)


def _recipe(found: _Open, model: Model) -> None:
    if model.set_up:
        word = {name: value for name, value in model.set_up.items() if name == "precision"}
        rest = {name: value for name, value in model.set_up.items() if name != "precision"}
        found.take(layered(stated({"job": word}), stated({"job": rest})), f"file of {model.label}")
    name = found["model.recipe"]
    recipe = recipe_of(name, model)
    if recipe is None:
        return
    statement = recipe.statement
    degrees = {path for path in statement if path.startswith("job.parallel.")}
    found.recipe = recipe.source.partition(":")[0]
    if clash := _clash(found, statement, degrees):
        bound = degrees | {"job.layout", "job.interleaved.chunks"}
        bound |= {"job.schedule"} if statement.get("job.schedule") == "interleaved" else set()
        statement = {path: value for path, value in statement.items() if path not in bound}
        found.why["recipe"], found.recipe = clash, f"{found.recipe}, other degrees"
    found.take(statement, f"recipe {name} ({recipe.source.partition(',')[0]})")


def _predicting(model: Model) -> Model:
    """The model with the blocks that predict further tokens after its own."""
    facts = model.architecture
    if not facts.next_tokens:
        raise Misfit(f"job.mtp needs a model that predicts further tokens; {model.label} has next_tokens 0.")
    blocks = facts.blocks + facts.next_tokens
    return model._replace(architecture=dataclasses.replace(facts, blocks=blocks))


def _clash(found: _Open, statement: Statement, degrees: set[str]) -> str | None:
    """Why the degrees of a recipe do not fit this job; None if they fit."""
    for path in degrees:
        if found[path] not in (None, statement[path]):
            return f"{path} is {found[path]}, not {statement[path]}"
    folded = "job.parallel.etp" in degrees
    replica = math.prod(statement[path] for path in degrees if path != "job.parallel.tp" or not folded)
    gpus = found["job.parallel.gpus"]
    if gpus is not None and gpus % replica:
        return f"{gpus} GPUs are not a multiple of its {replica}"
    return None


USUAL = {
    **{f"job.precision.{name}": "bf16" for name in ("compute", "dispatch", "combine", "gradients", "weights", "kept")},
    **{f"job.precision.{name}": "fp32" for name in ("accumulated", "moments")},
    "job.schedule": "1f1b",
    "job.dispatch": "per-expert",
    "job.sharding": "optimizer",
    "job.mtp": False,
    "job.layout": "even",
    "job.batch.sequence": 4096,
    "job.batch.micro_batch": 1,
}


def _formats(found: _Open) -> None:
    for path, value in USUAL.items():
        found.fill(path, value, "usual")
    if found["job.recompute"] != "fit":
        again_of(found["job.recompute"], "job.recompute")
    if found["job.schedule"] == "interleaved":
        found.fill("job.interleaved.chunks", 2, "usual")
    overlaps = SCHEDULES[found["job.schedule"]].overlap
    found.fill("job.overlap", "passes" if overlaps else "none", f"usual under {found['job.schedule']}")
    measured = found["compute.rate"] == "kernels"
    usual = USUAL_DISPATCHER[found["job.dispatch"]]
    found.fill("job.dispatcher", usual if measured else "ideal", f"usual for dispatch {found['job.dispatch']}")
    if found["job.overlap"] == "passes":
        cores = shares_of(1, found["job.dispatcher"]).cores
        found.fill("job.passes.comm_cores", cores, f"of {found['job.dispatcher']}")
    shared = found["job.sharding"] in ("gradients", "parameters")
    whole = found["traffic.alike"] is not None and found["run.replicas"] == 1
    if fabric.get(found["network.fabric"]).phases:
        found.fill("job.overlap_gradients", False, "circuits of one phase at a time")
    found.fill("job.overlap_gradients", not shared and whole, "on if gradients are reduced once")


def _job(found: _Open, model: Model, gpu: Gpu, on: Fabric) -> Workload:
    chosen = _degrees(found, model, gpu)
    why = chosen.why
    for name in ("tp", "pp", "ep", "dp"):
        path = f"job.parallel.{name}"
        if found[path] is None:
            found.fill(path, getattr(chosen, name), why)
            why = f"with {path}" if why == chosen.why else why
    degrees = {name: found[f"job.parallel.{name}"] for name in ("pp", "ep", "dp")} | {"tp": _of_experts(found)}
    found.fill("job.parallel.etp", degrees["tp"], "as tp")
    product = degrees["tp"] * degrees["pp"] * degrees["ep"] * degrees["dp"]
    found.fill("job.parallel.gpus", product, "dp x etp x pp x ep")
    if found["job.recompute"] == "fit":
        found.put("job.recompute", chosen.recompute, why)
    _batch(found, degrees)
    group = degrees["tp"] * degrees["ep"]
    per_server = on.used_of(gpu, group, group * degrees["dp"], found["job.parallel.tp"])
    return Workload(
        **degrees,
        **_shape(found),
        model=model.label,
        architecture=model.architecture,
        gpus=found["job.parallel.gpus"],
        micro_batches=found[MICRO_BATCHES],
        gpus_per_server=per_server,
        recompute=found["job.recompute"],
        known_as=model.known_as,
    )


CAST = 2.0  # bytes of a weight's two FP8 copies for matrix products: by rows and by columns


def _shape(found: _Open) -> dict[str, Any]:
    """Fields of a `Workload` that do not depend on its degrees."""
    said = {name: found[f"job.precision.{name}"] for name in BYTES}
    size = {name: BYTES[name][value] if isinstance(value, str) else value for name, value in said.items()}
    casts = found["job.precision.compute"] == "fp8"
    casts_alone = casts and said["weights"] == "fp8"
    capacity = found["job.capacity_factor"]
    return {
        "sequence": found["job.batch.sequence"],
        "micro_batch": found["job.batch.micro_batch"],
        "dispatch_bytes": size["dispatch"],
        "combine_bytes": size["combine"],
        "grad_bytes": size["gradients"],
        "accumulated_bytes": size["accumulated"],
        "moment_bytes": size["moments"],
        "weight_bytes": CAST * casts + (0.0 if casts_alone else size["weights"]),
        "gathered_bytes": size["weights"],
        "kept_bytes": size["kept"],
        "schedule": found["job.schedule"],
        "chunks": _chunks(found),
        "overlap_passes": found["job.overlap"] == "passes",
        "cp": found["job.parallel.cp"],
        "folded": (found["job.parallel.tp"] or 1) // (_of_experts(found) or 1),
        "tp_reduces": found["job.parallel.tp_reduces"],
        "predicted": found["model.next_tokens"] if found["job.mtp"] else 0,
        "layout_of_blocks": found["job.layout"],
        "sequence_parallel": found["job.parallel.sequence"],
        "sharding": found["job.sharding"],
        "head": "known" if found["job.head"] else "left-out",
        "optimizer_step": "known" if found["job.optimizer_step"] else "left-out",
        "redundant_experts": _copies(found),
        "dispatch": found["job.dispatch"],
        "node_limit": found["job.per-server.node_limit"],
        "capacity_factor": None if capacity == math.inf else capacity,
    }


def _chunks(found: _Open) -> int:
    return found["job.interleaved.chunks"] or SCHEDULES[found["job.schedule"]].chunks or 1


def _copies(found: _Open) -> int:
    """Slots of a group beyond one per expert."""
    if found["placement.rule"] != "given":
        return found[f"placement.{found['placement.rule']}.redundant_experts"] or 0
    if found["placement.given"] is None:
        raise InputError("placement.given must name a .json file with the placement of experts.")
    placement = traffic.read_placement(found["placement.given"])
    return placement.slots.shape[1] - placement.experts


def _of_experts(found: _Open) -> Any:
    """Tensor-parallel degree inside experts."""
    etp = found["job.parallel.etp"]
    return found["job.parallel.tp"] if etp is None else etp


def _degrees(found: _Open, model: Model, gpu: Gpu) -> Candidate:
    """Degrees and recomputation: as stated, else the fastest per token that fit in memory."""
    _check_degrees(found, model, gpu)
    pp, ep, dp, gpus = (found[f"job.parallel.{name}"] for name in ("pp", "ep", "dp", "gpus"))
    tp = _of_experts(found)
    if gpus is None and None not in (tp, pp, ep):
        replica = tp * pp * ep
        gpus = replica * (dp or max(1, GPUS // replica))
    elif gpus is None and dp is None:
        gpus = GPUS
    batch = GLOBAL_BATCH if all(found[path] is None for path in BATCH) else found[GLOBAL]
    recompute = found["job.recompute"]
    return quickest(
        model.architecture,
        gpu,
        gpus=gpus,
        dp=dp,
        tp=tp,
        pp=pp,
        ep=ep,
        global_batch=batch if found[MICRO_BATCHES] is None else None,
        micro_batches=found[MICRO_BATCHES],
        recompute=None if recompute == "fit" else recompute,
        loads_of=functools.partial(drawn_loads, found.asked),
        **_shape(found),
    )


def _check_degrees(found: _Open, model: Model, gpu: Gpu) -> None:
    """Raise Misfit for degrees that do not divide evenly, and name the nearest that do."""
    tp, pp, ep, dp, gpus = (found[f"job.parallel.{name}"] for name in ("tp", "pp", "ep", "dp", "gpus"))
    facts, servers, etp = model.architecture, gpu.gpus_per_server, found["job.parallel.etp"]
    if etp is not None and tp is None:
        raise Misfit(f"job.parallel.etp must divide job.parallel.tp; state both, got etp {etp} alone.")
    if etp is not None and tp % etp:
        raise Misfit(f"job.parallel.etp must divide job.parallel.tp, got {etp} beside tp {tp}.")
    for name, degree, of, what in (("tp", tp, servers, "GPUs of a server"), ("ep", ep, facts.experts, "experts")):
        if degree is not None and of % degree:
            near = _nearest(degree, [one for one in range(1, of + 1) if of % one == 0])
            raise Misfit(f"job.parallel.{name} must divide the {of} {what}, got {degree}; {near}.")
    if etp is not None and ep is not None and ep % (shared := found["job.parallel.cp"] * tp // etp):
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
    below = [one for one in allowed if 0 < one < value][-1:]
    near = [str(one) for one in [*below, *[one for one in allowed if one > value][:1]]]
    return f"the nearest {'are' if len(near) > 1 else 'is'} {' and '.join(near)}"


def _disagree(found: _Open, said: str, takes: str) -> None:
    micro_batches = found[MICRO_BATCHES]
    raise Misfit(f"job.batch.{said} and micro_batches {micro_batches} do not agree: the former needs {takes}.")


def _batch(found: _Open, degrees: Mapping[str, int]) -> None:
    micro_batch, pp = found["job.batch.micro_batch"], degrees["pp"]
    cp = found["job.parallel.cp"] * (found["job.parallel.tp"] // degrees["tp"])  # EP ranks that share a sequence
    together = micro_batch * degrees["ep"] * degrees["dp"]  # sequences of one micro-batch of all EP ranks, times cp
    order = SCHEDULES[found["job.schedule"]]
    if (times := found[PER_STAGE]) is not None:
        enough = times * pp * max(1, order.least)
        found.fill(MICRO_BATCHES, enough, "per_stage x pp")
        if found[MICRO_BATCHES] != enough:
            _disagree(found, f"per_stage {times}", f"{enough}")
    if (bubble := found[BUBBLE]) is not None:
        enough = micro_batches_for(bubble, pp, _chunks(found), found["job.schedule"], found["job.overlap"] == "passes")
        found.fill(MICRO_BATCHES, enough, f"a bubble of at most {bubble:g}")
        if found[MICRO_BATCHES] < enough:
            _disagree(found, f"bubble {bubble:g}", f"at least {enough}")
    step, least = order.step(pp), max(1, order.least * pp)
    if all(found[path] is None for path in BATCH):
        wanted = GLOBAL_BATCH * cp / together
        micro_batches = max(step * max(1, round(wanted / step)), -(-least // step) * step)
        found.fill(GLOBAL, micro_batches * together // cp, f"about {GLOBAL_BATCH:,} sequences")
    batch, micro_batches = found[GLOBAL], found[MICRO_BATCHES]
    if micro_batches is None:
        one = together * step / cp
        if batch * cp % (together * step) or batch * cp // together < least:
            below = max(int(batch // one), -(-least // step))
            near = sorted({int(max(below, 1) * one), int((max(below, 0) + 1) * one)})
            raise Misfit(
                f"job.batch.global_batch must be a multiple of {one:g} sequences (micro_batch {micro_batch} x ep "
                f"{degrees['ep']} x dp {degrees['dp']}{f' / cp {cp}' if cp > 1 else ''}, {step} at a time under "
                f"{found['job.schedule']}), got {batch}; the nearest are {' and '.join(map(str, near))}."
            )
        found.fill(MICRO_BATCHES, batch * cp // together, "global_batch over micro_batch x ep x dp")
    elif batch is None:
        found.fill(GLOBAL, micro_batches * together // cp, "micro_batches x micro_batch x ep x dp")
    elif batch * cp != micro_batches * together:
        raise Misfit(
            f"job.batch.global_batch {batch} and micro_batches {micro_batches} do not agree: micro_batch {micro_batch} "
            f"x ep {degrees['ep']} x dp {degrees['dp']} x {micro_batches} make {micro_batches * together // cp}."
        )


def _ports(found: _Open, gpu: Gpu, servers: int, group: int, gpus: int, on: Fabric) -> int:
    """Fill the NICs of a server and their shares, and return how many NICs of the cluster are on switch trees.

    `servers`, `gpus`: of the cluster; `group`: servers of an expert-parallel group.
    """
    found.fill("network.nics", gpu.nics, f"data sheet of {gpu.name}")
    found.fill("network.nics", on.about.nics, f"usual on {on.name}")
    found.fill("network.nics", gpu.gpus_per_server, "one a GPU")
    nics = found["network.nics"]
    site = Site(network=found.case.network, servers=servers, servers_per_region=group, nics=nics)
    for name, value in on.fills(site).items():
        found.fill(f"network.{on.name}.{name}", value, f"usual for {servers:,} servers in groups of {group:,}")
    varies = on.about.optics.degree_varies
    if varies and nics < 2 and found[DEGREE] is None:
        raise Misfit(f"network.nics must be at least 2 on {on.name}, got {nics}.")
    electrical = max(1, nics // ELECTRICAL_SHARE)
    found.fill(DEGREE, max(nics - electrical, 0), f"all except one in {ELECTRICAL_SHARE} NICs")
    on_tree = nics - found[DEGREE]
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


def _circuits(found: _Open, on: Fabric, usual: tuple[str, str]) -> None:
    for name, value in zip(("policy", "routing"), usual, strict=True):
        found.fill(f"circuits.{name}", value, "usual")
    if on.reconfigures and on.policy is not None:
        found.put("circuits.policy", on.policy, f"of {on.name}")
    name, prices = found["circuits.ocs"], found["network.prices"]
    if name is None:
        found.fill("circuits.delay_s", DELAY_S, "usual")
        return
    switch = get_ocs(name, prices)
    if found["circuits.delay_s"] is None and switch.delay_s is None:
        raise InputError(f"circuits.ocs {name!r} has no reported delay; give circuits.delay_s.")
    if switch.delay_s is not None:
        found.fill("circuits.delay_s", switch.delay_s[1], f"the slowest of {name}")


def _tree_room(found: _Open, on: Fabric) -> tuple[int | None, int, int]:
    """How many NICs one switch and two tiers of a fabric connect, and over how many separate trees its NICs divide.

    One switch connects 0 if an oversubscribed tree needs uplinks, None without a tree.
    """
    radix, network = found["network.radix"], found.case.network
    at_edge = found["network.oversubscribed_at"] == "edge"
    two = Tree(1, radix, tiers=2).most_hosts * at_edge
    site = Site(network=network, nics=network.nics).with_network(radix=max(radix, LEAST_RADIX))
    tree = on.links(site).tree
    if tree is None:
        return None, two, 1
    full = (found["network.oversubscription"] or tree.oversubscription) == 1
    return tree.radix * (full and at_edge), two, tree.parts


def _tiers(found: _Open, on: Fabric, servers: int, tree_nics: int, least: int = 1) -> None:
    """Fill the tiers of switch trees, at least `least`; raise Misfit if one stated switch is too small for all NICs."""
    (one, two, trees), stated = _tree_room(found, on), found["network.tiers"]

    def tiers_for(nics: int) -> int:
        each = -(-nics // trees)
        fewest = 1 if each <= (one or 0) else 2 if each <= two else 3
        return max(least, fewest) if stated == "fewest" else stated

    nics = found["network.nics"]
    by_degree = range(nics + 1) if on.about.optics.degree_varies else ()
    found.tiers_by_degree = tuple(tiers_for(servers * (nics - degree)) for degree in by_degree)
    if stated == "fewest":
        of = f" on {trees} trees" if trees > 1 else ""
        first = f"one switch has room for {one:,}, " if one else ""
        why = f"{tree_nics:,} NICs{of}, {first}two tiers have room for {two:,}"
        found.put("network.tiers", tiers_for(tree_nics), why)
    elif stated == 1 and one == 0:
        raise Misfit(f"network.tiers must be 2 or 3 on an oversubscribed {on.name}: one switch has no uplinks, got 1.")
    elif stated == 1 and one is not None and tree_nics > one * trees:
        each = f" for each of {trees} trees" if trees > 1 else ""
        ports = f"one switch of {one} ports{each}"
        raise Misfit(f"network.tiers 1 has room for {one * trees:,} NICs, on {ports}, got {tree_nics:,}.")


def model_of(case: Case) -> Model:
    """Return the model of a case, with the dimensions that the case states."""
    said = flat(case)
    changed = {field: value for field in OF_MODEL if (value := said[f"model.{field}"]) is not None}
    return get_model(case.model.name, changed)


def gpu_of(case: Case) -> Gpu:
    """Return the GPU of a case, and its server."""
    return _gpu(_Open(case))


@cached_by_files(lambda case, *_, **__: named_files(case), maxsize=256)
def hardware_of(case: Case, servers: int, least_tiers: int = 1, circuits: tuple[str, str] = TURNING) -> Hardware:
    """Return the GPUs and network of a case.

    - `least_tiers`: of switch trees, unless the case states fewer; `circuits`: usual policy and routing.

    Raise InputError for an unknown name, Misfit for NICs that circuits and switches cannot divide.
    """
    found, on = _Open(case), fabric.get(case.network.fabric)
    gpu = _gpu(found)
    tree_nics = _ports(found, gpu, servers, servers, servers * on.gpus_of(gpu), on)
    _circuits(found, on, circuits)
    _tiers(found, on, servers, tree_nics, least_tiers)
    check_network(found.case, on, tree_nics)
    return Hardware(**_hardware(found.case, gpu, found.tiers_by_degree), shares_network=least_tiers > 1)


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


def _check_values(resolved: Resolved) -> None:
    """Raise InputError for what only the whole case shows, such as a bandwidth without a price."""
    case: Any = resolved.case
    source, rule = case.traffic.source, case.placement.rule
    if source.name == "trace":
        if source.path is None:
            raise InputError("traffic.trace needs a path: a file or folder of recorded routing, got none.")
        if source.axes is not None:
            traffic.axes_of(source.axes)
    if resolved.scheduled:
        check_name(case.circuits.schedule, "scheduler")
    if isinstance(case.circuits.policy, str):
        check_name(case.circuits.policy)
    resolved.parts.prices.at("nic", case.network.nic_gbps)
    resolved.server.peak(case.job.precision.compute)
    if source.name == "knobs":
        knobs_of(source)
    _check_measured(case)
    room_of(case, resolved.job)
    if rule.name == "given":
        with in_file(rule.value):
            traffic.check_given(traffic.read_placement(rule.value), resolved.job)
    one_of("circuits.routing", case.circuits.routing, ROUTINGS)


def _check_groups(resolved: Resolved) -> None:
    """Raise InputError for a group that is too large for the fabric, or a policy that does not work.

    Raise Misfit for a user's or a trained policy that reads more than the demand where it must not.
    """
    case, name, network = resolved.case, resolved.policy, resolved.case.network
    policies.suited(name, routing=resolved.routing)
    group: Any = resolved.fabric.group(resolved.site, network.nic_gbps)
    if group.reconfigures and resolved.scheduled:
        resolved.planner(group)
    elif group.reconfigures:
        rest = {"routing": resolved.routing, "names": network.acos.topologies}
        policies.tried(name, (group.servers,), int(group.optical_degree), **rest)
        policy, alone = resolved.circuits_policy(), each_by_demand(flat(case)) and name not in NAMES
        if alone and not policies.reads_of(policy, group).demand_alone:
            raise more_than_demand(name_of(name))


def _check_measured(case: Case) -> None:
    """Raise InputError for a measurement without seconds or fabric, Misfit if its circuits depend on the rate."""
    rate: Any = case.compute.rate
    if rate.name != "measured":
        return
    one_of("compute.measured.fabric", rate.fabric, fabric.NAMES)
    if rate.iteration_s is None:
        raise InputError("compute.measured needs iteration_s, the seconds of the iteration that was measured.")
    if fabric.get(rate.fabric).reconfigures and PAYS({"circuits.turn": case.circuits.turn.name}):
        words = f"compute.measured.fabric {rate.fabric}, because pays weighs computation"
        refuse("circuits.turn", ("on-demand", "always", "reuse", "predict", "span"), words, "pays")
