"""A row that reconfigurations dominate says so, on every fabric whose circuits change; its advice can be followed."""

import re

import pytest

from mfabric_jax import cases, fabric, simulate
from mfabric_jax.case.layers import load
from mfabric_jax.commands import shared
from mfabric_jax.report import remarks

SMALL = {"model.name": "mixtral-8x22b", "model.blocks": 4, "job.parallel.gpus": 128}
SMALL |= {f"job.parallel.{name}": degree for name, degree in (("tp", 8), ("ep", 8), ("pp", 2))}
SMALL |= {"job.batch.micro_batches": 2, "circuits.delay_s": 2.0}
CHANGING = [name for name in fabric.NAMES if fabric.get(name).reconfigures or fabric.get(name).phases]


def case_on(name, **more):
    return load(preset="paper", changes=SMALL | {"network.fabric": name} | more)


def warned(case):
    rows = list(simulate(cases(case)).rows())
    return rows, [words for words in remarks(rows) if "waits for the optical switch" in words]


@pytest.mark.parametrize("name", CHANGING)
def test_every_fabric_whose_circuits_change_warns_of_a_slow_switch(name):
    case = case_on(name)
    (row,), words = warned(case)
    if not row["reconfig_s"]:  # its groups are inside one domain
        assert not words
        return
    assert len(words) == 1
    for setting in re.findall(r"--set (\S+?)=(\w+)", words[0]):
        case = case.with_(dict([setting]))
    (again,), words = warned(case)
    assert not words if case != case_on(name) else shared.changes_of(case) == "phases"
    assert again["reconfig_s"] <= row["reconfig_s"]
