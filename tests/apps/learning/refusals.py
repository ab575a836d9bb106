"""Mistakes in training and judging, each answered with one sentence; see `tests/test_refusals.py`."""

import functools

from mfabric_jax.apps.learning import Evaluation, Scoreboard, Training

UNNAMED = "for workload 'recorded', which workloads do not name, got zipf"
REFUSED = [
    (functools.partial(Training, routing="split"), "routing must be relay for a network, got 'split'"),
    (functools.partial(Training, sizes=()), "sizes must name at least one and none twice, got []"),
    (functools.partial(Training, varied=1.1), "varied must be at most 1, got 1.1"),
    (functools.partial(Training, checkpoint_every=75), "checkpoint_every must be a multiple of log_every 50, got 75"),
    (functools.partial(Scoreboard, policies=("gredy",)), "policy 'gredy' is unknown (did you mean 'greedy'?)"),
    (functools.partial(Scoreboard, workloads=("cold",)), "workloads 'cold' is unknown"),
    (functools.partial(Scoreboard, workloads=("recorded",)), "workloads 'recorded' needs trace, the recording"),
    (functools.partial(Scoreboard, axes="layer,expert"), f"axes is {UNNAMED}"),
    (functools.partial(Scoreboard, workloads=("zipf",), trace="none.npz"), f"trace is {UNNAMED}"),
    (functools.partial(Scoreboard, servers=(8, 8)), "servers must name at least one and none twice, got [8, 8]"),
    (functools.partial(Scoreboard, sigmas=(-1.0,)), "sigmas must be finite and not negative, got -1.0"),
    (functools.partial(Scoreboard, instances=0), "instances must be a whole number of at least 1, got 0"),
    (functools.partial(Evaluation, routings=("spray",)), "routings 'spray' is unknown"),
    (functools.partial(Evaluation, turn=0.1), "turn is of schedules; leave it out, got 0.1"),
    (functools.partial(Evaluation, scenarios=8), "scenarios is of policy sample-average; leave it out, got 8"),
    (functools.partial(Evaluation, records=(0, 4)), "records is of a trace; leave it out, got (0, 4)"),
    (
        functools.partial(Evaluation, routings=("split",), share_steps=9),
        "share_steps is of routings relay and relay-planned; leave it out, got 9",
    ),
    (
        functools.partial(Evaluation, sizes=(4, 5), trace="other.npz"),
        "sizes must divide the 16 ranks of a trace, got 5",
    ),
]
