"""Optical switches one can buy: the table, the regions they have ports for, the delay a comparison takes from them."""

import pytest

from mfabric_jax import load, resolve
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.ocs import OCS, get_ocs
from tests.mistakes import refused

MODEL = "mixtral-8x7b"  # 4 servers a region
DEGREE = "network.mfabric.optical_degree"


def resolved(ocs=None, changes=None, model=MODEL):
    """A case on mFabric with eight NICs a server."""
    given = {"model.name": model, "network.fabric": "mfabric", "circuits.ocs": ocs} | (changes or {})
    return resolve(load(preset="paper").with_(given))


def region_of(one):
    (region,) = one.fabric.groups(one.settings, one.job, 100.0, "own")
    assert isinstance(region, Region)
    return region


def test_the_published_table():
    published = {
        "polatis": (576, (0.010, 0.025)),
        "calient": (320, (0.010, 0.015)),
        "rotornet": (128, (1e-5, 1e-5)),
        "lightmatter": (32, (7e-6, 7e-6)),
        "epiphotonics": (16, (1e-8, 1e-8)),
    }
    for name, (ports, delay_s) in published.items():
        assert OCS[name].ports == ports
        assert OCS[name].delay_s == pytest.approx(delay_s, rel=1e-12)
    for name, one in OCS.items():
        assert get_ocs(name) is one
        assert one.name == name
        assert one.technology
        assert isinstance(one.ports, int)
    # The trade-off the table is there to show: more ports are slower.
    known = sorted((one.ports, *one.delay_s) for one in OCS.values() if one.delay_s is not None)
    assert all(0 < fastest <= slowest for _, fastest, slowest in known)
    assert known == sorted(known, key=lambda row: (row[2], row[0]))


def test_an_unknown_name_gets_the_allowed_ones():
    sentence = f"ocs 'polaris' is unknown (did you mean 'polatis'?); allowed: {', '.join(OCS)}."
    for ask in (get_ocs, resolved):
        assert sentence in refused(ask, "polaris")


def test_a_case_takes_the_slowest_delay_unless_given_and_needs_a_known_one():
    for name, one in OCS.items():
        if one.delay_s is not None:
            found = resolved(name, {DEGREE: 4})  # 16 ports: enough for the smallest
            assert found.case.circuits.delay_s == region_of(found).delay_s == one.delay_s[1]
    for delay_s in (0.001, 0.0):
        assert region_of(resolved("polatis", {"circuits.delay_s": delay_s})).delay_s == delay_s
    assert region_of(resolved()).delay_s == 0.025
    assert "ocs 'palomar' has no reported delay; give" in refused(resolved, "palomar")
    assert region_of(resolved("palomar", {"circuits.delay_s": 0.02})).delay_s == 0.02


def test_a_case_is_refused_where_ports_are_too_few():
    for name, degree in (("epiphotonics", 4), ("lightmatter", 8)):
        nics = {"network.nics": 10}
        assert region_of(resolved(name, nics | {DEGREE: degree})).optical_degree == degree
        ports, needs = 4 * degree, 4 * (degree + 1)
        sentence = (
            f"has {ports} ports, but a region of 4 servers with optical_degree {degree + 1} needs {needs}; choose "
        )
        sentence += "a larger switch or a smaller degree."
        assert sentence in refused(resolved, name, nics | {DEGREE: degree + 1})


def test_regions_decide_and_without_a_switch_nothing_does():
    # Two servers a region want 12 ports, four want 24.
    assert resolved("epiphotonics", model="llama-moe").case.circuits.delay_s == pytest.approx(1e-8)
    assert "a region of 4 servers with optical_degree 6 needs 24;" in refused(resolved, "epiphotonics")
    assert resolved("epiphotonics", {"network.fabric": "fat-tree"}).case.circuits.ocs == "epiphotonics"
