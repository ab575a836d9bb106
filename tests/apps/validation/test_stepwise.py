"""What a transport adds to plain fluid: by hand on a few flows, against exact fractions, then on recorded runs."""

from fractions import Fraction

import numpy as np
import pytest

from mfabric_jax.apps import validation
from mfabric_jax.apps.validation.packets import ROUNDS, network, ports_back, rate_history, read_run, transport_of
from mfabric_jax.fabric.transport import Transport, get_transport
from tests.apps.validation.conftest import LEAF_SPINE, MB, flow, run_of
from tests.mistakes import refused
from tests.oracles.max_min import max_min

pytestmark = pytest.mark.usefixtures("double_precision")
PACED = Transport(name="paced", payload_bytes=3, header_bytes=1, pacing=0.9, ack_bytes=0.004)
SLOW = Transport(name="slow", payload_bytes=3, header_bytes=1, startup_s=1e-4, regain=0.5)
TREE = "fat-tree k=4, 3 tiers, 16 hosts, non-blocking"
G = 0.75e9  # payload bytes/s of a link of `run_of`


@pytest.fixture
def predicted(written):
    def predict(flows, transport, **changed):
        return validation.predict(read_run(written(run_of(flows, **changed))), transport=transport)

    return predict


def test_pacing_and_acknowledgements_by_hand(predicted):
    there, back = flow(0, 1, 1.5 * MB), flow(1, 0, 1.5 * MB)
    for flows, rates in (
        ([there], [0.9 * G]),  # its acknowledgements go where nothing else does
        ([there, back], [G / (1 / 0.9 + 0.001)] * 2),  # those of the other take a thousandth of its rate from its port
        ([there, flow(2, 1, 1.5 * MB)], [0.45 * G] * 2),
        # One host receives at its pace and sends: beside the acknowledgements of what it receives there is room.
        ([flow(0, 1, 100 * MB), flow(2, 1, 100 * MB), flow(1, 3, MB)], [None, None, 0.9 * G]),
    ):
        got = predicted(flows, PACED)
        for end, one, rate in zip(got.corrected, flows, rates, strict=True):
            if rate is not None:
                assert end == pytest.approx(one["bytes"] / rate + 4e-9, rel=1e-9)  # the switch holds a packet: 4 bytes


def test_start_way_and_regained_shares_by_hand(predicted):
    # Halves of G until the first ends at 4 ms; then the second rises by G / 2, to G, and ends at 8 ms.
    flows = [flow(0, 2, 1.5 * MB), flow(1, 2, 4.5 * MB)]
    got = predicted(flows, SLOW, hop_latency_s=1e-5)
    np.testing.assert_allclose(got.finish, [0.004, 0.008], rtol=1e-12)
    way = 4 * 1e-5 + 4e-9 + 1e-4  # there and back over 2 links of 10 us, 4 bytes at 1 GB/s, start-up
    round_trip = 4 * 1e-5 + 2 * 4e-9
    lost = (G / 2) ** 2 / (2 * 0.5 * 3 / round_trip**2)  # bytes, while the rate rises by 0.5 payloads a round trip^2
    np.testing.assert_allclose(got.corrected, [0.004 + way, 0.008 + way + lost / G], rtol=1e-9)
    assert got.corrected_error == pytest.approx(got.corrected.max() / 0.01 - 1)
    # A flow that starts does so at its full rate, and a rate that falls has nothing to regain.
    late = predicted([flow(0, 2, 1.5 * MB), flow(1, 2, 1.5 * MB) | {"start": 0.001}], SLOW)
    way, lost = 4e-9 + 1e-4, (G / 2) ** 2 / (2 * 0.5 * 3 / 8e-9**2)
    np.testing.assert_allclose(late.corrected, [0.003 + way, 0.004 + way + lost / G], rtol=1e-9)


