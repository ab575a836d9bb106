"""A mistake is one sentence that names the field, the value and what is allowed; what is right comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.checks import not_negative, one_of, positive, whole
from tests.mistakes import check_refused

NAN, INF = float("nan"), float("inf")


def test_right_numbers_come_back_and_zero_is_not_negative():
    for value in (1, 0.5, np.float32(2), np.asarray([1.0, 2.0]), jnp.asarray([3, 4])):
        assert positive("field", value) is value
        assert not_negative("field", value) is value
    assert not_negative("field", 0) == 0
    assert not_negative("field", np.zeros(2)).shape == (2,)
    check_refused(r"^field must be finite and above 0, got 0\.$", positive, "field", 0)


def test_wrong_numbers():
    for value in (-1, NAN, INF, -INF, np.float32(-2.5)):
        check_refused(rf"^field must be finite and above 0, got {float(value):g}", positive, "field", value)
        check_refused(rf"^field must be finite and not negative, got {float(value):g}", not_negative, "field", value)
    with pytest.raises(InputError, match=r"^field must be finite and not negative, got \[1.0, -1.0\]\.$"):
        not_negative("field", jnp.asarray([1.0, -1.0]))


def test_not_a_number():
    for value in ("1", None, True, [1, "x"], 1j, object()):
        for check in (positive, not_negative):
            check_refused(r"^field must be a number, got ", check, "field", value)


def test_traced_values_pass():
    got = jax.jit(lambda x: positive("field", x) + not_negative("field", x))(jnp.asarray(-1.0))
    assert got == -2
    np.testing.assert_array_equal(jax.vmap(lambda x: positive("field", x))(jnp.asarray([-1.0, 1.0])), [-1, 1])


def test_whole():
    assert whole("field", 1) == 1
    assert whole("field", 0, at_least=0) == 0
    got = whole("field", np.int32(7))
    assert (got, type(got)) == (7, int)
    for value in (0, -1, 1.0, "1", None, True, NAN, np.float64(2)):
        with pytest.raises(InputError, match=r"^field must be a whole number of at least 1, got ") as caught:
            whole("field", value)
        assert repr(value) in str(caught.value)
    check_refused("at least 3, got 2", whole, "field", 2, at_least=3)


def test_one_of():
    assert issubclass(InputError, ValueError)
    assert one_of("colour", "red", ["red", "green"]) == "red"
    assert one_of("colour", "red", {"red": 1}) == "red"
    with pytest.raises(InputError) as caught:
        one_of("colour", "gren", (name for name in ("red", "green")))
    assert str(caught.value) == "colour 'gren' is unknown (did you mean 'green'?); allowed: red, green."
    with pytest.raises(InputError) as caught:
        one_of("colour", "mauve", ["red", "green"])
    assert str(caught.value) == "colour 'mauve' is unknown; allowed: red, green."
    for value in (None, 3, ""):
        with pytest.raises(InputError, match=r"colour .* is unknown; allowed: red, green\.$"):
            one_of("colour", value, ["red", "green"])  # type: ignore[arg-type]
