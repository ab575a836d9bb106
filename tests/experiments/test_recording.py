"""Traffic of the experiments: recorded where a recording is given, else generated and said to be."""

import numpy as np

from experiments.recording import ITERATIONS, KNOBS, MODEL, Source, resolved, titled, traffic_of
from mfabric_jax import traffic, workload


def test_a_recording_is_read_as_it_is_and_without_one_traffic_is_generated(tmp_path):
    job, trace = workload.get(MODEL), str(tmp_path / "tokens.npy")
    np.save(trace, np.random.default_rng(0).integers(1, 9, (5, 2, 1, 16, 32)))
    share = np.load(trace) / np.load(trace).sum(-1, keepdims=True)
    for source, first, last in ((Source(trace), 0, 5), (Source(trace, (1, 3)), 1, 4), (Source(trace, None, 2), 0, 2)):
        count = source.tokens(seed=1).count
        np.testing.assert_allclose(count[:, :2] / job.selections, share[first:last], rtol=1e-12)
        assert resolved(source) == {"traffic": "recorded"}
    source = Source(iterations=2)
    count = source.tokens(seed=1).count
    assert count.shape == (2, job.moe_layers, 4, job.ep, job.architecture.experts)
    np.testing.assert_array_equal(count, traffic.from_knobs(job, KNOBS, 2, 4, 1).count)
    assert (count[0].sum((1, 2)) != count[1].sum((1, 2))).any()
    assert (count != source.tokens(seed=2).count).any()
    assert resolved(source) == {"traffic": "generated", "knobs": KNOBS.turned, "iterations": 2}
    assert resolved(Source())["iterations"] == ITERATIONS
    rows = [{"traffic": "recorded"}, {"traffic": "generated"}, {"traffic": "recorded"}]
    assert (traffic_of(rows), titled(rows[:1])) == ("recorded, generated", "Recorded traffic")
