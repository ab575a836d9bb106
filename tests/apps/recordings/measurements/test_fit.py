"""Latency and bandwidth are found in times with noise; a published table is predicted from two of its lines."""

import itertools

import numpy as np
import pytest

from mfabric_jax.apps.recordings.measurements import UserFacts, fit_points, points_of, write_measured
from mfabric_jax.apps.recordings.measurements.deepep import read_text as read_deepep
from mfabric_jax.apps.recordings.measurements.fit import line_through
from mfabric_jax.apps.recordings.measurements.nccl_tests import read_text
from mfabric_jax.apps.recordings.measurements.placed import Point
from mfabric_jax.apps.recordings.measurements.written import network_fit
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import get_transport
from mfabric_jax.units import gbps, us
from tests.apps.recordings.measurements.samples import low_latency, nccl_text, nccl_times

RANKS, EACH = 32, 8
ALPHA_S, BYTES_PER_S = us(40), 45e9


def cluster(seed, noise=0.05, alpha_s=ALPHA_S, bytes_per_s=BYTES_PER_S):
    """Points of an all-to-all between servers of this latency and bandwidth."""
    times = nccl_times(alpha_s, bytes_per_s, 1 - EACH / RANKS, noise, seed)
    return points_of(read_text(nccl_text(times, RANKS, EACH), "alltoall"), UserFacts("across"))


@pytest.mark.parametrize("seed", range(8))
def test_a_cluster_s_latency_and_bandwidth_are_found_within_3_percent(seed):
    (fit,) = fit_points(cluster(seed))
    assert fit.alpha_s == pytest.approx(ALPHA_S, rel=0.03)
    assert fit.bandwidth_bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.03)
    assert (fit.ranks, fit.bytes) == (RANKS, (768.0, 0.75 * 2**33))
    assert fit.row()["error_median"] < 0.05


def test_some_late_times_change_little():
    points = cluster(0)
    late = [point._replace(seconds=5 * point.seconds) if at % 8 == 3 else point for at, point in enumerate(points)]
    (fit,) = fit_points(late)
    assert fit.alpha_s == pytest.approx(ALPHA_S, rel=0.06)
    assert fit.bandwidth_bytes_per_s == pytest.approx(BYTES_PER_S, rel=0.06)


def test_the_line_is_that_of_least_squares_and_never_negative():
    # Without noise the line itself; times that begin below 0: no latency; times that do not grow: no bytes.
    size = np.array([1e3, 1e6, 1e9])
    np.testing.assert_allclose(line_through(size, 1e-5 + size / 1e10), (1e-5, 1e-10), rtol=1e-9)
    alpha, per_byte = line_through(size, size**1.1 / 1e10)
    assert (alpha, per_byte > 0) == (0, True)
    assert line_through(size, np.array([3.0, 2.0, 1.0]))[1] == 0


def test_tiers_and_kinds_are_fitted_apart_from_the_narrowest_on():
    points = [Point(tier, kind, 8, size, size / rate) for tier, kind, rate in KINDS for size in (1e3, 1e6, 1e9)]
    fits = fit_points(points)
    assert [(fit.tier, fit.kind) for fit in fits] == [KINDS[2][:2], KINDS[0][:2], KINDS[1][:2]]
    assert [fit.bandwidth_bytes_per_s for fit in fits] == pytest.approx([3e9, 1e9, 2e9])


def test_programs_and_numbers_of_ranks_are_fitted_apart():
    parts = [("a", 16, 8, 1e9), ("b", 16, 8, 2e9), ("a", 32, 8, 3e9), ("a", 32, 4, 4e9)]
    points = [
        Point("across", "all-to-all", ranks, size, size / rate, program, each)
        for size in (1e3, 1e6, 1e9)
        for program, ranks, each, rate in parts
    ]
    fits = fit_points(points)
    assert [(fit.program, fit.ranks, fit.per_server) for fit in fits] == [part[:3] for part in parts]
    assert [fit.bandwidth_bytes_per_s for fit in fits] == pytest.approx([part[3] for part in parts])
    assert len({fit.name for fit in fits}) == 4
    assert network_fit(fits).ranks == 32


KINDS = (("across", "all-to-all", 1e9), ("across", "all-reduce", 2e9), ("server", "all-to-all", 3e9))


