"""Fits the weights of a smaller encoder, one sublayer after the other, to the
states of calibration texts in files.

Shape letters: P real tokens of a batch, D the embedding size before, C after
(channels kept), W total width of all heads.
"""

import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from keras import ops

from keras_fixedhead.attention_functions import (
    combine_attention_masks,
    multi_head_attention,
)
from keras_fixedhead.backbone import FixedHeadBackbone
from keras_fixedhead.growth import to_numpy
from keras_fixedhead.layer_config import Tensor
from keras_fixedhead.packing import Packing
from keras_fixedhead.shrink.least_squares import (
    Explained,
    LeastSquares,
    LineFits,
    centred_logits,
)
from keras_fixedhead.transformer_block import FixedHeadTransformerBlock

_Blocks = Sequence[FixedHeadTransformerBlock]
_INPUTS = ("token_ids", "segment_ids", "padding_mask")


class States:
    """Arrays of each batch in files, so that memory does not hold them all."""

    def __init__(self, folder: pathlib.Path, batches: Iterable[dict]):
        self._folder = folder
        self.batches = self.tokens = 0
        # To be replaced by the function of a progress bar.
        self.advance: Callable[[float], None] = lambda amount: None
        for batch in batches:
            inputs = {name: to_numpy(batch[name], "int32") for name in _INPUTS}
            real = int((inputs["padding_mask"] != 0).sum())
            if real:
                for name, values in inputs.items():
                    self.write(name, self.batches, values)
                self.batches += 1
                self.tokens += real
        if not self.tokens:
            raise ValueError("`batches` must have real tokens. Received: none")

    def write(self, name: str, number: int, values: Tensor) -> None:
        values = ops.convert_to_numpy(values)
        if "int" not in values.dtype.name:
            values = values.astype("float32")  # NumPy saves no bfloat16
        np.save(self._folder / f"{name}_{number}.npy", values)

    def read(self, name: str, number: int, dtype: str | None = None) -> Tensor:
        values = np.load(self._folder / f"{name}_{number}.npy")
        return ops.convert_to_tensor(values, dtype)

    def each(self) -> Iterator[tuple[int, dict, Packing]]:
        """Yields each batch: its number, inputs `[B, T]` and `Packing`."""
        for number in range(self.batches):
            inputs = {name: self.read(name, number) for name in _INPUTS}
            yield number, inputs, Packing(inputs["padding_mask"])
            self.advance(1)


def _attend(backbone, block, x, packing):
    """The sum before the attention's norm `[P, D]`, and the scores."""
    y, scores = block.attention(
        x,
        packing=packing,
        use_causal_mask=backbone.causal,
        return_attention_scores=True,
    )
    return x + y, scores


def _feed_forward_sum(block, x):
    """The sum before the feed-forward layer's norm, `[P, D]`."""
    return x + block.output_dense(block.intermediate_dense(x))


def _rescaled(x, like):
    """`x` `[P, D]` with each row's mean and deviation in `like`.

    A norm ignores both, and the layer need not learn those of other layers.
    """
    (mean, variance), (to_mean, to_variance) = (
        ops.moments(each, axes=-1, keepdims=True) for each in (x, like)
    )
    return (x - mean) * ops.sqrt(to_variance / variance) + to_mean


def _context(backbone, block, x, packing):
    """What `attention_output` projects, `[P, W]`, and the scores."""
    layer = block.attention
    query, key, value = (
        packing.pad(projection(x))
        for projection in (layer.query, layer.key, layer.value)
    )
    length = ops.shape(query)[1]
    mask = combine_attention_masks(
        length,
        length,
        value_mask=packing.padding_mask,
        use_causal_mask=backbone.causal,
        attention_window=layer.attention_window,
    )
    context, scores = multi_head_attention(
        query, key, value, layer.head_sizes, mask, scale=layer.attention_scale
    )
    return packing.pack(context), scores


