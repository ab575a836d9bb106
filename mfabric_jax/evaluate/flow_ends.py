"""Columns of one all-to-all of a case: when its flows end, and its busiest link.

The all-to-all is the dispatch of the middle MoE block for the first micro-batch, in the shown iteration (`run.sample`,
or the last) of the first replica. Seconds count its bytes, not latency.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import routing
from mfabric_jax.evaluate.links import unit_on_host, with_acks
from mfabric_jax.evaluate.problem import Problem
from mfabric_jax.routing.ends import FlowEnds, columns_of_ends, ends, ends_on_circuits, ends_on_graph, ends_on_paths
from mfabric_jax.routing.fixed import SinglePaths
from mfabric_jax.support.array_module import Array
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic import dispatched_bytes, server_bytes
from mfabric_jax.workload import Workload

COLUMNS = tuple(columns_of_ends(None))


class Slot(NamedTuple):
    """The shown dispatch: its MoE block, and its indices into [P Q L 2]."""

    layer: int
    position: tuple[int, int, int, int]


@functools.lru_cache(maxsize=64)
def slot_of(job: Workload) -> Slot | None:
    """Return the shown dispatch of a job; None for a job without all-to-alls."""
    where = places(job)
    layers = np.unique(where.layer[where.layer >= 0])
    if not len(layers):
        return None
    layer = int(layers[len(layers) // 2])
    p, q, block = np.argwhere((where.layer == layer) & ~where.backward & (where.micro_batch == 0))[0]
    return Slot(layer, (int(p), int(q), int(block), 0))


class ShownCircuits(NamedTuple):
    """Circuits [S S] of the shown dispatch, and seconds until they and the packet switches finish, at 1 byte/s."""

    count: Array
    optical_s: Array
    electrical_s: Array


def ends_at(
    problem: Problem, group: Any, sent: np.ndarray, carry: Any, circuits: ShownCircuits | None
) -> FlowEnds | None:
    """Return the flow ends with NICs of 1 byte/s, for the selections `sent` [layer M R C] of an iteration.

    None if the ends are not known, for example if drawn paths share circuits.
    """
    job, settings = problem.workload, problem.resolved
    slot = slot_of(job)
    if slot is None or (group.reconfigures and (circuits is None or carry is not None)):
        return None
    unit = unit_on_host(group)
    demand = dispatched_bytes(job, np.asarray(sent[slot.layer % len(sent), 0], float))
    if circuits is not None:
        between = with_acks(server_bytes(demand, job.ranks_per_server), settings.carried_by.acks_back)
        count, *both = (np.asarray(x) for x in circuits)
        return ends_on_circuits(unit, count, between, settings.routing, *map(float, both))
    demand = with_acks(demand, settings.carried_by.acks_back)
    if group.shares_links or isinstance(carry, SinglePaths):
        over = ends_on_graph if group.shares_links else ends_on_paths
        return over(carry, float(unit.nic_Bps), demand, _name_of_links(problem))  # type: ignore[arg-type]
    return ends(unit, demand, job.ranks_per_server)


def _name_of_links(problem: Problem) -> Callable[[int], str]:
    if problem.group.shares_links:
        case = problem.resolved.case
        return routing.shared_links(problem.group, case.network.paths.name, case.run.seed).network.link_name
    if problem.group.forwards:
        return problem.group.mesh.network.link_name
    return "link {} of drawn paths".format


def flow_columns(all_ends: Sequence[FlowEnds | None], nic_Bps: np.ndarray) -> dict[str, list[Any]]:
    """Return the columns [N] of flow ends; `nic_Bps` [N]: bandwidth of a NIC."""
    rows = [columns_of_ends(own_ends, rate) for own_ends, rate in zip(all_ends, nic_Bps.tolist(), strict=True)]
    return {name: [row[name] for row in rows] for name in COLUMNS}
