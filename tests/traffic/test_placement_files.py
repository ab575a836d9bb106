"""Placements of serving engines: read in every form, the same after a way through all of them."""

import json

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.placement_files import FORMS, ExpertPlacement, copies_of, read_placement, write_placement
from tests.mistakes import changed
from tests.traffic.test_placement import PUBLISHED

EXAMPLES = {  # as documentation of the engines has them: expert 0 twice, expert 4 twice
    '{"physical_to_logical_map": [[0, 1, 2, 3, 0, 2]]}': [[0, 1, 2, 3, 0, 2]],
    '{"phy2log": [[0, 1, 1]], "log2phy": [[[0, -1], [1, 2]]], "logcnt": [[1, 2]]}': [[0, 1, 1]],
    json.dumps(
        {
            "moe_layer_count": 1,
            "layer_list": [
                {
                    "layer_id": 0,
                    "device_count": 2,
                    "device_list": [
                        {"device_id": 1, "device_expert": [2, 3, 4]},
                        {"device_id": 0, "device_expert": [0, 1, 4]},
                    ],
                }
            ],
        }
    ): [[0, 1, 4, 2, 3, 4]],
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_form_is_read(text, tmp_path):
    path = tmp_path / "placement.json"
    path.write_text(text)
    found = read_placement(path)
    assert found.slots.tolist() == EXAMPLES[text]
    assert found.ranks == (2 if "layer_list" in text else None)


@pytest.mark.parametrize("form", FORMS)
def test_a_placement_comes_back_as_it_was(form, tmp_path):
    # EPLB's published example: 12 experts in 16 slots of 8 ranks, two layers.
    placement = ExpertPlacement(np.array(PUBLISHED), 8)
    back = read_placement(write_placement(placement, tmp_path / "a.json", form))
    np.testing.assert_array_equal(back.slots, PUBLISHED)
    assert (back.experts, back.ranks) == (12, 8 if form == "ascend" else None)
    again = write_placement(back._replace(ranks=8), tmp_path / "b.json", form)
    assert again.read_text() == (tmp_path / "a.json").read_text()


def test_what_eplb_returns_beside_the_slots(tmp_path):
    told = json.loads(write_placement(ExpertPlacement(np.array(PUBLISHED)), tmp_path / "a.json", "eplb").read_text())
    assert told["logcnt"] == copies_of(np.array(PUBLISHED)).tolist()
    assert told["log2phy"][0][5] == [0, 2]  # expert 5 lies in the slots 0 and 2 of the first layer
    assert told["log2phy"][0][6] == [1, -1]
    assert np.array(told["log2phy"]).shape == (2, 12, 2)


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize("form", FORMS)
def test_a_broken_file_is_one_sentence_or_still_a_placement(form, tmp_path):
    path, rng, refused = tmp_path / "a.json", np.random.default_rng(0), 0
    good = write_placement(ExpertPlacement(np.array(PUBLISHED), 8), path, form).read_bytes()
    for _ in range(200):
        path.write_bytes(changed(good, rng))
        try:
            read_placement(path)
        except InputError:
            refused += 1
    assert 0 < refused < 200
