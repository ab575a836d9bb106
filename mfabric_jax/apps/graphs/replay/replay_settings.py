"""Settings of a replay: the placement of ranks, the algorithms of collectives, and when circuits change."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import numpy as np

from mfabric_jax.apps.graphs.tasks.collectives.registry import choices_of
from mfabric_jax.case import Case
from mfabric_jax.case.grid import UNREAD_BY_LINKS
from mfabric_jax.case.network import GRAPH
from mfabric_jax.checks import InputError, not_negative, one_of, whole
from mfabric_jax.fabric.rank_files import gpus_in

UNREAD = UNREAD_BY_LINKS | {  # settings that a replay does not read, and the option to use instead
    **dict.fromkeys(("gpu.bf16_tflops", "gpu.fp8_tflops"), "; --tflops sets how fast a GPU computes"),
    "gpu.memory_gigabytes_per_s": "; --memory-gigabytes-per-s sets the bandwidth of a GPU's memory",
    "network.alpha_s": "; --alpha-s sets the latency of every message",
}
ORDERS: dict[str, Callable[[int, int, int], np.ndarray]] = {  # arguments: servers, GPUs of each, a seed
    "in-order": lambda servers, each, seed: np.arange(servers * each),
    "round-robin": lambda servers, each, seed: np.arange(servers * each).reshape(servers, each).T.ravel(),
    "random": lambda servers, each, seed: np.random.default_rng(seed).permutation(servers * each),
}


def check_order(name: str) -> None:
    if not name.endswith(".json"):
        one_of("ranks_on", name, (*ORDERS, "FILE.json"))


def gpus_of_ranks(
    order: str, ranks: int, servers: int, per_server: int, *, first: int = 0, seed: int = 0
) -> np.ndarray:
    """Return the GPU of every rank [R].

    - `order`: "in-order" puts rank r on GPU r, "round-robin" on server r modulo servers, "random" draws with `seed`;
      or a .json file `{"gpus": [GPU of rank 0, of rank 1, ...]}`.
    - `first`: position of rank 0 in that order.
    """
    gpus = servers * per_server
    if order.endswith(".json"):
        return gpus_in(order, ranks, gpus)
    if first + ranks > gpus:
        raise InputError(
            f"servers must hold {first + ranks} GPUs for {ranks} ranks starting at first_gpu {first}, got {gpus}."
        )
    return ORDERS[order](servers, per_server, seed)[first : first + ranks]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replay:
    """How to run a task graph on the GPUs and the network of a case."""

    graph: str | None = None
    """File of a network graph, in any format of docs/formats.md, that replaces the fabric; its gpu (or host) nodes are
    the GPUs. The command takes several, as a.json,b.json."""
    servers: int = 0
    """Servers or scale-up domains of the cluster (default: as many as the ranks need)."""
    region_servers: int = 0
    """Servers of one optical region (default: all)."""
    ranks_on: str = "in-order"
    """How ranks are put on GPUs: in-order, round-robin (consecutive ranks on different servers), random, or a .json
    file with the GPU of every rank."""
    first_gpu: int = 0
    """Position of rank 0 in that order."""
    circuits_for: Literal["run", "all-to-all"] = "run"
    """When circuits are chosen, if they can change. run: once, for all bytes of the graph; all-to-all: for each
    all-to-all, and nothing else uses circuits."""
    first: Literal["block", "ahead"] = "block"
    """When the switch reconfigures for an all-to-all. block: once the all-to-all could begin; ahead: as soon as the
    previous all-to-all has ended, as if the next demand were known."""
    algorithms: str = ""
    """Algorithms of collectives, such as all-reduce=ring*4,all-reduce:<65536=double-tree (a ring with 4 chunks; below
    65,536 bytes a double tree)."""
    chunks: int = 1
    """Chunks of a collective, if algorithms does not give their number."""
    alpha_s: float = 0.0
    """Latency of every message, in addition to the propagation of its path."""
    absent: Literal["refuse", "assume"] = "refuse"
    """What to do if the file lacks some ranks of a collective or message: refuse, or assume that they take part."""
    lanes: Literal["ordered", "free"] = "ordered"
    """How a rank runs the tasks of a lane (a stream). ordered: one at a time, in an order chosen in advance; free: all
    at once."""
    compute_scale: float = 1.0
    """Factor on the duration of every computation."""

    def __post_init__(self):
        for field, allowed in CHOICES.items():
            one_of(field, getattr(self, field), allowed)
        if self.graph is not None:
            for field in OF_CLUSTERS:
                if getattr(self, field) != USUAL[field]:
                    raise InputError(f"{field} is not used on a graph, which replaces the fabric; leave it out.")
        check_order(self.ranks_on)
        if self.ranks_on.endswith(".json") and self.first_gpu:
            raise InputError(f"first_gpu is not used with a file of ranks_on, got {self.first_gpu}; leave it out.")
        for field in ("servers", "region_servers", "first_gpu"):
            whole(field, getattr(self, field), at_least=0)
        choices_of(self.algorithms, self.chunks)
        for field in ("compute_scale", "alpha_s"):
            not_negative(field, getattr(self, field))

    def on(self, case: Case) -> "Replay":
        """Return these settings with the network graph of the case, if its fabric is a graph."""
        if self.graph is not None or case.network.fabric != GRAPH:
            return self
        if case.network.graph is None:
            raise InputError("network.fabric graph needs network.graph, the file of the graph.")
        placed = case.network.on_graph.ranks if self.ranks_on == USUAL["ranks_on"] else None
        return dataclasses.replace(self, graph=case.network.graph, ranks_on=placed or self.ranks_on)


OF_CLUSTERS = ("servers", "region_servers", "circuits_for", "first")
CHOICES = {
    **{"circuits_for": ("run", "all-to-all"), "first": ("block", "ahead")},
    **{"absent": ("refuse", "assume"), "lanes": ("ordered", "free")},
}
USUAL = {field.name: field.default for field in dataclasses.fields(Replay)}
