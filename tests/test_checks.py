"""A mistake is one sentence that names the field, the value and what is allowed; what is right comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.checks import not_negative, number, one_of, part, positive, whole
from tests.mistakes import check_refused, refused

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


def test_what_is_sensible_is_told_by_the_name_of_the_field():
    for check, field, right, wrong, sizes in (
        (positive, "efficiency", (1e-6, 0.5, 3), (1e-300, 1e308), "1e-06 to 100"),
        (positive, "nic_gbps", (0.01, 1600), (1e-320, 1e30), "1e-09 to 1e+09"),
        (not_negative, "delay_s", (0, 0.0, 1e-9, 600), (1e-320, 1e30), "1e-12 to 1e+09"),
        (positive, "run.json: collective_s", (1e-9,), (1e308,), "1e-12 to 1e+09"),
        (not_negative, "latency_s of link 3 (a -> b)", (0, 1e-6), (1e30,), "1e-12 to 1e+09"),
        (positive, "seconds", (1e-9,), (1e308,), "1e-12 to 1e+09"),
        (positive, "gigabytes", (1e-9, 1e6), (1e-320,), "1e-09 to 1e+12"),
        (positive, "nvswitch_gigabytes_per_s", (900,), (1e300,), "1e-09 to 1e+18"),
        (positive, "anything", (1e-30, 1e30, [1, 1e30]), (1e-31, 1e31, [1.0, 1e31]), "1e-30 to 1e+30"),
        (part, "goodput", (1e-6, 1), (1e-300,), "1e-06 to 1"),
    ):
        for value in right:
            assert check(field, value) is value
        for value in wrong:
            worst = value[-1] if isinstance(value, list) else value
            assert refused(check, field, value) == f"{field} must be from {sizes}, got {worst:g}."
    data = np.array([1e-40, 1e40])  # is measured, not typed
    assert positive("anything", data) is data
    assert "got 1e-40." in refused(positive, "gigabytes", data)


def test_counts_have_a_most():
    for field, most in (("optical_degree", 4096), ("servers", 2**18), ("seed", 2**32 - 1), ("limit", 2**31 - 1)):
        assert whole(field, most) == most
        for value in (most + 1, 2**63, 10**400):
            assert refused(whole, field, value).startswith(f"{field} must be at most {most:,}, got {value!r:.80}")


def test_parts_and_single_numbers():
    for value in (0, 1.5, -1, NAN, INF):
        check_refused("^field must be above 0 and at most 1, got ", part, "field", value)
    assert number("field", np.float32(1)) == 1
    for value in ([1, 2], np.ones(2), [1, [2, 3]], "1", True):
        check_refused("^field must be a number, got ", number, "field", value)
