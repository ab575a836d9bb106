"""Runs that are written to files, and the precision in which they are predicted."""

import json

import pytest

from tests.small import configured


@pytest.fixture
def double_precision():
    with configured(jax_enable_x64=True):
        yield


@pytest.fixture
def written(tmp_path):
    """Writes a run, hand-made or text, and gives its file."""

    def write(run, name="run.json"):
        file = tmp_path / name
        file.write_text(run if isinstance(run, str) else json.dumps(run), encoding="utf-8")
        return file

    return write


# ------------------------------------------------------------------------------------------------------- recorded runs
MB = 10**6
TREE = "fat-tree, 8 hosts, non-blocking"
LEAF_SPINE = "leaf-spine, 4 hosts, 2 ToR with 2 host ports and 1 uplinks"


def flow(src, dst, size=1, fct_s=0.01, **more):
    return {"src": src, "dst": dst, "bytes": size, "start": 0.0, "fct_s": fct_s, **more}


def run_of(flows, **changed):
    """A run at 1 GB/s, of which headers take a quarter."""
    return {
        "name": "hand-made",
        "topology": TREE,
        "transport": "own",
        "routing": "per-packet spraying",
        "link_bps": 8e9,
        "payload_per_packet": 3,
        "header_per_packet": 1,
        "collective_s": max((f["fct_s"] for f in flows), default=0.01),
        "flows": flows,
    } | changed
