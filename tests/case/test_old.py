"""Names of 0.1 lead to their places or say why they are gone."""

import pytest

from mfabric_jax.case.layers import layers_of
from mfabric_jax.case.old import GONE, WHERE, now
from mfabric_jax.case.paths import check, settings
from tests.docs_case import VALUES
from tests.mistakes import refused


@pytest.mark.parametrize("option", [*WHERE, *GONE])
def test_every_old_option_leads_somewhere(option):
    said = now(option)
    assert said
    if option in GONE:
        return
    path, _, value = WHERE[option].partition("=")
    if path != "job.precision":  # a table, in one word
        setting = settings()[path]
        assert not value or check(setting, value) == value
        for new in VALUES.get(option, {}).values():
            assert new is None or check(setting, new) == new


def test_a_sweep_file_is_refused_with_the_places_of_its_settings():
    given = {"fixed": {"model": "llama-moe"}, "grid": {"delay_s": [0.1, 0.2]}, "draws": 3}
    said = refused(lambda: layers_of(given, "space.toml"))
    assert said.startswith("space.toml is a sweep file of 0.1; settings have paths now, a list of values is an axis")
    assert "model is model.name, delay_s is circuits.delay_s, draws is sweep.draws (docs/from_0.1.md)." in said
    assert [layer.name for layer in layers_of({"run.seed": 3}, "now.toml")] == ["now.toml"]
