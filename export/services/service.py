"""What every kind of served model has: signatures, warm-up, golden requests.

Shape letters: B batch, N rows of golden requests, T padded length.
"""

import dataclasses
import itertools
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from google.protobuf.message import Message
from keras import ops

import keras_fixedhead
from export import session
from export.files import golden, warmup

TOKEN_IDS_SIGNATURE = "from_token_ids"
_INPUTS = ("token_ids", "padding_mask", "segment_ids")
_ROWS = 32  # that the Keras model answers at once
# Of golden rows, after the longest ones.
_LENGTHS = (1, 2, 3, 5, 17, *[128] * 30)


@dataclasses.dataclass(frozen=True)
class TextSignature:
    """A signature whose every input is texts, string `[B]`."""

    # The texts that the gate asks, as many for each input.
    golden: Mapping[str, Sequence[str]]
    # Maps a string tensor `[B]` per input to `{output: tensor [B, ...]}`, in
    # TensorFlow, and computes real tokens only.
    answer: Callable[..., dict[str, tf.Tensor]]
    # Maps a list of str per input to the Keras model's answers.
    padded: Callable[..., "Answers"]


class Answers(typing.NamedTuple):
    """What the padded Keras model answers, arrays `[B, ...]`; strings are str.

    `margin`, float `[B]`, is the least lead of a chosen answer over the next
    best, for every choice that the outputs show; None if they show none.
    """

    outputs: dict[str, np.ndarray]
    margin: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Service:
    """A model and its answers. A model's inputs are int32 `[B, T]`."""

    model: keras.Model
    preprocessor: keras.layers.Layer
    # The signatures of texts, `serving_default` among them.
    texts: dict[str, TextSignature]
    # Returns the inputs that the gate asks.
    golden_ids: Callable[[], dict[str, np.ndarray]]
    # Maps inputs to `{output: tensor [B, ...]}`, in TensorFlow, and computes
    # real tokens only.
    packed: Callable[[dict], dict[str, tf.Tensor]]
    # Maps inputs to the Keras model's answers.
    padded: Callable[[dict], Answers]
    # Maps texts to inputs, as short as possible.
    tokenize: Callable[[list[str]], dict]
    # What the card says of this kind, as JSON values.
    described: dict[str, typing.Any]
    # Like `padded`: the answers to compare between dtypes. None: `padded`.
    compared: Callable[[dict], Answers] | None = None

    @property
    def backbone(self) -> keras_fixedhead.FixedHeadBackbone:
        return getattr(self.model, "backbone", self.model)

    @property
    def dtype(self) -> str:
        """What the model computes in: a float type, or int8."""
        if any(weight.dtype == "int8" for weight in self.model.weights):
            return "int8"
        return self.backbone.compute_dtype


SERVICES: dict[type[keras.Model], Callable[..., Service]] = {}


def serves(cls: type[keras.Model]) -> Callable:
    """Registers a function that maps a `cls` and its preprocessor to its
    `Service`."""

    def register(function):
        SERVICES[cls] = function
        return function

    return register


def to_numpy(tensors: Mapping) -> dict[str, np.ndarray]:
    """Converts tensors to the arrays of a request or an answer: integers and
    booleans to int32, floats to float32."""
    arrays = {name: ops.convert_to_numpy(x) for name, x in tensors.items()}
    return {
        name: x.astype("int32" if x.dtype.kind in "biu" else "float32")
        for name, x in arrays.items()
    }


