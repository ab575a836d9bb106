"""Mistakes in files of packet-level runs, each answered with one sentence; see `tests/test_refusals.py`."""

import functools
import json
import pathlib
import tempfile

from mfabric_jax.apps import validation
from mfabric_jax.apps.validation.packets import read_run
from tests.apps.validation.conftest import LEAF_SPINE, flow, run_of

FLOW = flow(0, 1)


def read(run):
    """Reads a run, hand-made or text, from a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.json"
        file.write_text(run if isinstance(run, str) else json.dumps(run), encoding="utf-8")
        return read_run(file)


def empty_folder():
    with tempfile.TemporaryDirectory() as folder:
        return validation.read_runs(folder)


def of(flows, **changed):
    """The reading of a run of these flows."""
    return functools.partial(read, run_of(flows, **changed))


REFUSED = [
    (empty_folder, "no .json file in"),
    (lambda: validation.read_runs("nowhere"), "runs must be a folder of packet-level runs (.json), got 'nowhere'"),
    (lambda: read("[]"), "run.json' must hold a packet-level run by name, got []"),
    (lambda: read({"topology": "fat-tree, 8 hosts, non-blocking"}), "run.json: the field 'flows' is missing"),
    (of([]), "run.json: flows must not be empty"),
    (lambda: read(run_of([FLOW]) | {"flows": [3]}), "run.json, flow 0 must be a JSON object with named fields, got 3"),
    (of([FLOW], topology="ring of 8 hosts"), "run.json: topology must say 'N hosts'"),
    (of([FLOW], topology=LEAF_SPINE.replace("4 hosts", "5 hosts")), "run.json: topology must have hosts ="),
    (of([FLOW], link_bps=0), "run.json: link_bps must be finite and above 0, got 0"),
    (of([FLOW], link_bps=True), "run.json: link_bps must be a number, got True"),
    (of([FLOW], transport=1), "run.json: transport must be text, got 1"),
    (of([FLOW, flow(0, 8)]), "run.json, flow 1: dst must lie in 0..7, got 8"),
    (of([FLOW, flow(2, 2)]), "run.json, flow 1: dst must be another host than src, 2"),
    (of([FLOW | {"start": 1.0}]), "run.json, flow 0: fct_s must come after start"),
    (of([flow(0, 1, path="SRC0>T0"), FLOW]), "run.json: path must be given for every flow or none"),
    (of([flow(0, 1, path="SRC1>T0")]), "run.json, flow 0: path must be different nodes"),
]
