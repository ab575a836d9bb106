"""`mfabric traces place PATH OUT.json`: place experts by recorded loads, or convert a placement."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mfabric_jax.checks import InputError, whole
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional

if TYPE_CHECKING:
    from mfabric_jax.traffic.placement_files import ExpertPlacement


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Place experts by the loads of a recording, layer by layer, or convert a placement to another form.

    Forms, all JSON: map (SGLang's --init-expert-location, vLLM), eplb (DeepSeek's EPLB: phy2log, log2phy, logcnt),
    ascend (vLLM-Ascend's expert_map_path).
    """

    path: Annotated[str, Positional("PATH", "the path of a recording, or of a placement, next")]
    """A recording (mfabric traces --help), or a placement in one of the forms."""
    to: Annotated[str, Positional("OUT.json", "OUT.json after the path")]
    """The output file of the placement."""
    form: str = "map"
    """Form of the output: map, eplb or ascend."""
    rule: str | None = None
    """Rule for a recording: contiguous, longest-processing-time, hierarchical (default) or with-circuits
    (docs/placement.md)."""
    ranks: int | None = None
    """Expert-parallel ranks, over which the slots are divided equally."""
    ranks_per_server: int | None = None
    """For a recording: ranks in a server (default: 8, or all)."""
    slots: int | None = None
    """For a recording: slots of a layer, copies included (default: one per expert)."""
    groups: int | None = None
    """For a recording: groups of neighbouring experts that stay on one server (default: one per expert)."""
    records: tuple[int, int] | None = None
    """For a recording: range of records, FIRST-LAST (default: all)."""
    axes: str | None = None
    """For a recording: axes of an array in a file, in order, as for mfabric traces info."""


RULE = "hierarchical"
OF_RECORDINGS = ("rule", "ranks_per_server", "slots", "groups", "records", "axes")
SERVER = 8  # ranks


def run(options: Options) -> None:
    from mfabric_jax.traffic.placement_files import check_placement, write_placement

    check_placement(options.to, options.form)
    placement = _placement(options)
    if options.ranks is not None and placement.ranks not in (None, options.ranks):
        raise InputError(f"{options.path} has {placement.ranks} ranks; leave out --ranks, got {options.ranks}.")
    placement = placement._replace(ranks=placement.ranks or options.ranks)
    layers, slots = placement.slots.shape
    write_placement(placement, options.to, options.form)
    print(f"{layers} layers, {placement.experts} experts in {slots} slots{_of(placement.ranks)}: {options.form}")
    shared.tell(options.to)


def _of(ranks: int | None) -> str:
    return "" if ranks is None else f" of {ranks} ranks"


def _placement(options: Options) -> "ExpertPlacement":
    """Return the placement in the file, or make one for the loads in it."""
    from mfabric_jax.support.text_files import read_bytes, value_in
    from mfabric_jax.traffic.placement_files import is_placement, placement_in

    if options.path.lower().endswith(".json") and Path(options.path).is_file():
        what = "placements or loads of experts"
        content = value_in(read_bytes(options.path, f"give a .json file of {what}"), repr(options.path), what)
        if isinstance(content, dict) and is_placement(content):
            if stated := [name for name in OF_RECORDINGS if getattr(options, name) is not None]:
                raise InputError(
                    f"{stated[0]} applies only to recordings, but {options.path} is a placement; leave it out."
                )
            return placement_in(content, options.path)
    return _of_loads(options)


def _of_loads(options: Options) -> Any:
    """Place the experts of every layer by the rule, for all records together."""
    import numpy as np

    from mfabric_jax import traffic
    from mfabric_jax.traffic.placement_files import ExpertPlacement
    from mfabric_jax.traffic.recording import Targets

    policy = traffic.placement_policy(options.rule or RULE)
    if options.ranks is None:
        raise InputError("traces place of a recording needs --ranks, the expert-parallel ranks that hold the experts.")
    recording, *others = traffic.open_trace(options.path, axes=options.axes)
    if others or recording.targets != Targets.EXPERTS:
        raise InputError(
            f"{options.path} must be a single recording of expert loads; mfabric traces info shows what it is."
        )
    counts = recording.select(options.records).tokens().count
    loads = counts.sum(axis=(0, 2), dtype=np.float64)  # [layer, source, expert]
    experts, ranks = loads.shape[-1], whole("ranks", options.ranks)
    each = options.ranks_per_server or (SERVER if ranks % SERVER == 0 else ranks)
    if ranks % whole("ranks_per_server", each):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks, got {each}.")
    layout = traffic.SlotLayout(
        ranks, each, whole("slots", options.slots or experts), whole("groups", options.groups or experts)
    )
    layout.check(experts)
    if loads.shape[1] != ranks:  # sources are not the ranks, so the bytes that each rank sends are unknown
        loads = np.repeat(loads.sum(axis=1, keepdims=True) / ranks, ranks, axis=1)
    return ExpertPlacement(np.stack([policy(layer, layout) for layer in loads]), ranks)
