"""Input checks themselves: wrong types too, which the shape checker of this suite stops earlier."""

import numpy as np
import pytest

from momentdp import _checks


@pytest.mark.parametrize("value", ["0.9", None, True, [0.5], np.nan, np.inf, -0.1, 1.0, 1j])
def test_number_refuses(value):
    with pytest.raises(ValueError, match=r"^momentum: got .*; pass a number in \[0, 1\)"):
        _checks.number("momentum", value, 0.0, 1.0)


def test_number_accepts_the_edge_and_numpy():
    assert _checks.number("momentum", 0, 0.0, 1.0) == 0.0
    assert type(_checks.number("momentum", np.float32(0.5), 0.0, 1.0)) is float
    with pytest.raises(ValueError, match=r"rate: got 0; pass a number in \(0, inf\)"):
        _checks.number("rate", 0, 0.0, open_low=True)


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, None, np.float64(4.0)])
def test_count_refuses(value):
    with pytest.raises(ValueError, match=r"^steps: got .*; pass a whole number of at least 1"):
        _checks.count("steps", value)


def test_count_accepts_numpy():
    assert type(_checks.count("steps", np.int32(5))) is int


@pytest.mark.parametrize(
    "value", ["abc", [[1.0], [1.0, 2.0]], [1.0, None], {}, np.array([1.0, 1j]), [np.nan], []]
)
def test_finite_array_refuses(value):
    with pytest.raises(ValueError, match=r"^weights: got .*; pass "):
        _checks.finite_array("weights", value, 1)


def test_finite_array_copies_to_float64():
    given = np.ones(3, dtype=np.float32)
    found = _checks.finite_array("weights", given, 1)
    found[0] = 2.0
    assert found.dtype == np.float64 and given[0] == 1.0


def test_symmetric_names_what_is_wrong():
    for value, problem in (
        (np.ones((2, 3)), r"shape \(2, 3\); pass a square matrix of size n"),
        ([[1.0, 2.0], [2.5, 1.0]], r"asymmetric by 0\.5; pass \(M \+ M\.T\) / 2"),
    ):
        with pytest.raises(ValueError, match=rf"^hessian: got {problem}"):
            _checks.symmetric("hessian", value)
    with pytest.raises(ValueError, match="pass a square matrix of size 3"):
        _checks.symmetric("hessian", np.eye(2), 3)
    nearly = [[1.0, 2.0], [2.0 + 1e-12, 1.0]]
    np.testing.assert_array_equal(_checks.symmetric("hessian", nearly, 2), nearly)
    with pytest.raises(ValueError, match="asymmetric"):
        _checks.symmetric("hessian", [[1.0, 2.0], [2.0 + 1e-8, 1.0]])
