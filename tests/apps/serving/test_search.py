"""The best pools of a fabric: every size against a search of its own, and what the command says."""

import csv

import pytest

from mfabric_jax.apps.serving import cheapest, fastest, pools, rows_within_limits, search
from mfabric_jax.apps.serving.rows import cached_deployment, serve
from mfabric_jax.apps.serving.search import TIE, sizes_of
from mfabric_jax.case import Case, cases
from mfabric_jax.evaluate.resolving import resolve
from tests.command_line import status
from tests.mistakes import refused

CASE = Case().with_(
    {"model.name": "deepseek-v3", "network.fabric": "fat-tree", "serving.tpot_ms": 50.0, "serving.by": "predicted"}
)


def prefill_of(row):
    """The settings of its pool that prefills."""
    return {f"serving.prefill.{name}": row[f"prefill_{name}"] for name in ("ep", "tokens", "overlap")}


def test_every_size_from_4_to_320_that_fits_gives_the_row_of_serve():
    rows = list(search(cases(CASE)))
    assert [row["ep"] for row in rows] == [4, *range(8, 257, 8)]
    for row in rows[3::12]:
        sized = CASE.with_({"serving.ep": row["ep"], **prefill_of(row)})
        assert row == next(serve(sized))
    assert list(search(cases(CASE), start=7)) == rows[7:]
    good = rows_within_limits(rows)
    assert {row["ep"] for row in rows} - {row["ep"] for row in good} == {4, 8}  # 168 and 84 GB of weights
    best, least = fastest(good), cheapest(good)
    assert all(row["tokens_per_s_per_gpu"] <= best["tokens_per_s_per_gpu"] for row in good)
    usd = [row["usd_per_million_tokens"] for row in good]
    assert min(usd) <= least["usd_per_million_tokens"] <= (1 + TIE) * min(usd)
    assert cheapest([{"usd_per_million_tokens": None}]) is None


def test_sizes_and_hardware_are_found_once_for_all_rows_of_a_case(monkeypatch):
    asked = CASE.with_({"serving.tpot_ms": 51.0, "network.nic_gbps": 391.0})  # of no other test
    checked, made = [], []
    check_size, hardware = pools.check_size, resolve._hardware
    monkeypatch.setattr(pools, "check_size", lambda *words: (checked.append(words[1]), check_size(*words)))
    monkeypatch.setattr(resolve, "_hardware", lambda *words: (made.append(words), hardware(*words))[1])
    rows = list(search(cases(asked)))
    assert max(map(checked.count, checked)) == 2  # to decode and to prefill
    assert len(made) <= len({row["ep"] for row in rows}) + 2  # a server and its part are one


def test_prefill_takes_the_size_that_is_fastest_of_those_that_hold_the_weights():
    (size,) = {row["prefill_ep"] for row in search(cases(CASE))}
    seconds = {}
    for ep in sizes_of(CASE):
        deployed = cached_deployment(CASE.with_({"serving.ep": ep}))
        if deployed.prefill_bytes < 80e9:
            seconds[ep] = float(deployed.prefilling(400.0).step_s)
    assert size == min(seconds, key=seconds.get)
    assert min(seconds) == 16
    stated = next(search(cases(CASE.with_({"serving.prefill.ep": 64}))))
    assert stated["prefill_ep"] == 64


def test_only_sizes_that_fabric_model_and_kernels_have_room_for_are_tried():
    assert sizes_of(CASE.with_({"serving.kernels": "nvlink-one-sided"})) == (4, 8)
    assert sizes_of(CASE.with_({"serving.tp": 8})) == tuple(range(8, 257, 8))
    assert sizes_of(CASE.with_({"model.name": "mixtral-8x7b"})) == (4, 8)
    assert 72 not in sizes_of(CASE.with_({"network.fabric": "nvl72"}))  # 64 of its GPUs
    copied = CASE.with_({"serving.redundant_experts": 32})
    assert sizes_of(copied) == (4, 8, 16, 24, 32, 48, 72, 96, 144, 288)  # that divide 288
    assert 320 in sizes_of(CASE.with_({"serving.redundant_experts": 64}))
    assert "none of 4 to 320 GPUs" in refused(sizes_of, CASE.with_({"serving.tp": 7}))


def test_sizes_that_a_fabric_cannot_join_are_left_out_and_what_it_refuses_is_refused():
    """Twisted tori up to 40 servers have 16 or 32."""
    assert sizes_of(CASE.with_({"network.fabric": "twisted-torus"})) == (128, 256)
    for path, value in (("network.oversubscription", 3.0), ("network.radix", 5), ("network.paths", "ecmp")):
        asked = CASE.with_({"network.fabric": "full-mesh", path: value})
        assert path in refused(sizes_of, asked)
        assert path in refused(lambda asked=asked: next(serve(asked)))


def test_prefill_is_searched_among_the_sizes_of_its_own_kernels():
    """In servers of 8 H200, whose memory holds an eighth of the model."""
    inside = CASE.with_({"gpu.name": "H200-SXM", "serving.prefill.kernels": "nvlink-one-sided"})
    rows = list(search(cases(inside)))
    assert {row["prefill_ep"] for row in rows} == {8}
    assert max(row["ep"] for row in rows) == 256
    assert len(rows) == 33


FABRICS = "fat-tree", "full-mesh"


