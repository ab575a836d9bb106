"""What is accounted to whom: latency behind messages, lags of tasks, what is drawn against what the tables say."""

import numpy as np
import pytest

from mfabric_jax.replay.replayed import at_a_tie, gain_rows, gains, path_rows, saved_rows, spans, spent
from mfabric_jax.tasks.critical import covered_s
from mfabric_jax.tasks.graph import Op, TaskKind, Tasks
from tests.replay.test_replay import NEAR, NIC, one


def two_ranks(**collective):
    """Both compute 1 s, then sum 100 GB."""
    tasks = Tasks(2, groups=((0, 1),))
    for rank in range(2):
        before = tasks.add(TaskKind.COMPUTE, rank, seconds=1.0)
        said = {"op": Op.ALL_REDUCE, "group": 0, "match": 0, "bytes": 100e9, "after": before}
        tasks.add(TaskKind.COLLECTIVE, rank, "sum", **said | collective)
    return tasks.graph()


def send_behind_a_lag():
    """Rank 0 waits 5 s, then sends what takes 1 s."""
    tasks = Tasks(2)
    tasks.add(TaskKind.SEND, 0, "late", bytes=NIC, peer=1, match=0, lag=5.0)
    tasks.add(TaskKind.RECV, 1, "there", peer=0, match=0)
    return tasks.graph()


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_latency_is_communication_however_many_chunks(chunks):
    done = one(two_ranks(), alpha_s=0.1, chunks=chunks)
    parts = spent(done)
    np.testing.assert_allclose(parts.compute_s, 1, rtol=1e-9)
    np.testing.assert_allclose(parts.exposed_comm_s, done.makespan_s - 1, rtol=1e-9)
    np.testing.assert_allclose(parts.idle_s, 0, atol=1e-9)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert held["latency"] == pytest.approx(0.2 if chunks == 1 else 0.1, **NEAR)
    assert "lag" not in held


def test_a_lag_of_a_task_is_no_communication():
    done = one(send_behind_a_lag(), alpha_s=0.25)
    parts = spent(done)
    np.testing.assert_allclose(parts.exposed_comm_s, 1.25, rtol=1e-9)
    np.testing.assert_allclose(parts.idle_s, 5, rtol=1e-9)
    held = {row["what"]: row["holds_s"] for row in gain_rows(done, gains(done))}
    assert held == pytest.approx({"nic down": 1, "latency": 0.25, "lag": 5}, **NEAR)


def test_what_a_step_without_bytes_waits_for():
    tasks = Tasks(2)
    first = tasks.add(TaskKind.MARKER, 0, "pause", lag=2.0)
    tasks.add(TaskKind.SEND, 0, "hello", bytes=0, peer=1, match=0, after=first)
    tasks.add(TaskKind.RECV, 1, "there", peer=0, match=0)
    steps = path_rows(one(tasks.graph(), alpha_s=0.1))
    assert [(row["name"], row["held_by"]) for row in steps] == [("pause", "lag"), ("hello", "latency")]


@pytest.mark.parametrize("chunks", [1, 3])
def test_what_is_drawn_covers_what_the_table_says(chunks):
    done = one(two_ranks(lag=0.5), alpha_s=0.1, chunks=chunks)
    drawn = [row for row in spans(done) if row["rank"] >= 0]
    begin, end, rank = (np.array([row[name] for row in drawn]) for name in ("begin_s", "end_s", "rank"))
    parts = spent(done)
    np.testing.assert_allclose(covered_s(begin, end, rank, 2), parts.compute_s + parts.exposed_comm_s, rtol=1e-12)
    np.testing.assert_allclose(parts.idle_s, 0.5, rtol=1e-9)
    waits = {row["latency_s"] for row in drawn if row["track"] != "compute"}
    assert max(waits) == pytest.approx(0.1, **NEAR)


def test_one_per_cent_more_is_run_again():
    """Both directions of a link at once: either alone would leave the other to hold the message."""
    done = one(send_behind_a_lag(), alpha_s=0.25)
    rows = saved_rows(done, gain_rows(done, gains(done)))
    saved = {row["what"]: row["saved_at_1_percent_s"] for row in rows}
    assert saved == pytest.approx({"nic down": 1 - 1 / 1.01, "latency": 0.0025, "lag": 0.05}, rel=1e-9)


def test_both_directions_of_a_link_hold_together():
    """Rank 0 sends to 1 and 2, which send to each other: NICs up and down are full at once, and who holds is a tie."""
    tasks = Tasks(3)
    for match, (rank, peer) in enumerate([(0, 1), (0, 2), (1, 2), (2, 1), (1, 0)]):
        tasks.add(TaskKind.SEND, rank, bytes=NIC, peer=peer, match=match)
        tasks.add(TaskKind.RECV, peer, peer=rank, match=match)
    done = one(tasks.graph())
    rows = gain_rows(done, gains(done))
    assert sum(row["holds_s"] for row in rows) == pytest.approx(done.makespan_s, **NEAR)
    assert len({row["what"].split()[0] for row in rows}) == len(rows)
    assert not at_a_tie(done, rows)
