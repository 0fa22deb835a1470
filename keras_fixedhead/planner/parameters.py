"""How many parameters a shape has, part by part.

Shape letters: D embedding size, W the width of all heads of a layer (their
head sizes added), F feed-forward width, V vocabulary size.
"""

import dataclasses

from keras_fixedhead.planner.shape import EncoderShape


@dataclasses.dataclass(frozen=True)
class ParameterCount:
    """The parameters of an encoder and of its two pre-training heads.

    Exactly those of `FixedHeadBackbone(...)`, and of the
    `FixedHeadMaskedLM(...)` around it: every dense layer has a bias, and the
    matrix of the logits is the token embedding once more.

    Attributes:
        token_embedding: int. V D.
        position_embedding: int.
        segment_embedding: int.
        norms: int. Those of the embeddings and of the layers, 2 D each.
        query: int. (D + 1) W of each layer, and so the next two.
        key: int.
        value: int.
        attention_output: int. (W + 1) D of each layer.
        feed_forward: int. (D + 1) F + (F + 1) D of each layer.
        pooler: int. (D + 1) D, or 0.
        masked_lm_head: int. A dense layer, a norm, and a bias for each word.
        next_sentence_head: int. 2 (D + 1) on the pooler; 0 without a pooler.
    """

    token_embedding: int
    position_embedding: int
    segment_embedding: int
    norms: int
    query: int
    key: int
    value: int
    attention_output: int
    feed_forward: int
    pooler: int
    masked_lm_head: int
    next_sentence_head: int

    @classmethod
    def of(cls, model):
        """The parameters of an `EncoderShape` or a `FixedHeadBackbone`."""
        shape = EncoderShape.of(model)
        d, layers = shape.hidden_dim, shape.num_layers
        norm = 2 * d
        width = sum(shape.attention_widths)  # of all layers
        projection = (d + 1) * width
        inner = shape.intermediate_dim
        return cls(
            token_embedding=shape.vocabulary_size * d,
            position_embedding=shape.max_sequence_length * d,
            segment_embedding=shape.num_segments * d,
            norms=(1 + 2 * layers) * norm,
            query=projection,
            key=projection,
            value=projection,
            attention_output=(width + layers) * d,
            feed_forward=layers * ((d + 1) * inner + (inner + 1) * d),
            pooler=(d + 1) * d if shape.pooler else 0,
            masked_lm_head=(d + 1) * d + norm + shape.vocabulary_size,
            next_sentence_head=(d + 1) * 2 if shape.pooler else 0,
        )

    @property
    def encoder(self):
        """Those of the `FixedHeadBackbone` alone."""
        return self.total - self.masked_lm_head - self.next_sentence_head

    @property
    def total(self):
        """All, with both pre-training heads: what the paper counts."""
        return sum(dataclasses.astuple(self))
