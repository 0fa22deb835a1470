"""The C++ session against the same functions run by TensorFlow's Python."""

import numpy as np
import pytest
import tensorflow as tf

from export import messages, session

CODES = messages.error_codes_pb2


class Calculator(tf.Module):
    """One signature of numbers, one of strings."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(
            np.arange(15, dtype=np.float32).reshape(3, 5) / 7
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 3], tf.float32, "x"),
            tf.TensorSpec([None], tf.int64, "n"),
        ]
    )
    def numbers(self, x, n):
        return {"product": x @ self.weight, "double": 2 * n}

    @tf.function(input_signature=[tf.TensorSpec(None, tf.string, "text")])
    def strings(self, text):
        return {"joined": text + "é" * 20, "length": tf.strings.length(text)}


@pytest.fixture(scope="module")
def calculator():
    return Calculator()


@pytest.fixture(scope="module")
def model(calculator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("calculator")
    tf.saved_model.save(
        calculator,
        str(folder),
        {"numbers": calculator.numbers, "strings": calculator.strings},
    )
    loaded = session.SavedModelSession(folder)
    yield loaded
    loaded.close()


def test_numbers(model, calculator):
    # A transposed view: the memory of the array is not that of its values.
    x = np.random.default_rng(2).normal(size=(3, 7)).astype(np.float32).T
    n = np.arange(11)
    answers = model.run({"x": x, "n": n}, "numbers")
    expected = calculator.numbers(tf.constant(x), tf.constant(n))
    for name, array in expected.items():
        np.testing.assert_allclose(answers[name], array, rtol=1e-6)
        assert answers[name].dtype == array.numpy().dtype


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_strings(model, shape):
    texts = [b"", b"a", b"\xff\x00", b"x" * 22, b"x" * 23, b"y" * 10_000]
    count = int(np.prod(shape))
    array = np.array(texts[-count:] if count else [], object).reshape(shape)
    answers = model.run({"text": array}, "strings")
    assert answers["joined"].shape == shape
    expected = [text + "é".encode() * 20 for text in array.ravel()]
    assert answers["joined"].ravel().tolist() == expected
    np.testing.assert_array_equal(
        answers["length"].ravel(), [len(text) for text in array.ravel()]
    )


def test_errors(model, tmp_path):
    n = np.array([1])
    with pytest.raises(session.StatusError) as caught:
        model.run({"x": np.zeros([2, 4], np.float32), "n": n}, "numbers")
    assert caught.value.code == CODES.INVALID_ARGUMENT
    with pytest.raises(session.StatusError, match="to be float but double"):
        model.run({"x": np.zeros([2, 3]), "n": n}, "numbers")
    with pytest.raises(KeyError):
        model.run({}, "nothing")
    with pytest.raises(session.StatusError, match="Could not find") as caught:
        session.SavedModelSession(tmp_path)
    assert caught.value.code == CODES.NOT_FOUND
