"""Whether there is anything to learn in when to reconfigure (`experiments.learned_timing`)."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import learned_timing
from mfabric_jax.apps.learning.regimes.cells import Regime
from mfabric_jax.apps.learning.regimes.chains import SEEN, draw_chains
from mfabric_jax.apps.learning.regimes.learned import learned
from tests.small import as_a_user


@pytest.mark.slow
def test_timing_without_training_is_renewal_and_clairvoyance_the_best_of_all_trajectories():
    config = learned_timing.Config(servers=4, chains=2, decisions=5)
    regime, delays = Regime(4, 2, 1, 2.0, 0.98, 1.0), jnp.asarray((0.0003, 0.003), jnp.float32)
    with as_a_user():
        tables = learned_timing.tables_of(regime, 3, config)
        served = learned(draw_chains(regime, [3], config.chains, config.decisions), delays, learned_timing.ROUTING)
        network = learned_timing.TimingNetwork(jax.random.key(0))
        trained = eqx.tree_at(lambda network: network.drop.weight, network, replace_fn=lambda weight: weight + 0.3)
        for delay_s, usual in zip(delays, served.total_s(delays), strict=True):
            found = learned_timing.expected_time(network, tables, delay_s, 0.0)
            np.testing.assert_allclose(found, usual, rtol=1e-5)
            least = best_of_all(learned_timing.follow_families(tables, delay_s), tables.sent, float(delay_s))
            np.testing.assert_allclose(learned_timing.clairvoyant_time(tables, delay_s), least, rtol=1e-5)
            assert (least <= found * (1 + 1e-6)).all()
            expected = learned_timing.expected_time(trained, tables, delay_s, 0.2)
            assert (least <= expected * (1 + 1e-6)).all()
            assert (expected != found).all()
    assert served.changed.any()
    assert not served.changed.all()


def best_of_all(followed, sent, delay_s):
    """Try every sequence of keeping and changing."""
    steps = sent.shape[1]
    found = []
    for changes in itertools.product((False, True), repeat=steps - SEEN):
        in_place, total = steps, np.zeros(len(sent))
        for now, change in zip(range(SEEN, steps), changes, strict=True):
            in_place = now if change else in_place
            total += np.asarray(followed.kept_s[:, in_place, now] * sent[:, now], float) + delay_s * change
        found.append(total)
    return np.min(found, axis=0)


def test_what_timing_gains_most_is_named(tmp_path):
    gains = {"gradient": (0.1, -0.3), "evolution": (0.0, 0.2), "clairvoyant": (-2.0, -4.0)}
    rows = [
        {"regime": regime, "delay_s": delay_s, "rule": rule, "change": change + regime}
        for rule, changes in gains.items()
        for delay_s, change in zip((1e-4, 1e-2), changes, strict=True)
        for regime in (0, 1)
    ]
    found = {line.claim: line.found for line in learned_timing.verdicts(rows)}
    assert found["gradient over renewal, most"] == "+0.20 % +-6.35 at 10 ms"
    assert found["clairvoyant over renewal, most"] == "-3.50 % +-6.35 at 10 ms"
    assert learned_timing.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000