def oracle(capacity, paths, back, acks, size, start):
    """(finish, sum of squared rises, last rate) of every flow, in exact fractions."""
    left, finish = dict(enumerate(map(Fraction, size))), {}
    before, risen, last, now = {}, [Fraction(0)] * len(size), {}, Fraction(0)
    while left:
        active = [f for f in left if start[f] <= now]
        rate = dict.fromkeys(active, Fraction(0))
        for _ in range(ROUNDS):
            room = list(capacity)
            for f in active:
                for port in back[f]:
                    if port is not None:
                        room[port] -= acks * rate[f]
            solved = max_min(room, paths, [int(f in active) for f in range(len(size))], [np.inf] * len(size))
            rate = {f: solved[f] for f in active}
        for f in active:
            risen[f] += max(rate[f] - before.get(f, rate[f]), 0) ** 2
            last[f] = rate[f]
        then = min([now + left[f] / rate[f] for f in active] + [start[f] for f in left if start[f] > now])
        for f in active:
            left[f] -= rate[f] * (then - now)
            if not left[f]:
                finish[f] = then
                del left[f]
        before, now = {f: rate[f] for f in active if f in left}, then
    return tuple([one[f] for f in range(len(size))] for one in (finish, risen, last))


@pytest.mark.parametrize("seed", range(6))
def test_every_event_against_exact_fractions(written, seed):
    draw = np.random.default_rng(seed)
    pairs = [(s, d) for s in range(4) for d in range(4) if s != d]
    chosen = [pairs[i] for i in draw.choice(len(pairs), size=7, replace=False)]
    flows = [flow(s, d, int(draw.integers(1, 9)), 9.0) | {"start": float(draw.integers(0, 3))} for s, d in chosen]
    run = read_run(written(run_of(flows, topology=LEAF_SPINE, link_bps=64 / 3, collective_s=9.0)))  # 2 bytes/s
    problem = network(run, "float64", pacing=0.5)
    back = ports_back(run, problem)
    hops, share = np.asarray(problem.hops), np.asarray(problem.share)
    size, start = (np.pad(x, (0, len(hops) - 7)) for x in (run.size, run.start))
    got = rate_history(problem, size, start, back, 0.125)
    paths = [[(int(h), Fraction(float(c))) for h, c in zip(hops[f], share[f], strict=True) if h >= 0] for f in range(7)]
    ports = [[int(port) if port < problem.capacity.size else None for port in back[f]] for f in range(7)]
    capacity = [Fraction(float(c)) for c in np.asarray(problem.capacity)]
    whole = [Fraction(float(x)) for x in run.start]
    wanted = oracle(capacity, paths, ports, Fraction(1, 8), run.size.astype(int).tolist(), whole)
    for found, exact in zip(got, wanted, strict=True):
        np.testing.assert_allclose(found[:7], np.array([float(x) for x in exact]), rtol=1e-9, atol=1e-12)


def test_ways_of_a_run(written):
    there = [flow(0, d) for d in (1, 2, 4, 15)]  # below one edge switch of 2 hosts, in a pod of 4, beyond
    for flows, changed, links in (
        (there, {"topology": TREE}, [2, 4, 6, 6]),
        (there, {"topology": TREE.replace("k=4, 3 tiers, ", "")}, [2, 2, 2, 2]),
        ([flow(0, 1), flow(0, 3)], {"topology": LEAF_SPINE}, [2, 4]),
        ([flow(0, 2, path="SRC0>T0>A0>T1")], {}, [4]),
    ):
        assert read_run(written(run_of(flows, **changed))).links.tolist() == links


def test_the_transport_is_the_one_that_a_run_names_unless_another_is_given(written):
    flows = [flow(0, 2, 1.5 * MB), flow(1, 2, 4.5 * MB)]
    for name, used in (("ndp", "ndp"), ("dctcp", "dctcp"), ("hpcc", "none")):
        run = read_run(written(run_of(flows, transport=name)))
        assert transport_of(run).name == used
        assert transport_of(run, "dctcp") == get_transport("dctcp")
        assert transport_of(run, SLOW) is SLOW
    got = validation.predict(run)
    np.testing.assert_array_equal(got.corrected, got.finish)
    assert "transport 'tcp' is unknown" in refused(validation.predict, run, transport="tcp")


def test_small_messages_with_their_transport(shared_data):
    found = [validation.predict(run) for run in validation.read_runs(shared_data / "packet_small")]
    assert len(found) == 4
    for prediction in found:
        assert abs(prediction.corrected_error) < (0.05 if "64KiB" in prediction.run.name else 0.011)