def good_rows(rows, fabric):
    """The rows of a fabric that fit and are in time."""
    own = [row for row in rows if row["fabric"] == fabric and row["fits"] == "True"]
    return [row for row in own if float(row["tpot_high_s"]) <= 0.05]


@pytest.mark.usefixtures("command_line")
def test_the_command_shows_the_best_of_every_fabric(tmp_path, capsys):
    out = tmp_path / "rows.csv"
    words = "--tpot-ms", 50, "--fabrics", "fat-tree,full-mesh", "--out", out
    assert status("serve", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    with out.open(encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    assert f"{len(rows)} set-ups were tried" in "\n".join(lines)
    usd = {name: [float(row["usd_per_million_tokens"]) for row in good_rows(rows, name)] for name in FABRICS}
    (repeat,) = [line for line in lines if line.startswith("To repeat ")]
    command = lines[lines.index(repeat) + 1]
    least = "fat-tree"
    assert min(usd["full-mesh"]) < min(usd[least])  # without links between groups, so it does not rank
    (best,) = [row for row in good_rows(rows, least) if float(row["usd_per_million_tokens"]) == min(usd[least])]
    assert f"on {least} " in repeat
    assert command.startswith("mfabric serve ")
    assert f" --fabric {least} --ep {best['ep']} --batch {float(best['batch']):g} " in command
    for name in FABRICS:
        (line,) = [line.split() for line in lines if line.startswith(f"{name} ")]
        assert float(line[-1]) == pytest.approx(min(usd[name]), rel=0.005)
    assert status("serve", *words, "--all-columns") == 0
    lines = capsys.readouterr().out.splitlines()
    for name in FABRICS:
        best = max(good_rows(rows, name), key=lambda row: float(row["tokens_per_s_per_gpu"]))
        (said,) = [line for line in lines if line.startswith(f"deepseek-v3 on {name}: ")]
        assert f"{float(best['tokens_per_s_per_gpu']):,.0f} with ep {best['ep']}, " in said
    shown = [line.split()[:2] for line in lines if line.startswith(("fat-tree ", "full-mesh "))]
    assert len({tuple(words) for words in shown if words[1].isdigit()}) >= 2
    assert status("serve", "--tpot-ms", 2, "--fabric", "fat-tree") == 0
    late = capsys.readouterr().out
    assert "no size that fits in memory keeps to 2 ms" in late
    assert "Cheapest" not in late
    assert status("serve", "--tpot-ms", 100, "--ep", 32, "--fabric", "fat-tree", "--rate", 30) == 0
    printed = capsys.readouterr().out
    assert "set-ups were tried" not in printed
    assert "decode  prefill" in printed


def test_both_ways_of_overlap_are_tried_unless_one_is_stated():
    """Few tokens in a step: two micro-batches would read the weights of all experts twice."""
    case = CASE.with_({"serving.tpot_ms": 40.0, "serving.prefill.ep": 32})

    def best(ep, **said):
        return next(serve(case.with_({"serving.ep": ep} | {f"serving.{name}": value for name, value in said.items()})))

    for ep in (16, 32):
        ways = {way: best(ep, overlap=way) for way in (True, False)}
        fast = max(rows_within_limits(ways.values()), key=lambda row: row["tokens_per_s_per_gpu"])
        found = best(ep)
        assert (found["overlap"], found["batch"]) == (fast["overlap"], fast["batch"])
        assert found["prefill_overlap"] is True  # of its own
    assert not best(16)["overlap"]
    assert best(16, tpot_ms=2.0)["tpot_s"] == min(best(16, tpot_ms=2.0, overlap=way)["tpot_s"] for way in (True, False))


def test_a_pass_is_as_short_as_the_first_token_needs():
    found = {}
    for limit in (None, 1000.0, 1.0):
        row = next(search(cases(CASE.with_({"serving.load.ttft_ms": limit})), start=3))
        found[limit] = row
        assert row["ttft_limit_s"] == (None if limit is None else pytest.approx(limit / 1000))
        assert bool(rows_within_limits([row])) == (limit != 1.0)
    assert found[None]["prefill_tokens"] == 8192
    assert found[None]["ttft_s"] > 1.0 >= found[1000.0]["ttft_s"]
    assert found[1000.0]["prefill_tokens"] < 8192
    assert found[1000.0]["prefill_gpus"] >= found[None]["prefill_gpus"]
    stated = next(search(cases(CASE.with_({"serving.prefill.tokens": 2000, "serving.prefill.overlap": False}))))
    assert (stated["prefill_tokens"], stated["prefill_overlap"]) == (2000, False)


def test_the_slower_end_keeps_to_the_time_where_that_is_asked():
    usual, slow = (next(serve(CASE.with_({"serving.ep": 32, "serving.by": by}))) for by in ("predicted", "high"))
    assert usual["tpot_s"] <= 0.05 < usual["tpot_high_s"]
    assert slow["tpot_high_s"] <= 0.05
    assert rows_within_limits([usual]) == [usual]
    assert rows_within_limits([usual | {"by": "high"}]) == []
    assert rows_within_limits([slow]) == [slow]
    more = next(serve(CASE.with_({"serving.ep": 32, "serving.tpot_ms": None, "serving.batch": slow["batch"] + 1})))
    assert more["overlap"] != slow["overlap"] or more["tpot_high_s"] > 0.05
