"""What is told of measured times that cannot be read or fitted."""

import functools
import json
import pathlib
import tempfile

from mfabric_jax.apps.recordings.measurements import UserFacts, fit_points, points_of, read_times, write_measured
from mfabric_jax.apps.recordings.measurements.placed import Point
from mfabric_jax.apps.recordings.measurements.times import MeasuredTime, Report
from tests.apps.recordings.measurements.samples import FILES, HEADER, nccl_json, nccl_text

ROW = "  1024  256  float  none  -1    30.00    0.03    0.03       0    31.00    0.03    0.03     N/A"


def text(name, content, ranks=None):
    """A file with this content."""

    def read():
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            return read_times(path, ranks)

    return read


def nccl(row, name="alltoall.txt"):
    return text(name, HEADER + row)


def told(change):
    """JSON of nccl-tests with a change."""
    value = json.loads(nccl_json([(1024, (1e-5, 1e-5))], 4, 4))
    change(value)
    return text("run.json", json.dumps(value))


def report(asked, kind="all-to-all", **known):
    """A report with one time, asked for as this."""
    times = (MeasuredTime(kind, 1e6, 1e-3),)
    return functools.partial(
        points_of, [Report(file="f", tool="t", program="p", times=times, **known)], UserFacts(*asked)
    )


