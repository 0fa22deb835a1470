"""Principal components against NumPy's singular vectors."""

import numpy as np
import pytest

from keras_fixedhead.retrieval import principal_components

pytestmark = pytest.mark.any_backend


def test_components_are_those_of_the_singular_values():
    vectors = np.random.default_rng(3).normal(size=(23, 7)) + 0.5
    _, _, expected = np.linalg.svd(vectors)
    components = principal_components(vectors.astype("float32"), 5)
    assert components.shape == (7, 5)
    # Either sign is one; here the largest number of each is positive.
    np.testing.assert_allclose(
        np.abs(components), np.abs(expected[:5].T), atol=1e-5
    )
    np.testing.assert_allclose(components.T @ components, np.eye(5), atol=1e-9)
    largest = np.abs(components).argmax(axis=0)
    assert (components[largest, range(5)] > 0).all()


def test_components_beyond_the_dimensions_are_zero():
    vectors = np.random.default_rng(3).normal(size=(23, 3))
    components = principal_components(vectors, 5)
    assert not components[:, 3:].any()
    products = vectors @ components
    np.testing.assert_allclose(products @ products.T, vectors @ vectors.T)