def some_at_once(
    compute: Callable[[slice], Sequence[tf.Tensor]],
    count: tf.Tensor,
    rows: tf.Tensor | int,
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Concatenates what `compute` returns, in a graph, for a few of `count`
    rows at a time, which bounds the memory of a request."""

    def body(start, found):
        more = compute(slice(start, start + rows))
        return start + rows, [tf.concat(x, 0) for x in zip(found, more)]

    _, found = tf.while_loop(
        lambda start, found: start < count,
        body,
        (0, [tf.zeros([0], dtype) for dtype in dtypes]),
        shape_invariants=(
            tf.TensorShape([]),
            [tf.TensorShape([None])] * len(dtypes),
        ),
        parallel_iterations=1,
    )
    return found


def _signature(specs, checks, answer):
    """Returns a function of tensors of one shape; `checks` returns what else
    to assert of them."""
    names = ", ".join(spec.name for spec in specs)

    @tf.function(input_signature=specs, autograph=False)
    def checked(*tensors):
        # At run time nothing else checks the rank, and a scalar crashes the
        # tokenizer's op.
        tensors = [
            tf.ensure_shape(x, spec.shape) for x, spec in zip(tensors, specs)
        ]
        shapes = tf.stack([tf.shape(x) for x in tensors])
        asserted = tf.debugging.Assert(
            tf.reduce_all(shapes == shapes[0]),
            [f"{names} must have the same shape."],
        )
        with tf.control_dependencies([asserted, *checks(*tensors)]):
            outputs = answer(*(tf.identity(x) for x in tensors))
            # REST carries no half precision.
            return {
                name: tf.cast(x, tf.float32) if x.dtype.is_floating else x
                for name, x in outputs.items()
            }

    return checked


def signatures(service: Service) -> dict[str, Callable]:
    """Builds the served functions: those of texts, string `[B]`, and
    `from_token_ids`, of the model's inputs, int32 `[B, T]`.

    Each returns `{output: tensor [B, ...]}`, float32, int32 or string.
    """
    backbone = service.backbone
    longest = backbone.max_sequence_length

    def in_table(ids, size, name):
        # On a GPU a lookup outside a table gives zeros, not an error.
        return tf.debugging.Assert(
            tf.reduce_all((ids >= 0) & (ids < size)),
            [f"{name} must be from 0 to {size - 1}."],
        )

    def check_ids(token_ids, padding_mask, segment_ids):
        return [
            tf.debugging.Assert(
                tf.shape(token_ids)[1] <= longest,
                [f"A row must have at most {longest} ids."],
            ),
            in_table(token_ids, backbone.vocabulary_size, "token_ids"),
            in_table(padding_mask, 2, "padding_mask"),
            in_table(segment_ids, backbone.num_segments, "segment_ids"),
        ]

    served = {
        name: _signature(
            [tf.TensorSpec([None], tf.string, n) for n in signature.golden],
            lambda *texts: [],
            signature.answer,
        )
        for name, signature in service.texts.items()
    }
    served[TOKEN_IDS_SIGNATURE] = _signature(
        [tf.TensorSpec([None, None], tf.int32, name) for name in _INPUTS],
        check_ids,
        lambda *ids: service.packed(dict(zip(_INPUTS, ids))),
    )
    return served


def warmup_requests(
    service: Service, texts: Sequence[str], batch_sizes: Iterable[int]
) -> list[Message]:
    """Builds a `PredictRequest` per signature and batch of texts, which are as
    long as real traffic. A signature of several texts gets equal ones."""
    requests = []
    for batch, inputs in warmup.batches(texts, batch_sizes, service.tokenize):
        text = np.array([text.encode() for text in batch], object)
        for name, signature in service.texts.items():
            texts_of = dict.fromkeys(signature.golden, text)
            requests.append(warmup.request(name, texts_of))
        requests.append(warmup.request(TOKEN_IDS_SIGNATURE, inputs))
    return requests


def least_cosine(service: Service, reference: Service) -> float:
    """Returns the cosine between the two models' answers to the golden token
    ids, for the text and output where it is least. Ignores strings."""
    inputs = service.golden_ids()
    outputs, expected = (
        (served.compared or served.padded)(inputs).outputs
        for served in (service, reference)
    )
    least = 1.0
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        # The value at padding would outweigh all others.
        rows, wanted = (
            np.where(x == golden.PADDING, 0, x).reshape(len(x), -1)
            for x in (array, expected[name])
        )
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wanted, axis=1)
        least = min(least, float(((rows * wanted).sum(axis=1) / lengths).min()))
    return least


def golden_cases(
    service: Service, on_start: Callable[[str], None] = lambda what: None
) -> dict[str, golden.Case]:
    """Answers the golden requests to every signature.

    They use every entry of the vocabulary, in rows of many lengths; of the
    text signatures, which share a tokenizer, only `serving_default` does.
    `on_start` is called with what begins.
    """
    backbone, preprocessor = service.backbone, service.preprocessor
    cases = {}

    def add(name, inputs, padded):
        on_start(f"golden answers, {name}")
        cases[name] = _answered(service, inputs, padded)

    for name, signature in service.texts.items():
        texts = {n: list(column) for n, column in signature.golden.items()}
        if name == session.DEFAULT_SIGNATURE:
            *others, last = texts
            # Most words have one token or two.
            longest = max(preprocessor.sequence_length // 2 - 1, 1)
            words = _words(preprocessor.tokenizer)
            more = [" ".join(row) for row in _rows(words, longest)]
            texts[last] += more
            for other in others:
                texts[other] += [golden.TEXTS[3]] * len(more)

        def of_texts(rows, signature=signature):
            return signature.padded(*(list(map(str, x)) for x in rows.values()))

        add(name, {n: np.array(x) for n, x in texts.items()}, of_texts)
    ids = _token_id_rows(backbone)
    for name, rows in service.golden_ids().items():
        width = [(0, 0), (0, backbone.max_sequence_length - rows.shape[1])]
        ids[name] = np.concatenate([np.pad(rows, width), ids[name]])

    def of_ids(rows):
        return service.padded(golden.trimmed(rows))

    add(TOKEN_IDS_SIGNATURE, ids, of_ids)
    return cases


def _answered(service, inputs, padded):
    """Builds the `golden.Case` of inputs, arrays `[N, ...]`."""
    count = len(next(iter(inputs.values())))
    answers, margins = [], []
    for start in range(0, count, _ROWS):
        rows = {n: array[start : start + _ROWS] for n, array in inputs.items()}
        outputs, margin = padded(rows)
        answers.append({n: golden.condense(x) for n, x in outputs.items()})
        margins.append(margin)
    outputs = {n: _stack([some[n] for some in answers]) for n in answers[0]}
    decided = np.ones(count, bool)
    if margins[0] is not None:
        scale = golden.scale(*outputs.values())
        least = golden.TOLERANCES[service.dtype] * scale
        margins = np.concatenate(margins)
        # The two best answers may both be off by the gate's tolerance.
        decided = margins > 2 * least
        decided[np.argmax(margins)] = True
    return golden.Case(inputs, outputs, decided)


def _stack(arrays: list[np.ndarray]) -> np.ndarray:
    """Concatenates rows, `[N, T]` padded to the largest T as models do."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    longest = max(array.shape[1] for array in arrays)
    is_padded = any(golden.PADDING in array for array in arrays)
    fill = golden.PADDING if is_padded else np.zeros([], arrays[0].dtype)

    def padded(array):
        width = [(0, 0), (0, longest - array.shape[1])]
        return np.pad(array, width, constant_values=fill)

    return np.concatenate([*map(padded, arrays)])


def _rows(items, longest):
    """Divides items into rows of many lengths, up to `longest`."""
    lengths = itertools.chain(
        (longest, max(longest - 1, 1), max(longest // 2, 1)),
        itertools.cycle(min(length, longest) for length in _LENGTHS),
    )
    items, rows = iter(items), []
    while row := list(itertools.islice(items, next(lengths))):
        rows.append(row)
    return rows


def _token_id_rows(backbone):
    """Returns a model's inputs, int32 `[N, T]` of the largest T, with every id.

    Ids at padding are not zero. Models that are not causal also get the last
    segment id, and padding between tokens.
    """
    size, longest = backbone.vocabulary_size, backbone.max_sequence_length
    # Of a small vocabulary several times, so that there is each length.
    count = max(size, 4 * longest)
    rows = _rows((i % size for i in range(count)), longest)
    rows.append(longest * [size - 1])
    fill = {"token_ids": size - 1, "padding_mask": 0, "segment_ids": 0}
    shape = len(rows), longest
    inputs = {name: np.full(shape, x, "int32") for name, x in fill.items()}
    for index, row in enumerate(rows):
        inputs["token_ids"][index, : len(row)] = row
        inputs["padding_mask"][index, : len(row)] = 1
        if index % 2 and not backbone.causal:
            half = slice(len(row) // 2, len(row))
            inputs["segment_ids"][index, half] = backbone.num_segments - 1
    if not backbone.causal:
        inputs["padding_mask"][-1, 1::2] = 0
    return inputs


def _words(tokenizer):
    """Returns a word of each token; one that continues a word, such as
    `##ing`, follows the first letter of the vocabulary."""
    vocabulary, mark = tokenizer.get_vocabulary(), tokenizer.suffix_indicator
    letter = next((t for t in vocabulary if len(t) == 1 and t.isalnum()), "")
    return [
        letter + token.removeprefix(mark) if token.startswith(mark) else token
        for token in vocabulary
    ]
