"""200 drawn deployments, every part of a step beside plain Python."""

import pytest

from tests.apps.serving.drawn import drawn
from tests.oracles import serving as plain

CLOSE = 1e-7  # how often experts are taken is fitted, to some 1e-5 where a token's experts lie in one group
PARTS = ("attention_s", "experts_s", "beside_s", "dispatch_s", "combine_s", "step_s", "overlapped_s", "serial_s")


@pytest.mark.parametrize("block", range(10))
def test_steps_are_those_of_plain_python(block):
    for seed in range(20 * block, 20 * block + 20):
        deployed, numbers, (model, gpu, load, network) = drawn(seed)
        case, found = deployed.case, deployed.decoding(numbers)
        drafts = case.serving.drafts.tokens, case.serving.drafts.accepted
        told = plain.decode(
            *(model, gpu, load, network, numbers.batch, numbers.context),
            **{"drafts": drafts, "overlap": case.serving.overlap, "host_s": numbers.host_s},
        )
        for part in PARTS:
            assert float(getattr(found.step, part)) == pytest.approx(told[part], rel=CLOSE), (seed, part)
        for part, name in {"tpot_s": "tpot_s", "overlapped_s": "low_s", "serial_s": "high_s"}.items():
            assert float(getattr(found, part)) == pytest.approx(told[name], rel=CLOSE), (seed, part)
