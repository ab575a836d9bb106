"""What is told of recordings that cannot be read."""

import json

import numpy as np

from mfabric_jax import traffic
from mfabric_jax.apps.recordings import fit, save_weight_matrix, statistics
from mfabric_jax.apps.recordings.calibrate import calibrate, write_calibration
from mfabric_jax.traffic import Recording, Tokens
from mfabric_jax.traffic.recording import Sources
from mfabric_jax.workload import RankLayout
from tests.evaluate.rows.refusals import TINY
from tests.traffic.jobs import job, laer_rows, line, opened

GOOD = line(0, 0, 0, [[0, 1], [2, 3]])
FOUR = job(ep=2, experts=4)
SLICES = np.arange(1.0, 17.0).reshape(2, 2, 4) / 16  # of two tensor-parallel ranks, no copies of each other
RECORD = {"forward_pass_id": 1, "rank": 0, "global_physical_count": [[1e308] * 4]}
META = {"schema_version": 1, "source": "made up", "records": [0, 1, 2]}
META |= {"sources": "source rank", "targets": "expert", "experts": 4}
PLACES = [(step, layer, rank) for step in (0, 1) for layer in (0, 1) for rank in (0, 1)]


def arrays(workload=None, name="run.npz", **given):
    """Arrays by name in a file."""
    return lambda: opened(name, given, workload)


def text(name, content, workload=None, **options):
    """Text in a file."""
    return lambda: opened(name, content, workload, **options)


def lines(*records, **layout):
    """A router trace of these lines, read for ranks of this layout."""
    return lambda: opened("run.jsonl", list(records), layout=RankLayout(**layout))


def laer(rows, head="rank,method,model_name,layer,iter,token_num", workload=None):
    """A token analysis."""
    return text("token_analysis.csv", "\n".join([head, *rows]) + "\n", workload)


def meta(changed, **arrays_beside):
    """A file of our own with other facts."""
    told = {"meta": np.array(json.dumps(META | changed))}
    return arrays(**{"tokens": np.ones((3, 2, 1, 2, 4))} | told | arrays_beside)


def matrix(shape, name="w.txt", value=1):
    """A weight matrix of tokens of this shape, written."""
    return lambda: save_weight_matrix(Tokens(np.full(shape, value), "made"), name)


