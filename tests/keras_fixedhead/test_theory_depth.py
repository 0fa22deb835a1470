"""The two depths, against their tables."""

import pytest

from keras_fixedhead.theory import depth_threshold, fitted_depth_threshold

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("hidden_dim", "theory", "fit"),
    [
        (256, 5.05, 9.1),
        (512, 5.68, 21.6),
        (768, 6.05, 28.9),
        (1024, 6.31, 34.1),
    ],
)
def test_published_sizes(hidden_dim, theory, fit):
    assert depth_threshold(hidden_dim) == pytest.approx(theory, abs=0.005)
    assert fitted_depth_threshold(hidden_dim) == pytest.approx(fit, abs=0.05)


@pytest.mark.parametrize("hidden_dim", [0, -3, 256.0, True])
@pytest.mark.parametrize("function", [depth_threshold, fitted_depth_threshold])
def test_bad_sizes(function, hidden_dim):
    with pytest.raises(ValueError, match="`hidden_dim` must be a positive"):
        function(hidden_dim)


def test_where_they_are_known():
    assert depth_threshold(3**7) == pytest.approx(7)
    assert fitted_depth_threshold(155) > 0 > fitted_depth_threshold(154)
