"""What a replay prints: one unit a table, names that fit, steps in the order of time, ties that say so."""

from mfabric_jax.report.replay_text import TIE, makespan_text, path_text, runs_text, shorten


def step(number, seconds, name="send"):
    begin = number * 1e-3
    times = {"released_s": begin, "begin_s": begin, "finish_s": begin + seconds}
    return {"name": name, "rank": 0, "to": 1, "held_by": "latency"} | times


def test_the_longest_steps_are_in_the_order_of_time():
    text = path_text([step(n, 1e-6 * (n % 20 + 1)) for n in range(30)])
    heading, columns, _, *lines = text.splitlines()
    assert heading == "the 12 longest of 30 steps"
    assert "from [ms]" in columns
    assert "takes [ms]" in columns
    begins = [float(line.split()[3]) for line in lines]
    assert len(begins) == 12
    assert begins == sorted(begins)
    assert path_text([step(0, 1e-6)]).startswith("1 step\n")


def test_long_names_lose_their_middle():
    name = "autograd" * 40 + "end"
    assert len(shorten(name)) <= 40
    assert shorten(name).startswith("autograd")
    assert shorten(name).endswith("dautogradend")
    assert max(map(len, path_text([step(0, 1.0, name)]).splitlines())) < 100


def test_times_of_a_table_are_in_one_unit():
    row = {"fabric": "torus", "nic_gbps": 400.0, "servers": 2, "held_by": "nic up", "held_share": 0.5}
    text = runs_text([row | {"makespan_s": 3e-5, "compute_s": 6.22e-6, "exposed_comm_s": 2e-5, "idle_s": 0.0}])
    assert "makespan [us]" in text
    assert "6.22" in text
    assert "means over ranks" in text


def test_parts_that_hold_for_tiny_changes_only_say_so():
    rows = [
        {"what": "circuit", "links": 2, "holds_s": 3e-3, "saved_at_1_percent_s": -1e-5, "saved_per_100_gbps_s": 1.0}
    ]
    assert TIE in makespan_text(rows, 2e-3, True)
    assert "100 Gbps" not in makespan_text(rows, 2e-3, True)
    assert "150.0%" in makespan_text(rows, 2e-3, True)
    assert "100 Gbps more" in makespan_text(rows, 2e-3, False)
