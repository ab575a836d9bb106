"""Output of measuring tools, made up in the form that each tool writes."""

import json

import numpy as np

ROWS = range(10, 34)  # powers of two of bytes
GPU = "NVIDIA H100 80GB HBM3"
HEADER = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def nccl_times(alpha_s, bytes_per_s, share, noise, seed):
    """(size, two times) of a cluster of this latency and bandwidth, of which a share of a size crosses a port."""
    rng = np.random.default_rng(seed)
    for size in (2**power for power in ROWS):
        yield size, (alpha_s + size * share / bytes_per_s) * rng.lognormal(0, noise, 2)


def nccl_text(times, ranks, per_server, program="alltoall_perf", hosts=True):
    """What a program of nccl-tests prints."""
    lines = [f"# Collective test starting: {program}"] if program else []
    if hosts:
        lines += [
            f"#  Rank {rank:2} Group  0 Pid {9000 + rank:6} on  node{rank // per_server:03} device "
            f"{rank % per_server:2} [0000:1b:00] {GPU}"
            for rank in range(ranks)
        ]
    lines += HEADER.splitlines()
    for size, both in times:
        cells = [f"{s * 1e6:7.2f}  {size / s / 1e9:6.2f}  {size / s / 1e9:6.2f}  " for s in both]
        lines.append(f"{size:12}  {size // 4:12}     float    none      -1  {cells[0]}     0  {cells[1]}   N/A")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 63.1", "#", ""])


def nccl_json(times, ranks, per_server, program="all_reduce_perf"):
    """What a program of nccl-tests writes: a process for each GPU."""
    devices = [{"rank": rank, "hostname": f"node{rank // per_server}"} for rank in range(ranks)]
    body = [{"time": s * 1e6, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0.0} for _, both in times for s in both]
    results = [
        {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "-1"}
        | {"out_of_place": body[2 * at], "in_place": body[2 * at + 1]}
        for at, (size, _) in enumerate(times)
    ]
    config = {"nthreads": 1, "ngpus": 1, "devices": devices}
    told = {"version": 2, "args": [f"./build/{program}", "-b", "1K"], "env": [], "config": config, "results": results}
    return json.dumps(told)


PER_ITERATION = """# Collective test starting: reduce_scatter_perf
#       size  count  type  redop  root  time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%  time algbw busbw #wrong
   1048576   4096 float    sum    -1  30.0   34.9   30.6      0  29.0  33.0  32.0  2.1  31.0  33.8  29.6  0  1  1  1  1
"""
OSU = """
# OSU MPI All-to-All Personalized Exchange Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations  Validation
1024                   30.00             29.00             31.00        1000        Pass
1048576               700.50            699.00            702.00         100        Pass
"""
OLDER = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# all_reduce_perf
#                                                       out-of-place                       in-place
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum    500.0    2.10    3.93  2e-06    510.0    2.06    3.86  2e-06
     2097152        524288     float     sum    900.0    2.33    4.37  2e-06    910.0    2.30    4.32  2e-06
# Out of bounds values : 0 OK
"""
OLDER_BLANK = """# alltoall_perf
#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576         16384     float             500.0    2.10    1.97  0e+00    510.0    2.06    1.93  1e+00
"""
IN_PLACE_ALONE = """# Collective test starting: all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
     1048576        262144     float     sum      -1                                     500.0    2.10    3.93       0
"""
AT_A_TIME = """# Collective test starting: all_reduce_perf
#       size    count    type  redop  root   time  algbw  busbw  #wrong   time  algbw  busbw  #wrong           timestamp
     1048576   262144   float    sum    -1  500.0   2.10   3.93       0  510.0   2.06   3.86       0 2026-03-01 10:20:30
