"""A file with several runs is taken apart, whatever stands before its lines; a part is read as it is alone."""

import json

import pytest

from mfabric_jax.apps.recordings.measurements import UserFacts, fit_points, points_of, read_times
from mfabric_jax.checks import InputError
from tests.apps.recordings.measurements.samples import (
    BOTH_WAYS,
    ELASTIC,
    HEADER,
    LOW_LATENCY,
    NORMAL,
    OSU,
    OSU_V,
    PER_ITERATION,
    WRITE_BW,
    nccl_json,
    nccl_text,
    nccl_times,
)

BETWEEN = UserFacts("across", 16, 8)
QUICK = list(nccl_times(20e-6, 40e9, 0.75, 0.0, 0))[10:14]
SLOW = list(nccl_times(90e-6, 10e9, 0.75, 0.0, 0))[10:14]


@pytest.fixture
def fits(tmp_path):
    """Fits by program, kind and ranks of a file with this content."""

    def read(content, asked=BETWEEN, name="run.log"):
        path = tmp_path / name
        path.write_text(content)
        found = fit_points(points_of(read_times(path, asked.ranks), asked))
        told = {(fit.program, fit.kind, fit.ranks): (fit.alpha_s, fit.bandwidth_bytes_per_s) for fit in found}
        assert len(told) == len(found)
        return told

    return read


def same(one, other):
    return [*one] == [*other] and all(one[key] == pytest.approx(other[key]) for key in one)


SAID = UserFacts("across")  # ranks stand in the file
PARTS = {
    "programs": (SAID, nccl_text(QUICK, 16, 8), nccl_text(SLOW, 16, 8, "all_reduce_perf")),
    "ranks": (SAID, nccl_text(QUICK, 16, 8), nccl_text(SLOW, 32, 8)),
    "columns": (BETWEEN, PER_ITERATION, nccl_text(QUICK, 16, 8)),
    "osu": (BETWEEN, OSU, OSU_V),
    "libraries": (BETWEEN, OSU, OSU.replace("OSU MPI", "OSU NCCL").replace(" 30.00", " 60.00")),
    "directions of perftest": (SAID, WRITE_BW, BOTH_WAYS),
    "perftest": (SAID, WRITE_BW, WRITE_BW.replace("RDMA_Write", "RDMA_Read").replace("46900.00", "23450.00")),
    "tools": (BETWEEN, nccl_text(QUICK, 16, 8), OSU, WRITE_BW, LOW_LATENCY),
    "elastic": (SAID, ELASTIC, ELASTIC.replace("2 x 8", "4 x 8").replace("3/16", "3/32").replace("1300", "2300")),
}


@pytest.mark.parametrize("name", PARTS)
def test_each_run_of_a_file_is_fitted_as_it_is_alone(name, fits):
    asked, *parts = PARTS[name]
    apart = {key: line for part in parts for key, line in fits(part, asked).items()}
    assert len(apart) >= len(parts)
    assert same(fits("".join(parts), asked), apart)
    backwards = fits("".join(reversed(parts)), asked)
    assert same({key: backwards[key] for key in apart}, apart)


@pytest.mark.parametrize("name", ["programs", "ranks", "columns"])
def test_a_lost_line_never_gives_the_times_of_one_run_to_another(name, fits):
    asked, *parts = PARTS[name]
    lines = "".join(parts).splitlines()
    whole, refused = fits("\n".join(lines), asked), 0
    for at in range(len(lines)):
        try:
            found = fits("\n".join(lines[:at] + lines[at + 1 :]), asked)
        except InputError:
            refused += 1
        else:
            assert all(found[key][1] == pytest.approx(whole[key][1], rel=0.1) for key in found), lines[at]
    assert 0 < refused < len(lines)


def test_a_run_in_one_server_beside_others_needs_no_tier(fits):
    inside, between = nccl_text(QUICK, 8, 8), nccl_text(SLOW, 32, 8)
    assert same(fits(inside + between, SAID), fits(inside, UserFacts()) | fits(between, SAID))
    with pytest.raises(InputError, match="was measured between servers; tier must be leaf or across"):
        fits(inside + between, UserFacts("server"))


def test_dispatch_and_combine_are_fitted_apart(fits):
    found = fits(LOW_LATENCY)
    (slow, quick) = (found["test_low_latency", f"deepep-low-latency-{name}", 16] for name in ("dispatch", "combine"))
    assert slow == (0, pytest.approx((64.29 / 2 + 64.80 / 2) / 2 * 1e9, rel=1e-3))
    assert quick == (0, pytest.approx((75.28 / 2 + 75.66 / 2) / 2 * 1e9, rel=1e-3))
    assert {kind for _, kind, _ in fits(ELASTIC, SAID)} == {
        *("deepep-normal-dispatch", "deepep-normal-combine", "deepep-normal-reduced-combine"),
    }


