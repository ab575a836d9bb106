"""The headline of `mfabric buy`: which networks are equal inside the model's own error."""

from types import SimpleNamespace

from mfabric_jax.commands.buy import _verdict


def test_the_verdict_calls_networks_inside_the_error_equal():
    """Of ratios of two steps, 8 in 10 are within some 5%: 2% apart is equal, 20% is dearer."""

    def verdict(*over):
        return _verdict([SimpleNamespace(network=name, over=ratio) for name, ratio in zip("abc", over, strict=False)])

    assert verdict(1.0, 1.02, 1.2) == "a and b are equal inside the error (they differ by 2.0%); c costs 20.0% more"
    assert verdict(2.0, 2.04, 2.06) == "a, b and c are equal inside the error (they differ by 3.0%)"
    assert verdict(1.0, 1.2) == "a costs least; b costs 20.0% more"