GROWING = [Point("across", "all-to-all", 16, size, 1e-4 + size / 50e9) for size in (1e3, 1e6, 1e9)]
REFUSED = [
    # files
    (lambda: read_times("nowhere.txt"), "cannot read 'nowhere.txt' (No such file", "nccl-tests as text or JSON"),
    (text("a.txt", "words"), "must be output of a known tool", "osu_alltoall"),
    (text("a.txt", b"\xff\xfe"), "is not text in UTF-8, from byte 0 on."),
    (text("a.txt", HEADER + ROW), "does not say which program ran", "alltoall_perf"),
    (text("all_reduce.txt", HEADER), "is output of nccl-tests but holds no measured time"),
    (nccl(" ".join(ROW.split()[:6])), "alltoall.txt, line 5: a row must have the columns of line 3, got 6 words."),
    (nccl(ROW.replace("30.00", "fast")), "line 5: time must be a number, got 'fast'."),
    (nccl(ROW.replace("30.00", "-3.00")), "line 5: seconds must be finite and above 0, got -3"),
    (nccl(ROW.replace("30.00", "60.00")), "line 5: algbw must be size over time, 0.01707 GB/s, got '0.03'."),
    (nccl(ROW.replace("     0  ", "     4  ")), "#wrong must be 0 or N/A, got '4'; data arrived corrupted"),
    (nccl(ROW.rpartition(" ")[0]), "alltoall.txt, line 5: a row must have the columns of line 3, got 12 words."),
    (
        text("all_reduce.txt", HEADER.replace("    time", " cputime") + ROW),
        "line 3: the table must have the column size",
    ),
    (text("all_reduce.txt", HEADER.replace("size         count", "bytes            N") + ROW), "got bytes, N, type"),
    (text("a.txt", FILES["older.txt"].replace("2e-06", "5e-02")), "line 6: error must be at most 0.01, got '5e-02'"),
    (nccl("node3 | " + ROW), "line 5: a row must begin with its size, got 'node3 |   1024"),
    (text("alltoall.txt", ROW + "\n" + HEADER + ROW), "line 1: a row must stand below the header of its table"),
    (text("a.json", "{"), "a.json is not JSON"),
    (told(lambda v: v.pop("results")), "run.json: results must be a list, got None."),
    (told(lambda v: v["results"][0].update(size="1K")), "run.json, result 0: size must be a whole number, got '1K'."),
    (
        told(lambda v: v["config"].update(ngpus=0)),
        "run.json, config: ngpus must be a whole number of at least 1, got 0",
    ),
    (told(lambda v: v["config"]["devices"][0].pop("hostname")), "run.json, device 0: hostname must be text, got None."),
    (
        told(lambda v: v["results"][0]["out_of_place"].update(cpu_time=1.0)),
        "run.json, result 0, out_of_place must have time, got cpu_time; measure without -C.",
    ),
    (text("osu.txt", FILES["osu.txt"]), "does not state the number of ranks; give --ranks."),
    (text("osu.txt", FILES["osu.txt"].replace("Pass", "Fail"), 4), "line 5: Validation must be Pass, got 'Fail'"),
    (text("osu.txt", FILES["osu_v.txt"].replace("35.10", ""), 4), "a row must have a size and a latency, got '4096'."),
    (
        text("osu.txt", FILES["osu.txt"].replace("All-to-All P", "Non-blocking All-to-All P"), 4),
        "line 2: 'MPI Non-blocking All-to-All Personalized Exchange Latency Test v7.5' is not read",
    ),
    (
        text("osu.txt", FILES["osu.txt"].replace("Avg Lat", "Overall Lat"), 4),
        "the column after Size must be Avg",
    ),
    (text("w.txt", FILES["write_bw.txt"].replace("average[MiB", "average[MoB")), "in one of [Gb/sec], [MiB/sec]"),
    (text("w.txt", FILES["write_bw.txt"].replace("46900.00", "0.00")), "BW average must be above 0, got '0.00'."),
    (text("w.txt", FILES["write_bw.txt"].replace("0.005863", "")), "line 7: a row must have 5 columns, got 4."),
    (text("w.txt", FILES["write_lat.txt"].replace("t_typical", "t_mean")), "have a column BW average or t_typical"),
    (text("d.txt", FILES["normal.txt"] + FILES["inside.txt"]), "has times inside a server and times between servers"),
    (text("d.txt", FILES["inside.txt"].replace("153.00", "")), "line 2: a best result must say GB/s and us, got"),
    (
        text("d.txt", FILES["low_latency.txt"].replace("75.28 GB", "**75.28 GB")),
        "a direction must say its GB/s and avg_t",
    ),
    (
        text("d.txt", FILES["elastic.txt"].replace("2 x 8", "4 x 8")),
        "line 5: EP must have the 4 x 8 ranks stated above, got 16.",
    ),
    (text("d.txt", FILES["elastic.txt"].replace("2 x 8", "1 x 16")), "line 5: SO must be 0 in one server, got '90'."),
    (
        text("all_reduce.txt", nccl_text([], 4, 4) + ROW, 8),
        "was measured with 4 ranks; omit or correct --ranks, got 8.",
    ),
    (text("all_reduce.txt", nccl_text([], 5, 4) + ROW), "ranks must be a multiple of its 2 servers, got 5."),
    # where they were measured
    (report(["rack"]), "tier 'rack' is unknown; allowed: server, leaf, across."),
    (report(["across"], ranks=8, servers=1), "was measured inside one server; tier must be server, got 'across'."),
    (
        report(["server"], ranks=16, servers=2),
        "was measured between servers; tier must be leaf or across, got 'server'.",
    ),
    (report([], ranks=16, servers=2), "does not state where it was measured; give --tier leaf or across."),
    (report([None, 8, None]), "does not state where it was measured; give --tier server or leaf or across."),
    (report(["server"], nics=True), "which measures NICs; tier must be leaf or across, got 'server'."),
    (report(["across"]), "f does not state the number of ranks; give --ranks."),
    (report(["across", 16]), "f does not state how many ranks share a server; give --gpus-per-server."),
    (report(["across", 16, 3]), "gpus_per_server must divide the 16 ranks of f, got 3."),
    (report(["across", None, 4], ranks=16, servers=2), "has 8 ranks per server; omit or correct --gpus-per-server"),
    (report(["server", 1]), "1 ranks send nothing inside one server"),
    # fits
    (
        lambda: fit_points([point._replace(seconds=1 / point.bytes) for point in GROWING]),
        "times of all-to-all between servers of several leaf switches must grow with bytes",
    ),
    (
        lambda: write_measured(fit_points(GROWING), "own.json", 200),
        "nic_gbps must be at least the 400 Gbps that all-to-all across (16 ranks) reached, got 200",
    ),
    (lambda: write_measured(fit_points(GROWING), "own.toml"), "out 'own.toml': extension '.toml' is unknown"),
]