@dataclasses.dataclass(frozen=True)
class Fit:
    """Fits a student's weights to its teacher's, from the first block on.

    Between the fits, `states` holds of each batch `teacher` `[P, D]` and
    `student` `[P, C]`, the states that the next fit starts from, `inner`, what
    the last projection of a sublayer reads, and `sum`, what its norm reads.
    """

    teacher: FixedHeadBackbone
    student: FixedHeadBackbone
    states: States
    channels: np.ndarray
    ridge: float
    state_r2: list[float] = dataclasses.field(default_factory=list)
    logit_r2: list[float] = dataclasses.field(default_factory=list)

    def embeddings(self, skipped: _Blocks) -> None:
        """Makes the tables, whose norm leads to the state after `skipped`."""
        teacher, student, states = self.teacher, self.student, self.states
        projection = self._components()
        for layer in ("token", "position", "segment"):
            before, after = (
                getattr(x, f"{layer}_embedding") for x in (teacher, student)
            )
            for old, new in zip(before.weights, after.weights, strict=True):
                new.assign(to_numpy(old, "float64") @ projection)
        norm = teacher.embeddings_layer_norm
        for number, inputs, packing in states.each():
            x = norm(teacher.sum_packed_embeddings(inputs, packing))
            for block in skipped:
                x = block(x, packing=packing, use_causal_mask=teacher.causal)
            states.write("teacher", number, x)
            x = student.sum_packed_embeddings(inputs, packing)
            states.write("sum", number, x)
        self.state_r2.append(self._norm(norm, student.embeddings_layer_norm))

    def _components(self):
        """Projects embeddings to principal components, in the channels' places.

        `[D, C]`. The kept channels alone would lose more of each token. One
        half of the weight is that of the texts, one that of the vocabulary,
        for rare words.
        """
        teacher, states = self.teacher, self.states
        table = to_numpy(teacher.token_embedding.embeddings, "float64")
        products = table.T @ table / len(table)
        for _, inputs, packing in states.each():
            x = teacher.sum_packed_embeddings(inputs, packing)
            x = to_numpy(x, "float64")
            products += x.T @ x / states.tokens
        count = len(self.channels)
        components = np.linalg.eigh(products).eigenvectors[:, -count:]
        return components @ components[self.channels].T

    def block(
        self, block: FixedHeadTransformerBlock, replaced: _Blocks
    ) -> None:
        """Fits a block to the consecutive blocks that it replaces.

        Its attention becomes that of the first, and its feed-forward layer
        leads to the state after the last.
        """
        first, attention = replaced[0], replaced[0].attention
        ours = block.attention
        self._through_guess(
            (attention.query, attention.key, attention.value),
            (ours.query, ours.key, ours.value),
        )
        self._attention(block, first)
        self._norm(first.attention_layer_norm, block.attention_layer_norm)
        self._through_guess(
            (first.intermediate_dense,), (block.intermediate_dense,)
        )
        self._feed_forward(block, replaced)
        self.state_r2.append(
            self._norm(replaced[-1].output_layer_norm, block.output_layer_norm)
        )

    def _through_guess(self, before, after):
        """Fits projections that read the state.

        Least squares guess the teacher's state from the student's; the
        teacher's projections of the guess are the student's.
        """
        channels = self.channels
        guess = LeastSquares(
            np.eye(self.teacher.hidden_dim)[channels], 0.0, self.ridge
        )
        for number, _, _ in self.states.each():
            student, teacher = self._read(number, "student", "teacher")
            guess.add(student, teacher)
        kernel, bias = guess.solve()
        for old, new in zip(before, after):
            theirs = to_numpy(old.kernel, "float64")
            new.kernel.assign(kernel @ theirs)
            new.bias.assign(bias @ theirs + to_numpy(old.bias, "float64"))

    def _attention(self, block, first):
        states = self.states
        logits = Explained()
        fit = self._sliced(first.attention.attention_output)
        for number, inputs, packing in states.each():
            student, teacher = self._read(number, "student", "teacher")
            x, wanted = _attend(self.teacher, first, teacher, packing)
            inner, found = _context(self.student, block, student, packing)
            logits.add(*centred_logits(wanted, found, inputs["padding_mask"]))
            fit.add(inner, self._kept(x) - student)
            states.write("inner", number, inner)
            states.write("teacher", number, first.attention_layer_norm(x))
        self.logit_r2.append(logits.r2)
        self._project(fit, block.attention.attention_output)

    def _feed_forward(self, block, replaced):
        states = self.states
        first = replaced[0]
        fit = self._sliced(first.output_dense)
        for number, _, packing in states.each():
            student, teacher = self._read(number, "student", "teacher")
            x = own = _feed_forward_sum(first, teacher)
            for before, after in itertools.pairwise(replaced):
                x = before.output_layer_norm(x)
                x, _ = _attend(self.teacher, after, x, packing)
                x = _feed_forward_sum(after, after.attention_layer_norm(x))
            if len(replaced) > 1:
                x = _rescaled(x, own)
            inner = block.intermediate_dense(student)
            fit.add(inner, self._kept(x) - student)
            states.write("inner", number, inner)
            states.write("teacher", number, replaced[-1].output_layer_norm(x))
        self._project(fit, block.output_dense)

    def _sliced(self, dense):
        """A fit that starts from a projection onto the kept channels."""
        kernel, bias = (
            to_numpy(x, "float64")[..., self.channels]
            for x in (dense.kernel, dense.bias)
        )
        return LeastSquares(kernel, bias, self.ridge)

    def _project(self, fit, dense):
        """Sets a projection to its fit, and writes the sums after it."""
        kernel, bias = fit.solve()
        dense.kernel.assign(kernel)
        dense.bias.assign(bias)
        for number, _, _ in self.states.each():
            student, inner = self._read(number, "student", "inner")
            self.states.write("sum", number, student + dense(inner))

    def _norm(self, before, after):
        """Fits a norm, channel by channel, and writes the student's states.

        Returns their R2.
        """
        gamma, beta = (
            to_numpy(x, "float64")[self.channels]
            for x in (before.gamma, before.beta)
        )
        after.gamma.assign(np.ones_like(gamma))
        after.beta.assign(np.zeros_like(beta))
        fits = LineFits()
        for number, _, _ in self.states.each():
            x, y = self._read(number, "sum", "teacher")
            x = to_numpy(after(x), "float64")
            fits.add(x, to_numpy(self._kept(y)) - (gamma * x + beta))
        slopes, offsets = fits.solve()
        after.gamma.assign(gamma + slopes)
        after.beta.assign(beta + offsets)
        explained = Explained()
        for number, _, _ in self.states.each():
            x, y = self._read(number, "sum", "teacher")
            x = after(x)
            explained.add(to_numpy(self._kept(y)), to_numpy(x))
            self.states.write("student", number, x)
        return explained.r2

    def _read(self, number, *names):
        dtype = self.teacher.compute_dtype
        return [self.states.read(name, number, dtype) for name in names]

    def _kept(self, x):
        return ops.take(x, self.channels, axis=-1)
