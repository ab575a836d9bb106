"""Sentences that refuse degrees name the rule, and values that pass."""

import re

import numpy as np

from tests.evaluate.resolving.open_jobs import refused


def test_a_refusal_names_the_rule_and_values_that_pass():
    stage = "a pipeline stage fills whole servers of 8 GPUs, so gpus must be a multiple of pp x 8 = "
    assert refused(tp=1, pp=4, ep=2, gpus=8) == (
        f"no set-up has tp 1, ep 2, pp 4, gpus 8: {stage}32; pp 1 or gpus 32 or 64 would do."
    )
    assert (
        refused(pp=2, ep=4, gpus=8) == f"no set-up has ep 4, pp 2, gpus 8: {stage}16; pp 1 or gpus 16 or 32 would do."
    )
    assert "a pipeline stage fills whole servers, so tp x ep x dp must be a multiple of 8 GPUs" in refused(
        tp=1, ep=1, dp=1
    )
    assert "gpus must be a multiple of tp x ep x pp x dp" in refused(tp=2, ep=8, gpus=8)
    assert "micro_batches must be a multiple of the" in refused(
        gpus=64, pp=4, schedule="interleaved", chunks=2, micro_batches=6
    )


def test_every_refusal_has_a_rule_and_what_it_suggests_passes():
    random = np.random.default_rng(5)
    choices = {"tp": (1, 2, 3, 16), "ep": (1, 2, 3, 8, 16), "pp": (1, 2, 4, 7, 9), "dp": (1, 2, 5)}
    choices |= {"gpus": (8, 12, 16, 24, 100)}
    refusals = suggestions = 0
    for _ in range(150):
        stated = {name: int(random.choice(values)) for name, values in choices.items() if random.random() < 0.6}
        sentence = refused(micro_batches=8, **stated)
        if sentence is None:
            continue
        refusals += 1
        assert " must " in sentence, sentence
        if sentence.startswith("no set-up has"):
            for name, values in re.findall(r"(tp|ep|pp|dp|gpus) (\d+(?: or \d+)*)", sentence.partition("; ")[2]):
                for value in values.split(" or "):
                    suggestions += 1
                    assert refused(micro_batches=8, **stated | {name: int(value)}) is None, (sentence, name, value)
    assert min(refusals, suggestions) > 50
