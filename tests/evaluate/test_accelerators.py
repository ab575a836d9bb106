"""What accelerators run, on the CPU: the same batches as programs of as many cases as devices hold."""

import pytest

from mfabric_jax import cases, simulate
from mfabric_jax.evaluate import arranged, asking, solving
from tests.small import small

SMALL = {"traffic.drawn": 1, "run.iterations": 2, "job.batch.micro_batches": 2}
WORK = {
    "links": {"network.fabric": "fat-tree"},
    "circuits of the demand alone": {"network.fabric": "mfabric", "circuits.policy": "greedy"},
    "where it pays": {"network.fabric": "mfabric", "circuits.reconfigure": "pays", "circuits.delay_s": 1e-3},
    "with memory": {"network.fabric": "mfabric", "circuits.policy": "previous", "circuits.routing": "split"},
    "at the bound": {"network.fabric": "mfabric", "circuits.reconfigure": "bound"},
}


@pytest.mark.parametrize("what", WORK)
def test_programs_of_an_accelerator_give_the_rows_of_a_cpu(what, monkeypatch):
    asked = cases(small(SMALL | WORK[what]), {"network.nic_gbps": [100, 400]})
    want = simulate(asked).rows()
    for module in (arranged, asking, solving):
        monkeypatch.setattr(module, "platform", lambda: "an accelerator")
    for one, other in zip(simulate(asked).rows(), want, strict=True):
        for column, value in other.items():
            found = one[column]
            if isinstance(value, float):
                assert found == pytest.approx(value, rel=1e-9, abs=1e-12), column
            else:
                assert found == value, column