# ------------------------------------------------------------------------------------------------------------- prefixes
PREFIXES = {
    "mpirun --tag-output": "[1,0]<stdout>:",
    "mpirun --tag-output, a number for each line": "[1,{at}]<stdout>:",
    "mpirun 5": "[prterun-node0-4101@1,0]<stdout>: ",
    "mpirun --timestamp-output": "Wed Mar 11 08:15:{at:02}.25 2026<stdout>:",
    "hydra": "[0] ",
    "srun --label": "{at:3}: ",
    "kubectl --timestamps": "2026-03-11T08:15:{at:02}.123456Z ",
    "kubectl --timestamps, at a second": "2026-03-11T08:15:{at:02}{fraction}Z ",
    "kubectl --prefix": "[pod/nccl-tests-launcher-x7k2q/launcher] ",
    "docker compose": "launcher-1  | ",
    "journal": "Mar 11 08:15:{at:02} node0 nccl[4101]: ",
    "logging": "2026-03-11 08:15:{at:02},250 - INFO - ",
    "pdsh": "node0: ",
    "colours": "\x1b[32mnode0\x1b[0m: ",
    "numbers of lines": "{at:6}\t",
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_stands_before_every_line_is_taken_away(name, fits):
    contents = nccl_text(QUICK, 16, 8), OSU, WRITE_BW, LOW_LATENCY
    for content in ("".join(contents), *contents):
        lines = enumerate(content.splitlines(), 1)
        prefixed = [
            PREFIXES[name].format(at=at, fraction="" if at % 5 == 0 else f".{at}1") + line + "\n" for at, line in lines
        ]
        assert fits("".join(prefixed)) == fits(content)


# ------------------------------------------------------------------------------------------------ what cannot be parted
def mixed(ranks):
    """What two processes print that know nothing of each other."""
    one = nccl_text(QUICK, ranks, 8).splitlines()
    return "\n".join(line for pair in zip(one, one, strict=True) for line in pair)


SCRIPT = "./all_reduce_perf -b 8 && ./alltoall_perf -b 8\n"
NAMELESS = nccl_text(QUICK, 16, 8, program="")
REFUSED = {
    "a program of two without its name": (
        nccl_text(QUICK, 16, 8) + NAMELESS,
        "line 47: 'Collective test starting' must stand above every table",
    ),
    "ranks of two runs, the second without a header": (
        nccl_text(QUICK, 4, 2) + nccl_text(SLOW, 8, 4).replace("busbw", ""),
        "a row must stand below the header",
    ),
    "one way or both": (BOTH_WAYS.partition("\n")[2], "line 2: the title of the test must stand above the table"),
    "processes": (mixed(8), "rank 0 occurs twice, on node000 and node000; outputs of several processes are mixed"),
    "processes without ranks": (HEADER + mixed(0), "a second table begins before the first has a row"),
    "a script": (SCRIPT + NAMELESS, "the table may be of all_reduce or alltoall"),
    "one name of two": (
        "build/alltoall_perf\n" + NAMELESS + "build/all_reduce_perf\n" + NAMELESS + NAMELESS,
        "line 75: the table may be of",
    ),
    "another program": (
        nccl_text(QUICK, 16, 8) + nccl_text(QUICK, 16, 8, "broadcast_perf"),
        "line 48: broadcast_perf is not read",
    ),
    "OSU without a title": (OSU + OSU_V.partition("\n")[2], "line 8: the title of a test, # OSU ..., must stand above"),
    "another OSU test": (OSU + OSU.replace("All-to-All", "Allgather"), "line 8: 'MPI Allgather Personalized"),
    "ranks that a tool does not say": (OSU + OSU, "2 runs of osu_alltoall MPI and does not state the ranks"),
    "tables without ranks": (PER_ITERATION + PER_ITERATION, "holds 2 runs of reduce_scatter_perf and does not state"),
    "a best result twice": (NORMAL + NORMAL, "holds 2 runs of test_internode and does not state"),
    "times of a rank twice": (LOW_LATENCY + LOW_LATENCY, "holds 2 runs of test_low_latency and does not state"),
    "a rank left out": (
        nccl_text(QUICK, 16, 8).replace("Rank  7", "Rank 77"),
        "must name all ranks; rank 7 is missing",
    ),
    "groups of two sizes": (nccl_text(QUICK, 16, 8).replace("9 Group  0", "9 Group  1"), "groups must have equal"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_apart_is_refused(name, fits):
    content, sentence = REFUSED[name]
    with pytest.raises(InputError) as caught:
        fits(content)
    assert sentence in str(caught.value)


def test_ranks_of_a_communicator_are_those_of_its_group(fits):
    text = nccl_text(QUICK, 16, 8)
    for rank in range(16):
        text = text.replace(f"Rank {rank:2} Group  0", f"Rank {rank:2} Group {rank % 8:2}")
    assert [*fits(text, SAID)] == [("alltoall_perf", "all-to-all", 2)]
    told = json.loads(nccl_json(QUICK, 16, 8))
    for device in told["config"]["devices"]:
        device["group"] = device["rank"] % 8
    assert [*fits(json.dumps(told), SAID)] == [("all_reduce_perf", "all-reduce", 2)]


def test_a_name_that_stands_once_is_that_of_every_table(fits):
    named = "mpirun build/alltoall_perf\n" + NAMELESS
    assert [*fits(named + NAMELESS.replace("node", "host"), SAID)] == [("alltoall_perf", "all-to-all", 16)]
    assert [*fits(NAMELESS, SAID, "sendrecv.log")] == [("sendrecv_perf", "send-receive", 16)]
    with pytest.raises(InputError, match="the table may be of all_reduce or alltoall"):
        fits(NAMELESS, SAID, "all_reduce_and_alltoall.log")
