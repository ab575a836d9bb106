"""What is told of traffic that cannot be."""

import lzma
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np

from mfabric_jax import traffic, workload
from mfabric_jax.traffic import Knobs, Recording, Tokens, predictor
from mfabric_jax.traffic.alltoallv import ExchangeIndex, dispatch_matrix, write_alltoallv
from mfabric_jax.traffic.dispatch import inside_bytes
from mfabric_jax.traffic.log_errors import error_of
from mfabric_jax.traffic.placement import SlotLayout, placement_policy, tokens_by_slot
from mfabric_jax.traffic.placement_files import ExpertPlacement, check_placement_fits, placement_in, write_placement
from mfabric_jax.traffic.predictor import hit_rate, total_variation
from mfabric_jax.traffic.training import (
    expert_flows,
    point_to_point,
)
from tests.traffic.jobs import job

TWO = job(ep=2, experts=2)
SIX = Tokens(np.ones((1, 1, 1, 1, 6)), "test")
MADE = Recording(np.ones((3, 2, 1, 2, 4)), np.array([1, 11, 21]), "run", "made up", steady=(2011, 5001))
ONES = np.ones((2, 3))
PAST, NOW = np.ones((3, 2, 2)), np.ones((2, 2))


def tokens(count):
    """Tokens of these counts."""
    return lambda: Tokens(np.asarray(count), "test")


def chosen(records):
    """Records of a recording with numbers 1, 11 and 21."""
    return lambda: MADE.select(records)


def gate_trace(numbers="1 11 21", data=None):
    """A folder as SmartMoE's, of three iterations."""

    def read():
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            np.save(folder / "kept.npy", np.ones((2, 4, 3, 2, 2)))
            packed = lzma.compress((folder / "kept.npy").read_bytes()) if data is None else data
            (folder / "counts_layer_expert_iter_rank_mb.npy.xz").write_bytes(packed)
            (folder / "iterations.txt").write_text(numbers)
            return traffic.open_trace(folder)

    return read


def knobs(**given):
    """Traffic of 8 experts on 4 ranks with these knobs."""
    return lambda: traffic.from_knobs(job(ep=4, experts=8), Knobs(**given), iterations=9)


def knob_file(text):
    """Knobs of a file with this text."""

    def read():
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "knobs.json"
            file.write_text(text)
            return Knobs.read(file)

    return read


def sending(**given):
    """A job that sends in this way."""
    return lambda: workload.get("mixtral-8x7b", **{"dispatch": "per-server"} | given)


def in_room(**changed):
    """Tokens of 8 experts placed in another room."""
    layout = SlotLayout(2, 1, 8, 8)._replace(**changed)
    return lambda: tokens_by_slot(Tokens(np.ones((2, 1, 1, 2, 8)), "counted"), layout, placement_policy("hierarchical"))


def devices(*experts, **layer):
    """A placement by device, of one layer."""
    every = [{"device_id": at, "device_expert": some} for at, some in enumerate(experts)]
    return lambda: placement_in({"layer_list": [{"layer_id": 0, "device_list": every} | layer]}, "p.json")


def slots(**told):
    """A placement by slot."""
    return lambda: placement_in(told, "p.json")


def given(slots, ranks=None):
    """A placement for a model of two blocks and four experts on two ranks."""
    return lambda: check_placement_fits(ExpertPlacement(np.atleast_2d(slots), ranks), job(ep=2, experts=4))