LOADS = Recording(np.ones((1, 1, 1, 1, 8)), np.zeros(1, int), "loads.npz", "loads", sources=Sources.UNKNOWN)
MADE = Recording(np.ones((4, 3, 2, 4, 8)), np.arange(4), "run", "made up", experts=8)
ONES = Tokens(np.ones((1, 1, 1, 2, 4)), "ones")
PASSES = "must be JSON of step, layer, rank, num_tokens, topk, top_indices, but: "
REFUSED = [
    # axes and keys of arrays
    (text("run.npy", np.ones((4, 8)), axes="layer,exprt"), "axis 'exprt' is unknown (did you mean 'expert'?)"),
    (text("run.npy", np.ones((4, 8)), axes="expert,expert"), "name expert (or destination), and no axis twice"),
    (text("run.npy", np.ones((4, 8)), axes="iteration,layer,expert"), "axes [iteration, layer, expert]", "[4, 8]"),
    (text("run.jsonl", [GOOD], axes="layer,expert"), "axes are for a file that is one array (.npy, .npz"),
    (
        lambda: traffic.recorded_tokens(FOUR, MADE, axes="layer,expert"),
        "this recording has its own, got 'layer,expert'",
    ),
    (arrays(tokens=np.ones((3, 2, 8))), "got shape (3, 2, 8); name other axes by --axes iteration,layer,expert"),
    (arrays(logical_count=np.ones(4)), "[layer, expert] or [iteration, layer, expert], none empty, got shape (4,)"),
    (arrays(weight=np.ones((1, 2, 4))), "must have the axes [layer, expert], none empty, got shape (1, 2, 4)"),
    (arrays(num_global_tokens_per_expert=np.ones(4)), "[tensor-parallel rank, source, expert] or [layer, tensor"),
    (arrays(a=np.ones(3), b=np.ones(3)), "must have the key 'tokens', got a, b; also read: num_global_tokens_per_exp"),
    (arrays(), "must have the key 'tokens', got none"),
    (arrays(tokens=np.array([[[[[None]]]]])), "must be a readable NumPy file of numbers, got ValueError"),
    (arrays(FOUR, logical_count=-np.ones((1, 1, 4))), "finite and not negative"),
    (arrays(FOUR, tokens=np.full((1, 1, 1, 2, 4), "x")), "integers or reals, got dtype <U1"),
    (arrays(FOUR, tokens=np.full((1, 2, 1, 2, 4), 1e308)), "must have sums of at most 1e+100"),
    (arrays(FOUR, tokens=np.full((1, 2, 1, 2, 4), 2**62)), "must have sums of at most 9.22337e+18"),
    (arrays(FOUR, tokens=np.full((1, 2, 1, 2, 4), 3e38, np.float32)), "must have sums of at most 3.40282e+38"),
    (arrays(num_global_tokens_per_expert=SLICES * 1e308), "must have sums of at most 1e+100"),
    (
        arrays(num_global_tokens_per_expert=(16 * SLICES).astype(np.int64) * 2**58),
        "must have sums of at most 9.22337e+18",
    ),
    (
        arrays(physical_count=np.full((1, 1, 4), 1e308), physical_to_logical_map=[[0, 0, 0, 0]]),
        "sums of at most 1e+100",
    ),
    (arrays(physical_count=np.full((1, 1, 4), 2**62), physical_to_logical_map=[[0, 0, 0, 0]]), "sums of at most 9.2"),
    (text("run.json", json.dumps({"records": [RECORD] * 2})), "global_physical_count of trace", "at most 1e+100"),
    (arrays(FOUR, tokens=np.ones((1, 1, 1, 3, 4))), "must divide the 3 source ranks of ", "got 2"),
    (arrays(FOUR, tokens=np.ones((1, 1, 1, 2, 5))), "must hold a multiple of the 4 experts of tiny, got 5"),
    (text("run.json", '{"counts": [[1, 2], [3]]}'), "must be a readable JSON file of lists of equal lengths"),
    (text("run.pt", b"\x80\x02}q\x00."), "must be a readable file of torch.save (since torch 1.6), got BadZipFile"),
    # serving engines
    (arrays(logical_count=np.zeros((5, 3, 4))), "tokens of trace", "must not all be 0"),
    (
        arrays(expert_load_window=np.ones((2, 2, 3)), physical_to_logical_map=[[0, 1], [1, 1]]),
        "physical_to_logical_map of trace",
        "for the 2 layers and 3 physical experts, got int64 of shape (2, 2)",
    ),
    # our own files
    (meta({"schema_version": 2}), "schema_version of trace", "must be at most 1, got 2."),
    (meta({"records": [0, 1]}), "records one number for each iteration, got shapes (3, 2, 1, 2, 4) and (2,)"),
    (meta({"sources": "moon"}), "meta of trace", "must be the JSON that save_tokens wrote"),
    (meta({}, meta=np.array('{"experts": 1, "experts": 2}')), "must be the JSON that save_tokens wrote"),
    (lambda: traffic.save_tokens(ONES, "run.npy"), "a trace is saved as .npz, got 'run.npy'"),
    # tables
    (text("run.csv", "layer,tokens\n1,2\n"), "must have the columns iteration, layer, micro-batch, source, expert, to"),
    (text("run.csv", "layer,expert,tokens,gpu\n1,1,2,3\n"), "none twice, got layer, expert, tokens, gpu."),
    (text("run.csv", "layer,expert,tokens\n"), "must have at least one line below its header"),
    (text("run.csv", "layer,expert,tokens\n0,0,1\n0,1\n"), "line 3 of trace", "must have 3 cells, got 2."),
    (
        text("run.csv", "layer,expert,tokens\n0,0,1\n0,0,2\n"),
        "line 3 of trace",
        "repeats the layer, expert of an earlier line",
    ),
    (text("run.csv", "layer,expert,tokens\n0,-1,1\n"), "column expert", "whole numbers of at least 0, got '-1'"),
    (text("run.csv", "layer,expert,tokens\n0,99999999,1\n"), "must have experts below 65536", "got 1 x 100000000"),
    (text("run.csv", "layer,expert,tokens\n0,1,many\n"), "column tokens of trace", "must hold numbers, got 'many'"),
    (text("run.csv", b"\xff\xfe\x00binary"), "must be a readable .csv[.gz] file, got UnicodeDecodeError."),
    (text("run.parquet", b"PAR1 and no more"), "must be a readable .parquet file, got ArrowInvalid"),
    # router traces
    (
        lines(GOOD, GOOD | {"num_tokens": 3}),
        "line 2 of router trace",
        f"{PASSES}top_indices is not 3 rows (num_tokens)",
    ),
    (lines(GOOD, GOOD | {"top_indices": [[0, 1], [2]]}), f"{PASSES}top_indices is not 2 rows (num_tokens) of 2 (topk)"),
    (lines(GOOD, GOOD | {"step": -1}), f"{PASSES}Expected `int` >= 0 - at `$.step`"),
    (lines(GOOD | {"top_indices": [[0, 1], [2, 10**12]]}), "line 1", "`int` <= 65535 - at `$.top_indices[1][1]`"),
    (lines({}), f"{PASSES}Object missing required field `step`"),
    (text("run.jsonl", json.dumps(GOOD)[:-20]), "line 1 of router trace", f"{PASSES}Input data was truncated"),
    (text("run.jsonl", b"\xff\xfe"), PASSES),
    (
        lines(line(0, 0, 0, [[0]], block="mtp")),
        "must have lines of block 'decoder' and stage 'pre_dispatch'",
    ),
    (
        lines(*[line(*place, [[0]]) for place in PLACES[:-1]], ep=2),
        "equally many micro-batches for every step, layer and rank; step 1, layer 1, rank 1 has 0, another has 1.",
    ),
    (
        lines(*[line(*place, [[0]]) for place in [*PLACES, PLACES[0]]], ep=2),
        "step 0, layer 0, rank 1 has 1, another has 2",
    ),
    (
        lines(line(0, 0, 7, [[0]])),
        "must be below tp x ep x dp x pp = 1 x 1 x 1 x 1 = 1, got 7; state the degrees",
    ),
    (
        lines(line(0, 0, 0, [[0]]), ep=4),
        "one expert-parallel group of tp x ep x dp x pp = 1 x 4 x 1 x 1 = 4",
        "rank 1;",
    ),
    (lines(line(0, 0, 0, [[3]]), experts=2), "must be below the 2 of the model, got expert 3; read it with its own"),
    (
        lines(*[line(0, 0, rank, [[rank]]) for rank in (0, 1)], pp=2, chunks=2),
        "must be numbered over the whole model where a stage has 2 chunks, got layer 0 on stages 0 and 1",
    ),
    # published recordings
    (text("m.txt", "[[1, 2], [3, 1]]"), "must have equal sums above 0, got 3 (row 0) and 4 (row 1)."),
    (text("m.txt", "[[1, 2], [-1, 4]]"), "must be [ep][ep] whole numbers of at least 0, got shape [2, 2]"),
    (text("m.txt", "[[1, 2], [3, 0]]\n[[1, 2], [3, 0]]"), "must be one nested list of whole numbers."),
    (text("m.txt", "[[1, 3], [4, 0]]", job(ep=4, experts=4)), "ep of the workload must divide the 2 source ranks of"),
    (matrix((1, 1, 1, 2, 2), "w.npz"), "a weight matrix is saved as .txt, got 'w.npz'"),
    (matrix((1, 1, 1, 2, 3)), "a multiple of the 2 source ranks for experts, got 3"),
    (matrix((1, 1, 1, 2, 2), value=0), "rank 0 has none"),
    (lambda: save_weight_matrix(LOADS, "w.txt"), "needs source ranks; loads.npz recorded all sources together"),
    (arrays(name="a_expert_counts.npz", olmoe_topk=np.ones((2, 3))), "must have the axes [domain, layer, expert]"),
    (laer(laer_rows(methods=("FLEX",))), "must have rows of method FSDP, got none."),
    (laer(laer_rows()[1:]), "must have one row for every rank, layer and iteration of m-e8k2"),
    (laer([*laer_rows(), laer_rows()[0]]), "got 49 rows for 3 x 2 x 8 (iterations, layers, ranks)"),
    (laer(laer_rows(ranks=6)), "in groups of 4 ranks"),
    (laer([*laer_rows(), "0,FSDP,m-e8k2,0,x,5"]), "line 98 of trace", "must hold whole numbers, got ['0', 'FSDP'"),
    (laer(laer_rows(), "rank,method"), "must have the columns rank, method, model_name, layer, iter, token_num, none"),
    (
        laer(laer_rows("nameless"), workload=job(2, 6)),
        "experts of the workload must be a multiple of the 4 destination ranks of",
    ),
    (
        text("rows.doc", "a,b\n"),
        "must have a known format",
        "; .jsonl of a Megatron router trace, or a",
    ),
    (lambda: traffic.open_trace("no/such/run.npz"), "trace must be an existing file or folder, got no/such/run.npz"),
    (lambda: traffic.open_trace("tests"), "trace folder must hold *.jsonl of a Megatron router trace, *expert"),
    # statistics and fits
    (lambda: write_calibration({}, TINY, "kept.csv"), "out must be a .json file"),
    (lambda: write_calibration({}, TINY, "no/such/folder/kept.json"), "existing folder"),
    (lambda: calibrate(TINY, ("deepseek-r1",)), "models must have published fat-tree times"),
    (lambda: statistics.rank_matrix(np.ones((2, 8)), 4), "ranks must divide the 2 sources and the 8 experts, got 4"),
    (lambda: statistics.locality(np.ones((4, 4)), 3), "ranks_per_server must divide the 4 ranks, got 3"),
    (lambda: statistics.statistics_by_layer(MADE, ranks=3), "ranks must divide the 8 columns of run, got 3"),
    (lambda: fit(Tokens(np.zeros((1, 1, 1, 2, 4)), "nothing")), "must have selections, got none in nothing."),
]
