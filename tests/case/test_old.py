"""Names of 0.1 lead to their places or say why they are gone."""

import pytest

from mfabric_jax.case.layers import GONE, WHERE, now
from mfabric_jax.case.paths import check, settings
from tests.docs_case import VALUES


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