REFUSED = [
    # placements of serving engines
    (given(np.arange(2)), "placement.file must place the 4 experts of the model, got 2."),
    (given(np.arange(12).reshape(3, 4) % 4), "must have one layer or the model's 2 with experts, got 3."),
    (given(np.arange(4), 4), "placement.file must be for 2 ranks (ep), got 4."),
    (given([0, 1, 2, 3, 0]), "placement.file must have a multiple of 2 slots (ep ranks), got 5."),
    (slots(experts=[[0]]), "p.json must hold physical_to_logical_map, phy2log or layer_list."),
    (slots(logical_count=[[1]]), "mfabric traces place makes a placement of its loads."),
    (
        slots(physical_to_logical_map=[[0, 1], [0]]),
        "p.json: physical_to_logical_map must be numbers of experts",
        "[[0, 1], [",
    ),
    (slots(phy2log=[[0, -1]]), "p.json: phy2log must be numbers of experts, [[...]] by layer and slot, got [[0, -1]]."),
    (slots(phy2log=[[0, 7]]), "p.json: numbers of experts must be below the 2 slots, got 7."),
    (slots(phy2log=[[0, 1, 2], [0, 2, 2]]), "p.json, layer 1: expert 1 of 3 has no slot."),
    (
        slots(phy2log=[[0, 1, 1]], logcnt=[[2, 1]]),
        "logcnt must be the number of slots of phy2log that hold each expert",
    ),
    (slots(phy2log=[[0, 1]], log2phy=[[[1], [0]]]), "log2phy must list the slots of phy2log that hold each expert"),
    (slots(phy2log=[[0, 1]], log2phy=[3]), "log2phy must list the slots of phy2log that hold each expert"),
    (slots(layer_list=[{"layer_id": 1}]), "layer_list must be a list of mappings whose layer_id counts from 0"),
    (devices([0, 1], [2]), "p.json, layer 0: device_expert must be a list, equally long on every device."),
    (devices([0], device_list=None), "p.json, layer 0 must be a list of mappings whose device_id counts from 0"),
    (lambda: write_placement(ExpertPlacement(np.eye(2, dtype=int)), "p.json", "ascend"), "give --ranks."),
    (
        lambda: write_placement(ExpertPlacement(np.eye(2, dtype=int), 3), "p.json"),
        "ranks must divide the 2 slots",
        "got 3.",
    ),
    (
        lambda: write_placement(ExpertPlacement(np.eye(2, dtype=int)), "p.json", "vllm"),
        "form 'vllm' is unknown; allowed: map,",
    ),
    (
        lambda: write_placement(ExpertPlacement(np.eye(2, dtype=int)), "p.txt"),
        "placement 'p.txt': extension '.txt' is unknown",
    ),
    (
        lambda: dispatch_matrix(TWO, Tokens(np.ones((1, 2, 1, 2, 2)), "ones"), ExchangeIndex(block=2)),
        "block must be below the 2",
    ),
    (lambda: write_alltoallv(np.ones((2, 2)), "own.csv"), "alltoallv 'own.csv': extension '.csv' is unknown"),
    (lambda: write_alltoallv(np.ones((5000, 5000)), "own.txt"), "must be of at most 4,096 ranks (ep), got 5,000."),
    # tokens and recordings
    (tokens(np.ones((2, 2))), "[iteration, layer, micro_batch, source_rank, expert], no axis empty, got shape (2, 2)"),
    (tokens([[[[[1, -3]]]]]), "finite and not negative, got -3 at [iteration, ", "= (0, 0, 0, 0, 1)"),
    (tokens([[[[[1, np.inf]]]]]), "finite and not negative, got inf"),
    (tokens([[[[["many"]]]]]), "integers or reals, got dtype <U4"),
    (lambda: SIX.fold_experts(4), "experts must divide the 6 experts of these tokens (test), got 4"),
    (SIX.after_the_first, "tokens (test) must have an iteration before the first that is timed, got 1"),
    (chosen(None), "records must overlap what run holds, 1 to 21, got 2011 to 5001."),
    (chosen((1,)), "records must be a pair, the first and the last, got (1,)."),
    (chosen((21, 11)), "records must be a pair, the first and the last, got (21, 11)."),
    (gate_trace("1 11"), "2 iterations, as iterations.txt says, got shape (2, 4, 3, 2, 2)."),
    (gate_trace("1 11 last"), "must hold one whole number per record."),
    (gate_trace(data=b"torn"), "must be a readable NumPy file of numbers, got ValueError."),
    # knobs
    (knobs(sparsity=1.0), "sparsity must be below 1, got 1.0."),
    (knobs(row_shared=2.0), "row_shared must be at most 1, got 2.0."),
    (knobs(sampled=1), "sampled must be true or false, got 1."),
    (knobs(hot_share=0.5), "hot_share 0.5 needs hot_experts or hot_ranks of at least 1, got 0."),
    (knobs(hot_experts=1, hot_ranks=2), "hot_ranks must be 0 if hot_experts is 1, got 2."),
    (knobs(burst_every=2, burst_length=3), "burst_length must be at most burst_every 2, got 3."),
    (knobs(sparsity=0.9, distinct=2), "sparsity 0.9 must leave at least 2 (distinct) of 8 experts, got 1."),
    (knobs(pair_sparsity=0.9, distinct=2), "pair_sparsity 0.9 must leave at least 2 (distinct) of 8 experts to"),
    (knobs(hot_ranks=5, hot_share=0.5), "hot_ranks must be at most 4, got 5."),
    (knob_file('{"skwe": 1}'), "knob 'skwe' is unknown (did you mean 'skew'?); allowed: popularity, skew,"),
    (knob_file('{"schema_version": 9}'), "schema_version must be at most 1, got 9.", "must be at most 1, got 9."),
    # dispatch and placement
    (sending(dispatch="per-expert", node_limit=1), "node_limit needs dispatch 'per-server'"),
    (sending(node_limit="groups"), "node_limit (unless a number of servers) 'groups'"),
    (sending(dispatch="per-expert", capacity_factor=0.5), "capacity_factor must be at least 1, got 0.5"),
    (lambda: traffic.dispatched_bytes(sending()(), np.ones((8, 8))), "must have copies", "see traffic.sent_tokens."),
    (in_room(slots=7), "slots must be a multiple of the 2 ranks, at least one for each of 8 experts, got 7."),
    (in_room(groups=3), "groups of the placement rule must divide the 8 experts, got 3."),
    # predictors and scenarios
    (lambda: predictor.get("transition", k=3), "'transition' has no setting 'k'; it has window, decay."),
    (lambda: predictor.get("moving-average", decay=1.1), "decay must be at most 1, got 1.1."),
    (lambda: predictor.get("uniform")(PAST, NOW[0]), "must be [T L E] and [L E]", "got [3, 2, 2] and [2]."),
    (lambda: hit_rate(np.ones(3), np.ones(3), 4), "k must be at most the 3 experts, got 4."),
    (lambda: total_variation(np.ones(3), np.ones(4)), "must be [... E]", "got [3] and [4]."),
    (lambda: error_of(np.ones((2, 3, 3)), np.ones((3, 3, 3))), "past and true must both be [H S S], got [2, 3, 3] and"),
    # flows and demands
    (lambda: point_to_point(0, 1, 5, label="PP").of("P"), "label 'P' is unknown (did you mean 'PP'?); allowed: PP."),
    (lambda: expert_flows(job(4, 8), np.zeros((1, 2, 1, 3, 8))), "tokens must be [replica 2 M 4 8], got [1, 2, 1, 3"),
    (lambda: traffic.rank_bytes(jnp.ones((4, 6)), 1), "experts a multiple of ranks, got shape (4, 6)"),
    (lambda: traffic.server_bytes(jnp.ones((4, 3)), 1), "demand must be square, got shape (4, 3)"),
    (lambda: inside_bytes(jnp.ones((4, 4)), 3), "ranks_per_server must divide the 4 ranks of the demand, got 3"),
]
