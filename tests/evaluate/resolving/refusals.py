"""Sentences that refuse degrees which no set-up has."""

from tests.evaluate.resolving.open_jobs import EIGHT, FINE, choose_quickly


def fine(**stated):
    """A set-up of a model of many experts."""
    return lambda: choose_quickly(FINE, **stated)


REFUSED = [
    (fine(gpus=250), "gpus 250: gpus must fill whole servers of 8; gpus 248 or 256 would do"),
    (fine(ep=48), "no set-up has ep 48: ep must divide the 64 experts; ep 64 would do."),
    (
        fine(gpus=512, global_batch=1000, tp=1, pp=1),
        "no set-up with tp 1, pp 1, gpus 512 divides global_batch 1000; 512 or 1024 would do",
    ),
    (fine(cp=3), "cp 3 must divide ep and the 4096 tokens of a sequence"),
    (
        fine(tp=8, etp=1, ep=4, gpus=64),
        "no set-up has tp 8, etp 1, ep 4, gpus 64: cp x tp / etp = 8 must divide ep and the 4096 tokens of a sequence",
        "; tp 4 or etp 2 or ep 8 would do.",
    ),
    (lambda: choose_quickly(EIGHT, gpus=64, pp=3), "multiple of tp x ep x pp x dp; pp 4 or gpus 48 or 96 would do."),
    (lambda: choose_quickly(EIGHT, gpus=64, schedule="dualpipe", pp=1), "pp must be even under schedule 'dualpipe'"),
]
