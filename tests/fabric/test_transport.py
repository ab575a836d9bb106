"""What a transport takes and adds: by hand, by name, from a file."""

import json

import pytest

from mfabric_jax.fabric.transport import TRANSPORTS, Transport, get_transport
from tests.mistakes import refused

OWN = {"payload_bytes": 3000, "header_bytes": 1000}


def test_what_it_takes_and_adds_by_hand():
    one = Transport(name="own", **OWN, pacing=0.9, ack_bytes=200, startup_s=1e-5)
    assert (one.goodput, one.acks, one.wire_bytes) == (0.75, 0.05, 4000)
    assert one.paced == pytest.approx(0.675)
    # Three links of 1 us; at 1 GB/s two switches each hold 4000 bytes for 4 us; 10 us until it starts.
    assert one.path_s(3, 1e-6, 1e9) == pytest.approx(3e-6 + 8e-6 + 1e-5)
    assert one.path_s(1, 0, 1e9) == 1e-5
    assert one.round_trip_s(3, 1e-6, 1e9) == pytest.approx(6e-6 + 12e-6)
    through = Transport(name="cut-through", **OWN, store_and_forward=False)
    assert through.path_s(3, 1e-6, 1e9) == pytest.approx(3e-6)
    none = get_transport("none")
    assert (none.paced, none.acks, none.path_s(6, 1e-6, 1e9), none.regain) == (1, 0, 6 * 1e-6, None)


def test_constants_of_the_named_ones():
    ndp, dctcp = get_transport("ndp"), get_transport("dctcp")
    assert (ndp.wire_bytes, ndp.pacing, ndp.ack_bytes, ndp.startup_s, ndp.regain) == (4160, 0.99, 64, 0, None)
    assert (dctcp.goodput, dctcp.pacing, dctcp.ack_bytes, dctcp.startup_s, dctcp.regain) == (
        1,
        1,
        40,
        pytest.approx(15e-6),
        0.25,
    )
    assert get_transport(ndp) is ndp
    assert all(one.name == name for name, one in TRANSPORTS.items())


@pytest.mark.parametrize("extension", ["toml", "json"])
def test_a_file_of_ones_own(tmp_path, extension):
    file = tmp_path / f"rocev2.{extension}"
    given = OWN | {"regain": 0.5, "store_and_forward": False}
    toml = "\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items())
    file.write_text(json.dumps(given) if extension == "json" else toml)
    assert get_transport(file) == get_transport(str(file)) == Transport(name="rocev2", **given)
    file.write_text(json.dumps(given | {"name": "mine"}) if extension == "json" else f'name = "mine"\n{toml}')
    assert get_transport(file).name == "mine"


MISTAKES = [
    (OWN | {"rho": 0.9}, "field of a transport 'rho' is unknown; allowed: name, payload_bytes,"),
    ({"payload_bytes": 4096}, "a transport needs header_bytes."),
    ({}, "a transport needs payload_bytes and header_bytes."),
    (OWN | {"payload_bytes": 0}, "payload_bytes must be finite and above 0, got 0."),
    (OWN | {"payload_bytes": "much"}, "payload_bytes must be a number, got 'much'."),
    (OWN | {"header_bytes": -1}, "header_bytes must be finite and not negative, got -1."),
    (OWN | {"pacing": 1.1}, "pacing must be above 0 and at most 1, got 1.1."),
    (OWN | {"ack_bytes": [1]}, "ack_bytes must be a number, got [1]."),
    (OWN | {"ack_bytes": 4000}, "ack_bytes must be below the 4000 bytes of a packet, got 4000."),
    (OWN | {"startup_s": -1}, "startup_s must be finite and not negative, got -1."),
    (OWN | {"regain": 0}, "regain must be finite and above 0, got 0."),
    (OWN | {"store_and_forward": 1}, "store_and_forward must be true or false, got 1."),
    (OWN | {"name": 3}, "name must be text, got 3."),
]


@pytest.mark.parametrize(("given", "sentence"), MISTAKES)
def test_mistakes_in_a_file(tmp_path, given, sentence):
    file = tmp_path / "own.json"
    file.write_text(json.dumps(given))
    said = refused(get_transport, file)
    assert said.startswith(repr(str(file)))
    assert sentence in said


def test_other_names_are_refused(tmp_path):
    assert "transport 'dtcp' is unknown (did you mean 'dctcp'?); allowed: none, ndp, dctcp," in refused(
        get_transport, "dtcp"
    )
    assert "cannot read" in refused(get_transport, tmp_path / "nowhere.toml")