"""
OSU_V = """# OSU NCCL All-to-Allv Personalized Exchange Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
4096                   35.10
"""
WRITE_BW = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Number of qps   : 1            Transport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      5000             46875.00            46875.00             0.750000
 8388608    5000             47000.00            46900.00             0.005863
---------------------------------------------------------------------------------------
"""
BOTH_WAYS = """                    RDMA_Write Bidirectional BW Test
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             790.00             784.00               1.4954
"""
WRITE_BW_JSON = """{
"test_info": {
"test": "RDMA_Write_Bidirectional_BW_Test",
"Dual_port": "OFF",
"Device": "mlx5_0",
"Number_of_qps": 1
},
"results": {
"MsgSize": 65536,
"n_iterations": 5000,
"BW_peak": 790.00,
"BW_average": 784.00,
"MsgRate": 1.495361
}
}
"""
WRITE_LAT_JSON = """{
"test_info": {"test": "RDMA_Write_Latency_Test", "Device": "mlx5_0"},
"results": {"MsgSize": 2, "n_iterations": 1000, "t_min": 1.90, "t_max": 5.10, "t_typical": 2.00, "t_avg": 2.01}
}
"""
WRITE_LAT = """                    RDMA_Write Latency Test
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99%   99.9%
 2       1000          1.90           5.10         2.00             2.01             0.05           2.2   4.9
 65536   1000          3.30           7.10         3.40             3.41             0.07           3.6   6.9
"""
LOW_LATENCY = """Allocating buffer size: 2116.29 MB ...
[rank 0] Dispatch + combine bandwidth: 71.22 GB/s, avg_t=313.00 us, min_t=310.00 us, max_t=320.00 us
[rank 0] Dispatch bandwidth: 64.29 GB/s, avg_t=118.00 us | Combine bandwidth: 75.28 GB/s, avg_t=195.00 us
[rank 1] Dispatch bandwidth: 64.80 GB/s, avg_t=117.00 us | Combine bandwidth: 75.66 GB/s, avg_t=194.00 us
[rank 0] Dispatch send/recv time: 12.00 + 10.00 us | Combine send/recv time: 11.00 + 12.00 us
"""
NORMAL = """[config] num_tokens=4096, hidden=7168, num_topk_groups=4, num_topk=8
[tuning] SMs 24, NVL chunk 4, RDMA chunk 4: 30 + 900 us, 52.00 GB/s (RDMA), 170.00 GB/s (NVL)
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, RDMA chunk 16: 30 + 812 us, 57.10 GB/s (RDMA), 186.4 GB/s (NVL)
[tuning] Best dispatch (BF16): SMs 24, NVL chunk 20, RDMA chunk 16, transmit: 1600.00 us, notify: 31.00 us, \
BW: 57.20 GB/s (RDMA), 186.4 GB/s (NVL)
[tuning] Best combine: SMs 24, NVL chunk 2, RDMA chunk 16, 32.00 + 1650.00 us, 56.00 GB/s (RDMA), 180.1 GB/s (NVL)
"""
INSIDE = """[config] num_tokens=4096, hidden=7168, num_topk=8
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, 153.00 GB/s (NVL), t: 1000.00 us
[tuning] Best combine: SMs 24, NVL chunk 8: 158.00 GB/s (NVL), t: 1900.00 us
"""
ELASTIC = """Config:
 > Ranks: 2 x 8
 > Experts: 8/256
 > Tokens: 8192 (max: 8192), hidden: 7168
   * EP:   3/16 | dispatch: 90 GB/s (SO), 118 GB/s (SU), 1300.120 us, 153414160 bytes | copy: 1900 GB/s, 88.300 us
   @ EP:   3/16 | combine: 81 GB/s (SO), 120 GB/s (SU), 2600.500 us, 312060000 bytes | reduce: 1700 GB/s, 90.300 us
   + EP:   3/16 | reduced combine: 80 GB/s (SO), 119 GB/s (SU), 2650.000 us, 315350000 bytes | reduce: 1 GB/s, 2.0 us
"""


def low_latency(times):
    """What DeepEP's low-latency test prints: one line for each (dispatch, combine) in seconds."""
    dispatch, combine = LOW_LATENCY_BYTES
    return "".join(
        f"[rank {at}] Dispatch bandwidth: {dispatch / out / 1e9:.2f} GB/s, avg_t={out * 1e6:.2f} us | "
        f"Combine bandwidth: {combine / back / 1e9:.2f} GB/s, avg_t={back * 1e6:.2f} us\n"
        for at, (out, back) in enumerate(times)
    )


LOW_LATENCY_BYTES = 128 * 8 * (7168 + 7168 / 128 * 4 + 16), 128 * 8 * 7168 * 2  # 128 tokens to 8 experts, FP8 and BF16
SMALL = list(nccl_times(20e-6, 40e9, 0.75, 0.0, 0))[:6]
FILES = {
    "all_gather.txt": nccl_text(SMALL, 16, 8, "all_gather_perf"),
    "reduce_scatter.txt": PER_ITERATION,
    "all_reduce.json": nccl_json(SMALL, 16, 8),
    "older.txt": OLDER,
    "older_blank.txt": OLDER_BLANK,
    "in_place_alone.txt": IN_PLACE_ALONE,
    "at_a_time.txt": AT_A_TIME,
    "osu.txt": OSU,
    "osu_v.txt": OSU_V,
    "write_bw.txt": WRITE_BW,
    "both_ways.txt": BOTH_WAYS,
    "write_lat.txt": WRITE_LAT,
    "both_ways.json": WRITE_BW_JSON,
    "write_lat.json": WRITE_LAT_JSON,
    "low_latency.txt": LOW_LATENCY,
    "normal.txt": NORMAL,
    "inside.txt": INSIDE,
    "elastic.txt": ELASTIC,
}
