"""A sweep on two Ray workers gives the rows of the plain engine, also where a worker is killed on the way."""

import os
import pathlib
import signal

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("ray")

from mfabric_jax.study import sweep
from tests.study.test_sweeps import exchanges, files_of

WORKERS = ("ray::Worker", "ray::IDLE Worker")


def workers():
    """Processes of our workers."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            name = path.read_bytes().split(b"\0")[0].decode()
        except OSError:
            continue
        if name.startswith(WORKERS):
            found.append(int(path.parent.name))
    return found


@pytest.mark.skipif(not pathlib.Path("/proc").exists(), reason="processes are found in /proc")
@pytest.mark.filterwarnings("ignore")
def test_two_workers_and_one_that_is_killed_make_the_rows_of_one_process(tmp_path):
    config = exchanges(grid={"sample": list(range(20)), "nic_gbps": [100.0, 200.0]})
    sweep(config, tmp_path / "plain")
    killed = []

    def kill_one(now):
        if now.done and not killed:
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    sweep(config, tmp_path / "ray", engine="ray", workers=2, progress=kill_one)
    assert killed
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "plain")
    assert len(files_of(tmp_path / "ray")) == 10