def test_one_size_gives_a_bandwidth_and_no_latency():
    (fit,) = fit_points([Point("across", "deepep-normal", 16, 1e8, seconds) for seconds in (2e-3, 2.1e-3, 2.2e-3)])
    assert not fit.resolves_latency
    assert (fit.alpha_s, fit.bandwidth_bytes_per_s) == (0, pytest.approx(1e8 / 2.1e-3))


# ------------------------------------------------------------------------------------------------ the file of constants
def test_the_file_is_a_transport_with_the_latency_and_bandwidth_of_the_widest_tier(tmp_path):
    inside = [point._replace(tier="server", seconds=point.seconds / 9) for point in cluster(0)]
    fits = fit_points([*cluster(0), *inside])
    transport = get_transport(write_measured(fits, tmp_path / "own.json", nic_gbps=400))
    assert transport.goodput * gbps(400) == pytest.approx(fits[1].bandwidth_bytes_per_s)
    assert transport.startup_s == fits[1].alpha_s
    assert not transport.store_and_forward


@pytest.mark.parametrize(("tier", "nic_gbps"), [("server", 400), ("across", None)])
def test_a_file_without_a_transport_is_refused_as_one(tmp_path, tier, nic_gbps):
    fits = fit_points([point._replace(tier=tier) for point in cluster(0)])
    with pytest.raises(InputError, match="no transport; to get one, calibrate with --nic-gbps from times"):
        get_transport(write_measured(fits, tmp_path / "own.json", nic_gbps))


# ---------------------------------------------------------------------------------------------------- a published table
# deepseek-ai/DeepEP, docs/legacy.md: low-latency kernels on H800 with 400 Gbps, us of dispatch and combine by ranks. In
# the first version messages inside of a server crossed NICs, too. Normal kernels: GB/s by ranks.
LOW_LATENCY = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369), 256: (194, 360)}
FIRST_VERSION = {8: (163, 318), 16: (173, 329), 32: (182, 350), 64: (186, 353), 128: (192, 369), 256: (194, 360)}
NORMAL = {16: (43, 43), 32: (58, 57), 64: (51, 50)}


def published(table, ranks, per_server):
    text = low_latency([[us(each) for each in table[ranks]]])
    return points_of(read_deepep(text, f"EP{ranks}"), UserFacts("across", ranks, per_server))


def worst_of_the_others(table, per_server, pair):
    """The largest relative error of a line through two of them, both directions, at the others."""
    alpha_s, per_byte = line_through(*sizes_and_seconds(table, pair, per_server))
    size, seconds = sizes_and_seconds(table, [ranks for ranks in table if ranks not in pair], per_server)
    return np.abs((alpha_s + size * per_byte) / seconds - 1).max()


def sizes_and_seconds(table, every, per_server):
    points = [point for ranks in every for point in published(table, ranks, per_server)]
    return np.array([point.bytes for point in points]), np.array([point.seconds for point in points])


@pytest.mark.parametrize(("table", "per_server", "most"), [(LOW_LATENCY, 8, 0.11), (FIRST_VERSION, 1, 0.056)])
def test_low_latency_kernels_of_deepep_are_predicted_from_any_two_sizes(table, per_server, most):
    worst = {pair: worst_of_the_others(table, per_server, pair) for pair in itertools.combinations(table, 2)}
    assert max(worst.values()) < most
    assert worst[(32, 256)] < most - 0.02


def test_normal_kernels_of_deepep_are_predicted_where_nics_limit_them_alone():
    # 4,096 tokens of 7,168 in FP8 and back in BF16, to at most four servers. 16 ranks: NVLink limits, not the NIC.
    def points(ranks):
        servers = min(ranks // EACH, 4)
        sizes = (4096 * 7168 * servers * each for each in (1 + 4 / 128, 2))
        lines = [
            f"[tuning] Best combine: SMs 24: 0 + {size / rate * 1e-3:.3f} us, {rate} GB/s (RDMA), 1 GB/s (NVL)"
            for size, rate in zip(sizes, NORMAL[ranks], strict=True)
        ]
        return points_of(read_deepep("\n".join(lines), f"EP{ranks}"), UserFacts("across", ranks, EACH))

    def off(fitted, ranks):
        (fit,) = fit_points(points(fitted))
        return [fit.seconds(point.bytes) / point.seconds - 1 for point in points(ranks)]

    assert np.abs(off(32, 64)).max() < 0.05
    assert np.all(np.array(off(32, 16)) < -0.45)
