"""Every tool's output is read as it is written; broken output is a mistake in one sentence, or still output."""

import numpy as np
import pytest

from mfabric_jax.apps.recordings.measurements import UserFacts, fit_points, points_of, read_times
from mfabric_jax.checks import InputError
from tests.apps.recordings.measurements.samples import FILES, SMALL, nccl_text
from tests.mistakes import changed

ASKED = UserFacts("across", None, None)
BESIDE = {  # what files do not say
    **dict.fromkeys(("osu.txt", "osu_v.txt", "reduce_scatter.txt", "low_latency.txt"), UserFacts("across", 16, 8)),
    **dict.fromkeys(
        ("older.txt", "older_blank.txt", "in_place_alone.txt", "at_a_time.txt"), UserFacts("across", 16, 8)
    ),
    "normal.txt": UserFacts("across", 32, 8),
    "inside.txt": UserFacts(None, 8, None),
}
FIRST = {  # of the first time: kind, reported bytes per byte over the port, bytes over the port, seconds
    "all_gather.txt": ("all-gather", 1024 * 15 / 16 / 8, SMALL[0][1][0]),
    "reduce_scatter.txt": ("reduce-scatter", 2**20 * 15 / 16 / 8, 30e-6),
    "all_reduce.json": ("all-reduce", 2 * 1024 * 15 / 16 / 8, SMALL[0][1][0]),
    **dict.fromkeys(
        ("older.txt", "in_place_alone.txt", "at_a_time.txt"), ("all-reduce", 2 * 2**20 * 15 / 16 / 8, 500e-6)
    ),
    "older_blank.txt": ("all-to-all", 2**20 / 2, 500e-6),
    "osu.txt": ("all-to-all", 1024 * 8, 30e-6),
    "osu_v.txt": ("alltoallv", 4096 * 8, 35.1e-6),
    "write_bw.txt": ("messages", 65536, 65536 / (46875 * 2**20)),
    "both_ways.txt": ("messages", 65536, 65536 / (98e9 / 2)),
    "write_lat.txt": ("message", 2, 2e-6),
    "both_ways.json": ("messages", 65536, 65536 / (98e9 / 2)),
    "write_lat.json": ("message", 2, 2e-6),
    "low_latency.txt": ("deepep-low-latency-dispatch", 64.29e9 * 118e-6 / 2, 118e-6),
    "normal.txt": ("deepep-normal-dispatch", 57.1e9 * 812e-6 * 3 / 4, 842e-6),
    "inside.txt": ("deepep-normal-dispatch", 153e9 * 1e-3 * 7 / 8, 1e-3),
    "elastic.txt": ("deepep-normal-dispatch", 90e9 * 1300.12e-6 / 2, 1300.12e-6),
}
MANY = {"all_gather.txt": 12, "reduce_scatter.txt": 2, "all_reduce.json": 12, "osu.txt": 2, "osu_v.txt": 1}
MANY |= {"older.txt": 4, "older_blank.txt": 2, "in_place_alone.txt": 1, "at_a_time.txt": 2}
MANY |= {"write_bw.txt": 2, "both_ways.txt": 1, "write_lat.txt": 2, "low_latency.txt": 4, "normal.txt": 3}
MANY |= {"both_ways.json": 1, "write_lat.json": 1, "inside.txt": 2, "elastic.txt": 3}


@pytest.fixture
def points(tmp_path):
    """The points of a file with this content."""

    def read(name, content, asked):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return points_of(read_times(path, asked.ranks), asked)

    return read


@pytest.mark.parametrize("name", FILES)
def test_a_tool_s_output_is_read_with_the_bytes_over_the_busiest_port(name, points):
    every = points(name, FILES[name], BESIDE.get(name, ASKED))
    kind, size, seconds = FIRST[name]
    assert len(every) == MANY[name]
    assert every[0].kind == kind
    assert every[0].tier == ("server" if name == "inside.txt" else "across")
    np.testing.assert_allclose([every[0].bytes, every[0].seconds], [size, seconds], rtol=2e-3)  # 7 characters of us


def test_bandwidth_in_json_has_the_unit_of_its_rate_of_messages(points):
    mebibytes = FILES["both_ways.json"].replace("784.00", "93460.1")  # MiB/s
    assert points("a.json", mebibytes, ASKED)[0].seconds == pytest.approx(65536 / 49e9, rel=1e-4)
    with pytest.raises(InputError, match="BW_average must be MsgSize times MsgRate"):
        points("a.json", FILES["both_ways.json"].replace("784.00", "98.0"), ASKED)


def test_ranks_and_servers_are_those_of_the_file(points, tmp_path):
    assert {point.ranks for point in points("a.txt", FILES["all_gather.txt"], ASKED)} == {16}
    assert {point.ranks for point in points("a.json", FILES["all_reduce.json"], ASKED)} == {16}
    inside = points("alltoall.txt", nccl_text(SMALL, 8, 8), UserFacts())
    assert {(point.tier, point.ranks) for point in inside} == {("server", 8)}
    assert inside[0].bytes == 1024 * 7 / 8


def test_the_name_of_the_file_says_what_ran_where_the_output_does_not(points):
    text = nccl_text(SMALL, 8, 8, program="")
    assert points("sendrecv_perf.log", text, UserFacts())[0].kind == "send-receive"
    with pytest.raises(InputError, match="does not say which program ran"):
        points("run.log", text, UserFacts())


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize("name", FILES)
def test_broken_output_is_one_sentence_or_still_output(name, points):
    rng, refused = np.random.default_rng(0), 0
    for _ in range(200):
        try:
            fit_points(points(name, changed(FILES[name].encode(), rng), BESIDE.get(name, ASKED)))
        except InputError:
            refused += 1
    assert 0 < refused < 200
